"""Training again: on all randomized data at the epochs that S_va chose, and on a longer log from an earlier model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import BACKBONES, Weights
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.triplets import joined
from dubnb.train import Fit, Log

if TYPE_CHECKING:
    from dubnb.methods._method import Method
    from dubnb.train import Stage

ALL = "all"
REFIT = "refit"  # begins the names of the stages of the second time
ALIKE = ("backbone", "rank")  # what two models share whose rows can stand for each other


def all_randomized(data: Partition, everything: bool = False) -> Partition:
    """The log to refit on: S_va's pairs are in S_t, and there is no S_va; S_te stays what nobody has trained on.

    everything: S_te's pairs are in S_t too, and the rows of the biased log that were held back in S_c. Of a pair that
    both logs have, the randomized label stays: it is the more credible.
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


def checked_refit(refit: Any) -> bool | str:
    """False, True or "all"."""
    if isinstance(refit, bool):
        return refit
    if refit != ALL or not isinstance(refit, str):
        raise InputError(f"refit={_check.shown(refit)} must be False, True (S_t and S_va) or 'all' (everything)")
    return ALL


def refit(
    resolved: Method, fit: Fit, lengths: Mapping[str, int], everything: bool
) -> tuple[Fit, Weights, Weights | None]:
    """The (resolved) method once more on what `all_randomized` gives, each stage for as many epochs as `lengths` says.

    fit: a fit on the log that is not refitted yet, which says how to train; nothing is trained with it. Row solves end
    when they have converged, as before. What S_va had chosen (dub-x's gamma, power and spread) stays chosen.
    """
    if not fit.validation.usable:
        asked = repr(ALL) if everything else True
        raise InputError(
            f"refit={asked} needs an S_va that can stop training early: without it nothing can be refitted"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="S_va has 0 pairs")  # as it must
        again = Fit(
            all_randomized(fit.data, everything),
            resolved.monitor,
            Log(fit.log.quiet, fit.log.callback),
            None,
            fit.threads,
            device=fit.device,
        )
    again.lengths, again.start = dict(lengths), fit.start
    M_c, M_t = resolved.recipe(again)
    again.log.rows = [row | {"stage": f"{REFIT} {row['stage']}"} for row in again.log.rows]
    return again, M_c, M_t


class Start:
    """An earlier model's rows as the beginning of another's, matched by id; new users and items begin at random."""

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
        """Where a stage begins: M_c at the earlier model's rows, all else at random."""
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
    """(rows of the new log, rows of the old one) of the ids that both have."""
    if old.kind != new.kind:
        raise InputError(f"start= has {what} whose ids are {old.kind}, the log's are {new.kind}: write them alike")
    there = old.find(new.values)
    here = np.flatnonzero(there >= 0)
    if not len(here):
        raise InputError(f"start= knows none of the log's {len(new):,} {what}: leave it out, or check the ids")
    return here, there[here]
