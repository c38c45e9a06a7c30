"""DUB-XI: a blend of dub-x and dub-i, with a share that held-out randomized pairs choose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Weights
from dubnb.backbones.mf import Extended
from dubnb.choice import UserInfluence, compare_candidates, mean_of_parts
from dubnb.data.partition import Partition
from dubnb.evaluation import monitored_influences
from dubnb.methods import _fold_in
from dubnb.methods._head import WEIGHTS, HeldOut
from dubnb.methods._params import required
from dubnb.methods._serving import _similar_items
from dubnb.methods.dub_i import DubI, explanation, item_item_of
from dubnb.methods.dub_x import AUTO, LARGE, DubX, can_choose
from dubnb.objective import item_item
from dubnb.train import Fit, Log

BLENDS = (0.25, 0.4, 0.5)  # tried by blend="auto"
SPREAD_USERS = 1000  # users whose scores give the standard deviations
SHARED = ("targets", "negative", "target_slope", "randomized_weight", "grade_spread", "terms", "teacher_value", "seed")


def _checked_blend(name: str, value: Any) -> float | str:
    return AUTO if isinstance(value, str) and value == AUTO else _check.real(name, value, high=1.0)


OF_DUB_X = DubX.SETTINGS["mf", "exact"]


@dataclass(frozen=True)
class Blend:
    """The weights of dub-xi: factor_share x dub-x's score + item_share x dub-i's."""

    mf: MF
    item_item: item_item.ItemItem | None  # None: item_share is 0
    factor_share: float  # (1 - v) / sd of dub-x's scores
    item_share: float  # v / sd of dub-i's scores

    @property
    def users(self) -> np.ndarray:
        return self.mf.users

    @property
    def items(self) -> np.ndarray:
        return self.mf.items

    @property
    def rank(self) -> int:
        return self.mf.rank

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""
        out = self.mf.score_pairs(users, items, out)
        out *= np.float32(self.factor_share)
        if self.item_item is not None:
            out += np.float32(self.item_share) * self.item_item.score_pairs(users, items)
        return out

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""
        rows = np.float32(self.factor_share) * self.mf.score_rows(users)
        if self.item_item is not None:
            rows += np.float32(self.item_share) * self.item_item.score_rows(users)
        return rows

    def extended(self) -> Extended:
        """Rows whose inner product is the score; raises InputError if dub-i has a share."""
        if self.item_item is not None:
            return self.item_item.extended()
        P, Q = self.mf.extended()
        return Extended(P * np.float32(self.factor_share), Q)

    def finite(self) -> bool:
        """Whether every number is finite."""
        return all(bool(np.isfinite(array).all()) for array in self.arrays().values())

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for saving."""
        named = {"shares": np.array([self.factor_share, self.item_share])}
        named |= {f"mf.{name}": array for name, array in self.mf.arrays().items()}
        if self.item_item is not None:
            named |= {f"item_item.{name}": array for name, array in self.item_item.arrays().items()}
        return named

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Blend:
        """Weights from what `arrays` returns; raises InputError if the arrays do not fit together."""
        parts: dict[str, dict[str, np.ndarray]] = {"mf": {}, "item_item": {}}
        for name, array in arrays.items():
            if name != "shares":
                part, _, own = name.partition(".")
                parts[part][own] = array
        mf = MF.from_arrays(parts["mf"])
        other = item_item.ItemItem.from_arrays(parts["item_item"]) if parts["item_item"] else None
        if other is not None and (len(other.users), len(other.items)) != (len(mf.users), len(mf.items)):
            raise InputError("the two parts of the blend differ in size: the model file was altered; fit again")
        factor_share, item_share = (_check.real("share", float(share)) for share in arrays["shares"])
        return cls(mf, other, factor_share, item_share)

    def average_user(self, cold: np.ndarray) -> Blend:
        """Both parts with their average user alone."""
        other = None if self.item_item is None else self.item_item.average_user(cold)
        return Blend(_fold_in.average_user(self.mf, cold), other, self.factor_share, self.item_share)

    def with_average(self, cold: np.ndarray) -> Blend:
        """The average user's factors in place of every cold user's."""
        return Blend(_fold_in.with_average(self.mf, cold), self.item_item, self.factor_share, self.item_share)


@dataclass(kw_only=True, repr=False, eq=False)
class DubXI(DubX):
    """dub-x and dub-i together: fit both, and mix their scores if that is better on the validation part.

    Use it where dub-x is the best and a few more points of ranking quality are worth twice the time and memory.

    Parameters
    ----------
    blend : float or "auto"
        The share v of dub-i, from 0 to 1. "auto", the default, tries .25, .4 and .5. Of those that gain more than one
        paired standard error (see `dubnb.choice`), it takes the one with the largest gain. If there is none, it takes
        0. What counts is what counts for the settings of dub-x: with monitor="auc" AUC and half of nDCG, else the
        monitored metric. With fewer than 1,000 positives in S_va, the gain is measured on the folds that choose these
        settings, where both parts are fitted without the held-out pairs; a given gamma is solved on the same folds.
        With more, or if S_c has more than a million pairs, it is measured on S_va. With fewer than 30 it is 0.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.DubXI(rank=8).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    score = (1 - v) S_x / sd(S_x) + v S_i / sd(S_i), with S_x of `DubX`, S_i of `DubI` and standard deviations over all
    items of at most 1,000 users. A head's offsets are part of S_x, but not of its standard deviation. Other parameters
    are those of `DubX`; dub-i shares its targets and weights of observed pairs, and keeps its own gamma,
    exposure_power, teacher and penalty.
    """

    blend: float | str | None = None

    name = "dub-xi"
    trains_on_gpu = False
    SETTINGS = {
        ("mf", "exact"): replace(OF_DUB_X, defaults={**OF_DUB_X.defaults, "blend": AUTO}),
    }
    CHECKS = {"blend": _checked_blend}

    def inner_candidates(self, data: Partition) -> int:
        chooses = self.resolve(data).blend == AUTO and can_choose(Fit(data, self.monitor))
        return super().inner_candidates(data) + len(BLENDS) * chooses

    def weights_class(self) -> type[Any]:
        return Blend

    def _check_log(self, data: Partition) -> None:
        item_item.check_size(data.n_items)
        super()._check_log(data)

    def recipe(self, fit: Fit, stage: str = "refine") -> tuple[Any, Weights | None]:
        """Fit dub-x, then dub-i; then choose how to mix them."""
        M_c, M_t, folds = self.solved(fit, stage)
        chooses = self.blend == AUTO
        if chooses and not can_choose(fit, "blend 0 is fixed; choosing it"):
            self.blend = 0.0
        elif chooses and fit.data.size("S_c") <= LARGE:
            folds = folds or self.solved_on_folds(fit, M_t)
            self.blend = self._chosen_on(folds, fit) if folds else AUTO
        other = self._item_item(fit) if self.blend else None
        if isinstance(self.blend, str):
            mixed = {s: self._mixed(fit, M_c, other if s else None, s, fit.head) for s in (0.0, *BLENDS)}
            judged = {s: monitored_influences(each, fit.data, self.monitor) for s, each in mixed.items()}
            self.blend = self._best_share(judged, fit.log.rows)
            best = mixed[self.blend]
        else:
            best = self._mixed(fit, M_c, other, required(self.blend), fit.head)
        kept = {f"blend {self.blend:g}", *(["item-item"] if self.blend else [])}
        for row in fit.log.rows if chooses else ():
            if row["stage"] == "item-item" or row["stage"].startswith("blend "):
                row["chosen"] = float(row["stage"] in kept)
        return best, M_t

    def _item_item(self, fit: Fit) -> item_item.ItemItem:
        """dub-i on the log of a fit."""
        own = DubI(**{name: getattr(self, name) for name in SHARED}).resolve(fit.data)
        solved: item_item.ItemItem = own.recipe(fit, "item-item")[0]
        return solved

    def _chosen_on(self, folds: Sequence[HeldOut], fit: Fit) -> float:
        """The best share on folds of S_t and S_va, where dub-x has no head. One dub-i at a time is in memory."""
        judged: dict[float, list[Sequence[UserInfluence]]] = {share: [] for share in (0.0, *BLENDS)}
        rows: list[dict[str, Any]] = []
        for number, (data, M_c) in enumerate(folds, 1):
            own = fit.on(data, Log(fit.log.quiet, fit.log.callback))
            other = self._item_item(own)
            for share, found in judged.items():
                mixed = self._mixed(own, M_c, other if share else None, share)
                found.append(monitored_influences(mixed, data, self.monitor))
            rows += [row | {"stage": f"fold {number}, {row['stage']}", "chosen": 0.0} for row in own.log.rows]
        sizes = [len(data.triplets("S_va").users) for data, _ in folds]
        best = self._best_share({share: mean_of_parts(found, sizes) for share, found in judged.items()}, rows)
        fit.log.rows += rows
        return best

    def _best_share(self, judged: Mapping[float, Sequence[UserInfluence]], rows: Iterable[dict[str, Any]]) -> float:
        """The share with the largest clear gain over 0, or 0; every gain is added to the `rows` of its stage."""
        best, largest = 0.0, -np.inf
        for share in BLENDS:
            found = compare_candidates(judged[share], judged[0.0], WEIGHTS.get(self.monitor))
            for row in rows:
                if re.sub(r"^fold \d+, ", "", row["stage"]) == f"blend {share:g}":
                    row |= {"choice_difference": found.difference, "choice_error": found.standard_error}
            if found.replaces and found.difference > largest:
                best, largest = share, found.difference
        return best

    def _mixed(self, fit: Fit, M_c: Any, other: item_item.ItemItem | None, share: float, head: Any = None) -> Blend:
        """One mixture, with its row in the history; M_c has the offsets of `head`."""
        users = np.unique(np.linspace(0, fit.data.n_users - 1, min(fit.data.n_users, SPREAD_USERS)).astype(np.int64))
        plain = M_c if head is None else M_c.with_offsets(-head.user_offsets, -head.item_offsets)
        scales = [1.0 if part is None else float(part.score_rows(users).std()) or 1.0 for part in (plain, other)]
        weights = Blend(M_c, other, (1 - share) / scales[0], 0.0 if other is None else share / scales[1])
        once = self.stage(f"blend {share:g}", lam=0.0, epochs=1)
        kept: Blend = fit.run_epochs(once, lambda epoch: {}, weights, lambda: weights)
        return kept

    # -- what a fitted model offers

    def fold_in(self, items: Any, labels: Any = None) -> _fold_in.NewUser:
        weights: Any = self._fitted()
        own = _fold_in.history(self.item_ids_, self.params_, items, labels)
        if self.row_objective_ is None:
            raise InputError("this dub-xi has no row objective: fold_in needs term c; fit it with terms='acd'")
        mf = _fold_in.without_head(weights.mf, self.head_)
        row = _fold_in.solve(mf, self.row_objective_, "squared", own.items, own.observed)
        item_item = weights.item_item
        other = None if item_item is None else item_item.new_user(own.items, own.inputs, own.observed)
        mf = _fold_in.new_user_with_head(_fold_in.as_weights(row, mf), self.head_, own)
        mixed = Blend(mf, other, weights.factor_share, weights.item_share)
        return _fold_in.NewUser(mixed, self.item_ids_, own.items)  # type: ignore[arg-type]

    def similar_items(self, items: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The k items most similar to each of `items` by the cosine of dub-x's factors."""
        weights: Any = self._fitted()
        rows = self.item_ids_.rows(np.atleast_1d(np.asarray(items)), "item")
        return _similar_items(weights.mf, self.item_ids_, rows, _check.whole("k", k))

    def explain(self, user: Any, item: Any, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The user's items that add most to the score of `item` in the item-item part, see `DubI.explain`."""
        return explanation(self, item_item_of(self._fitted()), user, item, k)
