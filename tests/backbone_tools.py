"""Weights of backbones for tests, and their comparison with the twins of tests/naive.py."""

import numpy as np

from dubnb.backbones import BACKBONES, mf

N_USERS, N_ITEMS, RANK = 6, 5, 3
NEW_WEIGHT = 1.0 - mf.BETA_1  # Adam's first moment after its first step is this times the gradient


def new(backbone, seed=0, n_users=N_USERS, n_items=N_ITEMS, rank=RANK, **options):
    """Weights in which every parameter, biases included, is well away from 0."""
    weights = BACKBONES[backbone].new((n_users, n_items), rank, seed, "c", **options)
    rng = np.random.default_rng(seed)
    arrays = weights.arrays()
    for name, array in arrays.items():
        if name not in ("sizes", "activation"):
            arrays[name] = rng.normal(0, 0.6, array.shape).astype(np.float32)
    return BACKBONES[backbone].from_arrays(arrays)


def moments(trainer, number):
    """Adam's moment `number` (0: the weights themselves) in the twins' layout."""
    rank, tables = trainer.rank, trainer.tables
    found = {"user_factors": tables.users[:, number, :rank], "item_factors": tables.items[:, number, :rank]}
    if hasattr(tables, "b0"):
        found |= {"user_bias": tables.users[:, number, rank], "item_bias": tables.items[:, number, rank + 1]}
        return found | {"b0": tables.b0[number : number + 1]}
    return found | {"dense": trainer.network.dense[number]}


def assert_close(found, expected, rtol, atol):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=atol, err_msg=name)
