"""Datasets by name."""

from collections.abc import Callable
from typing import NamedTuple

from dubnb import _check
from dubnb._check import InputError


def _simulated(name, seed, data_dir, quiet):
    from dubnb.data.simulate import simulate

    return simulate(name, seed=seed, quiet=quiet)


def _indifferent(name, seed, data_dir, quiet):
    from dubnb.data import indifferent

    return indifferent.simulate(seed)


def _coat(name, seed, data_dir, quiet):
    from dubnb.data import coat

    return coat.load(data_dir, seed=seed)


def _yahoo_r3(name, seed, data_dir, quiet):
    from dubnb.data import yahoo_r3

    return yahoo_r3.load(data_dir, seed=seed)


class Dataset(NamedTuple):
    """How a name becomes a Partition."""

    loader: Callable  # (name, seed, data_dir, quiet) -> Partition
    needs_files: bool
    description: str


DATASETS = {
    "simulated": Dataset(_simulated, False, "small simulated log whose true preferences are known"),
    "yahoo-like": Dataset(_simulated, False, "simulated, of the size and sparsity of Yahoo! R3"),
    "product-like": Dataset(_simulated, False, "simulated, of the size and sparsity of the paper's Product"),
    "indifferent": Dataset(_indifferent, False, "simulated: popularity says nothing about what people like"),
    "coat": Dataset(_coat, True, "Coat shopping: 290 users x 300 items, 4,640 random ratings"),
    "yahoo-r3": Dataset(_yahoo_r3, True, "Yahoo! R3: 15,400 users x 1,000 songs, 54,000 random ratings"),
}


def load_dataset(name, *, seed=0, data_dir=None, quiet=True):
    """The Partition called `name`.

    `seed` makes a simulated log, and splits the randomized log of one read from files (0 is the paper's split).
    `data_dir` is where the files are, for the datasets that need some.
    """
    dataset = DATASETS[_check.choice("dataset", name, tuple(DATASETS))]
    seed = _check.whole("seed", seed, low=0)
    if dataset.needs_files and data_dir is None:
        raise InputError(f"dataset {name!r} is read from files: say where they are with data_dir= (--data-dir)")
    if not dataset.needs_files and data_dir is not None:
        raise InputError(f"data_dir={str(data_dir)!r}: dataset {name!r} is simulated and reads no files: leave it out")
    return dataset.loader(name, seed, data_dir, quiet)
