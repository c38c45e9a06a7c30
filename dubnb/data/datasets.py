"""Datasets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dubnb import _check
from dubnb._check import InputError, option
from dubnb.data.partition import Partition

Loader = Callable[[str, int, "str | Path | None", bool], Partition]  # (name, seed, data_dir, quiet)


def _simulated(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data.simulate import simulate

    return simulate(name, seed=seed, quiet=quiet)


def _indifferent(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import indifferent

    return indifferent.simulate(seed)


def _coat(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import coat

    return coat.load(data_dir or "", seed=seed)


def _yahoo_r3(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import yahoo_r3

    return yahoo_r3.load(data_dir or "", seed=seed)


def _kuairand(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import kuairand

    return kuairand.load(data_dir or "", seed=seed, quiet=quiet)


def _kuairec(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import kuairec

    return kuairec.load(data_dir or "", seed=seed, quiet=quiet)


def _open_bandit(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import open_bandit

    return open_bandit.load(data_dir or "", seed=seed, quiet=quiet)


def _world(name: str, seed: int, data_dir: str | Path | None, quiet: bool) -> Partition:
    from dubnb.data import worlds

    return worlds.load(name, seed=seed)


class Dataset(NamedTuple):
    """How a name becomes a Partition."""

    loader: Loader
    needs_files: bool
    description: str
    labels: tuple[str, ...] = ()  # kinds that may follow the name and a colon; without them the first is meant


WORLD_LABELS = ("clicks", "stars", "watch", "clicks-only", "clicks-only-both")


DATASETS = {
    "simulated": Dataset(_simulated, False, "small simulated log whose true preferences are known"),
    "yahoo-like": Dataset(_simulated, False, "simulated, of the size and sparsity of Yahoo! R3"),
    "product-like": Dataset(_simulated, False, "simulated, of the size and sparsity of the paper's Product"),
    "indifferent": Dataset(_indifferent, False, "simulated: popularity says nothing about what people like"),
    "world-popular": Dataset(_world, False, "simulated company: popular items are liked more", WORLD_LABELS),
    "world-niche": Dataset(_world, False, "simulated company: 30 niches, popularity says nothing", WORLD_LABELS),
    "world-drift": Dataset(_world, False, "simulated company: tastes move and items trend", WORLD_LABELS),
    "world-promoted": Dataset(_world, False, "simulated company: editors push what people like less", WORLD_LABELS),
    "coat": Dataset(_coat, True, "Coat shopping: 290 users x 300 items, 4,640 random ratings"),
    "yahoo-r3": Dataset(_yahoo_r3, True, "Yahoo! R3: 15,400 users x 1,000 songs, 54,000 random ratings"),
    "kuairand": Dataset(_kuairand, True, "KuaiRand-Pure: 27,285 users x 7,583 videos, 1.2 M random impressions"),
    "kuairec": Dataset(_kuairec, True, "KuaiRec: a feed of 7,176 users, and 1,411 users x 3,327 videos all watched"),
    "open-bandit": Dataset(_open_bandit, True, "Open Bandit, campaign all: 80 items, random and bts traffic"),
}


def load_dataset(name: str, *, seed: int = 0, data_dir: str | Path | None = None, quiet: bool = True) -> Partition:
    """The Partition called `name`.

    Parameters
    ----------
    name : str
        One of DATASETS. A colon and a kind of labels may follow the name of a world, as in "world-niche:stars".
    seed : int
        Makes a simulated log, and splits the randomized log of one read from files (0 is the paper's split).
    data_dir : str or path
        Where the files are, for the datasets that need some.
    quiet : bool
        No progress bar.
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
        raise InputError(
            f"{option('data_dir', '')}={str(data_dir)!r}: dataset {name!r} is simulated and reads no files: leave it "
            "out"
        )
    return dataset.loader(name, seed, data_dir, quiet)
