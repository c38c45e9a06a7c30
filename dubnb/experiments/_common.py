"""What the experiments share: the systems, tables of metrics, comparisons, derived data, the files of a report."""

import os
import platform
from typing import NamedTuple

import numpy as np

from dubnb import stats
from dubnb._files import atomic_write, spreadsheet_safe
from dubnb._version import VERSION
from dubnb.data.partition import PARTS, Partition
from dubnb.experiments import budgets
from dubnb.experiments.study import METRICS, TRUTHS, WHOLE, Cell, System
from dubnb.report import figures
from dubnb.report import page as pages
from dubnb.report.page import Entry, Figure, Gallery, Page, Section, Table, Value

METHODS = ("base", "unif", "combine", "ips", "cause", "bridge", "autodebias", "dub")
BACKBONES = ("mf", "ncf")
NAMES = {"auc": "AUC", "ndcg": "nDCG", "p@5": "P@5", "p@10": "P@10", "r@5": "R@5", "r@10": "R@10"}
NAMES |= {"truth_auc": "truth AUC", "truth_ndcg": "truth nDCG"}
SIGNIFICANT = 0.05
SEED_STAR, USER_STAR = "*", "†"
SIMULATED = (
    "These data are simulated: the truth is known, but differences between methods are smaller than on Yahoo! R3 and "
    "can turn around in other worlds."
)
PROTOCOL = "full-ranking"
PROTOCOL_RULES = f"{PROTOCOL}: all items outside the user's S_c, nDCG@50, pooled AUC"
REPORT = "report.html"
AGAIN = "Run the same command again, with the same --out: it goes on where it stopped."
SMOKE = "Budget smoke checks that everything runs: too few epochs and candidates for any conclusion."


class Findings(NamedTuple):
    """What an experiment found: sentences, sections of the report, rows for results.csv beside the metrics."""

    answer: list
    sections: list
    rows: tuple = ()  # dicts with condition, backbone, system, seed, metric, value


def systems(backbones=BACKBONES):
    """The eight systems of the paper on each backbone."""
    return [System(method, method, backbone) for backbone in backbones for method in METHODS]


# ---- numbers -------------------------------------------------------------------------------------------------------


def values(study, cell, metric):
    """A metric of a cell, one value per seed; None if the cell is not done."""
    runs = study.runs.get(cell)
    return None if runs is None else np.array([run.metrics.get(metric, np.nan) for run in runs])


def done(study, backbone, condition=WHOLE):
    """The cells of one backbone and condition that are done, in the plan's order."""
    fits = (cell for cell in study.plan.cells if (cell.system.backbone, cell.condition) == (backbone, condition))
    return [cell for cell in fits if cell in study.runs]


def cells_of(study, backbone, condition=WHOLE):
    """All cells of one backbone and condition, done or not."""
    return [c for c in study.plan.cells if (c.system.backbone, c.condition) == (backbone, condition)]


def backbones_of(study):
    """The plan's backbones, each once."""
    return list(dict.fromkeys(cell.system.backbone for cell in study.plan.cells))


def best_two(study, cells, metric):
    """The two cells with the largest mean; None if there are fewer."""
    means = {cell: values(study, cell, metric).mean() for cell in cells}
    order = sorted((cell for cell in cells if means[cell] == means[cell]), key=lambda cell: -means[cell])
    return (order[0], order[1]) if len(order) > 1 else None


class Comparison(NamedTuple):
    """Two systems on one metric: over seeds as the paper does, and over users as it should be."""

    metric: str
    first: Cell
    second: Cell
    difference: float
    seeds_p: float | None  # two-sample t; None with a single seed
    low: float
    high: float
    users_p: float  # bootstrap over users (auc) or paired t over users


def compare(study, first, second, metric):
    """The Comparison of two done cells under one condition."""
    x, y = values(study, first, metric), values(study, second, metric)
    seeds_p = stats.two_sample_t(x, y).p if len(x) > 1 else None
    one, other = study.runs[first], study.runs[second]
    if metric == "auc":
        S_te = study.plan.conditions[first.condition].triplets("S_te")
        scores = ([run.scores for run in runs] for runs in (one, other))
        found = stats.auc_bootstrap(*scores, S_te.labels, S_te.users, study.budget.bootstraps, seed=study.seed)
        return Comparison(metric, first, second, found.difference, seeds_p, found.low, found.high, found.p)
    per_user = [np.mean([run.per_user[metric] for run in runs], axis=0) for runs in (one, other)]
    found = stats.paired_bootstrap(*per_user, study.budget.bootstraps, seed=study.seed)
    return Comparison(
        metric, first, second, found.difference, seeds_p, found.low, found.high, stats.paired_t(*per_user).p
    )


# ---- tables --------------------------------------------------------------------------------------------------------


def shown_metrics(study):
    """The metrics that at least one run has, the truth last."""
    known = {name for runs in study.runs.values() for run in runs for name, v in run.metrics.items() if v == v}
    return [name for name in (*METRICS, *TRUTHS) if name in known] or list(METRICS)


def metric_table(study, title, cells, note, stars=None, paper=None):
    """A row per system, the best of each column in bold; `stars`: {metric: signs behind the best}; paper's beside."""
    metrics = shown_metrics(study)
    means = {cell: {m: _mean(values(study, cell, m)) for m in metrics} for cell in cells}
    best = {m: max((means[c][m] for c in cells if means[c][m] is not None), default=None) for m in metrics}
    header, rows = ["system"], [[cell.system.name] for cell in cells]
    for metric in metrics:
        header.append(NAMES[metric])
        for cell, row in zip(cells, rows, strict=True):
            row.append(_value(study, cell, metric, best[metric], (stars or {}).get(metric, "")))
        if paper and metric in METRICS:
            header.append("paper")
            for cell, row in zip(cells, rows, strict=True):
                row.append(Value(paper.get(cell.system.name, {}).get(metric)))
    heat = () if paper else tuple(range(1, len(header)))
    return Table(title, header, rows, note, heat)


def _mean(array):
    return None if array is None or np.isnan(array).any() else float(array.mean())


def _value(study, cell, metric, best, stars):
    array = values(study, cell, metric)
    mean = _mean(array)
    if mean is None:
        return Value(None)
    is_best = mean == best
    spread = f"±{array.std(ddof=1):.4f}" if len(array) > 1 else ""
    return Value(mean, f"{mean:.4f}{stars if is_best else ''}", spread, is_best)


def p_text(p):
    """A p-value for a sentence or a cell."""
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def p_value(p):
    return Value(p, p_text(p))


def difference(comparison):
    """A Comparison's difference with its interval over users below."""
    c = comparison
    return Value(c.difference, f"{c.difference:+z.4f}", f"{c.low:+z.4f} to {c.high:+z.4f}")


# ---- sentences -----------------------------------------------------------------------------------------------------


def listed(words):
    """ "a", "a and b", "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def top(numbers, digits=4):
    """Names with the largest number, as printed: what prints alike leads together. `numbers`: {name: number}."""
    shown = {name: round(number, digits) for name, number in numbers.items() if number == number}
    return [name for name, number in shown.items() if number == max(shown.values())]


def leaders(study, cells, metric):
    """The systems with the best mean of a metric: several where they print alike."""
    return top({cell.system.name: float(values(study, cell, metric).mean()) for cell in cells})


def lead(study, comparison, users_p, corrected=""):
    """Who has the best of a metric, and whether more than chance stands behind it; `corrected`: how users_p was."""
    c, backbone, condition = comparison, comparison.first.system.backbone, comparison.first.condition
    first, best = leaders(study, done(study, backbone, condition), c.metric), values(study, c.first, c.metric).mean()
    if len(first) > 1:
        return f"{listed(first)} share the best {NAMES[c.metric]} ({best:.4f})"
    ahead = f"{c.first.system.name} has the best {NAMES[c.metric]} ({best:.4f}), {c.difference:.4f} ahead of"
    return f"{ahead} {c.second.system.name}: {verdict(users_p, c.seeds_p, corrected)}"


def verdict(users_p, seeds_p, corrected=""):
    """What two p-values say about a difference, in words."""
    by_users, by_seeds = f"over users (p {p_text(users_p)}{corrected})", f"over seeds (p {p_text(seeds_p)})"
    if seeds_p is None:
        said = "significant" if users_p <= SIGNIFICANT else "not significant"
        return f"{said} {by_users}, not tested over seeds, as there is only one"
    sure = users_p <= SIGNIFICANT, seeds_p <= SIGNIFICANT
    if sure[0] == sure[1]:
        return f"significant {by_users} and {by_seeds}" if sure[0] else f"significant neither {by_users} nor {by_seeds}"
    return f"significant {by_users} but not {by_seeds}" if sure[0] else f"significant {by_seeds} but not {by_users}"


# ---- searches and warnings -----------------------------------------------------------------------------------------


def winners_section(study):
    """What each search chose, and where in its grid that is."""
    alone = all(cell.condition == WHOLE for cell in study.winners)
    rows = [_winner_row(cell, winner, alone) for cell, winner in study.winners.items()]
    header = ["system", "backbone", *([] if alone else ["condition"]), "chosen", f"S_va {NAMES[study.plan.select]}"]
    note = (
        "Chosen on S_va alone. A parameter at an end of its grid may have its optimum outside: a wider search could "
        "change the order of the systems."
    )
    table = Table("", [*header, "in the grid", "candidates", "grid"], rows, note)
    return Section("What the searches chose", [table] if rows else [])


def _winner_row(cell, winner, alone):
    names = [cell.system.name, cell.system.backbone, *([] if alone else [cell.condition])]
    if winner is None:
        return [*names, "-", Value(None), "no candidate finished", Value(None), "-"]
    chosen = ", ".join(f"{name} {value:g}" for name, value in winner.point.items())
    grid = "; ".join(f"{name} {_range(values)}" for name, values in winner.grid.items())
    at_edge = ", ".join(f"{name} at the {side} end" for name, side in budgets.edges(winner.grid, winner.point))
    return [*names, chosen, Value(winner.validation), f"⚠ {at_edge}" if at_edge else "inside", winner.n_points, grid]


def _range(values):
    values = sorted(values)
    if len(values) <= 5:
        return ", ".join(f"{value:g}" for value in values)
    return f"{values[0]:g} to {values[-1]:g} ({len(values)} values)"


def warnings_of(study, data):
    """What a reader must know before believing the numbers."""
    found, edges = [*_data_warnings(data, study.budget)], {}
    for cell, winner in study.winners.items():
        for name, side in budgets.edges(winner.grid, winner.point) if winner else ():
            edges.setdefault((name, side), {}).setdefault(f"{cell.system.name} ({cell.system.backbone})", None)
        if winner and winner.lost:
            n = f"{len(winner.lost)} of {winner.n_points} candidates"
            found.append(f"{n} of {_called(cell)} did not finish: {winner.lost[0]}")
    for (name, side), names in edges.items():
        found.append(f"The best {name} lies at the {side} end of its grid, so perhaps beyond it: {', '.join(names)}.")
    for cell, reason in study.failures.items():
        found.append(f"{_called(cell)} has no result: {reason}")
    return tuple(found)


def _data_warnings(data, budget):
    return (*([SMOKE] if budget.name == "smoke" else []), *([SIMULATED] if data.truth is not None else []))


def _called(cell):
    where = "" if cell.condition == WHOLE else f", {cell.condition}"
    return f"{cell.system.name} ({cell.system.backbone}{where})"


# ---- derived data --------------------------------------------------------------------------------------------------


def with_parts(data, name, S_c_rows=slice(None), keep_truth=True, **parts):
    """`data` with some rows of S_c only, and other Triplets in some of the randomized parts."""
    triplets = {part: parts.get(part, data.triplets(part)) for part in PARTS}
    triplets["S_c"] = data.triplets("S_c").take(S_c_rows)
    return Partition(
        triplets,
        (data.n_users, data.n_items),
        user_ids=data.user_ids,
        item_ids=data.item_ids,
        truth=data.truth if keep_truth else None,
        propensities=None if data.propensities is None else data.propensities[S_c_rows],
        name=name,
    )


# ---- the report ----------------------------------------------------------------------------------------------------


def page(experiment, study, data, findings, command):
    """The report's Page."""
    select = NAMES[study.plan.select]
    return Page(
        f"dubnb · {experiment.NAME.upper()}",
        experiment.TITLE,
        experiment.QUESTION,
        findings.answer if study.finished else [],
        [*_facts(data, study.budget), ("protocol", f"{PROTOCOL_RULES}; selected on S_va {select}"), *study.plan.notes],
        [*findings.sections, winners_section(study)],
        command,
        versions(),
        warnings_of(study, data),
        None if study.finished else _unfinished(study),
    )


def _unfinished(study):
    n_done, total = len(study.runs) + len(study.failures), len(study.plan.cells)
    what = "systems" if len(study.plan.conditions) == 1 else "systems and conditions"
    return (
        f"{n_done} of {total} {what} are done, so there is no answer yet and every number below is preliminary. {AGAIN}"
    )


def index_page(modules, answers, directory, data, budget, command):
    """The Page that leads to the reports; `answers`: {name: sentences} of the experiments that are complete."""
    entries = []
    for module in modules:
        name = module.NAME
        written = os.path.exists(os.path.join(directory, name, REPORT))
        href = f"{name}/{REPORT}" if written else None
        entries.append(Entry(f"{name.upper()} · {module.TITLE}", href, name in answers, answers.get(name, [])))
    missing = f"Complete: {len(answers)} of {len(modules)} experiments. {AGAIN}"
    return Page(
        "dubnb",
        "The paper's experiments",
        "Bounding System-Induced Biases in Recommender Systems with A Randomized Dataset (Liu et al., TOIS 2023)",
        [],
        _facts(data, budget),
        [Section("Experiments", entries)],
        command,
        versions(),
        _data_warnings(data, budget),
        None if len(answers) == len(modules) else missing,
    )


def _facts(data, budget):
    sizes = "; ".join(f"{part} {_size(data, part)}" for part in PARTS)
    small = ", small batches for a small log" if budgets.is_small(data) else ""
    return [
        ("data", f"{data.name}: {data.n_users:,} users x {data.n_items:,} items, fingerprint {data.fingerprint[:12]}"),
        ("feedback (P/N)", sizes),
        (
            f"budget {budget.name}",
            f"{budget.points} candidates for every system, {budget.seeds} seeds for every winner{small}; "
            f"{budget.description}",
        ),
    ]


def _size(data, part):
    labels = data.triplets(part).labels
    positives = int(labels.sum(dtype=np.float64))
    ratio = f" ({100 * positives / (len(labels) - positives):.1f} %)" if positives < len(labels) else ""
    return f"{len(labels):,}{ratio}"


def versions():
    """Versions of what computes."""
    import numba
    import scipy

    packages = {"dubnb": VERSION, "numpy": np.__version__, "numba": numba.__version__, "scipy": scipy.__version__}
    return packages | {"python": platform.python_version()}


def tidy(experiment, study, rows):
    """results.csv as a DataFrame: one number per row."""
    import pandas as pd

    columns = ["experiment", "protocol", "condition", "backbone", "system", "seed", "metric", "value"]
    found = [
        {"condition": cell.condition, "seed": run.seed, "metric": metric, "value": value, **_names(cell.system)}
        for cell in study.plan.cells
        for run in study.runs.get(cell, ())
        for metric, value in run.metrics.items()
    ]
    frame = pd.DataFrame([*found, *rows], columns=columns)
    return frame.assign(experiment=experiment.NAME, protocol=PROTOCOL).astype({"seed": "Int64"})


def _names(system):
    return {"backbone": system.backbone, "system": system.name}


def write(directory, page, frame):
    """results.csv, results.md, report.html, and each figure as an SVG file: each all of it or nothing."""
    os.makedirs(os.path.join(directory, "figures"), exist_ok=True)
    texts = {os.path.join("figures", f"{name}.svg"): svg for name, svg in _drawn(page.sections)}
    texts["results.csv"] = frame.map(spreadsheet_safe).to_csv(index=False, lineterminator="\n")
    texts |= {"results.md": pages.markdown(page), REPORT: pages.render(page)}
    for name, text in texts.items():
        _write(os.path.join(directory, name), text)


def write_index(directory, page):
    """index.html: all of it or nothing."""
    _write(os.path.join(directory, "index.html"), pages.render(page))


def _write(path, text):
    with atomic_write(path, overwrite=True) as file:
        file.write(text.encode())


def _drawn(sections):
    """(name, SVG file) of every figure."""
    for section in sections:
        for part in section.parts:
            shown = part.figures if isinstance(part, Gallery) else [part] if isinstance(part, Figure) else []
            yield from (figures.standalone(figure.svg) for figure in shown)
