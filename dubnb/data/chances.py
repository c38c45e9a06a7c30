"""Chances c_ui: how likely a part of the randomized log is to judge user u and candidate i.

A user's candidates are the items outside the biased log and the other randomized parts. So c_ui is the chance given
that no other part has the pair. For uniform traffic, c_ui = n_u / (candidates of u), with n_u the user's pairs in the
part. With propensities p_ui, c_ui is an expected number of impressions: how many of the user's N_u fall on the pair and
into the part. With s the part's share of the randomized pairs,

    c_ui = s N_u p_ui / (1 - (1 - s) (1 - (1 - p_ui)^N_u)),

divided by the times that the pair was shown. A pair with a large p_ui was shown almost surely, in this part or in
another. In another part it would be no candidate. So c_ui of a candidate is near 1 and not near s.

Propensities from the rules of eligibility are chances of a single draw. With the user's n_u distinct pairs in the part
and m_u in the others, c_ui = n_u p_ui / (1 - m_u p_ui).
"""

from __future__ import annotations

import numpy as np

from dubnb.data.partition import RANDOMIZED, Partition


def judged_chances(data: Partition, part: str) -> np.ndarray:
    """c_ui of every pair of `unseen(part)`."""
    if _derived(data, part):
        pairs = data.unseen(part)
        here = np.bincount(pairs.users, minlength=data.n_users)[pairs.users]
        every = np.concatenate([data.unseen(each).users for each in RANDOMIZED])
        elsewhere = np.bincount(every, minlength=data.n_users)
        p = np.asarray(pairs.propensities, np.float64)
        return np.minimum(here * p / np.maximum(1 - (elsewhere[pairs.users] - here) * p, p), 1.0)
    if data.importance(part) is not None:
        pairs, share = data.unseen(part), _share_of(data, part)
        impressions = np.zeros(data.n_users)
        for each in RANDOMIZED if share < 1 else (part,):
            log = data.triplets(each)
            impressions += np.bincount(log.users, log.weights, data.n_users)
        n, p = impressions[pairs.users], np.asarray(pairs.propensities, np.float64)
        elsewhere = (1 - share) * -np.expm1(n * np.log1p(-np.minimum(p, 1 - 1e-12)))
        return np.asarray(share * n * p / (1 - elsewhere) / pairs.weights)
    users = data.unseen(part).users
    candidates = data.n_items - data.not_candidates(part).sizes()
    return np.bincount(users, minlength=data.n_users)[users] / np.maximum(candidates[users], 1)


def judged_users(data: Partition, part: str) -> np.ndarray:
    """Rows of the users whom a part judges: those of the part.

    With propensities, c_ui is an expectation over the split. So a user counts even if all of her pairs fell into other
    parts by chance.
    """
    given = data.importance(part) is None or _derived(data, part)
    parts = (part,) if given or _share_of(data, part) == 1 else RANDOMIZED
    pairs = [data.unseen(part).users, *(data.triplets(each).users for each in parts if each != part)]
    return np.unique(np.concatenate(pairs))


def _derived(data: Partition, part: str) -> bool:
    """Whether the part's propensities vary and come from the rules of eligibility."""
    return data.eligibility is not None and data.eligibility.derived and data.importance(part) is not None


def _share_of(data: Partition, part: str) -> float:
    """The part's share of the randomized pairs; 1 if no user is in two parts, as after a split by user."""
    users = [np.unique(data.triplets(each).users) for each in RANDOMIZED]
    if len(np.unique(np.concatenate(users))) == sum(map(len, users)):
        return 1.0
    return len(data.triplets(part).users) / sum(len(data.triplets(each).users) for each in RANDOMIZED)
