"""Plain twins of dubnb/metrics.py and dubnb/evaluate.py: loops over users, items and pairs, nothing clever."""

import math

import numpy as np


def auc(scores, labels):
    won = total = 0.0
    for p in scores[labels == 1]:
        for n in scores[labels == 0]:
            won += 1.0 if p > n else 0.5 if p == n else 0.0
            total += 1
    return won / total if total else math.nan


def ranking(scores, candidates):
    """Candidates by falling score, the smaller item first among equals."""
    return sorted(candidates, key=lambda item: (-float(scores[item]), item))


def ndcg(listed, positives, cut):
    dcg = sum(1 / math.log2(rank + 1) for rank, item in enumerate(listed[:cut], 1) if item in positives)
    return dcg / sum(1 / math.log2(rank + 1) for rank in range(1, min(cut, len(positives)) + 1))


def user_metrics(listed, positives, ks, cut):
    hits = {k: sum(item in positives for item in listed[:k]) for k in ks}
    return {
        "ndcg": ndcg(listed, positives, cut),
        **{f"p@{k}": hits[k] / k for k in ks},
        **{f"r@{k}": hits[k] / len(positives) for k in ks},
    }


def sets(data, part, user):
    """(items, positive items) of one user in one part."""
    users, items, labels, _ = data.triplets(part)
    mine = users == user
    return set(items[mine].tolist()), set(items[mine & (labels == 1)].tolist())


def evaluate(matrix, data, protocol, ks, part="S_te"):
    """Metrics from the full score matrix; also {user row: metrics}."""
    per_user = {}
    for user in range(data.n_users):
        own, positives = sets(data, part, user)
        trained, _ = sets(data, "S_c", user)
        if not positives or (protocol == "full-ranking" and not trained):
            continue
        candidates = set(range(data.n_items)) - trained if protocol == "full-ranking" else own
        cut = 50 if protocol == "full-ranking" else 5
        per_user[user] = user_metrics(ranking(matrix[user], candidates), positives, ks, cut)
    users, items, labels, _ = data.triplets(part)
    names = next(iter(per_user.values()))
    means = {name: float(np.mean([row[name] for row in per_user.values()])) for name in names}
    return {"auc": auc(matrix[users, items], labels), **means}, per_user


def truth(matrix, labels, data, users):
    scores, truths, gains = [], [], []
    for user in users:
        seen = sets(data, "S_c", user)[0] | sets(data, "S_t", user)[0]
        candidates = [item for item in range(data.n_items) if item not in seen]
        positives = {item for item in candidates if labels[user, item] == 1}
        scores += [matrix[user, item] for item in candidates]
        truths += [labels[user, item] for item in candidates]
        if positives:
            gains.append(ndcg(ranking(matrix[user], candidates), positives, 50))
    return {"truth_auc": auc(np.array(scores), np.array(truths)), "truth_ndcg": float(np.mean(gains))}
