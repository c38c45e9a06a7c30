"""Coat shopping (Schnabel et al., ICML 2016): 290 users x 300 coats, ratings 1-5, 16 random ratings a user."""

import warnings

import numpy as np

from dubnb._check import InputError
from dubnb.data.table import find_files, partition_of_ratings, read_triplets, triplets_shape

POSITIVE_ABOVE = 3
SOURCE = "the data are on the Coat page of Cornell University (CC BY-NC)"
TRIPLETS = ("user.txt", "random.txt")
MATRICES = ("train.ascii", "test.ascii")


def load(data_dir, seed=0):
    """The Partition of the files in `data_dir`; `seed` is that of the split. Both kinds of file give the same one."""
    kind, (biased_path, random_path) = find_files(data_dir, (TRIPLETS, MATRICES), "coat", SOURCE)
    if kind == 0:
        biased, random = read_triplets(biased_path), read_triplets(random_path)
        shape = triplets_shape(biased, random)
    else:
        matrices = _read_matrix(biased_path), _read_matrix(random_path)
        if matrices[0].shape != matrices[1].shape:
            raise InputError(
                f"{random_path} has shape {matrices[1].shape}, {biased_path} {matrices[0].shape}: must agree"
            )
        biased, random = (_rated(matrix) for matrix in matrices)
        shape = matrices[0].shape
    return partition_of_ratings(biased, random, shape, positive_above=POSITIVE_ABOVE, split_seed=seed, name="coat")


def _read_matrix(path):
    """Users x items of ratings, 0 where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy's on an empty file, which is refused below
            matrix = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a matrix of ratings ({reason}): expected one line of numbers per user") from None
    if not np.isfinite(matrix).all() or not matrix.any():
        raise InputError(f"{path}: not a matrix of ratings: expected finite numbers, 0 where there is no rating")
    return matrix


def _rated(matrix):
    """(users, items, ratings) row by row: the order of the triplet files, so that the split is the same."""
    users, items = np.nonzero(matrix)
    return users, items, matrix[users, items]
