"""Whether the claims of `dubnb compare` hold, on logs of the simulated worlds.

    python -m bench.coverage_compare run --logs 5 --minutes 5   # 5 seeds x 4 worlds x 2 labels; run it again to go on
    python -m bench.coverage_compare summary                    # writes both records

`compare` chooses and claims without reading the truth. Three things are then checked, for the same fitted models:

1. whether the 95 % interval of each gain that it prints holds the true gain;
2. whether the chosen system has at least 95 % of the true likes in the top 10 that the best compared system has;
3. how often it says "Take ...", and whether the chosen system is then truly better than its rival.

The true gain is conditional on the fits: users, candidates and models are those of the log, only the labels that S_te
drew are replaced by what is true of every candidate. With y_ui the share of the randomized log's days on which the user
likes the item (0 or 1 where tastes do not change), e the chance that an impression of the randomized log is examined (1
for stars) and a = e y the chance of a positive label:

    liked@10     mean of a over the top 10 of every user of S_te
    user_auc     per user, sum_ij a_i (1 - a_j) [s_i > s_j] / sum_ij a_i (1 - a_j) over candidates i != j
    percentile   per user, sum_ij a_i [s_i > s_j] / sum_ij a_i over candidates i != j

The last two are means over the same users as on S_te. In `world-drift` tastes change: what is true on the last day is
recorded too, as "end". No interval from the log promises that.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from dubnb.data import worlds
from dubnb.data.partition import Partition
from dubnb.evaluation import top_k
from dubnb.sweeps import worker

FIRST_SEED = 1000
LABELS = ("clicks", "stars")
SYSTEMS = ("base", "combine", "dub", "dub-x binary", "dub-x graded", "popularity")
SIZES = {"impressions": 24_000, "random_rows": 6_000}
BUDGET = "quick"
LENGTH = 10
NEAR = 0.95  # of the best system's true likes
SEARCHES = {  # what budget quick may spend
    "quick": {},
    "short": {"points": 3, "seeds": 2, "extensions": 0},
}
WANTED = 40  # logs
DAYS = 8  # times at which the truth is looked up
RESULTS = Path("bench/records/compare-worlds.json")
COVERAGE = Path("bench/records/coverage-compare.json")
LINES = Path("bench-results/compare-worlds.jsonl")
FITTED: dict[str, Any] = {}  # directory -> rows of its trials


# ---- what is true --------------------------------------------------------------------------------------------------


def true_labels(logs: worlds.Logs, world: str, seed: int, data: Partition) -> dict[str, np.ndarray]:
    """(users, items) likes: "during" is the share of the randomized log's days with a like, "end" the last day."""
    users, items = data.user_ids.values - 1, data.item_ids.values - 1
    company = worlds.WORLDS[world]
    end = logs.truth.of(users, items)
    likes = np.asarray(end.label_rows(np.arange(len(users))))
    if not company.rotation and not company.trend:
        return {"during": likes, "end": likes}
    people = worlds._people(company, worlds.WorldStreams(seed, world, 0))
    now, cuts = people.logits(users, np.ones(len(users))), np.log(end.draws) - np.log1p(-end.draws)
    times = (np.arange(DAYS) + 0.5) / DAYS
    liked = [end.logits + (people.logits(users, np.full(len(users), each)) - now)[:, items] > cuts for each in times]
    return {"during": np.mean(liked, axis=0), "end": likes}


def examined(labels: str) -> float:
    """e: the chance that an impression of the randomized log is looked at."""
    if labels == "stars":
        return 1.0
    return float(np.mean(1.0 / (1.0 + worlds.EXAMINATION * np.arange(worlds.RANDOM_SLOTS))))


def above(scores: np.ndarray, positive: np.ndarray, other: np.ndarray) -> float:
    """sum_ij p_i o_j [s_i > s_j] / sum_ij p_i o_j over i != j; a tie counts one half."""
    values, rank = np.unique(scores, return_inverse=True)
    p, o, own = (np.bincount(rank, weights, len(values)) for weights in (positive, other, positive * other))
    wins = float(p @ (np.cumsum(o) - o) + (p @ o - own.sum()) / 2)
    pairs = float(positive.sum() * other.sum() - own.sum())
    return wins / pairs if pairs > 0 else float("nan")


def true_values(scores: np.ndarray, chances: np.ndarray, data: Partition, metric: str, users: np.ndarray) -> np.ndarray:
    """The true value of liked@10, user_auc or percentile for each of some users (rows). `chances`: a."""
    barred = data.everything_but("S_te").mask(users, data.n_items)
    scores, chances = scores[users], chances[users]
    if metric == "liked@10":
        top = top_k(scores, LENGTH, barred)
        return np.where(top >= 0, np.take_along_axis(chances, np.maximum(top, 0), axis=1), np.nan).mean(axis=1)
    found = np.empty(len(users))
    for row, open_to in enumerate(~barred):
        a = chances[row, open_to]
        others = 1.0 - a if metric == "user_auc" else np.ones(len(a))
        found[row] = above(scores[row, open_to], a, others)
    return found


def true_mean(study: Any, case: Any, metric: str, chances: np.ndarray, scores: list[np.ndarray]) -> float:
    """A metric's true value: the mean over the users that S_te judges it on, and over the seeds."""
    each = []
    for fit, own in zip(study.results[case], scores, strict=True):
        judged = fit.output.judged_users["S_te"]
        users = judged.users
        if metric != "liked@10":
            users = users[~np.isnan(getattr(judged, metric))]
        each.append(np.nanmean(true_values(own, chances, study.design.source, metric, users)))
    return float(np.mean(each))


def refitted(study: Any, case: Any) -> list[np.ndarray]:
    """(users, items) scores of the case's fits, seed by seed: fitted again, and found to be the same."""
    data = study.design.source
    S_te, found = data.triplets("S_te"), []
    for fit in study.results[case]:
        model = case.system.method_class()(**study.winners[case].params, seed=fit.seed).fit(data)
        scores = np.asarray(model.weights_.score_rows(np.arange(data.n_users)))
        if not np.allclose(scores[S_te.users, S_te.items], fit.output.scores, rtol=1e-4, atol=1e-5):
            raise RuntimeError(f"{case} with seed {fit.seed} is not what compare judged")
        found.append(scores)
    return found


# ---- one log -------------------------------------------------------------------------------------------------------


def in_this_process(
    trials: Any,
    data: Any,
    out: Any,
    resources: Any = None,
    protocol: str = "full-ranking",
    list_length: Any = None,
    models: Any = None,
) -> Any:
    """`run_fits` without worker processes and ledger: the same fits, and nothing to start six times per log."""
    from dubnb.sweeps.runner import OUTPUTS, Fits
    from dubnb.sweeps.trial import OutputFiles, Rules

    directory, stored = (os.path.join(os.path.abspath(out), name) for name in (OUTPUTS, "pretrained"))
    os.makedirs(directory, exist_ok=True)
    os.makedirs(stored, exist_ok=True)
    if models is not None:
        os.makedirs(models.directory, exist_ok=True)
    outputs = list_length and OutputFiles(directory, list_length)
    rules = Rules(protocol, pretrained=stored, outputs=outputs, models=models)
    logs = {log.fingerprint: log for log in data}
    rows = FITTED.setdefault(directory, {})
    for trial in trials:
        if trial.key not in rows or (list_length and not os.path.exists(worker.path_of(directory, trial.key))):
            rows[trial.key] = {"metrics": None, "epochs_run": None, "seconds": None}
            rows[trial.key] |= json.loads(worker.run(trial, rules, logs))
    return Fits(rows, directory)


def one_log(world: str, labels: str, seed: int, out: str, search: str = "quick") -> dict[str, Any]:
    """What `compare` says about one log, and what is true."""
    from dubnb.experiments.budgets import BUDGETS
    from dubnb.experiments.compare import compare
    from dubnb.experiments.systems import Choice

    start = time.perf_counter()
    logs = worlds.make_world(world, labels, seed, **SIZES)
    data = logs.partition(f"{world}:{labels}")
    budget = {BUDGET: BUDGETS[BUDGET]._replace(**SEARCHES[search])}
    in_process = mock.patch("dubnb.sweeps.runner.run_fits", in_this_process)
    with warnings.catch_warnings(), in_process, mock.patch.dict(BUDGETS, budget):
        warnings.simplefilter("ignore")
        done = compare(data, out, BUDGET, Choice(SYSTEMS))
        return judged(done, true_labels(logs, world, seed, data), examined(labels)) | {
            "world": world,
            "labels": labels,
            "seed": seed,
            "search": search,
            "seconds": round(time.perf_counter() - start, 1),
        }


def claims_of(done: Any) -> list[dict[str, Any]]:
    """The gains that the answer prints, and those in liked@10 that `--metric liked@10` would print for these fits."""

    printed = not {"smoke", "few positives"} & set(done.verdict.why_not)  # else the answer has no gains
    found = [claim._asdict() | {"printed": printed} for claim in done.claims]
    rival = done.verdict.rival
    if rival is not None and done.metric != "liked@10":
        liked = done.study.liked(done.verdict.best, rival, LENGTH)
        both = {"metric": "liked@10", "first": done.verdict.best, "second": rival, "printed": False}
        values = {"value": liked.ratio, "low": liked.ratio_low, "high": liked.ratio_high}
        found.append(both | {"kind": "ratio"} | values)
    for claim in found:
        claim["what"] = "its rival" if claim["second"] == rival else claim["second"].system.name
    return found


def judged(done: Any, labels: dict[str, np.ndarray], e: float) -> dict[str, Any]:
    """The answer of a `Compared`, its claims beside the truth, and the true likes of every compared system."""
    study = done.study
    likes = {case.system.name: _mean_metric(study, case, "truth_liked@10") for case in study.results}
    first_round = {system.name: fit.metrics["truth_liked@10"] for system, fit in done.screened.items() if fit.done}
    best = max(likes, key=lambda name: likes[name])
    scores: dict[Any, list[np.ndarray]] = {}
    known: dict[Any, float] = {}
    claims = []
    for claim in claims_of(done):
        true = {}
        for when, liked in labels.items():
            if when == "end" and liked is labels["during"]:
                true[when] = true["during"]
                continue
            for case in (claim["first"], claim["second"]):
                if case not in scores:
                    scores[case] = refitted(study, case)
                if (case, claim["metric"], when) not in known:
                    mean = true_mean(study, case, claim["metric"], e * liked, scores[case])
                    known[case, claim["metric"], when] = mean
            one, other = (known[claim[side], claim["metric"], when] for side in ("first", "second"))
            true[when] = one - other if claim["kind"] == "difference" else one / other
        names = {side: claim[side].system.name for side in ("first", "second")}
        claims.append(claim | names | {"truth": true})
    return {
        "answer": list(done.answer),
        "metric": done.metric,
        "chosen": done.winner,
        "rival": None if done.verdict.rival is None else done.verdict.rival.system.name,
        "level": [case.system.name for case in done.verdict.level],
        "on_S_va": {case.system.name: _mean_validation(study, case, done.metric) for case in study.results},
        "takes": done.takes,
        "why_not": list(done.verdict.why_not),
        "best": best,
        "share_of_best": likes[done.winner] / likes[best],
        "true_likes": likes,
        "true_likes_first_round": first_round,
        "positives": {part: int(study.design.source.unseen(part).labels.sum()) for part in ("S_va", "S_te")},
        "claims": claims,
    }


def _mean_metric(study: Any, case: Any, metric: str) -> float:
    return float(np.mean([fit.metrics[metric] for fit in study.results[case]]))


def _mean_validation(study: Any, case: Any, metric: str) -> float:
    return float(np.mean([fit.metrics[f"va_{metric}"] for fit in study.results[case]]))


# ---- many logs -----------------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    """What has been computed: a line per log."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(n_logs: int, minutes: float, lines: Path, search: str) -> None:
    """Compare the logs that are not there yet, seed by seed, until the time is up."""
    end = time.monotonic() + 60 * minutes
    lines.parent.mkdir(parents=True, exist_ok=True)
    known = {(line["world"], line["labels"], line["seed"]) for line in read(lines)}
    cells = [(world, labels) for world in worlds.WORLDS for labels in LABELS]
    todo = [(*cell, FIRST_SEED + k) for k in range(n_logs) for cell in cells]
    for world, labels, seed in todo:
        if (world, labels, seed) in known:
            continue
        if time.monotonic() > end:
            return
        with tempfile.TemporaryDirectory() as out:
            line = one_log(world, labels, seed, out, search)
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{world}:{labels} {seed} {line['seconds']} s: {line['chosen']}, {line['share_of_best']:.3f}", flush=True)


def held(claim: dict[str, Any], when: str) -> bool:
    """Whether the interval of a claim holds what is true."""
    return bool(claim["low"] <= claim["truth"][when] <= claim["high"])


def summary(every: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the record of coverages, the fuller record) of the lines of some logs."""
    from dubnb import stats

    def share(successes: list[bool]) -> dict[str, Any]:
        if not successes:
            return {"n": 0}
        rate = stats.binomial_rate(sum(successes), len(successes))
        return {"n": rate.n, "share": round(rate.rate, 4), "low": round(rate.low, 4), "high": round(rate.high, 4)}

    def facts(lines: list[dict[str, Any]]) -> dict[str, Any]:
        takes = [line for line in lines if line["takes"]]
        printed = [claim for line in lines for claim in line["claims"] if claim["printed"]]
        return {
            "logs": len(lines),
            "interval holds, truth during the log": share([held(claim, "during") for claim in printed]),
            "interval holds, truth on the last day": share([held(claim, "end") for claim in printed]),
            "chosen within 5 % of the best": share([line["share_of_best"] >= NEAR for line in lines]),
            "says Take": share([line["takes"] for line in lines]),
            "Take, and truly better than the rival": share([better(line) for line in takes]),
            "Take, and within 5 % of the best": share([line["share_of_best"] >= NEAR for line in takes]),
        }

    by_cell = {
        f"{world}:{labels}": facts([line for line in every if (line["world"], line["labels"]) == (world, labels)])
        for world in worlds.WORLDS
        for labels in LABELS
    }
    sizes = f"{SIZES['impressions']:,} impressions, {SIZES['random_rows']:,} randomized ones"
    searches = ", ".join(sorted({f"{line['search']} {SEARCHES[line['search']] or ''}".strip() for line in every}))
    about = f"budget {BUDGET}, search {searches}; {sizes}; systems: {', '.join(SYSTEMS)}; seeds {FIRST_SEED} and up"
    if len(every) < WANTED:
        about += f"; unfinished: {len(every)} of {WANTED} logs"
    coverage = []
    kind_of = operator.itemgetter("what", "metric", "kind", "printed")
    for what, metric, kind, printed in sorted({kind_of(claim) for line in every for claim in line["claims"]}):
        cells: dict[str, list[bool]] = {}
        last_day, n_logs = [], 0
        for line in every:
            own = [claim for claim in line["claims"] if kind_of(claim) == (what, metric, kind, printed)]
            n_logs += bool(own)
            cells.setdefault(line["world"], []).extend(held(claim, "during") for claim in own)
            last_day += [held(claim, "end") for claim in own]
        outcomes = [each for own in cells.values() for each in own]
        where = "dubnb compare" if printed else f"dubnb compare --metric {metric} (computed, not printed in these runs)"
        by_world = ", ".join(f"{world} {sum(own)} of {len(own)}" for world, own in cells.items() if own)
        coverage.append(
            {
                "interval": f"{where}: gain of the chosen system over {what}, {metric}, {kind}",
                "command": "python -m bench.coverage_compare run --logs 5 --search short, then ... summary",
                "logs": n_logs,
                "nominal": 0.95,
                "coverage": round(float(np.mean(outcomes)), 4),
                "notes": f"conditional on the fits; {by_world}; against likes of the last day alone "
                f"{np.mean(last_day):.3f}; {about}",
            }
        )
    return coverage, {"about": about, "all": facts(every), "by log": by_cell, "logs": every}


def better(line: dict[str, Any]) -> bool:
    """Whether the chosen system truly gains over its rival in the claimed metric, while the log was written."""
    own = [claim for claim in line["claims"] if claim["printed"] and claim["what"] == "its rival"]
    return all(claim["truth"]["during"] > (0 if claim["kind"] == "difference" else 1) for claim in own)


def main() -> None:
    """Run, or summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "summary"))
    parser.add_argument("--logs", type=int, default=5, help="seeds for each of the eight kinds of logs")
    parser.add_argument("--minutes", type=float, default=60, help="start no log after so many")
    parser.add_argument("--search", choices=tuple(SEARCHES), default="quick", help="short: a fifth of the fits")
    parser.add_argument("--lines", type=Path, default=LINES, help="where a line per log is kept")
    args = parser.parse_args()
    if args.action == "run":
        run(args.logs, args.minutes, args.lines, args.search)
        return
    coverage, fuller = summary(read(args.lines))
    COVERAGE.write_text(json.dumps(coverage, indent=1) + "\n")
    RESULTS.write_text(json.dumps(fuller, indent=1) + "\n")
    print(json.dumps({name: fuller[name] for name in ("all", "by log")}, indent=1))


if __name__ == "__main__":
    main()
