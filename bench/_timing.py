"""Timing for the speed comparisons: contenders take turns in one run, so that a busy machine slows them all alike."""

import time


def interleave(contenders, repeats=7):
    """{name: (min, max) seconds} of {name: callable}; one call each to warm up, then `repeats` rounds."""
    for call in contenders.values():
        call()
    seconds = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: (min(times), max(times)) for name, times in seconds.items()}


def row(*cells):
    """Print one row of a Markdown table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def table(title, timings, ours):
    """Print each contender's time, and how many times longer than `ours` it took (ratio of minima)."""
    print(f"\n{title}\n")
    row("contender", "min ms", "max ms", "time / ours")
    row("---", "---:", "---:", "---:")
    for name, (low, high) in timings.items():
        row(name, f"{1e3 * low:.2f}", f"{1e3 * high:.2f}", f"{low / timings[ours][0]:.1f}x")
