"""The parameter `head`: fit a logistic head on held-out randomized pairs, decide by them whether it helps, apply it.

A head (see `dubnb.head`) adds an offset to the scores of each user and each item. Two are tried: one with offsets of
users alone, which changes no list, and one with offsets of users and items. The first is taken if its cross-validated
log-loss is lower than without offsets. Its ridge is chosen by the same log-loss, so that a small gain gives small
offsets. Offsets of items can harm the top of the lists. The second head is therefore cross-fitted: the pairs of a fold
are judged with a head that was fitted on the other folds. It takes the place of the first only if

- it is better than no head by more than 1.5 paired standard errors, in the metrics that `monitor` names (see
  `dubnb.choice`),
- its nDCG is not lower by more than 1.5 paired standard errors,
- its cross-validated log-loss is lower than without offsets by more than 2.5 standard errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb._random import generator
from dubnb.choice import CandidateDifference, UserInfluence, compare_candidates, mean_of_parts
from dubnb.evaluation import monitored_influences, validation_influences
from dubnb.head import Head, HeadedScorer, PairSample, fit_head

if TYPE_CHECKING:
    from dubnb.backbones import Scorer
    from dubnb.data.partition import Partition
    from dubnb.train import Fit

AUTO = "auto"
LEAST_POSITIVES = 30  # that a head needs
VALIDATION_FOLDS = 4  # of S_va, for weights that have not seen it
TRIED = {"head of users": False, "head of users and items": True}  # stage -> whether items have offsets
ITEMS_ERRORS, LOG_LOSS_ERRORS = 1.5, 2.5  # standard errors by which a head of items, and its log-loss, is better
WEIGHTS = {"auc": (1.0, 0.5)}  # of AUC and nDCG in a choice; other monitors have one metric


class TriedHead(NamedTuple):
    """A head that lowers the cross-validated log-loss, and how it changes the metrics of held-out pairs."""

    stage: str  # of TRIED
    head: Head
    gain: CandidateDifference  # over no head, in the metrics that `monitor` names
    lost: CandidateDifference  # nDCG

    def taken(self) -> bool:
        """Whether the head is better than those before it."""
        own, gain, lost = self.head, self.gain, self.lost
        return not TRIED[self.stage] or (
            gain.difference > ITEMS_ERRORS * gain.standard_error
            and (lost.difference < ITEMS_ERRORS * lost.standard_error or lost.difference <= 0)
            and own.gain > LOG_LOSS_ERRORS * own.gain_error
        )


class HeldOut(NamedTuple):
    """Weights, and a log whose S_va they have not trained on."""

    data: Partition
    weights: Scorer


def validation_folds(data: Partition, weights: Scorer, seed: int) -> list[HeldOut]:
    """S_va in folds with equally many positives, for weights that have not trained on it."""
    S_va, _ = data.triplets("S_va"), data.logged  # computed before the copies are made, which then share it
    order = generator(seed, "head-parts").permutation(len(S_va.users))
    fold = np.empty(len(order), np.int64)
    fold[order[np.argsort(S_va.labels[order], kind="stable")]] = np.arange(len(order)) % VALIDATION_FOLDS
    return [HeldOut(data.replace(S_va=S_va.take(fold == k)), weights) for k in range(VALIDATION_FOLDS)]


def headed(method: Any, fit: Fit, weights: Any, parts: Sequence[HeldOut]) -> Any:
    """`weights` with the head that held-out pairs choose, if any; `fit.head` is set to it.

    A second training has `fit.head` set beforehand and applies that head.
    """
    if fit.head is None and fit.validation.usable:
        fit.head = _chosen(method, fit, weights, parts)
    if fit.head is None:
        return weights
    return with_head(weights, fit.head)


def with_head(weights: Any, head: Head) -> Any:
    """The weights with the head's offsets added."""
    if not hasattr(weights, "with_offsets"):
        kind = getattr(weights, "name", type(weights).__name__)
        raise InputError(f"head= needs weights with biases of users and items, which {kind} lacks: leave it out")
    return weights.with_offsets(head.user_offsets, head.item_offsets)


def _chosen(method: Any, fit: Fit, weights: Any, parts: Sequence[HeldOut]) -> Head | None:
    """The head that is better on held-out pairs, or None; its trials are rows of the history."""
    best, name = None, ""
    for tried in tried_heads(method, fit, parts):
        _record(method, fit, with_head(weights, tried.head), tried.stage, tried.gain)
        if tried.taken():
            best, name = tried.head, tried.stage
    for row in fit.log.rows:
        if row["stage"] in TRIED:
            row["chosen"] = float(row["stage"] == name)
    return best


def tried_heads(method: Any, fit: Fit, parts: Sequence[HeldOut]) -> list[TriedHead]:
    """The heads of TRIED whose ridge is finite; none if there are too few pairs of a class."""
    data, monitor = fit.data, method.monitor
    pairs = [part.data.triplets("S_va") for part in parts]
    labels = np.concatenate([own.labels for own in pairs])
    if min(np.count_nonzero(labels), np.count_nonzero(labels == 0)) < LEAST_POSITIVES:
        return []
    sizes = [len(own.users) for own in pairs]
    sample, fold = _sample(data, parts)

    def head_of(rows: np.ndarray, **options: Any) -> Head:
        columns = sample.take(rows)
        own: dict[str, Any] = {"weights": columns.weights, "rate_weights": columns.rate_weights, **options}
        return fit_head(*columns[:4], data, seed=method.seed, **own)

    def judged(scorers: Sequence[Scorer]) -> list[UserInfluence]:
        """The metrics that choose, then nDCG, averaged over folds."""
        own = []
        for scorer, part in zip(scorers, parts, strict=True):
            found = monitored_influences(scorer, part.data, monitor)
            with_ndcg = found if monitor in ("auc", "ndcg") else validation_influences(scorer, part.data)
            own.append((*found, with_ndcg[-1]))
        return mean_of_parts(own, sizes)

    found, plain = [], judged([part.weights for part in parts])
    for stage, of_items in TRIED.items():
        whole = head_of(fold >= -1, of_items=of_items)
        if np.isinf(whole.ridge):
            continue
        crossed = [head_of(fold != k, of_items=of_items, ridge=whole.ridge) for k in range(len(parts))]
        own = judged([HeadedScorer(part.weights, own) for part, own in zip(parts, crossed, strict=True)])
        gain = compare_candidates(own[:-1], plain[:-1], WEIGHTS.get(monitor))
        found.append(TriedHead(stage, whole, gain, compare_candidates(plain[-1:], own[-1:])))
    return found


def _sample(data: Partition, parts: Sequence[HeldOut]) -> tuple[PairSample, np.ndarray]:
    """(pairs to fit a head on, the fold of each).

    Rates of items come from S_t alone, so that S_va's labels are not in the offsets and it can still compare models. If
    no pair of S_t is held out, S_t's pairs are added with the weight 0 and the fold -1.
    """
    columns = []
    for number, (log, weights) in enumerate(parts):
        own = log.triplets("S_va")
        w = _pair_weights(log, "S_va")
        in_S_t = data.pattern("S_t").find(own.users, own.items) >= 0
        scores = weights.score_pairs(own.users, own.items)
        columns.append((scores, own.users, own.items, own.labels, w, w * in_S_t, np.full(len(w), number)))
    if not any(own[5].any() for own in columns):
        S_t, w = data.triplets("S_t"), _pair_weights(data, "S_t")
        columns.append((np.zeros(len(w)), S_t.users, S_t.items, S_t.labels, 0 * w, w, np.full(len(w), -1)))
    *fields, fold = (np.concatenate(column) for column in zip(*columns, strict=True))
    return PairSample(*fields), fold


def _pair_weights(data: Partition, part: str) -> np.ndarray:
    """The weights of a part's pairs, times one over their propensities where they are known."""
    importance, own = data.importance(part), data.triplets(part).weights.astype(np.float64)
    return own if importance is None else own * importance


def _record(method: Any, fit: Fit, trial: Any, stage: str, gain: CandidateDifference) -> None:
    """Add a row to the history."""
    fit.run_epochs(method.stage(stage, lam=0.0, epochs=1), lambda epoch: {}, trial, lambda: trial)
    fit.log.rows[-1] |= {"choice_difference": gain.difference, "choice_error": gain.standard_error}
