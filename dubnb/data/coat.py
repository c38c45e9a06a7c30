"""Coat shopping (Schnabel et al., ICML 2016): 290 users x 300 coats, ratings 1-5, 16 random ratings a user."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from dubnb._check import InputError
from dubnb.data.partition import Partition
from dubnb.data.ratings import Ratings, check_ratings, find_files, partition_of_ratings, ratings_shape, read_triplets

SOURCE = "the data are on the Coat page of Cornell University (CC BY-NC)"
TRIPLETS = ("user.txt", "random.txt")
MATRICES = ("train.ascii", "test.ascii")


def load(data_dir: str | Path, seed: int = 0) -> Partition:
    """The Partition of the files in `data_dir`; `seed` is that of the split. Both kinds of file give the same one."""
    kind, (biased_path, random_path) = find_files(data_dir, (TRIPLETS, MATRICES), "coat", SOURCE)
    if kind == 0:
        biased, random = read_triplets(biased_path), read_triplets(random_path)
        shape = ratings_shape(biased, random)
    else:
        matrices = _read_matrix(biased_path), _read_matrix(random_path)
        if matrices[0].shape != matrices[1].shape:
            raise InputError(
                f"{random_path} has shape {matrices[1].shape}, {biased_path} {matrices[0].shape}: must agree"
            )
        biased, random = _rated(matrices[0], biased_path), _rated(matrices[1], random_path)
        shape = matrices[0].shape[0], matrices[0].shape[1]
    return partition_of_ratings(biased, random, shape, split_seed=seed, name="coat")


def _read_matrix(path: Path) -> np.ndarray:
    """Users x items of ratings, 0 where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy's on an empty file, which is refused below
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
    check_ratings(matrix[users, items], str(path))
    return Ratings(users, items, matrix[users, items])
