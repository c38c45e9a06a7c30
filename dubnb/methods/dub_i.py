"""DUB-I: dub-x's objective with item-item coefficients instead of factors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.background import SERIAL, WorkPool
from dubnb.data.partition import Partition
from dubnb.evaluation import top_k
from dubnb.methods import _fold_in
from dubnb.methods._exact import ExactMethod, unless_lam
from dubnb.methods._method import Method
from dubnb.methods._params import LogFacts, Settings, required, weight_of_S_t
from dubnb.methods.dub_x import RECIPE, DubX
from dubnb.objective import item_item
from dubnb.objective.terms import Unobserved, rates_of
from dubnb.train import Fit

CUTOFFS = (0.45, 0.65, 0.9, 1.3, 1.8)
GAMMAS = (0.006, 0.0125, 0.025, 0.05, 0.1)
OBJECTIVE = {"gamma": 0.025, "exposure_power": (1.0, 0.75)}  # fixed: dub-i chooses nothing on S_va


def _default_teacher(log: LogFacts, known: Mapping[str, Any]) -> str:
    """The item teacher reads S_t, so terms without a and e leave it out."""
    return "item" if set("ae") & set(known["terms"]) else "constant"


class ItemItemMethod(Method):
    """A method whose weights are an `ItemItem`: its limit of items, its neighbours and its explanations."""

    solves_rows = False

    def weights_class(self) -> type[Any]:
        return item_item.ItemItem

    def _check_log(self, data: Partition) -> None:
        item_item.check_size(data.n_items, self.name)
        super()._check_log(data)

    def similar_items(self, items: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The k items whose scores rise most for users with each of `items`, and their coefficients."""
        weights: Any = self._fitted()
        rows = self.item_ids_.rows(np.atleast_1d(np.asarray(items)), "item")
        k = min(_check.whole("k", k), len(self.item_ids_) - 1)
        gains = weights.coefficients[rows]
        top = top_k(gains, k, np.arange(len(self.item_ids_)) == rows[:, None])
        return self.item_ids_.values[top], np.take_along_axis(gains, top, axis=1)

    def explain(self, user: Any, item: Any, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The user's items that add most to the score of `item`, and how much each adds, largest first.

        Parameters
        ----------
        user, item : id
            Ids of the training data.
        k : int
            The largest number of items to return.
        """
        return explanation(self, item_item_of(self._fitted()), user, item, k)


@dataclass(kw_only=True, repr=False, eq=False)
class DubI(ItemItemMethod, DubX):
    """Score an item by the user's other items: dub-x's objective as a ridge regression between items.

    It explains its lists ("because you liked ...") and uses no random numbers. It is for catalogues of up to 12,000
    items. `DubXI` blends it with dub-x.

    Its parameters are those of `DubX`, with other defaults: gamma .025, exposure_power (1, .75), cutoff .9. The teacher
    is "item", or "constant" if `terms` has neither a nor e, so that terms="cd" trains without S_t. lam is the penalty
    of a squared coefficient. epochs counts steps of conjugate gradients, 12 by default. The parameters rank, lr,
    batch_size, patience and seed have no effect.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.DubI().fit(data)
    >>> items, scores = model.recommend([3], k=5)
    >>> reasons, amounts = model.explain(3, items[0, 0])

    Notes
    -----
    S_ui = c_u + sum over the user's items f in S_c of x_uf B_if, with B_ii = 0. B and c minimise the objective of
    `DubX`, with a ridge on B in place of factors, see `dubnb.objective.item_item`. EASE (Steck, 2019) is similar,
    but gives all pairs the same weight and reads only S_c's positives. Memory is six arrays of items x items numbers.
    """

    head: str | None = None

    name = "dub-i"
    trains_on_gpu = False
    decays_by_row = False
    SETTINGS = {
        ("mf", "exact"): Settings(
            defaults={
                **RECIPE,
                **OBJECTIVE,
                "rank": 1,
                "cutoff": unless_lam(item_item.PENALTY / 2),
                "loss": "squared",
                "randomized_weight": weight_of_S_t,
                "teacher": _default_teacher,
                "epochs": item_item.STEPS,
                "patience": 1,
            },
            paper={"cutoff": CUTOFFS, "gamma": GAMMAS},
            wide={"cutoff": CUTOFFS, "gamma": GAMMAS, "exposure_power": ((1.0, 0.75), 0.75, 1.0)},
            even={"cutoff": CUTOFFS, "gamma": GAMMAS},
            near={"cutoff": 1.4, "gamma": 2.0},
        )
    }
    CHECKS = {"teacher": _check.choices(("constant", "item")), "cutoff": ExactMethod.CHECKS["cutoff"]}

    def check(self) -> None:
        super().check()
        if self.gamma == "auto":
            raise InputError("gamma='auto' is for dub-x: give dub-i a number, or leave gamma out")

    def idle(self) -> set[str]:
        return super().idle() | {"rank", "lr", "batch_size", "patience"}

    def keep_choices(self, model: Any) -> None:
        raise InputError("start= is for dub-x: dub-i is solved from zero; leave it out")

    def apply_head(self, fit: Fit, weights: Any) -> Any:
        return Method.apply_head(self, fit, weights)

    def _check_log(self, data: Partition) -> None:
        super()._check_log(data)
        if data.bucket:
            alike = int((data.biased_counts.users == 0).sum())
            warnings.warn(
                f"no user of the randomized sets is in S_c (a user bucket): dub-i scores an item by the user's items "
                f"in S_c, so the {alike:,} users without any all get the same list; dub-x learns their rows from S_t",
                stacklevel=4,
            )

    def recipe(self, fit: Fit, stage: str = "solve") -> tuple[Any, Weights | None]:
        """Solve for the coefficients, once."""
        self.set_params(**self._given()._asdict())  # nothing is chosen: "auto" stands for a fixed value
        data, terms = fit.data, self.all_terms(fit, None)
        problem, inputs = self.exact_problem(terms), self._inputs(data)
        pool = WorkPool(fit.threads) if fit.threads > 1 else SERIAL
        solved = item_item.solve_item_item(problem, inputs, float(problem.wd_u[0]), required(self.epochs), pool)
        (d,) = (term for term in terms if isinstance(term, Unobserved))
        activity = (np.diff(inputs.indptr) + 1.0) ** d.power
        rule = item_item.NewUserRule(
            (problem.strength * problem.C).astype(np.float32),
            required(d.teacher).predict(np.zeros(data.n_items, np.int32), np.arange(data.n_items, dtype=np.int32)),
            d.power,
            float(activity.mean()),
            len(inputs.items) / data.n_users,
        )
        weights = replace(solved, rule=rule)
        once = self.stage(stage, lam=0.0, epochs=1)
        return fit.run_epochs(once, lambda epoch: {}, weights, lambda: weights), None

    def _inputs(self, data: Partition) -> item_item.Inputs:
        """x of every user: graded targets, shares of impressions or 0/1 labels of S_c."""
        S_c = data.triplets("S_c")
        y = S_c.labels
        if self.targets == "graded":
            y = self.target_rule().of(data, "S_c").labels
        elif self.targets == "rates":
            y = rates_of(data, S_c)
        return item_item.input_rows(S_c.users, S_c.items, y, data.n_users, len(S_c.users) / data.n_users)

    # -- what a fitted model offers

    def fold_in(self, items: Any, labels: Any = None) -> _fold_in.NewUser:
        weights = _fold_in.without_head(self._fitted(), self.head_)
        own = _fold_in.history(self.item_ids_, self.params_, items, labels)
        new = weights.new_user(own.items, own.inputs, own.observed)
        return _fold_in.NewUser(_fold_in.new_user_with_head(new, self.head_, own), self.item_ids_, own.items)


def item_item_of(weights: Any) -> item_item.ItemItem:
    """The item-item part of dub-i's or dub-xi's weights."""
    part = getattr(weights, "item_item", weights)
    if part is None:
        raise InputError("this dub-xi has blend 0, which is plain dub-x: it has no item-item part to explain with")
    return part


def explanation(model: Any, weights: item_item.ItemItem, user: Any, item: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """See `DubI.explain`."""
    row, column = model.user_ids_.rows([user], "user")[0], model.item_ids_.rows([item], "item")[0]
    items, amounts = weights.contributions(int(row), int(column))
    order = np.argsort(-amounts, kind="stable")[: _check.whole("k", k)]
    return model.item_ids_.values[items[order]], amounts[order]
