"""Datasets by name: the registry `DATASETS`, and `load_dataset`."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import NamedTuple

from dubnb import _check
from dubnb._check import InputError, option
from dubnb.data.partition import Partition


class Dataset(NamedTuple):
    """One registered dataset."""

    loader: str  # "module:function" in dubnb.data; it gets those of name, seed, data_dir and quiet that it has
    needs_files: bool
    description: str
    labels: tuple[str, ...] = ()  # kinds of labels that may follow the name and a colon; the first is the default


WORLD_LABELS = ("clicks", "stars", "watch", "clicks-only", "clicks-only-both")

DATASETS = {
    "simulated": Dataset("simulate:simulate", False, "small simulated log whose true preferences are known"),
    "yahoo-like": Dataset("simulate:simulate", False, "simulated, of the size and sparsity of Yahoo! R3"),
    "product-like": Dataset("simulate:simulate", False, "simulated, of the size and sparsity of the paper's Product"),
    "indifferent": Dataset(
        "simulate:simulate_indifferent", False, "simulated: popularity is unrelated to what people like"
    ),
    "world-popular": Dataset("worlds:load", False, "simulated company: popular items are liked more", WORLD_LABELS),
    "world-niche": Dataset("worlds:load", False, "simulated company: 30 niches, popularity is unrelated", WORLD_LABELS),
    "world-drift": Dataset("worlds:load", False, "simulated company: tastes move and items trend", WORLD_LABELS),
    "world-promoted": Dataset(
        "worlds:load", False, "simulated company: editors push what people like less", WORLD_LABELS
    ),
    **{
        f"bias-{name}": Dataset("biases:load", False, f"simulated, {what}")
        for name, what in {
            "none": "no bias: the biased log is uniform too",
            "popularity": "items of more fame are shown more",
            "selection": "people record what they like",
            "position": "items further down are examined less",
            "conformity": "labels follow public opinion",
            "loop": "a recommender retrains on what it showed",
            "growth": "most items enter the catalogue later",
            "all": "all six biases at once, each weaker",
        }.items()
    },
    "coat": Dataset("public_logs:load_coat", True, "Coat shopping: 290 users x 300 items, 4,640 random ratings"),
    "yahoo-r3": Dataset(
        "public_logs:load_yahoo_r3", True, "Yahoo! R3: 15,400 users x 1,000 songs, 54,000 random ratings"
    ),
    "kuairand": Dataset(
        "public_logs:load_kuairand", True, "KuaiRand-Pure: 27,285 users x 7,583 videos, 1.2 M random impressions"
    ),
    "kuairec": Dataset(
        "public_logs:load_kuairec", True, "KuaiRec: a feed of 7,176 users, and 1,411 users x 3,327 videos all watched"
    ),
    "open-bandit": Dataset(
        "public_logs:load_open_bandit", True, "Open Bandit, campaign all: 80 items, random and bts traffic"
    ),
}


def load_dataset(name: str, *, seed: int = 0, data_dir: str | Path | None = None, quiet: bool = True) -> Partition:
    """Load a built-in dataset, simulated or from public files, as a `Partition` that every method can fit.

    Parameters
    ----------
    name : str
        One of DATASETS. A colon and a kind of labels may follow the name of a world, as in "world-niche:stars".
    seed : int
        Seed of a simulated log, or of the split of a randomized log from files (0 is the paper's split).
    data_dir : str or path
        Folder of the files, for the datasets that need some.
    quiet : bool
        Whether to hide the progress bar.

    Examples
    --------
    >>> data = dubnb.load_dataset("simulated", seed=1)
    >>> data.n_users, data.n_items
    (1000, 300)
    """
    base, colon, labels = name.partition(":") if isinstance(name, str) else (name, "", "")
    dataset = DATASETS[_check.choice("dataset", base, tuple(DATASETS))]
    if colon and not dataset.labels:
        raise InputError(f"dataset={name!r}: {base!r} has one kind of labels: leave {colon + labels!r} out")
    if colon:
        _check.choice(f"labels of dataset {base!r}", labels, dataset.labels)
    seed = _check.whole("seed", seed, low=0)
    if dataset.needs_files and data_dir is None:
        raise InputError(f"dataset {name!r} is read from files: say where they are with {option('data_dir')}")
    if not dataset.needs_files and data_dir is not None:
        given = f"{option('data_dir', '')}={str(data_dir)!r}"
        raise InputError(f"{given}: dataset {name!r} is simulated and reads no files: leave it out")
    module, _, function = dataset.loader.partition(":")
    loader = getattr(importlib.import_module(f"dubnb.data.{module}"), function)
    arguments = {"name": name, "seed": seed, "data_dir": data_dir, "quiet": quiet}
    wanted = inspect.signature(loader).parameters
    partition: Partition = loader(**{key: value for key, value in arguments.items() if key in wanted})
    return partition
