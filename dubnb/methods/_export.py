"""Embeddings for other programs: vectors whose plain inner product is the score (mf)."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

import numpy as np

from dubnb import _files
from dubnb._check import InputError
from dubnb.backbones import MF, Weights
from dubnb.ranking import top_k

if TYPE_CHECKING:
    from dubnb.data.ids import Ids

TABLES = {"user": "users.parquet", "item": "items.parquet"}
BLOCK = 1 << 22  # likenesses held at a time


def vectors(weights: Weights) -> tuple[np.ndarray, np.ndarray]:
    """(users, items): the extended rows, [p, b_u + b0, 1] and [q, 1, b_i], so that biases are part of the product."""
    if not isinstance(weights, MF):
        raise InputError("export needs backbone='mf': ncf's score is no inner product; fit with backbone='mf'")
    rows = weights.extended()
    return rows.P, rows.Q


def export(
    weights: Weights, user_ids: Ids, item_ids: Ids, directory: str | os.PathLike[str], overwrite: bool
) -> list[str]:
    """See `Serving.export`."""
    sides = {"user": (user_ids, vectors(weights)[0]), "item": (item_ids, vectors(weights)[1])}
    os.makedirs(directory, exist_ok=True)
    names = [f"{side}_{what}.npy" for side in sides for what in ("vectors", "ids")]
    names += list(TABLES.values()) if _has_arrow() else []
    for name in names:
        if not overwrite and os.path.exists(os.path.join(directory, name)):
            raise InputError(
                f"{_files.quote_path(directory)} has a {name} already: choose another directory or overwrite"
            )
    for side, (ids, rows) in sides.items():
        for what, array in (("vectors", rows), ("ids", ids.values)):
            with _files.atomic_write(os.path.join(directory, f"{side}_{what}.npy"), overwrite) as file:
                np.save(file, array, allow_pickle=False)
        if _has_arrow():
            with _files.atomic_write(os.path.join(directory, TABLES[side]), overwrite) as file:
                _write_parquet(file, side, ids.values, rows)
    return names


def _has_arrow() -> bool:
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None


def _write_parquet(file: IO[bytes], side: str, ids: np.ndarray, rows: np.ndarray) -> None:
    """A row per id: its id, and its vector as a list of fixed length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).ravel()), rows.shape[1])
    pq.write_table(pa.Table.from_arrays([pa.array(ids), vector], names=[side, "vector"]), file)


def similar_items(weights: Weights, item_ids: Ids, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Items by the cosine of their factors to those of each of `rows`, the item itself left out."""
    factors = np.asarray(weights.items[:, : weights.rank], dtype=np.float32)
    lengths = np.sqrt((factors.astype(np.float64) ** 2).sum(axis=1)).astype(np.float32)
    factors = factors / np.maximum(lengths, np.finfo(np.float32).tiny)[:, None]
    k = min(k, len(item_ids) - 1)
    items, likeness = np.empty((len(rows), k), item_ids.values.dtype), np.empty((len(rows), k), np.float32)
    size = max(1, BLOCK // len(item_ids))
    for start in range(0, len(rows) if k else 0, size):
        block = slice(start, start + size)
        own = rows[block]
        scores = factors[own] @ factors.T
        top = top_k(scores, k, np.arange(len(item_ids)) == own[:, None])
        items[block], likeness[block] = item_ids.values[top], np.take_along_axis(scores, top, axis=1)
    return items, likeness
