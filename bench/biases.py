"""Which method answers which bias: every registered method on the worlds `bias-*`, its regularisation chosen on S_va.

    python -m bench.biases run --minutes 10     # one line per fit in bench-results/biases.jsonl; run it again to go on
    python -m bench.biases summary              # writes bench/records/biases.json and coverage-arena.json

The worlds of a seed share people, items and likes; only the mechanism that makes the biased log differs. The number of
a cell is the true share of liked items in a user's top 10 (truth_liked@10), in the mean over the data seeds that the
record names; a whole run has 1000, 1001 and 1002. Every method has one fit with each of FACTORS: the parameters of its
regularisation are multiplied by the factor, all others are the defaults, and the model's seed is 0. The best percentile
on S_va is kept, the default if nothing is better. dub-x and dub-xi have one fit, with the default, because that chooses
among more candidates by itself. The record also has the numbers with the default. With at least LEAST_SEEDS whole
seeds, the table has the mean difference to base over worlds with its 95 % t interval, paired by seed, because the
worlds of a seed share people.

The same fits check the interval that the arena prints: the gain in the percentile over popularity, paired over users.
The truth is that of the same fitted models, with all likes in place of those that S_te has (see coverage_compare).
"""

import argparse
import collections
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np

from bench.coverage_compare import true_values

SEEDS = (1000, 1001, 1002)
LINES = Path("bench-results/biases.jsonl")
RECORD, COVERAGE = Path("bench/records/biases.json"), Path("bench/records/coverage-arena.json")
METRICS = ("truth_liked@10", "truth_ndcg", "truth_auc", "percentile", "auc", "ndcg")
POPULARITY, BASE, LEAST_SEEDS = "popularity", "base", 3
FACTORS = (1.0, 2.0, 0.5, 0.25, 0.1)  # the default comes first, so that it wins ties
BESIDE = ("simulated", "yahoo-like")  # logs whose `strength` is recorded for comparison
SCALED = ("lam", "cutoff", "pretrain_lam", "teacher_lam")  # what a factor multiplies
COMMAND = "python -m bench.biases run, then ... summary"


def judged_model(model, data):
    """(metrics, per-user percentiles of S_te, true percentiles of the same users)."""
    from dubnb.evaluation import judge

    found = judge(model.weights_, data)
    scores = np.asarray(model.weights_.score_rows(np.arange(data.n_users)))
    likes = np.asarray(data.truth.label_rows(np.arange(data.n_users)))
    known = ~np.isnan(found.judged.percentile)
    true = true_values(scores, likes, data, "percentile", found.judged.users[known])
    return {name: float(found.result[name]) for name in METRICS}, found.judged.percentile[known], true


def candidates(name, data):
    """(factor, model, its warnings) of every factor; one fit if there is nothing to choose or a fit chooses itself."""
    from dubnb import make

    alone = make(name).inner_candidates(data) > 1
    resolved = make(name).resolve(data)
    scaled = {key: resolved.centre(key) for key in SCALED if getattr(resolved, key, None)}
    for factor in FACTORS if scaled and not alone else FACTORS[:1]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            params = {} if factor == 1 else {key: factor * value for key, value in scaled.items()}
            model = make(name, **params).fit(data)
        yield factor, model, sorted({str(each.message)[:160] for each in caught})


def best_of(name, data):
    """(the model with the best percentile on S_va, what is kept of the choice)."""
    from dubnb import make
    from dubnb.evaluation import judge

    found = [
        (judge(model.weights_, data, truth=False, part="S_va").result["percentile"], factor, model, said)
        for factor, model, said in candidates(name, data)
    ]
    _, factor, model, said = max(found, key=lambda each: each[0])
    first = judge(found[0][2].weights_, data).result
    by_default = {key: float(first[key]) for key in (METRICS[0], "personal")}
    personal = float(judge(model.weights_, data).result["personal"])
    tried = len(found) * make(name).inner_candidates(data)
    kept = {"factor": factor, "candidates": tried, "personal": personal, "by_default": by_default}
    return model, kept | ({"warnings": said} if said else {})


def one_world(world, seed, known, end):
    """Lines of the methods that are not known yet, until the time is up."""
    from dubnb import load_dataset, make, stats
    from dubnb.methods import METHODS

    missing = [name for name in METHODS if (world, seed, name) not in known]
    if not missing:
        return
    data = load_dataset(world, seed=seed)
    _, beside, true_beside = judged_model(make(POPULARITY).fit(data), data)
    for name in missing:
        if time.monotonic() > end:
            return
        start = time.process_time()
        line = {"world": world, "seed": seed, "method": name}
        try:
            model, kept = best_of(name, data)
        except Exception as error:
            yield line | {"failed": f"{type(error).__name__}: {error}"[:200]}
            continue
        line |= {"cpu_seconds": round(time.process_time() - start, 3)} | kept
        metrics, own, true = judged_model(model, data)
        gain = stats.paired_bootstrap(own, beside, seed=0)
        line |= {"metrics": metrics, "gain": gain.difference, "low": gain.low, "high": gain.high}
        yield line | {"true_gain": float(np.nanmean(true - true_beside))}


def strength(data):
    """How strongly the largest direction of the labels pulls at factors of 0, over how strongly base's lam holds them.

    With the residuals e of a fit of user and item means, mean gradients per batch pull the factors by e / B. A row's
    decay is lam times the number of batches that touch it. Factors grow from 0 if the largest singular value of
    e / (B sqrt(decay of the user x decay of the item)) is above 1. (bce has e itself as its gradient.)
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import svds

    from dubnb import make

    S_c, base = data.triplets("S_c"), make(BASE).resolve(data)
    n, batch = len(S_c.users), base.batch_size
    e = S_c.labels - S_c.labels.mean(dtype=np.float64)
    sides = [(S_c.users, data.n_users), (S_c.items, data.n_items)]
    for _ in range(10):  # alternating means
        for rows, size in sides:
            e = e - (np.bincount(rows, e, size) / np.maximum(np.bincount(rows, minlength=size), 1))[rows]
    weights = np.ones(n)
    for rows, size in sides:
        touched = n / batch * (1 - (1 - np.bincount(rows, minlength=size) / n) ** batch)
        weights /= np.sqrt(base.lam * touched)[rows]
    pulls = csr_matrix((weights * e / batch, (S_c.users, S_c.items)), (data.n_users, data.n_items))
    start = np.ones(min(data.n_users, data.n_items))
    return float(svds(pulls, 1, v0=start, return_singular_vectors=False)[0])


def read(path):
    """What has been computed."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(minutes, lines):
    """Fit what is missing, seed by seed."""
    from dubnb.data.biases import BIASES

    end = time.monotonic() + 60 * minutes
    lines.parent.mkdir(parents=True, exist_ok=True)
    known = {(line["world"], line["seed"], line["method"]) for line in read(lines)}
    for seed in SEEDS:
        for world in BIASES:
            for line in one_world(world, seed, known, end):
                with lines.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                shown = line.get("failed") or f"{line['metrics']['truth_liked@10']:.4f} {line['cpu_seconds']:.1f} s"
                print(f"{world} {seed} {line['method']}: {shown}", flush=True)


def summary(every):
    """(the record, the coverage of the arena's interval) of all lines."""
    from dubnb.data.biases import BIASES
    from dubnb.methods import METHODS

    every = [line for line in every if line["method"] in METHODS]
    done = [line for line in every if "failed" not in line]
    tried = {world: {line["method"] for line in every if line["world"] == world} for world in BIASES}
    worlds = [world for world in BIASES if len(tried[world]) == max(map(len, tried.values()))]
    means = {}
    for method in METHODS:
        own = {world: [x for x in done if (x["method"], x["world"]) == (method, world)] for world in worlds}
        if all(own.values()):
            means[method] = {
                world: {
                    "seeds": len(lines),
                    **{m: round(float(np.mean([line["metrics"][m] for line in lines])), 4) for m in METRICS},
                    "sd": round(float(np.std([line["metrics"][METRICS[0]] for line in lines], ddof=1)), 4)
                    if len(lines) > 1
                    else None,
                    "cpu_seconds": round(float(np.mean([line["cpu_seconds"] for line in lines])), 2),
                    "personal": round(float(np.mean([line["personal"] for line in lines])), 3),
                    "candidates": max(line["candidates"] for line in lines),
                    "factors": [line["factor"] for line in lines],
                    "by_default": {
                        key: round(float(np.mean([line["by_default"][key] for line in lines])), 4)
                        for key in lines[0]["by_default"]
                    },
                }
                for world, lines in own.items()
            }
    failed = sorted({f"{line['method']} on {line['world']}: {line['failed']}" for line in every if "failed" in line})
    tested = [line for line in done if line["method"] != POPULARITY]
    held = {world: [x["low"] <= x["true_gain"] <= x["high"] for x in tested if x["world"] == world] for world in BIASES}
    interval = "dubnb arena: gain over popularity, percentile, difference"
    about = f"{len(means)} methods, which share users and so depend on each other"
    coverage = [
        {
            "interval": interval,
            "command": COMMAND,
            "world": world,
            "logs": len({x["seed"] for x in tested if x["world"] == world}),
            "nominal": 0.95,
            "coverage": round(float(np.mean(own)), 4),
            "notes": f"conditional on the fits; {sum(own)} of {len(own)} intervals of {about}",
        }
        for world, own in held.items()
        if own
    ]
    seeds = sorted({x["seed"] for x in done if x["world"] in worlds})
    unfinished = [world for world in BIASES if world not in worlds]
    record = {"command": COMMAND, "seeds": seeds, "unfinished": unfinished, "methods": means, "failed": failed}
    record["over_base"] = over_base(done, worlds)
    said = [f"{x['method']}: {text.partition(':')[0]}" for x in done for text in x.get("warnings", ())]
    record["warnings"] = dict(collections.Counter(said))  # of the kept models; how often
    return record, coverage


def over_base(done, worlds):
    """{method: mean difference to base over worlds and its 95 % t interval}, from the seeds that have every world."""
    from scipy.stats import t

    values = {(x["method"], x["world"], x["seed"]): x["metrics"][METRICS[0]] for x in done}
    found = {}
    for method in dict.fromkeys(x["method"] for x in done if x["method"] != BASE):
        pairs = [
            [(values.get((method, world, seed)), values.get((BASE, world, seed))) for world in worlds]
            for seed in sorted({x["seed"] for x in done})
        ]
        gains = [np.mean([a - b for a, b in own]) for own in pairs if all(None not in pair for pair in own)]
        if len(gains) >= LEAST_SEEDS:
            half = t.ppf(0.975, len(gains) - 1) * np.std(gains, ddof=1) / np.sqrt(len(gains))
            low, mean, high = (round(float(np.mean(gains) + sign * half), 4) for sign in (-1, 0, 1))
            found[method] = {"seeds": len(gains), "difference": mean, "low": low, "high": high}
    return found


def order(record):
    """The methods by their mean rank over worlds, the best first."""
    from dubnb import stats

    names = list(record["methods"])
    worlds = list(next(iter(record["methods"].values())))
    values = [[record["methods"][name][world][METRICS[0]] for name in names] for world in worlds]
    ranks = stats.rank_test(np.array(values)).mean_ranks
    return [(name, float(rank)) for rank, name in sorted(zip(ranks, names, strict=True))]


def table(record):
    """The table of docs/biases.md: methods x worlds, the best of each world in bold."""
    worlds = list(next(iter(record["methods"].values())))
    numbers = {m: [own[world][METRICS[0]] for world in worlds] for m, own in record["methods"].items()}
    best = [max(column) for column in zip(*numbers.values(), strict=True)]
    head = ["method", *(world.removeprefix("bias-") for world in worlds), "mean rank", "CPU s"]
    gains = record.get("over_base", {})
    head += ["over base"] if gains else []
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for method, rank in order(record):
        cells = [f"**{x:.3f}**" if x == top else f"{x:.3f}" for x, top in zip(numbers[method], best, strict=True)]
        seconds = np.mean([own["cpu_seconds"] for own in record["methods"][method].values()])
        cells += [f"{rank:.1f}", f"{seconds:.1f}"]
        if gains:
            own = gains.get(method)
            cells.append(f"{own['difference']:+.3f} ({own['low']:+.3f} to {own['high']:+.3f})" if own else "")
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def default_table(record):
    """base with its default lam and with the chosen one: when do the factors vanish?"""
    head = ("log", "positives in S_c", "pull / decay", "personal, default lam", "default lam", "chosen lam", "factors")
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, log in sorted(record["logs"].items(), key=lambda item: item[1]["strength"]):
        own, cells = record["methods"][BASE].get(name), [f"{log['positives']:.3f}", f"{log['strength']:.2f}"]
        if own is not None:
            first = own["by_default"]
            numbers = (first["personal"], first[METRICS[0]], own[METRICS[0]])
            cells += [*(f"{x:.3f}" for x in numbers), ", ".join(f"{x:g}" for x in own["factors"])]
        lines.append(f"| `{name}` | {' | '.join(cells + [''] * (len(head) - 1 - len(cells)))} |")
    return "\n".join(lines)


def main():
    """Run, or summarise."""
    from dubnb import load_dataset

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "summary"))
    parser.add_argument("--minutes", type=float, default=60, help="start no fit after so many")
    parser.add_argument("--lines", type=Path, default=LINES, help="where a line per fit is kept")
    args = parser.parse_args()
    if args.action == "run":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(args.minutes, args.lines)
        return
    record, coverage = summary(read(args.lines))
    logs = {world: load_dataset(world, seed=SEEDS[0]) for world in (*record["methods"][BASE], *BESIDE)}
    record["logs"] = {
        name: {"strength": round(strength(log), 2), "positives": round(float(log.triplets("S_c").labels.mean()), 3)}
        for name, log in logs.items()
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    COVERAGE.write_text(json.dumps(coverage, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
