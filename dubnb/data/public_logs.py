"""Coat, Yahoo! R3, KuaiRand, KuaiRec and Open Bandit: public logs with randomized or complete feedback.

**Coat** and **Yahoo! R3**: ratings from 1 to 5, positive above 3. The grade is the rating's place on that scale.

**KuaiRand-Pure** (Gao et al., CIKM 2022): a video app's feed with 1.2 M impressions of random videos, 27,285 users x
7,583 videos. The label is `long_view` (watched for 18 s, or to the end if shorter) or `is_click`. The grade comes from
the watch ratio r = play_time_ms / duration_ms, clipped to [0, 1]. The label is not a threshold on r, and grades must
lie on their label's side. So each side has a range of its own:

    grade = r / 2 for a negative,    3/4 + r / 4 for a positive.

**KuaiRec** (Gao et al., CIKM 2022): a video app's feed, and a matrix in which nearly every pair was watched. The small
matrix (1,411 users x 3,327 videos, 99.6 % observed) has no exposure bias: it is the unbiased part. The big matrix
(7,176 x 10,728) is the biased log. A pair is positive if its watch ratio is above 2, as the authors propose. The grade
is the ratio clipped to [0, 4], over 4, so that the threshold lies at one half.

**Open Bandit** (Saito et al., NeurIPS 2021): a shop's banner, filled at random or by Bernoulli Thompson sampling (bts).
Users are anonymous: people with the same four user features count as one user here. A row is an impression. The column
`position` of `read_open_bandit` says where on the banner an item was.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._random import mix_arrays
from dubnb.data.column import CellLocation, Column, numbers_of
from dubnb.data.delimited import Layout, read_delimited
from dubnb.data.ids import Ids, hash_fraction, hashes_of_both
from dubnb.data.partition import Partition
from dubnb.data.read import read_log
from dubnb.data.rows import PERMUTATION, LogRows, merged, scale_of, split_rows

if TYPE_CHECKING:
    import pandas as pd


def find_files(
    data_dir: str | Path, kinds: Sequence[Sequence[str]], dataset: str, source: str
) -> tuple[int, list[Path]]:
    """The first of `kinds`, each the names of files that belong together, that is in `data_dir`: (number, paths)."""
    folder = Path(data_dir)
    for kind, names in enumerate(kinds):
        if all((folder / name).is_file() for name in names):
            return kind, [folder / name for name in names]
    wanted = ", or ".join(" and ".join(names) for names in kinds)
    state = "holds neither" if folder.is_dir() else "is not a directory"
    raise InputError(f"{dataset}: {folder} {state}: expected {wanted} there; {source}")


# ---- ratings: Coat and Yahoo! R3 ------------------------------------------------------------------------------------

MOST_ROWS = 10_000_000  # ids of a triplet file are row numbers: a larger one is not from such a file
POSITIVE_ABOVE = 3  # the paper's threshold of ratings from 1 to 5
LOWEST, HIGHEST = 1, 5
COAT_SOURCE = "the data are on the Coat page of Cornell University (CC BY-NC)"
COAT_TRIPLETS = ("user.txt", "random.txt")
COAT_MATRICES = ("train.ascii", "test.ascii")
YAHOO_SOURCE = "the data are handed out by Yahoo! Webscope on request (dataset R3)"

Ratings = tuple[np.ndarray, np.ndarray, np.ndarray]  # user rows, item rows, ratings, in the order of the file


class YahooFiles(NamedTuple):
    """One form in which the two logs of Yahoo! R3 are distributed."""

    names: tuple[str, str]
    delimiter: str
    first_id: int


YAHOO_FILES = (
    YahooFiles(("user.txt", "random.txt"), ",", 0),
    YahooFiles(("ydata-ymusic-rating-study-v1_0-train.txt", "ydata-ymusic-rating-study-v1_0-test.txt"), "\t", 1),
)


def load_coat(data_dir: str | Path, seed: int = 0) -> Partition:
    """Coat shopping (Schnabel et al., ICML 2016): 290 users x 300 coats, 16 random ratings per user.

    `seed` is that of the split. Both kinds of file give the same Partition.
    """
    kind, paths = find_files(data_dir, (COAT_TRIPLETS, COAT_MATRICES), "coat", COAT_SOURCE)
    if kind == 0:
        biased, random = (_read_triplets(path) for path in paths)
        shape = _shape_of(biased, random)
    else:
        matrices = [_read_matrix(path) for path in paths]
        if matrices[0].shape != matrices[1].shape:
            raise InputError(f"{paths[1]} has shape {matrices[1].shape}, {paths[0]} {matrices[0].shape}: must agree")
        biased, random = (_rated(matrix, path) for matrix, path in zip(matrices, paths, strict=True))
        shape = matrices[0].shape[0], matrices[0].shape[1]
    return _partition_of_ratings(biased, random, shape, 0, seed, "coat")


def load_yahoo_r3(data_dir: str | Path, seed: int = 0) -> Partition:
    """Yahoo! R3, the paper's public dataset: 15,400 users x 1,000 songs (Yahoo! Webscope, on request).

    Seed 0 is the paper's split. Users and items keep their numbers.
    """
    kind, paths = find_files(data_dir, [files.names for files in YAHOO_FILES], "yahoo-r3", YAHOO_SOURCE)
    first_id = YAHOO_FILES[kind].first_id
    biased, random = (_read_triplets(path, YAHOO_FILES[kind].delimiter, first_id) for path in paths)
    name = "yahoo-r3" if seed == 0 else f"yahoo-r3, split {seed}"  # only seed 0 compares with the paper
    return _partition_of_ratings(biased, random, _shape_of(biased, random), first_id, seed, name)


def _read_triplets(path: Path, delimiter: str = ",", first_id: int = 0) -> Ratings:
    """A file without header, lines of user, item, rating; row numbers are counted from 0 afterwards."""
    columns, _ = read_delimited([path], layout=Layout(("user", "item", "rating"), delimiter))
    if not len(columns["user"]):
        raise InputError(f"{path}: empty: expected lines of user, item, rating")
    users, items = (_row_numbers(columns[name], name, path, first_id) for name in ("user", "item"))
    ratings = numbers_of(columns["rating"], CellLocation(str(path), "rating"))
    _check_ratings(ratings, path)
    return users, items, ratings


def _row_numbers(column: Column, name: str, path: Path, first_id: int) -> np.ndarray:
    values = [
        int(v) if isinstance(v, int) or re.fullmatch("[0-9]{1,18}", str(v)) else -1 for v in column.values.tolist()
    ]
    rows = column.per_row(np.array(values, dtype=np.int64), -1)
    fine = (rows >= first_id) & (rows < MOST_ROWS)
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(
            f"{path}, line {row + 1}: {name} {column.quoted(row)} must be a whole number from {first_id} and below "
            f"{MOST_ROWS:,}: expected lines of user, item, rating"
        )
    return rows - first_id


def _read_matrix(path: Path) -> np.ndarray:
    """Users x items of ratings, 0 where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy warns of an empty file, which is refused below
            matrix = np.loadtxt(path, ndmin=2, comments=None, encoding="utf-8")
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a matrix of ratings ({reason}): expected one line of numbers per user") from None
    if not np.isfinite(matrix).all() or not matrix.any():
        raise InputError(f"{path}: not a matrix of ratings: expected finite numbers, 0 where there is no rating")
    return matrix


def _rated(matrix: np.ndarray, path: Path) -> Ratings:
    """The ratings row by row: the order of the triplet files, so that the split is the same."""
    users, items = np.nonzero(matrix)
    _check_ratings(matrix[users, items], path)
    return users, items, matrix[users, items]


def _check_ratings(ratings: np.ndarray, path: Path) -> None:
    """Refuse ratings outside of their scale."""
    fine = (ratings >= LOWEST) & (ratings <= HIGHEST)
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(
            f"{path}: rating {row + 1} is {ratings[row]:g}: ratings go from {LOWEST} to {HIGHEST}; check the file"
        )


def _shape_of(*logs: Ratings) -> tuple[int, int]:
    """The smallest (users, items) for the row numbers in `logs`."""
    n_users, n_items = (max(int(log[side].max()) for log in logs) + 1 for side in (0, 1))
    return n_users, n_items


def _partition_of_ratings(
    biased: Ratings, random: Ratings, shape: tuple[int, int], first_id: int, seed: int, name: str
) -> Partition:
    """A Partition from two logs; ids are the rows counted from `first_id`, grades the ratings' place on their scale."""
    ids = [Ids(np.arange(first_id, first_id + n)) for n in shape]
    S_c, randomized = (
        merged(LogRows(*log, ids[0].values, ids[1].values, where=f"{name}, {which} log"), "max")
        for log, which in ((biased, "biased"), (random, "randomized"))
    )
    scale = scale_of([S_c.labels, randomized.labels], POSITIVE_ABOVE)
    S_c, randomized = (
        log._replace(labels=scale.labels(log.labels), grades=scale.grades(log.labels)) for log in (S_c, randomized)
    )
    rows, facts = split_rows(randomized, PERMUTATION, seed=seed)
    parts = {"S_c": S_c.feedback()} | {part: randomized.take(each).feedback() for part, each in rows.items()}
    return Partition(parts, shape, user_ids=ids[0], item_ids=ids[1], split=facts, grading=scale.kind, name=name)


# ---- impressions: KuaiRand, KuaiRec and Open Bandit -----------------------------------------------------------------

KUAIRAND_SOURCE = "the data are on the KuaiRand project's page"
KUAIRAND_LOGS = ("log_standard_*.csv", "log_random_*.csv")
KUAIRAND_LABELS = ("long_view", "is_click")
KUAIRAND_COLUMNS = ("user_id", "video_id", "time_ms", "play_time_ms", "duration_ms")

KUAIREC_SOURCE = "the data are on the KuaiRec project's page"
BIG, SMALL = "big_matrix.csv", "small_matrix.csv"
KUAIREC_THRESHOLD = 2.0

OPEN_BANDIT_SOURCE = "the data are on ZOZO Research's page of the Open Bandit project"
CAMPAIGNS = ("all", "men", "women")
POLICIES = ("bts", "random")
FEATURES = tuple(f"user_feature_{k}" for k in range(4))
MOST_SHARED, KEPT_PAIRS = 0.5, 0.5  # of the biased log's pairs in the randomized log; of all pairs if there are more
OPEN_BANDIT_COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score")


def load_kuairand(data_dir: str | Path, seed: int = 0, label: str = "long_view", quiet: bool = True) -> Partition:
    """KuaiRand-Pure from the files in `data_dir` or its folder `data`; of a repeated pair the last row counts."""
    _check.choice("label", label, KUAIRAND_LABELS)
    biased, random = (_kuairand_log(data_dir, pattern, label, quiet) for pattern in KUAIRAND_LOGS)
    return Partition.from_frames(
        biased,
        random,
        user="user_id",
        item="video_id",
        label=label,
        grade="grade",
        timestamp="time_ms",
        duplicates="last",
        split=PERMUTATION,
        split_seed=seed,
        name="kuairand",
    )


def _kuairand_log(data_dir: str | Path, pattern: str, label: str, quiet: bool) -> pd.DataFrame:
    folders = [folder for folder in (Path(data_dir), Path(data_dir) / "data") if any(folder.glob(pattern))]
    if not folders:
        expected = " and ".join(KUAIRAND_LOGS)
        raise InputError(f"kuairand: {data_dir} holds no {pattern}: expected {expected} there; {KUAIRAND_SOURCE}")
    columns = (*KUAIRAND_COLUMNS, label)
    log = read_log(folders[0] / pattern, user="user_id", item="video_id", columns=columns, quiet=quiet)
    played, lasts, positive = (_numeric(log, name) for name in ("play_time_ms", "duration_ms", label))
    ratio = np.clip(np.divide(played, lasts, out=np.zeros(len(log)), where=lasts > 0), 0, 1)
    return log.assign(grade=np.where(positive > 0, 0.75 + ratio / 4, ratio / 2))


def _numeric(log: pd.DataFrame, name: str) -> np.ndarray:
    try:
        return log[name].to_numpy(dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{log.attrs['source']}: {' '.join(str(error).split())}: check the file") from None


def load_kuairec(data_dir: str | Path, seed: int = 0, quiet: bool = True) -> Partition:
    """KuaiRec from the files in `data_dir` or its folder `data`; of a repeated pair the largest watch ratio counts."""
    folder = Path(data_dir)
    if not (folder / BIG).is_file() and (folder / "data" / BIG).is_file():
        folder /= "data"
    _, paths = find_files(folder, [(BIG, SMALL)], "kuairec", KUAIREC_SOURCE)
    logs, columns = [], ("user_id", "video_id", "watch_ratio")
    for path in paths:
        log = read_log(path, user="user_id", item="video_id", columns=columns, quiet=quiet)
        most = 2 * KUAIREC_THRESHOLD
        logs.append(log.assign(grade=np.clip(_numeric(log, "watch_ratio"), 0, most) / most))
    return Partition.from_frames(
        *logs,
        user="user_id",
        item="video_id",
        label="watch_ratio",
        grade="grade",
        threshold=KUAIREC_THRESHOLD,
        duplicates="max",
        split=PERMUTATION,
        split_seed=seed,
        name="kuairec",
    )


def load_open_bandit(data_dir: str | Path, seed: int = 0, campaign: str = "all", quiet: bool = True) -> Partition:
    """Open Bandit, one campaign; repeated pairs are merged as impressions: the first label, the mean as the grade.

    `propensity_score` of the random policy is P(shown): uniform there, so it changes no weight. That of the policy bts
    is not read, and a warning says so: it is the chance that one impression shows the item. P(observed) of a pair also
    depends on how often its user came, and a pair of S_c joins impressions with different chances.

    A pair of the randomized log is not in S_c, and with 13.7 million impressions of 80 items both policies can have
    shown nearly every pair. If more than half of the biased log's pairs are in the randomized log, only a random half
    of all pairs, drawn by a hash with `seed`, keeps its randomized impressions. No label decides which.
    """
    biased, random = (read_open_bandit(data_dir, policy, campaign, quiet) for policy in POLICIES)
    random = _leaving_S_c(biased, random, seed)
    warnings.warn(
        "open-bandit: propensity_score of the policy bts is not read: it is the chance of one impression, not "
        "P(observed) of a pair; ips estimates propensities itself",
        stacklevel=2,
    )
    return Partition.from_frames(
        biased.drop(columns="propensity_score"),
        random,
        item="item_id",
        label="click",
        timestamp="timestamp",
        random_propensity="propensity_score",
        split=PERMUTATION,
        split_seed=seed,
        name=f"open-bandit ({campaign})",
    )


def _leaving_S_c(biased: pd.DataFrame, random: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The randomized log, without a random half of all pairs where it has more than half of the biased log's pairs."""
    import pandas as pd

    names, users = np.unique(
        np.concatenate([log["user"].cat.categories for log in (biased, random)]), return_inverse=True
    )
    n_biased = len(biased["user"].cat.categories)
    users = np.concatenate([users[:n_biased][biased["user"].cat.codes], users[n_biased:][random["user"].cat.codes]])
    items, item_ids = pd.factorize(pd.concat([biased["item_id"], random["item_id"]]).to_numpy())
    pairs = users * len(item_ids) + items
    of_biased = np.unique(pairs[: len(biased)])
    shared = np.isin(of_biased, pairs[len(biased) :]).sum()
    if shared <= MOST_SHARED * len(of_biased):
        return random
    of_users, of_items = hashes_of_both(names.astype(str), item_ids.astype(str), seed, "open-bandit")
    kept = hash_fraction(mix_arrays(of_users[users], of_items[items])[len(biased) :]) < KEPT_PAIRS
    share = f"{100 * shared / len(of_biased):.0f} %"
    warnings.warn(
        f"{share} of the biased log's pairs are in the randomized log and would leave S_c: only a random half of all "
        f"pairs keeps its randomized impressions ({kept.sum():,} of {len(random):,})",
        stacklevel=3,
    )
    return random[kept].reset_index(drop=True)


def read_open_bandit(data_dir: str | Path, policy: str, campaign: str = "all", quiet: bool = True) -> pd.DataFrame:
    """The impressions of one policy: user, timestamp, item_id, position, click, propensity_score."""
    import pandas as pd

    _check.choice("policy", policy, POLICIES)
    _check.choice("campaign", campaign, CAMPAIGNS)
    path = Path(data_dir) / policy / campaign / f"{campaign}.csv"
    if not path.is_file():
        wanted = " and ".join(f"{each}/{campaign}/{campaign}.csv" for each in POLICIES)
        missing = path.relative_to(data_dir)
        raise InputError(f"open-bandit: {data_dir} holds no {missing}: expected {wanted}; {OPEN_BANDIT_SOURCE}")
    log = read_log(path, user="", item="item_id", columns=(*OPEN_BANDIT_COLUMNS, *FEATURES), quiet=quiet)
    users = log.groupby(list(FEATURES), observed=True, sort=False).ngroup()
    first = ~users.duplicated()
    of_user, names = pd.factorize(log.loc[first, list(FEATURES)].astype(str).agg("|".join, axis=1).to_numpy())
    log["user"] = pd.Categorical.from_codes(of_user[users.to_numpy()], names)  # a string a row would take 139 bytes
    return log.drop(columns=list(FEATURES))
