"""Rules of dub-x's choice compared on logs whose truth is known; data seeds below 1000.

    python -m bench.choice run [--seeds 2] [--logs world-niche:stars,...]   # run it again to go on
    python -m bench.choice show
    python -m bench.choice candidates --logs yahoo-like --seeds 4   # prints bench/records/yahoo-like-candidates.md
    python -m bench.choice power --logs simulated,... --seeds 2     # prints bench/records/small-power.md
    python -m bench.choice sweeps --logs simulated,... --seeds 6    # prints bench/records/row-sweeps.md
    python -m bench.choice blends --logs coat,... --seeds 5 --coat DIR   # prints bench/records/blends.md
    python -m bench.choice cutoffs --logs indifferent --seeds 5 --out cutoffs.json   # run it again to go on
    python -m bench.choice heads --logs world-niche:stars,... --seeds 3 --out heads.json   # run it again to go on

Every candidate is solved once on the log and once on each of four folds of S_t and S_va. A rule then gets what the fit
would see: AUC and nDCG of the candidates on S_va, or on the folds. What it chooses is judged by the true AUC and by the
true likes in the top 10, as differences to dub-x's first candidate. The truth judges rules, never candidates, and S_te
is not read.

"candidates" prints the candidates themselves: the truth, and what a rule sees on the folds. "sweeps" compares solves to
convergence with solves that stop by S_va, with the settings of the first candidate. "cutoffs" solves the settings
that a fit chose at the cutoff .25 again with a smaller `cutoff`, which is less decay, without a head and from random
rows. "heads" compares rules that take a head.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import warnings
from pathlib import Path

import numpy as np

WORLDS = tuple(
    f"world-{world}:{labels}" for labels in ("clicks", "stars") for world in ("popular", "niche", "drift", "promoted")
)
LOGS = (*WORLDS, "simulated", "indifferent")
GAMMAS, POWERS = (0.06, 0.03, 0.01, 0.003), ((1.0, 0.75), 1.0)
RULES = {  # where candidates are judged, and by how many paired standard errors one must be better
    f"{'S_va' if where == 'va' else 'folds'}, {errors:g} standard error{'' if errors == 1 else 's'}": (where, errors)
    for where in ("va", "folds")
    for errors in (0.0, 0.5, 1.0, 1.5, 2.0)
}
FIRST = "gamma .03, p (1, .75), constant teacher, spread 1"
CHANGES = {
    "gamma": "gamma {:g}",
    "exposure_power": "p {:g}",
    "teacher": "{} teacher",
    "randomized_weight": "without S_t's rows",
    "grade_spread": "spread {:g}",
}
SMALLER_CUTOFFS = (0.2,)  # instead of .25
RECORD = Path("bench/records/choice.json")
LARGEST_SEED = 999


def tried(method, first):
    """Every candidate of a rule; teacher and S_t's weight are tried with the first spread and negative."""
    others = [{}]
    others += [{"grade_spread": 1.4}] if method.targets == "graded" else []
    others += [{"negative": "unobserved"}] if method.negative == "auto" else []
    others += [{"teacher": "item"}, {"randomized_weight": 0.0}]
    for own, p, gamma in itertools.product(others, POWERS, GAMMAS):
        yield first._replace(gamma=gamma, exposure_power=p, **own)


def chosen(judged, first, errors):
    """The candidate that a rule takes: rounds and order are those of dub-x. `judged`: {candidate: metrics}."""
    from dubnb.choice import compare_candidates
    from dubnb.methods.dub_x import WEIGHTS

    grid = [{"gamma": gamma, "exposure_power": p} for p in POWERS for gamma in GAMMAS]
    rounds = [[{"grade_spread": 1.4}], [{"negative": "unobserved"}], grid]
    rounds += [[{"teacher": "item"}], [{"randomized_weight": 0.0}]]
    best = first
    for changes in rounds:
        winner, largest = best, -np.inf
        for candidate in (best._replace(**change) for change in changes):
            if candidate in judged and candidate != best:
                found = compare_candidates(judged[candidate], judged[best], WEIGHTS["auc"])
                if largest < found.difference and found.difference > errors * found.standard_error:
                    winner, largest = candidate, found.difference
        best = winner
    return best


def judged_candidates(log, seed, candidates):
    """({"va", "folds"}: {candidate: metrics}, {candidate: true values}, the first) of `candidates(method, first)`."""
    import dubnb
    from dubnb._jit import one_blas_thread
    from dubnb.choice import mean_of_parts
    from dubnb.evaluation import monitored_influences
    from dubnb.methods import dub_x
    from dubnb.train import Fit

    data = dubnb.load_dataset(log, seed=seed)
    method, fit = dubnb.DubX().resolve(data), Fit(data, "auc")
    whole = dub_x.CandidateLog(fit, None, method.random_rows(fit))
    folds = [method._fold(fit, each) for each in dub_x.folds(data, dub_x.FOLDS, 0)]
    sizes = [len(fold.fit.data.triplets("S_va").users) for fold in folds]
    first = method._given(data)
    judged, truth = {"va": {}, "folds": {}}, {}
    with one_blas_thread():
        for candidate in candidates(method, first):
            weights = method._solve(whole, candidate, "candidate")
            judged["va"][candidate] = monitored_influences(weights, data, "auc")
            parts = [
                monitored_influences(method._solve(fold, candidate, "candidate"), fold.fit.data, "auc")
                for fold in folds
            ]
            judged["folds"][candidate] = mean_of_parts(parts, sizes)
            truth[candidate] = true_values(data, weights)
    return judged, truth, first


def one_log(log, seed):
    """{rule: differences in true AUC and true likes in the top 10 to the first candidate}."""
    judged, truth, first = judged_candidates(log, seed, tried)
    found = {rule: truth[chosen(judged[where], first, errors)] for rule, (where, errors) in RULES.items()}
    return {rule: [float(new - old) for new, old in zip(own, truth[first], strict=True)] for rule, own in found.items()}


def one_change(method, first):
    """The first candidate, and those of `candidates_table`."""
    for p, gamma in itertools.product(POWERS, (first.gamma, *(each for each in GAMMAS if each != first.gamma))):
        yield first._replace(gamma=gamma, exposure_power=p)
    if method.targets == "graded":
        yield first._replace(grade_spread=1.4)
    for change in ({"teacher": "item"}, {"randomized_weight": 0.0}, {"gamma": 0.025}):
        yield first._replace(**change)
    yield first._replace(gamma=0.025, teacher="item")


def small_power(method, first):
    """The first candidate, and p .75 for users and items."""
    yield first
    yield first._replace(exposure_power=0.75)


def candidates_table(logs, seeds, candidates=one_change):
    """A row per candidate: true differences to the first one, and what a rule sees on folds, in Markdown."""
    from dubnb.choice import compare_candidates
    from dubnb.methods.dub_x import WEIGHTS

    rows = {}
    for log, seed in itertools.product(logs, seeds):
        judged, truth, first = judged_candidates(log, seed, candidates)
        for candidate in list(truth)[1:]:
            seen = compare_candidates(judged["folds"][candidate], judged["folds"][first], WEIGHTS["auc"])
            differences = np.subtract(truth[candidate], truth[first])
            values = candidate._asdict().items()
            name = ", ".join(CHANGES[each].format(value) for each, value in values if value != getattr(first, each))
            rows.setdefault(name, []).append((*differences, seen.difference / seen.standard_error))
    names = [f"instead of {FIRST}", "true AUC", "true likes in the top 10", "on folds, in paired standard errors"]
    lines = [f"| {' | '.join(names)} |", "|---|---:|---:|---:|"]
    for name, own in rows.items():
        auc, likes, seen = np.transpose(own)
        lines.append(f"| {name} | {_mean(auc, 4)} | {_mean(likes, 2)} | {seen.min():+.1f} to {seen.max():+.1f} |")
    return "\n".join(lines)


def converged(log, seed):
    """True AUC and likes of the first candidate solved to convergence, less those of the sweep that S_va keeps."""
    import dubnb
    from dubnb._jit import one_blas_thread
    from dubnb.backbones import MF
    from dubnb.methods import dub_x
    from dubnb.methods._exact import RoughSolve
    from dubnb.train import Fit

    data, found = dubnb.load_dataset(log, seed=seed), []
    method = dubnb.DubX().resolve(data)
    with one_blas_thread():
        for rough in (None, RoughSolve(None, patience=30, enough=1e-4)):
            fit = Fit(data, "auc")
            whole = dub_x.CandidateLog(fit, None, method.random_rows(fit))
            kept = method._solve(whole, method._given(data), "candidate", rough)
            found.append(true_values(data, kept if rough is None else MF.from_extended(whole.rows)))
    return np.subtract(found[1], found[0])


def sweeps_table(logs, seeds):
    """A row per log: what solving to convergence changes, in Markdown."""
    lines = [
        f"| log (data seeds {seeds[0]} to {seeds[-1]}) | true AUC | true likes in the top 10 |",
        "|---|---:|---:|",
    ]
    for log in logs:
        auc, likes = np.transpose([converged(log, seed) for seed in seeds])
        lines.append(f"| {log} | {_mean(auc, 4)} | {_mean(likes, 3)} |")
    return "\n".join(lines)


def judged_blends(data):
    """(truth of dub-x, {share: (truth, what S_va sees, what folds see)}); both in paired standard errors."""
    import dataclasses

    import dubnb
    from dubnb.choice import compare_candidates, tried_settings
    from dubnb.evaluation import validation_influences
    from dubnb.methods._head import WEIGHTS
    from dubnb.methods.dub_x import Candidate
    from dubnb.methods.dub_xi import BLENDS

    model = dubnb.DubXI().fit(data)
    on_folds = {each.name: each for each in tried_settings(model.history_rows_)}
    settings = {name: model.params_[name] for name in Candidate._fields}
    half = dubnb.DubXI(**settings, head=None, blend=0.5).fit(data).weights_

    def mixed(share):
        own = {"factor_share": 2 * (1 - share) * half.factor_share, "item_share": 2 * share * half.item_share}
        return dataclasses.replace(half, **own)

    plain, found = validation_influences(mixed(0.0), data), {}
    for share in BLENDS:
        on_S_va = compare_candidates(validation_influences(mixed(share), data), plain, WEIGHTS["auc"])
        folds = on_folds[f"blend {share:g}"]
        seen = on_S_va.difference / on_S_va.standard_error, folds.difference / folds.standard_error
        found[share] = (known_truth(data, mixed(share)), *seen)
    return known_truth(data, mixed(0.0)), found


def judged_cutoffs(log, seed, coat=None):
    """{cutoff: [what it adds to the true AUC and likes, what folds see in paired standard errors]}."""
    import dubnb
    from dubnb._jit import one_blas_thread
    from dubnb.choice import compare_candidates, mean_of_parts
    from dubnb.evaluation import monitored_influences
    from dubnb.methods import dub_x
    from dubnb.methods._head import WEIGHTS
    from dubnb.train import Fit

    data = dubnb.load_dataset(log, seed=seed, data_dir=coat if log == "coat" else None)
    auto = dubnb.DubX(head=None, cutoff=0.25).fit(data)
    settings = {name: auto.params_[name] for name in dub_x.Candidate._fields}
    judged, truth = {}, {}
    for cutoff in (auto.params_["cutoff"], *SMALLER_CUTOFFS):
        method = dubnb.DubX(**settings | {"cutoff": cutoff}, head=None)
        truth[cutoff] = known_truth(data, method.fit(data).weights_)
        with one_blas_thread():
            folds = method.resolve(data).solved_on_folds(Fit(data, "auc"), None)
        parts = [monitored_influences(weights, own, "auc") for own, weights in folds]
        judged[cutoff] = mean_of_parts(parts, [own.size("S_va") for own, _ in folds])
    first, found = auto.params_["cutoff"], {}
    for cutoff in SMALLER_CUTOFFS:
        seen = compare_candidates(judged[cutoff], judged[first], WEIGHTS["auc"])
        differences = np.subtract(truth[cutoff], truth[first])
        differences = [float(value) if np.isfinite(value) else None for value in differences]
        found[f"{cutoff:g}"] = [*differences, seen.difference / seen.standard_error]
    return found


def cutoffs_table(kept):
    """A row per log and cutoff, in Markdown; the four companies of one kind of labels share a row."""
    names = ["log (data seeds)", "cutoff", "true AUC", "worst", "true likes in the top 10", "on folds"]
    lines = [f"| {' | '.join(names)} |", "|---|---:|---:|---:|---:|---:|"]
    logs = {}
    for key, found in kept.items():
        log, seed = key.rsplit(" ", 1)
        logs.setdefault(re.sub("world-[a-z]+", "world-*", log), []).append((int(seed), found))
    for log, own in logs.items():
        first, last = min(seed for seed, _ in own), max(seed for seed, _ in own)
        for cutoff in map("{:g}".format, SMALLER_CUTOFFS):
            auc, likes, seen = np.array([found[cutoff] for _, found in own], float).T
            numbers = [f"{auc.mean():+.4f}", f"{auc.min():+.4f}", f"{likes.mean():+.2f}"]
            numbers = ["", "", ""] if np.isnan(auc).any() else numbers
            seeds = f"{first} to {last}" if last > first else f"{first}"
            cells = [f"{log} ({seeds})", cutoff, *numbers, f"{seen.min():+.1f} to {seen.max():+.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


HEADS = ("users alone", "as dub-x", "as dub-x, items only if nDCG on folds is not lower")


def judged_heads(log, seed):
    """{rule: what its head adds to the true AUC and likes of dub-x without a head}."""
    import dubnb
    from dubnb._jit import one_blas_thread
    from dubnb.methods import _head
    from dubnb.train import Fit

    data = dubnb.load_dataset(log, seed=seed)
    method, fit = dubnb.DubX(head=None).resolve(data), Fit(data, "auc")
    with one_blas_thread():
        M_c, _, parts = method.solved(fit, "refine")
        tried = _head.tried_heads(method, fit, parts or _head.validation_folds(data, M_c, 0))
        plain, heads = true_values(data, M_c), dict.fromkeys(HEADS)
        for own in tried:
            users = not _head.TRIED[own.stage]
            takes = (users, own.taken(), own.taken() and (users or own.lost.difference <= 0))
            heads |= {rule: own.head for rule, taken in zip(HEADS, takes, strict=True) if taken}
        found = {
            rule: plain if head is None else true_values(data, _head.with_head(M_c, head))
            for rule, head in heads.items()
        }
    return {rule: [float(new - old) for new, old in zip(own, plain, strict=True)] for rule, own in found.items()}


def known_truth(data, weights):
    """`true_values`, or nan where the log is real."""
    return (float("nan"),) * 2 if data.truth is None else true_values(data, weights)


def blends_table(logs, seeds, coat):
    """A row per log and share: what it adds in truth, and what S_va and folds see of it, in Markdown."""
    import dubnb

    names = ["log (data seeds)", "share", "true AUC", "true likes in the top 10", "on S_va", "on folds"]
    lines = [f"| {' | '.join(names)} |", "|---|---:|---:|---:|---:|---:|"]
    for log in logs:
        own = {}
        for seed in seeds:
            data = dubnb.load_dataset(log, seed=seed, data_dir=coat if log == "coat" else None)
            plain, found = judged_blends(data)
            for share, (truth, *seen) in found.items():
                own.setdefault(share, []).append((*np.subtract(truth, plain), *seen))
        for share, rows in own.items():
            auc, likes, *seen = np.transpose(rows)
            true = ["", ""] if np.isnan(auc).any() else [_mean(auc, 4), _mean(likes, 2)]
            ranges = [f"{each.min():+.1f} to {each.max():+.1f}" for each in seen]
            lines.append(f"| {' | '.join([f'{log} ({seeds[0]} to {seeds[-1]})', f'{share:g}', *true, *ranges])} |")
    return "\n".join(lines)


def _mean(values, digits):
    """A mean and its standard error, as text."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):+.{digits}f} ± {error:.{digits}f}"


def true_values(data, weights):
    """(AUC over all pairs outside S_c, S_t and S_va, likes in the top 10)."""
    from dubnb.evaluation import top_k
    from dubnb.metrics import auc

    users = np.arange(data.n_users)
    scores, labels = weights.score_rows(users), np.asarray(data.truth.label_rows(users))
    barred = data.everything_but("S_te").mask(users, data.n_items)
    top = np.maximum(top_k(scores, 10, barred), 0)
    return auc(scores[~barred], labels[~barred]), np.take_along_axis(labels, top, axis=1).sum(axis=1).mean()


def run(args, one_log=one_log):
    """Every log that the record does not have yet."""
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed, log in itertools.product(args.seeds, args.logs):
        if f"{log} {seed}" not in kept:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kept[f"{log} {seed}"] = one_log(log, seed)
            args.out.write_text(json.dumps(kept, indent=0) + "\n")
            print(log, seed, kept[f"{log} {seed}"], flush=True)


def table(kept, rules=tuple(RULES), title="judged on, better by"):
    """Mean and worst difference over the logs, a row per rule, in Markdown."""
    lines = [
        f"| {title} ({len(kept)} logs) | true AUC | worst | true likes in the top 10 | worst |",
        "|---|---:|---:|---:|---:|",
    ]
    for rule in rules:
        auc, likes = np.array([own[rule] for own in kept.values()]).T
        numbers = f"{auc.mean():+.4f} | {auc.min():+.4f} | {likes.mean():+.3f} | {likes.min():+.3f}"
        lines.append(f"| {rule} | {numbers} |")
    return "\n".join(lines)


def heads_table(kept):
    """`table` of the rules that take a head."""
    return table(kept, HEADS, "head taken")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "action", choices=("run", "show", "candidates", "power", "sweeps", "blends", "cutoffs", "heads")
    )
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--logs", type=lambda text: text.split(","), default=LOGS)
    parser.add_argument("--coat", help="where Coat's files are, for blends and cutoffs")
    args = parser.parse_args()
    args.seeds = range(args.first, args.first + args.seeds)
    if args.seeds[-1] > LARGEST_SEED:
        raise SystemExit("seeds above 999 are for final tables: choose rules on others")
    blends = functools.partial(blends_table, coat=args.coat)
    power = functools.partial(candidates_table, candidates=small_power)
    printed = {"candidates": candidates_table, "power": power, "sweeps": sweeps_table, "blends": blends}
    if args.action in printed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(printed[args.action](args.logs, args.seeds))
        return
    if args.action == "cutoffs":
        run(args, functools.partial(judged_cutoffs, coat=args.coat))
        print(cutoffs_table(json.loads(args.out.read_text())))
        return
    if args.action == "heads":
        run(args, judged_heads)
        print(heads_table(json.loads(args.out.read_text())))
        return
    if args.action == "run":
        run(args)
    print(table(json.loads(args.out.read_text())))


if __name__ == "__main__":
    main()
