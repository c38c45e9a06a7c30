"""Plain NumPy twins of dubnb's kernels, in float64: loops over samples, users and items, nothing clever."""

import itertools
import math
from types import SimpleNamespace

import numpy as np

# -- losses: (value, derivative) of a raw score s and a real target y


def sigmoid(s):
    return np.exp(-np.logaddexp(0.0, -np.asarray(s, dtype=np.float64)))


def _slope(s):
    return sigmoid(s) * sigmoid(-s)


LOSSES = {
    "bce": (lambda s, y: np.logaddexp(0.0, s) - y * s, lambda s, y: sigmoid(s) - y),
    "mse": (lambda s, y: (sigmoid(s) - y) ** 2, lambda s, y: 2 * (sigmoid(s) - y) * _slope(s)),
    "squared": (lambda s, y: (s - y) ** 2, lambda s, y: 2 * (s - y)),
    "mae": (lambda s, y: np.abs(sigmoid(s) - y), lambda s, y: np.sign(sigmoid(s) - y) * _slope(s)),
    "zero_one": (lambda s, y: ((sigmoid(s) > 0.5) != (y > 0.5)).astype(float), None),
}
LINKLESS = ("squared",)


def predict(loss, scores):
    return np.asarray(scores, dtype=np.float64) if loss in LINKLESS else sigmoid(scores)


# -- backbones: parameters are a dict of float64 arrays, as `weights.arrays()` names them

ACTIVATIONS = {
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: (z > 0).astype(float)),
    "sigmoid": (sigmoid, _slope),
}
ROWS = {"user_factors": "users", "user_bias": "users", "item_factors": "items", "item_bias": "items"}
TABLES = ("user_factors", "item_factors")


def parameters(weights):
    """A backbone's weights as float64 arrays; NCF's layer sizes and activation stay aside, in `shape`."""
    arrays = {name: np.array(array, dtype=np.float64) for name, array in weights.arrays().items()}
    shape = SimpleNamespace(sizes=arrays.pop("sizes", np.zeros(0)).astype(int), activation=None)
    if "activation" in arrays:
        shape.activation = list(ACTIVATIONS)[int(arrays.pop("activation")[0])]
    return arrays, shape


def layers(dense, sizes):
    """[(W, b)] views of the flat dense parameters."""
    found, start = [], 0
    for fan_in, fan_out in itertools.pairwise(sizes):
        middle, stop = start + fan_in * fan_out, start + (fan_in + 1) * fan_out
        found.append((dense[start:middle].reshape(fan_in, fan_out), dense[middle:stop]))
        start = stop
    return found


def score(params, shape, user, item):
    """The raw score of one pair."""
    p, q = params["user_factors"][user], params["item_factors"][item]
    if "dense" not in params:
        return params["b0"][0] + params["user_bias"][user] + params["item_bias"][item] + p @ q
    h = np.concatenate([p, q])
    network = layers(params["dense"], shape.sizes)
    for W, b in network[:-1]:
        h = ACTIVATIONS[shape.activation][0](h @ W + b)
    W, b = network[-1]
    return (h @ W + b)[0]


def scores(params, shape, users, items):
    return np.array([score(params, shape, user, item) for user, item in zip(users, items, strict=True)])


def score_gradient(params, shape, user, item):
    """[(parameter's name, index, ds/dparameter)] of one pair."""
    p, q = params["user_factors"][user], params["item_factors"][item]
    if "dense" not in params:
        tables = [("user_factors", user, q), ("item_factors", item, p)]
        return [*tables, ("user_bias", user, 1.0), ("item_bias", item, 1.0), ("b0", 0, 1.0)]
    network = layers(params["dense"], shape.sizes)
    f, slope = ACTIVATIONS[shape.activation]
    inputs, sums = [np.concatenate([p, q])], []
    for W, b in network:
        sums.append(inputs[-1] @ W + b)
        inputs.append(f(sums[-1]))
    dense = np.zeros_like(params["dense"])
    error = np.ones(1)
    for number in range(len(network) - 1, -1, -1):
        if number < len(network) - 1:
            error = error * slope(sums[number])
        dW, db = layers(dense, shape.sizes)[number]
        dW += np.outer(inputs[number], error)
        db += error
        error = network[number][0] @ error
    rank = len(p)
    return [("user_factors", user, error[:rank]), ("item_factors", item, error[rank:]), ("dense", slice(None), dense)]


# -- one batch: objective, gradient, lazy Adam


def is_weight(sizes):
    """1 for the dense weights, 0 for the biases."""
    mask = np.ones(int(sum((m + 1) * n for m, n in itertools.pairwise(sizes))))
    for _, b in layers(mask, sizes):
        b[:] = 0.0
    return mask


def distinct(batch, side):
    """{row: its first sample}, each row that the batch touches once."""
    first = {}
    for j, row in enumerate(getattr(batch, side)):
        first.setdefault(int(row), j)
    return first


def alignment(params, batch, anchors):
    """{table: (rows, differences to the anchors)} of the sides that are pulled; `anchors` is None or Anchors."""
    pulled = {}
    for name in TABLES if anchors is not None else ():
        others = np.asarray(getattr(anchors, ROWS[name]), dtype=np.float64)
        if len(others):
            first = distinct(batch, ROWS[name])
            rows = list(first)
            pulled[name] = rows, params[name][rows] - others[[first[row] for row in rows]]
    return pulled


def objective(params, shape, batch, loss, lam, anchors=None):
    """Mean weighted loss + lam/2 |row|^2 for each distinct row + lam/2 |dense weights|^2 + the pull of the anchors."""
    weights, targets = np.asarray(batch.weights, dtype=np.float64), np.asarray(batch.targets, dtype=np.float64)
    s = scores(params, shape, batch.users, batch.items)
    total = (weights * LOSSES[loss][0](s, targets)).sum() / len(s)
    for name in TABLES:
        total += lam / 2 * (params[name][list(distinct(batch, ROWS[name]))] ** 2).sum()
    if "dense" in params:
        total += lam / 2 * (is_weight(shape.sizes) * params["dense"] ** 2).sum()
    for _, difference in alignment(params, batch, anchors).values():
        l1 = anchors.kind == 0
        total += float(anchors.strength) * (np.abs(difference).sum() if l1 else np.sqrt((difference**2).sum()))
    return total


def numeric_gradient(params, function, step=1e-5):
    """Central differences of function(params) in every parameter."""
    gradient = {name: np.zeros_like(array) for name, array in params.items()}
    for name, array in params.items():
        flat = array.reshape(-1)
        for k in range(flat.size):
            kept = flat[k]
            flat[k] = kept + step
            above = function(params)
            flat[k] = kept - step
            below = function(params)
            flat[k] = kept
            gradient[name].reshape(-1)[k] = (above - below) / (2 * step)
    return gradient


def gradient(params, shape, batch, loss, lam, anchors=None):
    """The gradient of `objective`, sample by sample."""
    found = {name: np.zeros_like(array) for name, array in params.items()}
    n = len(batch.users)
    for j in range(n):
        user, item, target = batch.users[j], batch.items[j], float(batch.targets[j])
        slope = LOSSES[loss][1](score(params, shape, user, item), target)
        for name, index, ds in score_gradient(params, shape, user, item):
            found[name][index] += float(batch.weights[j]) * slope / n * ds
    for name in TABLES:
        for row in distinct(batch, ROWS[name]):
            found[name][row] += lam * params[name][row]
    if "dense" in params:
        found["dense"] += lam * is_weight(shape.sizes) * params["dense"]
    for name, (rows, difference) in alignment(params, batch, anchors).items():
        pull = np.sign(difference) if anchors.kind == 0 else difference / np.sqrt((difference**2).sum())
        found[name][rows] += float(anchors.strength) * pull
    return found


class Adam:
    """Lazy Adam: of the embedding tables and biases only the rows of the batch move; all else moves in every batch."""

    def __init__(self, params, lr, beta_1=0.9, beta_2=0.999, eps=1e-8):
        self.lr, self.betas, self.eps, self.t = lr, (beta_1, beta_2), eps, 0
        self.m = {name: np.zeros_like(array) for name, array in params.items()}
        self.v = {name: np.zeros_like(array) for name, array in params.items()}

    def step(self, params, found, batch):
        self.t += 1
        (b1, b2), t = self.betas, self.t
        for name, g in found.items():
            rows = list(distinct(batch, ROWS[name])) if name in ROWS else slice(None)
            m, v = self.m[name], self.v[name]
            m[rows] = b1 * m[rows] + (1 - b1) * g[rows]
            v[rows] = b2 * v[rows] + (1 - b2) * g[rows] ** 2
            root = np.sqrt(v[rows] / (1 - b2**t))
            params[name][rows] -= self.lr * m[rows] / (1 - b1**t) / (root + self.eps)


def part(stream, start, stop):
    return SimpleNamespace(**{name: getattr(stream, name)[start:stop] for name in stream._fields})


def epoch(params, shape, stream, n_terms, loss, lam, batch_size, adam, anchors=None):
    """One epoch in place; each term's sum of weighted losses, every sample's taken before its batch's step."""
    totals = np.zeros(n_terms)
    for start in range(0, len(stream.users), batch_size):
        batch = part(stream, start, start + batch_size)
        s = scores(params, shape, batch.users, batch.items)
        for j in range(len(s)):
            totals[batch.terms[j]] += float(batch.weights[j]) * LOSSES[loss][0](s[j], float(batch.targets[j]))
        adam.step(params, gradient(params, shape, batch, loss, lam, anchors), batch)
    return totals


# -- randomness and sampling


def mix(key, counter):
    """splitmix64 in Python's own whole numbers."""
    mask = 2**64 - 1
    z = (int(key) + int(counter) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def uniform(key, counter):
    return (mix(key, counter) >> 11) * 2.0**-53


def unobserved(data):
    """All pairs of S_u, in order."""
    seen = set()
    for name in ("S_c", "S_t"):
        users, items, *_ = data.triplets(name)
        seen |= set(zip(users.tolist(), items.tolist(), strict=True))
    return [(u, i) for u in range(data.n_users) for i in range(data.n_items) if (u, i) not in seen]


def draw(key, pairs, n):
    """n sorted draws from `pairs`: sums of exponentials over their total are sorted uniform numbers."""
    steps = [-math.log(1.0 - uniform(key, j)) for j in range(n + 1)]
    total, running, drawn = sum(steps), 0.0, []
    for j in range(n):
        running += steps[j]
        drawn.append(pairs[min(int(running / total * len(pairs)), len(pairs) - 1)])
    return drawn


# -- metrics and evaluation


def importance(propensities):
    """1 / p over its mean, none above the root of the number of pairs, over the mean of what is left."""
    inverse = [1 / float(p) for p in propensities]
    mean = sum(inverse) / len(inverse)
    cut = [min(v / mean, math.sqrt(len(inverse))) for v in inverse]
    return np.array([v * len(cut) / sum(cut) for v in cut])


def weighted_auc(scores, labels, weights):
    """The weight of the (positive, negative) pairs in the right order, ties half, over that of all."""
    won = total = 0.0
    for s, y, w in zip(scores, labels, weights, strict=True):
        for t, z, v in zip(scores, labels, weights, strict=True):
            if y == 1 and z == 0:
                won += w * v * ((s > t) + 0.5 * (s == t))
                total += w * v
    return won / total if total else float("nan")


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
    users, items, labels, *_ = data.triplets(part)
    mine = users == user
    return set(items[mine].tolist()), set(items[mine & (labels == 1)].tolist())


def in_both(data, user):
    """The items of one user that both the biased log and a randomized part have."""
    return {int(i) for u, i in zip(data.overlap.users, data.overlap.items, strict=True) if u == user}


def liked_interval(weights, liked, judged):
    """Wilson's limits of sum w L / sum w J, with as many pairs as the users' errors, or the weights, are worth."""
    from scipy.stats import t

    total = sum(w * j for w, j in zip(weights, judged, strict=True))
    rate = sum(w * l for w, l in zip(weights, liked, strict=True)) / total
    errors = [w * (l - rate * j) / total for w, l, j in zip(weights, liked, judged, strict=True)]
    variance = len(errors) / (len(errors) - 1) * sum(e * e for e in errors)
    kish = total**2 / sum(w * w * j for w, j in zip(weights, judged, strict=True))
    n = min(kish, rate * (1 - rate) / variance) if 0 < rate < 1 else kish
    q = t.ppf(0.975, max(kish - 1, 1))
    middle, half = rate + q * q / (2 * n), q * math.sqrt(rate * (1 - rate) / n + q * q / (4 * n * n))
    return max(0.0, (middle - half) / (1 + q * q / n)), min(1.0, (middle + half) / (1 + q * q / n))


def shown(matrix, data, ks, part):
    """{user: (list, w_u, {k: (liked, judged)})} for every user of the part."""
    found = {}
    for user in range(data.n_users):
        both = in_both(data, user)
        own, positives = (items - both for items in sets(data, part, user))
        if not own:
            continue
        had = both.union(*(sets(data, other, user)[0] for other in ("S_c", "S_t", "S_va", "S_te") if other != part))
        listed = ranking(matrix[user], set(range(data.n_items)) - had)
        counts = {k: (len(positives & set(listed[:k])), len(own & set(listed[:k]))) for k in ks}
        found[user] = listed, len(listed) / len(own), counts
    return found


def evaluate(matrix, data, protocol, ks, part="S_te", beside=True):
    """Metrics from the full score matrix, popularity's `beside` them; also {user row: metrics}."""
    per_user, own_auc = {}, []
    for user in range(data.n_users):
        both = in_both(data, user)
        own, positives = (items - both for items in sets(data, part, user))
        labels = np.array([item in positives for item in own], dtype=int)
        own_auc.append(auc(matrix[user][list(own)], labels))
        trained, _ = sets(data, "S_c", user)
        if not positives or (protocol == "full-ranking" and not trained):
            continue
        candidates = set(range(data.n_items)) - trained - both if protocol == "full-ranking" else own
        cut = 50 if protocol == "full-ranking" else 5
        per_user[user] = user_metrics(ranking(matrix[user], candidates), positives, ks, cut)
    users, items, labels, *_ = data.triplets(part)
    fresh = np.array([item not in in_both(data, user) for user, item in zip(users, items, strict=True)])
    names = next(iter(per_user.values()))
    means = {name: float(np.mean([row[name] for row in per_user.values()])) for name in names}
    found = {"auc": auc(matrix[users, items][fresh], labels[fresh]), "user_auc": float(np.nanmean(own_auc))}
    found |= ({"percentile": percentile(matrix, data, part)} if protocol == "full-ranking" else {}) | means
    shares, intervals = {}, {}
    lists = shown(matrix, data, ks, part) if protocol == "full-ranking" else {}
    for k in ks if lists else ():
        weights = [weight for _, weight, _ in lists.values()]
        liked, judged = zip(*(counts[k] for *_, counts in lists.values()), strict=True)
        enough = sum(judged) >= 5
        shares[f"liked@{k}"] = float(np.dot(weights, liked) / np.dot(weights, judged)) if enough else math.nan
        low, high = liked_interval(weights, liked, judged) if enough else (math.nan, math.nan)
        intervals |= {f"liked@{k}_low": low, f"liked@{k}_high": high, f"judged@{k}": sum(judged)}
    found |= shares | {"auc_with_overlap": auc(matrix[users, items], labels)} | intervals
    if beside:
        found["personal"] = personal(matrix[grid(data)])
        S_c = data.triplets("S_c")
        counts = [int(S_c.labels[S_c.items == item].sum()) for item in range(data.n_items)]
        popular, _ = evaluate(np.tile(np.array(counts), (data.n_users, 1)), data, protocol, ks, part, beside=False)
        compared = ("auc", "user_auc", "percentile", "ndcg", *shares)
        found |= {f"popularity_{name}": popular[name] for name in compared if name in popular}
    return found, per_user


def weighted_evaluate(matrix, data, protocol, ks, part="S_te"):
    """Every metric of a log with propensities, pair by pair: w = importance times the log's own weight."""
    log = data.triplets(part)
    w = dict(zip(zip(log.users, log.items, strict=True), importance(log.propensities) * log.weights, strict=True))
    p = dict(zip(zip(log.users, log.items, strict=True), log.propensities, strict=True))
    shown = dict(zip(zip(log.users, log.items, strict=True), log.weights, strict=True))
    every = [data.triplets(other) for other in ("S_t", "S_va", "S_te")]
    share = len(log.users) / sum(len(each.users) for each in every)
    sums = {}  # metric -> (sum of user weight x value, sum of user weights)

    def add(name, value, weight):
        total = sums.setdefault(name, [0.0, 0.0])
        total[0] += weight * value
        total[1] += weight

    scores, labels, weights = [], [], []
    for user in range(data.n_users):
        both = in_both(data, user)
        own, positives = (items - both for items in sets(data, part, user))
        trained, _ = sets(data, "S_c", user)
        taken = both.union(*(sets(data, other, user)[0] for other in ("S_c", "S_t", "S_va", "S_te") if other != part))
        scores += [matrix[user, item] for item in own]
        labels += [item in positives for item in own]
        weights += [w[user, item] for item in own]
        liked = sum(w[user, item] for item in positives) / max(len(positives), 1)
        if positives and own - positives:
            disliked = sum(w[user, item] for item in own - positives) / len(own - positives)
            order = sorted(own)
            value = weighted_auc(
                [matrix[user, item] for item in order],
                [int(item in positives) for item in order],
                [w[user, item] for item in order],
            )
            add("user_auc", value, liked * disliked)
        free = set(range(data.n_items)) - taken
        if protocol == "full-ranking":
            shares = {}
            for item in positives:
                others = [matrix[user, other] for other in free - {item}]
                shares[item] = np.mean([(s < matrix[user, item]) + 0.5 * (s == matrix[user, item]) for s in others])
            if positives:
                total = sum(w[user, item] for item in positives)
                add("percentile", sum(w[user, item] * shares[item] for item in positives) / total, liked)
            n = sum(float(each.weights[each.users == user].sum()) for each in every)  # her impressions
            for k in ks:
                for item in ranking(matrix[user], free)[:k]:
                    if item in own:
                        here = share * n * float(p[user, item])
                        elsewhere = (1 - share) * (1 - (1 - float(p[user, item])) ** n)
                        add(f"liked@{k}", float(item in positives), shown[user, item] * (1 - elsewhere) / here)
        if not positives or (protocol == "full-ranking" and not trained):
            continue
        candidates = set(range(data.n_items)) - trained - both if protocol == "full-ranking" else own
        listed = ranking(matrix[user], candidates)
        cut = 50 if protocol == "full-ranking" else 5
        gains = [w[user, item] if item in positives else 0.0 for item in listed]
        best = sorted((w[user, item] for item in positives), reverse=True)
        dcg, ideal = (sum(g / math.log2(j + 2) for j, g in enumerate(each[:cut])) for each in (gains, best))
        add("ndcg", dcg / ideal, liked)
        for k in ks:
            add(f"p@{k}", sum(gains[:k]) / liked / k, liked)
            add(f"r@{k}", sum(gains[:k]) / sum(best), liked)
    found = {name: total / weight for name, (total, weight) in sums.items()}
    return found | {"auc": weighted_auc(scores, labels, weights)}


def percentile(matrix, data, part):
    """The mean over users of the share of other candidates below each item that the user liked in the part."""
    by_user = []
    for user in range(data.n_users):
        both = in_both(data, user)
        taken = both.union(*(sets(data, other, user)[0] for other in ("S_c", "S_t", "S_va", "S_te") if other != part))
        candidates, own = set(range(data.n_items)) - taken, []
        for liked in sets(data, part, user)[1] - both:
            others = matrix[user][list(candidates - {liked})]
            if len(others):
                own.append(np.mean((others < matrix[user, liked]) + 0.5 * (others == matrix[user, liked])))
        by_user += [np.mean(own)] if own else []
    return float(np.mean(by_user)) if by_user else math.nan


def grid(data):
    """At most 64 of S_c's users, and of its items, evenly spaced."""
    found = [np.unique(rows) for rows in data.triplets("S_c")[:2]]
    return np.ix_(*(rows[:: math.ceil(len(rows) / 64)] for rows in found))


def personal(matrix):
    """The share of the variance within rows that is left when every column's mean over rows is taken away."""
    rows = [[s - np.mean(row) for s in row] for row in np.asarray(matrix, dtype=np.float64)]
    shared = [np.mean([row[i] for row in rows]) for i in range(len(rows[0]))]
    own = np.mean([(s - b) ** 2 for row in rows for s, b in zip(row, shared, strict=True)])
    common = np.mean(np.square(shared))
    return own / (own + common) if own + common > 0 else 0.0


def truth(matrix, labels, data, users):
    scores, truths, gains = [], [], []
    for user in users:
        seen = sets(data, "S_c", user)[0] | sets(data, "S_t", user)[0] | in_both(data, user)
        candidates = [item for item in range(data.n_items) if item not in seen]
        positives = {item for item in candidates if labels[user, item] == 1}
        scores += [matrix[user, item] for item in candidates]
        truths += [labels[user, item] for item in candidates]
        if positives:
            gains.append(ndcg(ranking(matrix[user], candidates), positives, 50))
    return {"truth_auc": auc(np.array(scores), np.array(truths)), "truth_ndcg": float(np.mean(gains))}


# -- small data for tests


class ScoreTable:
    """A scorer whose scores are a table."""

    def __init__(self, scores):
        self.scores = scores

    def score_pairs(self, users, items):
        return self.scores[users, items]

    def score_rows(self, users):
        return self.scores[users]


class LogOddsTable(ScoreTable):
    """Such a scorer with probabilities: the scores are log-odds."""

    def probabilities(self, scores):
        return 1 / (1 + np.exp(-scores))


def small_partition(n_users=7, n_items=6, seed=0, n_t=9, n_va=8, n_te=8, n_c=17, ids=None):
    """Random disjoint parts with both labels in each; `ids` "str" gives string ids."""
    from dubnb.data.ids import Ids
    from dubnb.data.partition import Partition

    rng = np.random.default_rng(seed)
    pairs = rng.permutation(n_users * n_items)
    parts, start = {}, 0
    for name, size in (("S_t", n_t), ("S_va", n_va), ("S_te", n_te), ("S_c", n_c)):
        users, items = np.divmod(pairs[start : start + size], n_items)
        labels = (np.arange(size) % 3 == 0).astype(float)
        parts[name] = users, items, labels, np.ones(size)
        start += size
    names = {}
    if ids == "str":
        names = {
            "user_ids": Ids(np.array([f"u{u:02d}" for u in range(n_users)])),
            "item_ids": Ids(np.array([f"i{i:02d}" for i in range(n_items)])),
        }
    return Partition(parts, (n_users, n_items), **names)


def biased_log(n_users, n_items, n_c, each, shares=(0.1, 0.1, 0.8), seed=0):
    """A graded log: S_c prefers the active, the popular and what they like; `each` random items of every user outside
    it are S_t, S_va and S_te in these shares. Made by NumPy alone, so that it costs nothing without the JIT."""
    from dubnb.data.partition import Partition

    rng = np.random.default_rng(seed)
    liking = np.einsum("uk,ik->ui", *(rng.normal(size=(n, 2)) for n in (n_users, n_items)))
    wanted = liking + 0.5 * rng.normal(size=(n_users, 1)) + rng.normal(size=n_items) + rng.gumbel(size=liking.shape)
    S_c = np.argsort(-wanted.ravel())[:n_c]
    others = rng.random(liking.shape)
    others.flat[S_c] = np.inf
    pairs = rng.permutation((np.arange(n_users)[:, None] * n_items + np.argsort(others)[:, :each]).ravel())
    cuts = np.round(np.cumsum(shares)[:-1] * len(pairs)).astype(int)
    grades = 1 / (1 + np.exp(1.2 - liking - 0.5 * rng.normal(size=liking.shape)))
    parts = dict(zip(("S_c", "S_t", "S_va", "S_te"), (S_c, *np.split(pairs, cuts)), strict=True))
    columns = {part: (*np.divmod(own, n_items), grades.flat[own]) for part, own in parts.items()}
    return Partition(
        {
            part: (users, items, grade > 0.5, np.ones(len(users)), grade)
            for part, (users, items, grade) in columns.items()
        },
        (n_users, n_items),
        name="biased",
    )
