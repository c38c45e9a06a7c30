"""`dubnb demo`: some methods with their defaults on small simulated logs, evaluated on S_te and on the truth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

DATASET = "simulated"
BANDS = 10  # groups of items by popularity
METHODS = ("base", "unif", "combine", "ease", "ials", "bpr", "bridge", "dub", "dub-x")
REFERENCE = "base"  # the model of the biased log alone
COLUMNS = {
    "AUC": "auc",
    "user AUC": "user_auc",
    "nDCG": "ndcg",
    "P@10": "p@10",
    "liked@10": "liked@10",
    "truth AUC": "truth_auc",
    "truth nDCG": "truth_ndcg",
    "truth liked@10": "truth_liked@10",
}
CAVEAT = (
    "These logs are simulated, and built so that bias matters: in other worlds the order can turn around (see "
    "docs/which-method.md)."
)


class DemoResult(NamedTuple):
    """The numbers of the demo."""

    data_seeds: Sequence[int]
    protocol: str
    values: dict[str, dict[str, np.ndarray]]  # method -> metric -> one value per data seed
    best: str  # the method with the highest mean AUC on the truth
    curves: dict[str, np.ndarray]  # "truth", "base", best -> (BANDS,) mean probability of unseen pairs, rarest first
    popularity: dict[str, float]  # "auc" and "ndcg" of ranking by the positives in S_c, means over data seeds
    graded: tuple[str, ...] = ()  # the methods that read grades; the others read 0/1 labels


def run(
    n_seeds: int = 3, first_data_seed: int = 0, seed: int = 0, say: Callable[[str], None] = lambda line: None
) -> DemoResult:
    """Train every method, with its defaults, on `n_seeds` simulated logs."""
    import dubnb

    values: dict[str, dict[str, list[float]]] = {m: {metric: [] for metric in COLUMNS.values()} for m in METHODS}
    curves: dict[str, list[np.ndarray]] = {name: [] for name in ("truth", *METHODS)}
    popularity: dict[str, list[float]] = {"auc": [], "ndcg": []}
    graded: dict[str, None] = {}
    data_seeds = list(range(first_data_seed, first_data_seed + n_seeds))
    for data_seed in data_seeds:
        say(f"{DATASET}, data seed {data_seed}: training {', '.join(METHODS)}")
        data = dubnb.load_dataset(DATASET, seed=data_seed)
        every = np.arange(data.n_users)[:, None], np.arange(data.n_items)[None, :]
        assert data.truth is not None  # it is simulated
        curves["truth"].append(by_popularity(data, data.truth.probability_rows(np.arange(data.n_users))))
        for method in METHODS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # `popularity_sentence` replaces them
                model = dubnb.make(method, seed=seed).fit(data)
                result = model.evaluate(data)
            if model.params_.get("targets") == "graded":
                graded[method] = None
            for metric, column in values[method].items():
                column.append(result[metric])
            curves[method].append(by_popularity(data, model.predict(*every)))
        for metric, column in popularity.items():
            column.append(result[f"popularity_{metric}"])
    arrays = {method: {k: np.array(v) for k, v in columns.items()} for method, columns in values.items()}
    best = max(METHODS, key=lambda method: arrays[method]["truth_auc"].mean())
    shown = {name: np.mean(curves[name], axis=0) for name in dict.fromkeys(("truth", REFERENCE, best))}
    known = {metric: float(np.mean(column)) for metric, column in popularity.items()}
    return DemoResult(data_seeds, result["protocol"], arrays, best, shown, known, tuple(graded))


def by_popularity(data: Partition, probabilities: np.ndarray) -> np.ndarray:
    """Mean `probabilities` of pairs outside S_c and S_t, for each tenth of the items by their pairs in S_c."""
    unseen = ~data.seen.mask(np.arange(data.n_users), data.n_items)
    popularity = np.bincount(data.triplets("S_c").items, minlength=data.n_items)
    bands = np.array_split(np.argsort(popularity, kind="stable"), BANDS)
    return np.array([probabilities[:, band][unseen[:, band]].mean(dtype=np.float64) for band in bands])


def mean_values(result: DemoResult) -> dict[str, dict[str, float]]:
    """method -> metric -> mean over data seeds."""
    return {m: {k: float(v.mean()) for k, v in columns.items()} for m, columns in result.values.items()}


def result_table(result: DemoResult, render: Callable[..., str] = tables.text) -> str:
    """One row per method, with a star after the best of each column."""
    average = mean_values(result)
    columns = [tables.mark_best([average[method][metric] for method in METHODS]) for metric in COLUMNS.values()]
    rows = [[method, *(column[k] for column in columns)] for k, method in enumerate(METHODS)]
    header = ["method", *(name + " " for name in COLUMNS)]
    return render(header, rows, "<" + ">" * len(COLUMNS))


def protocol_sentence(result: DemoResult) -> str:
    """A sentence about what the table's numbers are."""
    n = len(result.data_seeds)
    over = f"mean over {n} data seeds" if n > 1 else f"data seed {result.data_seeds[0]} alone"
    return (
        f"Protocol {result.protocol} on S_te (nDCG@50), {over}; truth: all pairs outside S_c and S_t against y^t; "
        "liked@10: of the recommended items that S_te judged, the share liked (truth: of all); * best of the column."
    )


def inputs_sentence(result: DemoResult) -> str:
    """A sentence about which methods read grades, and which 0/1 labels."""
    if not result.graded:
        return "All methods read 0/1 labels."
    return (
        f"By default {' and '.join(result.graded)} reads the grades behind the labels (here, stars). The others read "
        "0/1 labels; the README has rows that compare like with like."
    )


def differences_sentence(result: DemoResult) -> str:
    """A sentence about differences in AUC on the truth within data seeds: the best method and dub against others."""
    pairs = dict.fromkeys([(result.best, REFERENCE), ("dub", REFERENCE), ("dub", "bridge")])
    gains = [f"{first} - {second} {_gain(result, first, second)}" for first, second in pairs]
    return f"Differences in truth AUC: {'; '.join(gains)}."


def popularity_sentence(result: DemoResult) -> str:
    """A sentence about ranking by popularity, and the methods that are worse."""
    average, known = mean_values(result), result.popularity
    worse = {m: [name for name in METHODS if average[name][m] < known[m]] for m in known}
    auc, ndcg = (", ".join(worse[m]) or "none" for m in ("auc", "ndcg"))
    values = f"AUC {known['auc']:.4f} and nDCG {known['ndcg']:.4f}"
    return f"Popularity alone has {values}; below it: {auc} in AUC; {ndcg} in nDCG."


def _gain(result: DemoResult, first: str, second: str) -> str:
    difference = result.values[first]["truth_auc"] - result.values[second]["truth_auc"]
    mean, low, high = difference.mean(), difference.min(), difference.max()
    if len(difference) == 1:
        return f"{mean:+.3f} (one data seed: no spread known)"
    sure = "the same sign in every seed" if low > 0 or high < 0 else "within the spread over seeds: no clear difference"
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f} over {len(difference)} seeds, {sure})"
