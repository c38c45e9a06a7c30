"""Timing for the speed comparisons: contenders take turns in one run, so that a busy machine slows all of them.

A ratio is that of the minima. Its spread is the smallest and the largest ratio within one round, while the load of the
machine hardly changes.
"""

import time
from typing import NamedTuple

RECORDS = []  # every comparison of this process, in order: what `python -m bench` writes to its files
UNITS = {"ms": 1e3, "us": 1e6}


class Goal(NamedTuple):
    """What a ratio should be: at least `bound` for peer / ours, or at most `bound` for ours / peer."""

    sign: str
    bound: float

    def met(self, ratio):
        return ratio >= self.bound if self.sign == ">=" else ratio <= self.bound


def at_least(bound):
    """Ours should be so many times faster than the peer."""
    return Goal(">=", bound)


def at_most(bound):
    """Ours may take so many times the peer's time."""
    return Goal("<=", bound)


def measure(contenders, repeats=7, warm=True, clock=time.process_time):
    """{name: [seconds]} of {name: callable}; `repeats` rounds in turn, by default after one to warm up.

    By default CPU seconds: nearly everything here runs on one thread, and what other processes take does not count.
    """
    for call in contenders.values() if warm else ():
        call()
    seconds = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            seconds[name].append(timed(call, clock))
    return seconds


def timed(call, clock=time.process_time):
    """Seconds of one call."""
    start = clock()
    call()
    return clock() - start


def interleave(contenders, repeats=7):
    """{name: (min, max) seconds} of {name: callable}."""
    return {name: (min(times), max(times)) for name, times in measure(contenders, repeats).items()}


def row(*cells):
    """Print one row of a Markdown table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def table(title, timings, ours, goals=None, unit="ms"):
    """Print and record each contender's time and its ratio to `ours`; timings: {name: list of seconds per round}.

    goals: {name: Goal}. With at_most the ratio is ours / contender, else contender / ours.
    """
    print(f"\n{title}\n")
    row("contender", f"min {unit}", f"max {unit}", "ratio", "spread", "goal")
    row("---", "---:", "---:", "---:", "---:", "---:")
    for name, times in timings.items():
        goal = (goals or {}).get(name)
        ratio, low, high = _ratio(times, timings[ours], goal)
        record = {"title": title, "ours": ours, "contender": name, "unit": unit}
        record |= {"min": min(times) * UNITS[unit], "max": max(times) * UNITS[unit]}
        if name != ours:
            record |= {"ratio": ratio, "spread": (low, high)} | judged(ratio, goal)
        RECORDS.append(record)
        row(*cells(record))


def _ratio(times, ours, goal):
    """Ratio of the minima, and the smallest and largest ratio within a round."""
    over, under = (ours, times) if goal is not None and goal.sign == "<=" else (times, ours)
    rounds = [a / b for a, b in zip(over, under, strict=False)]
    return min(over) / min(under), min(rounds), max(rounds)


def judged(ratio, goal):
    """The goal as text and whether it was reached; the way the ratio was taken."""
    if goal is None:
        return {"goal": "", "met": None, "of": "contender / ours"}
    of = "ours / contender" if goal.sign == "<=" else "contender / ours"
    return {"goal": f"{goal.sign} {goal.bound:g}", "met": bool(goal.met(ratio)), "of": of}


def figure(title, name, value, unit, goal=None):
    """Print and record one number that is not a ratio of times, such as a peak of memory."""
    record = {"title": title, "contender": name, "value": value, "unit": unit} | judged(value, goal)
    RECORDS.append(record)
    verdict = f" (goal {record['goal']}: {'reached' if record['met'] else 'NOT reached'})" if goal else ""
    print(f"{title}: {name} {value:.3g} {unit}{verdict}", flush=True)


def skipped(peer, why):
    """Name a peer that could not run."""
    RECORDS.append({"title": "skipped", "contender": peer, "why": why})
    print(f"skipped: {peer} ({why})", flush=True)


def cells(record):
    """A record as the cells of a Markdown row."""
    times = [f"{record[bound]:.4g}" for bound in ("min", "max")]
    if "ratio" not in record:
        return [record["contender"], *times, "", "", ""]
    verdict = "" if record["met"] is None else f"{record['goal']} {'reached' if record['met'] else 'NOT reached'}"
    inverse = " (ours / peer)" if record["of"].startswith("ours") else ""
    low, high = record["spread"]
    return [record["contender"], *times, f"{record['ratio']:.3g}x{inverse}", f"{low:.3g}..{high:.3g}", verdict]
