"""A second training: on more randomized data with the epochs that S_va chose, or on a longer log from a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb._check import InputError
from dubnb.backbones import BACKBONES, Weights
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.triplets import joined
from dubnb.train import Fit, Log

if TYPE_CHECKING:
    from dubnb.methods._method import Method
    from dubnb.train import Stage

ALL = "all"
REFIT = "refit"  # the prefix of stage names in the second training
ALIKE = ("backbone", "rank")  # must be equal for one model to start from the rows of another


def all_randomized(data: Partition, everything: bool = False) -> Partition:
    """The log to refit on: S_t also has the pairs of S_va, and S_va is empty; S_te stays unseen.

    everything: S_t also has the pairs of S_te, and S_c the rows of the biased log that were held back. If both logs
    have a pair, the randomized label is kept, as it is the more credible.
    """
    S_t, S_va, S_te = (data.triplets(part) for part in RANDOMIZED)
    none = S_va.take(slice(0))
    if not everything:
        return data.replace(S_t=joined(S_t, S_va), S_va=none)
    new: dict[str, Any] = {"S_t": joined(S_t, S_va, S_te), "S_va": none, "S_te": none}
    if data.held_back is not None:
        new |= {"S_c": joined(data.triplets("S_c"), data.held_back), "held_back": None, "held_back_propensities": None}
        if data.propensities is not None and data.held_back_propensities is not None:
            new["propensities"] = np.concatenate([data.propensities, data.held_back_propensities])
    return data.replace(**new)


def refit(
    resolved: Method, fit: Fit, lengths: Mapping[str, int], everything: bool
) -> tuple[Fit, Weights, Weights | None]:
    """Train the (resolved) method on `all_randomized`, each stage for `lengths` epochs; returns (fit, M_c, M_t).

    fit: the first fit; its log, threads and device are used. Row solves end when they have converged, as in the first
    training. The settings that S_va chose (dub-x's gamma, power and spread) are kept.
    """
    if not fit.validation.usable:
        asked = repr(ALL) if everything else True
        raise InputError(f"refit={asked} needs an S_va that can stop training early, to choose the number of epochs")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="S_va has 0 pairs")
        second = Fit(
            all_randomized(fit.data, everything),
            resolved.monitor,
            Log(fit.log.quiet, fit.log.callback),
            None,
            fit.threads,
            device=fit.device,
        )
    second.lengths, second.start, second.head = dict(lengths), fit.start, fit.head
    M_c, M_t = resolved.recipe(second)
    M_c = resolved.apply_head(second, M_c)
    second.log.rows = [row | {"stage": f"{REFIT} {row['stage']}"} for row in second.log.rows]
    return second, M_c, M_t


class Start:
    """Initial weights from an earlier model, matched by id; new users and items start at random."""

    def __init__(self, model: Any, resolved: Method, data: Partition):
        self.weights = model._fitted()
        for name in ALIKE:
            if model.params_[name] != getattr(resolved, name):
                own = getattr(resolved, name)
                raise InputError(f"start= has {name}={model.params_[name]!r}, this model {own!r}: make them agree")
        self.sides = {
            "user_": _matched(model.user_ids_, data.user_ids, "users"),
            "item_": _matched(model.item_ids_, data.item_ids, "items"),
        }

    def new(self, stage: Stage, data: Partition) -> Weights:
        """The initial weights of a stage: the earlier model's rows for M_c, random ones for other stages."""
        fresh = stage.new(data)
        if stage.name != "M_c":
            return fresh
        arrays, old = fresh.arrays(), self.weights.arrays()
        for name, array in arrays.items():
            side = self.sides.get(name[:5])
            if side is None:
                array[...] = old[name]
            else:
                here, there = side
                array[here] = old[name][there]
        return BACKBONES[stage.backbone].from_arrays(arrays)


def _matched(old: Any, new: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    """(rows of the new log, rows of the old one) of the ids that both logs have."""
    if old.kind != new.kind:
        raise InputError(f"start= has {what} whose ids are {old.kind}, the log's are {new.kind}: use the same type")
    there = old.find(new.values)
    here = np.flatnonzero(there >= 0)
    if not len(here):
        raise InputError(f"start= knows none of the log's {len(new):,} {what}: leave it out, or check the ids")
    return here, there[here]
