"""What a fitted model can do for others: lists, judgements, files for other programs, new users."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option
from dubnb.backbones import MF
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.evaluation import evaluate
from dubnb.methods import _display, _export, _fold_in, _other_log
from dubnb.methods._fallback import average_user
from dubnb.methods._recommend import Lister, Lists, excluded_pairs, recommend
from dubnb.methods._recommend_all import recommend_all

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.backbones import Scorer, Weights
    from dubnb.data.ids import Ids
    from dubnb.data.pattern import Pattern
    from dubnb.methods._fold_in import RowObjective

JUDGED = ("full-ranking", (5, 10), "S_te")  # how a model is judged before it is refitted on everything
NAMED_AT_MOST = 10  # users that a warning names


class _Calibrated:
    """A scorer, and what makes probabilities of its scores."""

    def __init__(self, scorer: Scorer, probabilities: Callable[[np.ndarray], np.ndarray]):
        self.score_pairs, self.score_rows, self.probabilities = scorer.score_pairs, scorer.score_rows, probabilities


class Serving:
    """A fitted model at work. Users and items are original ids."""

    if TYPE_CHECKING:  # not in the class itself: what reads the parameters' types would meet these too
        name: ClassVar[str]
        history_rows_: list[dict[str, Any]]
        params_: dict[str, Any]
        weights_: Weights
        user_ids_: Ids
        item_ids_: Ids
        seen_: Pattern  # what users have had: the biased log, and the positives of S_t
        cold_: np.ndarray  # users of whom the model has learned nothing
        row_objective_: RowObjective | None
        data_: dict[str, str]
        trained_: np.ndarray | None  # sorted hashes of the randomized pairs that it was trained or chosen on
        lengths_: dict[str, int] | None  # epochs that each stage took to its best
        refit_: dict[str, Any] | None  # what it was refitted on, "S_va" or "all", and how many pairs that is
        judged_: dict[str, Any] | None  # with refit="all", the metrics on S_te of the model before

    @property
    def history_(self) -> pd.DataFrame:
        """A row per epoch: stage, epoch, every term's loss, the validation metric, seconds of training alone.

        A new frame of `history_rows_` each time: pandas is loaded when somebody asks, which takes longer than many a
        fit.
        """
        import pandas as pd

        if not hasattr(self, "history_rows_"):
            raise AttributeError("history_ is there once the model is fitted: call fit(data)")
        return pd.DataFrame(self.history_rows_)

    def _fitted(self) -> Weights:
        raise NotImplementedError

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """What raw scores say; the method knows."""
        raise NotImplementedError

    def _shape(self) -> tuple[int, int]:
        return len(self.user_ids_), len(self.item_ids_)

    def recommend(self, users: Any, k: int = 10, exclude: Any = None) -> Lists:
        """The k best items for each user and their raw scores: two arrays of shape (users, k), best first.

        Equal scores go to the item that comes first in id order. Where a user has fewer than k items left, the rest of
        the row is padded: score nan and item -1 (or "" where ids are strings). Users that the model does not know, or
        has learned nothing of, get the average user's list; a warning names the unknown, and `fallback` of the
        result, a bool for each row, is true for both.

        Parameters
        ----------
        users : id or list of ids
            For whom.
        k : int
            Items per user.
        exclude : sparse matrix or False, optional
            Pairs not to recommend; by default what the users have in the biased log, and the positives of S_t; False
            for none.
        """
        weights = self._fitted()
        k = _check.whole("k", k)
        users = np.atleast_1d(np.asarray(users))
        if users.ndim > 1:
            raise InputError(f"users of shape {users.shape}: pass one id or a 1-d list of ids")
        rows = self.user_ids_.find(users)
        if (rows < 0).any():
            names = ", ".join(str(user) for user in users[rows < 0][:NAMED_AT_MOST])
            warnings.warn(
                f"{int((rows < 0).sum())} unknown users, not in the training data, get the average list: {names}",
                stacklevel=2,
            )
        excluded = excluded_pairs(exclude, self.seen_, self._shape())
        return recommend(Lister(weights, self.cold_), rows, self.item_ids_, k, excluded)

    def recommend_all(
        self,
        path: str | os.PathLike[str],
        k: int = 10,
        *,
        users: Any = None,
        candidates: Any = None,
        exclude: Any = None,
        overwrite: bool = False,
        quiet: bool = True,
    ) -> int:
        """Write everyone's list to a CSV or Parquet file, piece by piece; returns the number of rows.

        The columns are user, rank (from 1), item, score and fallback (true where the list is the average user's). In
        CSV, text ids that begin with = + - @ or a control character get an apostrophe in front, so that no spreadsheet
        runs them.

        Parameters
        ----------
        path : path
            Where the file goes; it ends in .csv or .parquet (which needs pyarrow).
        k : int
            Items per user.
        users : list of ids, optional
            For whom; by default all that the model knows.
        candidates : list of item ids or sparse matrix, optional
            What may be listed: for everyone, or by user (a row per user of the training data, a column per item).
        exclude : sparse matrix or False, optional
            As in `recommend`.
        overwrite : bool
            Whether to replace a file that is there.
        quiet : bool
            Whether to show no progress.
        """
        lister = Lister(self._fitted(), self.cold_)
        rows = np.arange(len(self.user_ids_)) if users is None else self.user_ids_.find(np.atleast_1d(users))
        names = self.user_ids_.values if users is None else np.atleast_1d(users)
        excluded = excluded_pairs(exclude, self.seen_, self._shape())
        lists = lister.blocks(rows, _check.whole("k", k), excluded, self._allowed(candidates))
        return recommend_all(lists, (names, lister.fallback(rows)), self.item_ids_, path, overwrite, quiet)

    def _allowed(self, candidates: Any) -> Pattern | np.ndarray | None:
        if candidates is None:
            return None
        if hasattr(candidates, "tocsr"):
            return excluded_pairs(candidates, self.seen_, self._shape())
        allowed = np.zeros(len(self.item_ids_), dtype=bool)
        allowed[self.item_ids_.rows(np.atleast_1d(candidates), "item")] = True
        return allowed

    def evaluate(
        self,
        data: Partition,
        protocol: str = "full-ranking",
        ks: Sequence[int] = (5, 10),
        *,
        part: str = "S_te",
        unknown: str = "leave-out",
        keep_trained: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Metrics under one protocol, on the model's own log or on another one, such as next week's.

        See `dubnb.evaluate` for the metrics, the other parameters, and popularity's result beside them. On another log
        the candidates are the items that the model knows, without what the user had in either log; the result then has
        "unknown_users", "unknown_items" and "left_out_pairs", and a warning says the same. Pairs of the part that the
        model was trained on (S_t and what it was refitted on) or chosen on (S_va) are left out there, and counted as
        "trained_pairs_left_out" (None where the model's file is too old to tell).

        A model that was refitted on everything has trained on S_te of its own log. There the result is what S_te said
        of the model before, with "refit": "all".

        Parameters
        ----------
        data : Partition
            The logs.
        protocol, ks, part
            As in `dubnb.evaluate`.
        unknown : {"leave-out", "fallback"}
            What becomes of users that the model does not know: pairs are left out, or scored for the average user.
            Pairs of unknown items are always left out.
        keep_trained : bool
            Whether to judge also on pairs that the model was trained or chosen on.
        """
        weights = self._fitted()
        if not isinstance(data, Partition):
            raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
        _check.choice("unknown", unknown, _other_log.UNKNOWN)
        if data.fingerprint == self.data_["fingerprint"]:
            if self.refit_ is not None and self.refit_["on"] == "all" and not keep_trained:
                plain = (protocol, tuple(ks), part) == JUDGED and not options.get("per_user")
                return self._judged_before(data, part, plain)
            return evaluate(_Calibrated(weights, self.probabilities), data, protocol, ks, part=part, **options)
        trained = _other_log.NONE if keep_trained else self.trained_
        aligned = _other_log.aligned(data, (self.user_ids_, self.item_ids_), self.seen_, part, unknown, trained)
        _other_log.say(aligned, self.data_["name"], data, unknown)
        scorer = _other_log.WithAverage(weights, average_user(weights, self.cold_), aligned.rows)
        calibrated = _Calibrated(scorer, self.probabilities)
        return evaluate(calibrated, aligned.data, protocol, ks, part=part, **options) | _other_log.counts(aligned)

    def _judged_before(self, data: Partition, part: str, plain: bool) -> dict[str, Any]:
        """What S_te said of the model before it was refitted on everything."""
        n = len(data.triplets(_check.choice("part", part, RANDOMIZED)).users)
        if not self.judged_ or not plain:
            raise InputError(
                f"the model was refitted on all of {data.name}, with the {n:,} pairs of {part}: it carries earlier "
                f"metrics of S_te only, full-ranking, K 5 and 10; {option('keep_trained', '')} judges it nevertheless"
            )
        return self.judged_ | {"refit": "all", "trained_pairs_left_out": n}

    def fold_in(self, items: Any, labels: Any = None) -> _fold_in.NewUser:
        """A user that the model does not know, from a short history: one exact row solve (mf; bce or squared).

        Parameters
        ----------
        items : list of ids
            What the user met.
        labels : list of numbers, optional
            1 for a positive, 0 for a negative; where the model was trained on graded targets, a negative's grade, from
            0 to below 1, and where it was trained on rates, the share of the item's impressions that were positive. By
            default all were positive.
        """
        weights = self._fitted()
        if self.row_objective_ is None or not isinstance(weights, MF):
            raise InputError(
                f"{self.name} ({self.params_['backbone']}, {self.params_['loss']}) has no exact row solve: fold_in "
                "needs mf with the loss bce or squared, term c and no learned weights; take another, or fit again"
            )
        rows, targets, sample_weights = _fold_in.history(self.item_ids_, self.params_, items, labels)
        row = _fold_in.solve(weights, self.row_objective_, self.params_["loss"], rows, (targets, sample_weights))
        return _fold_in.NewUser(_fold_in.as_weights(row, weights), self.item_ids_, rows)

    def similar_items(self, items: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The k items most like each of `items`, and how much: two arrays of shape (items, k), best first.

        Likeness is the cosine of the factors, which leaves popularity (the biases) aside.
        """
        weights = self._fitted()
        rows = self.item_ids_.rows(np.atleast_1d(np.asarray(items)), "item")
        return _export.similar_items(weights, self.item_ids_, rows, _check.whole("k", k))

    def export(self, directory: str | os.PathLike[str], overwrite: bool = False) -> list[str]:
        """Write embeddings whose plain inner product is `decision_function`, as .npy and Parquet (mf).

        See docs/deployment.md. Returns the names of the files: user_vectors.npy, item_vectors.npy, user_ids.npy and
        item_ids.npy (rows in the same order), and, where pyarrow is installed, users.parquet and items.parquet.
        """
        return _export.export(self._fitted(), self.user_ids_, self.item_ids_, directory, overwrite)

    def plot_history(self, ax: Any = None) -> Any:
        """The validation metric of every epoch, a line per stage, on matplotlib's axes (new ones by default)."""
        self._fitted()
        return _display.plot_history(self.history_, ax)

    def _repr_html_(self) -> str:
        return _display.model_html(self, self.history_ if hasattr(self, "history_") else None)

    def get_params(self, deep: bool = True) -> Mapping[str, Any]:
        raise NotImplementedError
