"""Whole fits as an independent program: every method from the paper's formulas, in plain NumPy and float64.

Nothing of dubnb's training is used: of dubnb come the Partition, and the keys, generators and shuffles, so that both
programs see the same samples. `fit(data, method, **parameters)` gives the models that SPEC and docstrings say
the method ends with; defaults too are written down again here. `TWINS` lists the methods that have a twin.
"""

import copy
import itertools
import math
from types import SimpleNamespace

import numpy as np

from dubnb import stream as streams
from dubnb._random import generator, key
from tests import naive, naive_als

TERMS = "abcden"
SYMMETRIC = ("mae", "mse", "squared")  # term d reaches M_t too

# -- defaults: SPEC sections 4, 5, 10, 11


def power_of_two(n, steps, low, high):
    return min(high, max(low, 2 ** round(math.log2(max(n, 1) / steps))))


def settings(data, method, given):
    """Every parameter of a method: what is given, else the default."""
    n_c, n_t = len(data.triplets("S_c").users), len(data.triplets("S_t").users)
    backbone, loss = given.get("backbone", "mf"), given.get("loss")
    solver = given.get("solver") or "sampled"
    if method in ("dub-x", "autodebias") and backbone == "mf" and (method == "dub-x" or loss in (None, "squared")):
        solver = given.get("solver") or "exact"
    o = {
        "backbone": backbone,
        "solver": solver,
        "loss": "squared" if solver == "exact" else "bce",
        "rank": {"random": 32}.get(method, 50),
        "lr": 1e-3,
        "epochs": 200,
        "patience": 5,
        "batch_size": power_of_two(n_c, 304, 16, 1024),
        "monitor": "auc",
        "weighting": "sample",
        "hidden": None,
        "activation": "tanh",
        "targets": "binary",
        "negative": 0.0,
        "target_slope": 0.0,
        "seed": 0,
        "terms": {"base": "c", "unif": "e", "combine": "ac", "ips": "c", "cause": "ce", "bridge": "cd"}.get(
            method, {"dub": "acde", "dub-x": "acd", "popularity-t": "e"}.get(method, "c")
        ),
        "exposure_power": 0.0,
        "lam": None,
        "negatives": 0 if (data.triplets("S_c").labels == 0).any() else 4,
    }
    own_batch = power_of_two(n_t, 42, 8, 128)
    if method == "unif":
        o["batch_size"] = own_batch
    o |= OWN_DEFAULTS.get((method, solver), {})
    if method in ("bridge", "dub") and backbone == "mf" and (solver == "exact" or n_c >= 100_000):
        o["rank"] = 100
    if method == "dub-x" and backbone == "mf":
        o["randomized_weight"] = min(5.0, max(2.0, 5 * math.sqrt(n_c / max(n_t, 1) * 5_400 / 311_704)))
    if method == "dub-x":
        o["targets"] = "graded" if data.graded else "rates" if data.has_rates else "binary"
        rated = data.graded and data.grading != "ranks"
        o["negative"] = 0.2 if rated or (data.triplets("S_c").labels > 0).all() else "auto"
    o |= given
    batch = o["batch_size"]
    o.setdefault("teacher_batch_size", min(own_batch, batch))
    o.setdefault("teacher_lam", 1e-2 * 128 / o["teacher_batch_size"])
    o.setdefault("pretrain_lam", 1e-4 * 1024 / batch)
    o.setdefault("pretrain_terms", "ac" if "a" in o["terms"] and backbone == "mf" and n_t >= 0.03 * n_c else "c")
    if o["lam"] is None and solver == "sampled":
        mf = backbone == "mf"
        at_1024 = {"ips": 3e-5 if mf else 1e-4, "bridge": 4e-5 if mf else 1e-5, "dub": 4e-5 if mf else 1e-5}
        o["lam"] = (at_1024 | {"autodebias": 1e-5, "dub-x": 1e-5}).get(method, 1e-4) * 1024 / batch
        if method == "unif":
            o["lam"] = (1e-2 if mf else 1e-3) * 128 / batch
    if method in ("bridge", "dub") and solver == "sampled":
        o.setdefault("gamma", 1.5 if backbone == "mf" else 0.1)
    return SimpleNamespace(**o)


SWEEPS = {"epochs": 30, "patience": 2}
X = {
    "gamma": "auto",
    "exposure_power": None,
    "negative": 0.2,
    "target_slope": 1.0,
    "grade_spread": None,
    "randomized_weight": 5.0,
    "teacher": "constant",
    "teacher_value": 0.0,
    "shrink": 0.8,
}
OWN_DEFAULTS = {
    ("ips", "sampled"): {"propensity": None, "clip": None, "normalise": True},
    ("cause", "sampled"): {"gamma": 1e-2, "side": "items", "norm": "l1"},
    ("bridge", "sampled"): {"shrink": 0.0, "teacher": "frozen"},
    ("dub", "sampled"): {"shrink": 0.0, "b_weight": 0.1},
    ("bridge", "exact"): {"gamma": 0.05, "cutoff": 0.2, "shrink": 1.0, "teacher": "frozen", **SWEEPS},
    ("dub", "exact"): {"gamma": 0.05, "cutoff": 0.2, "shrink": 1.0, "b_weight": 0.1, **SWEEPS},
    ("dub-x", "exact"): {**X, "cutoff": 0.25, **SWEEPS},
    ("dub-x", "sampled"): {**X, "grade_spread": 1.0, "lr": 3e-4},
    ("autodebias", "exact"): {
        "alpha": 0.1,
        "cutoff": 0.185,
        "imputation": "tanh",
        "weights_from": 20,
        "epochs": 500,
        "patience": 70,
    },
    ("autodebias", "sampled"): {"alpha": 0.01, "weights_from": 1, "meta_every": 4},
}


# -- models


class Model:
    """A backbone's float64 parameters."""

    def __init__(self, params, shape):
        self.params, self.shape = params, shape

    def scores(self, users, items):
        return naive.scores(self.params, self.shape, users, items)

    def matrix(self, n_users, n_items):
        users, items = np.divmod(np.arange(n_users * n_items), n_items)
        return self.scores(users, items).reshape(n_users, n_items)

    def gradient(self, batch, loss, lam, anchors=None):
        return naive.gradient(self.params, self.shape, batch, loss, lam, anchors)


def new_model(data, o, which):
    """Random weights: mf normal with std sqrt(2 / (rows + rank)), ncf with 1/sqrt(rank) and 1/sqrt(fan-in)."""
    tables = {}
    for side, rows in (("user", data.n_users), ("item", data.n_items)):
        draws = generator(o.seed, which, "init", f"{side}s").standard_normal((rows, o.rank), dtype=np.float32)
        std = math.sqrt(2 / (rows + o.rank)) if o.backbone == "mf" else 1 / math.sqrt(o.rank)
        tables[f"{side}_factors"] = draws.astype(np.float64) * std
    shape = SimpleNamespace(sizes=np.zeros(0, int), activation=None)
    if o.backbone == "mf":
        tables |= {"user_bias": np.zeros(data.n_users), "item_bias": np.zeros(data.n_items), "b0": np.zeros(1)}
        return Model(tables, shape)
    hidden = (2 * o.rank,) if o.hidden is None else o.hidden
    shape.sizes, shape.activation = np.array((2 * o.rank, *hidden, 1)), o.activation
    random, dense = generator(o.seed, which, "init", "dense"), []
    for fan_in, fan_out in itertools.pairwise(shape.sizes.tolist()):
        dense.append(random.uniform(-1, 1, (fan_in + 1) * fan_out) / math.sqrt(fan_in))
    return Model({**tables, "dense": np.concatenate(dense)}, shape)


# -- feedback, and what the teacher says


def feedback(data, part, o):
    """(users, items, y, w): label and grade turned into target and weight, times the log's own weight."""
    found = data.triplets(part)
    users, items = found.users.tolist(), found.items.tolist()
    y, w = np.zeros(len(users)), np.zeros(len(users))
    negative = 0.2 if isinstance(o.negative, str) else o.negative
    for n, label in enumerate(found.labels):
        if o.targets == "rates":
            rate = found.grades[n] if data.has_rates else label
            y[n] = rate + (1 - rate) * negative if part == "S_c" else rate
        elif label > 0:
            y[n] = 1.0
        elif o.targets == "graded":
            y[n] = found.grades[n]
            if part == "S_c" and getattr(o, "grade_spread", None) is not None:
                y[n] = 0.25 + o.grade_spread * (y[n] - 0.25)
        else:
            y[n] = negative if part == "S_c" else 0.0
        w[n] = found.weights[n] * (max(0, 1 - o.target_slope / 2 + o.target_slope * y[n]) if part == "S_c" else 1.0)
    return np.array(users), np.array(items), y, w


def mean_target(data, o):
    """S_t's mean target, by weight."""
    _, _, y, w = feedback(data, "S_t", o)
    return (w * y).sum() / w.sum()


def row_weights(data, power):
    """A_u C_i of every pair: (n + 1)^p over its mean, n the counts in S_c."""
    S_c = data.triplets("S_c")
    p_u, p_i = power if isinstance(power, tuple) else (power, power)
    A = np.array([((S_c.users == u).sum() + 1.0) ** p_u for u in range(data.n_users)])
    C = np.array([((S_c.items == i).sum() + 1.0) ** p_i for i in range(data.n_items)])
    return A / A.mean(), C / C.mean()


def taught_by(M_t, loss, shrink, mean, shift=0.0):
    """t = shrink mean + (1 - shrink) p_t + shift."""

    def t(users, items):
        if M_t is None:
            return np.full(len(users), mean + shift)
        return shrink * mean + (1 - shrink) * naive.predict(loss, M_t.scores(users, items)) + shift

    return t


def observed(name, columns, factor=1.0, targets=None):
    users, items, y, w = columns
    y = y if targets is None else targets
    return SimpleNamespace(name=name, n=len(users), users=users, items=items, y=y, w=w * factor, pairs=None)


def drawn(data, o, t=None, everywhere=False):
    """Term d: |S_c| pairs of S_u (or of D) anew in every epoch, target t, weight gamma A_u C_i."""
    D = list(itertools.product(range(data.n_users), range(data.n_items)))
    A, C = row_weights(data, o.exposure_power)
    n = len(data.triplets("S_c").users)
    pairs = D if everywhere else naive.unobserved(data)
    return SimpleNamespace(name="d", n=n, pairs=pairs, t=t, gamma=o.gamma, A=A, C=C, factor=1.0)


def drawn_negatives(data, per_positive):
    """Term n: pairs of S_u with target 0, weighed by activity and popularity to the power .75."""
    A, C = row_weights(data, (1.0, 0.75))
    n = per_positive * int((data.triplets("S_c").labels > 0).sum())
    zero = lambda users, items: np.zeros(len(users))  # noqa: E731
    return SimpleNamespace(name="n", n=n, pairs=naive.unobserved(data), t=zero, gamma=1.0, A=A, C=C, factor=1.0)


# -- epochs


def epoch_samples(terms, seed, stage, epoch):
    """The shuffled samples of an epoch; terms in the order a, c, d, e."""
    columns = []
    for number, term in enumerate(sorted(terms, key=lambda term: TERMS.index(term.name))):
        if term.pairs is None:
            users, items, y, w = term.users, term.items, term.y, term.w
        else:
            users, items = np.array(naive.draw(key(seed, stage, term.name, epoch), term.pairs, term.n)).T
            y = np.zeros(term.n) if term.t is None else term.t(users, items)
            w = term.factor * term.gamma * term.A[users] * term.C[items]
        columns.append((users, items, y, w, np.full(term.n, number)))
    users, items, y, w, numbers = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = permutation(key(seed, stage, "shuffle", epoch), len(users))
    return batch_of(users[order], items[order], y[order], w[order], numbers[order])


def permutation(key, n):
    source, target = streams.empty(n), streams.empty(n)
    source.users[:] = np.arange(n)
    streams.shuffle(key, source, target)
    return target.users.copy()


def batch_of(users, items, targets, weights, terms):
    return SimpleNamespace(users=users, items=items, targets=targets, weights=weights, terms=terms)


def cut(samples, start, stop):
    return batch_of(*(getattr(samples, name)[start:stop] for name in ("users", "items", "targets", "weights", "terms")))


def batches(samples, size):
    return [cut(samples, start, start + size) for start in range(0, len(samples.users), size)]


def term_losses(model, batch, loss, n_terms):
    """(sum of w l, sum of w) of each term."""
    values = batch.weights * naive.LOSSES[loss][0](model.scores(batch.users, batch.items), batch.targets)
    return np.array([[values[batch.terms == n].sum(), batch.weights[batch.terms == n].sum()] for n in range(n_terms)])


class Recipe:
    """One fit: the data, the parameters, and the losses of every epoch as they come."""

    def __init__(self, data, method, given):
        self.data, self.o, self.method = data, settings(data, method, given), method
        self.history = []
        S_va = data.triplets("S_va")
        self.usable = 0 < (S_va.labels > 0).sum() < len(S_va.labels)

    def validation(self, matrix):
        S_va = self.data.triplets("S_va")
        if self.o.monitor == "auc":
            return naive.auc(matrix[S_va.users, S_va.items], S_va.labels)
        return naive.evaluate(matrix, self.data, "full-ranking", (5,), part="S_va")[0]["ndcg"]

    def run(
        self, stage, one_epoch, matrix, state, patience=None, epochs=None, first=1, alive=0.0, enough=None, begun=False
    ):
        """(metric, copy of `state`) of the epoch that is kept.

        Epochs before `first` do not count; once an epoch is a user's own by a share of `alive`, none before it does.
        Training stops `patience` epochs after the best that counts, or when the loss falls by less than `enough` of it.
        Where it has `begun` is kept unless an epoch is better.
        """
        start = (self.validation(matrix()), copy.deepcopy(state)) if begun and self.usable else None
        patience, seen, last_loss = patience or self.o.patience, {}, math.inf
        for epoch in range(1, (epochs or self.o.epochs) + 1):
            losses = one_epoch(epoch)
            scores = matrix()
            personal = naive.personal(scores[naive.grid(self.data)])
            seen[epoch] = (self.validation(scores) if self.usable else -math.inf), personal, copy.deepcopy(state)
            self.history.append((stage, epoch, losses, seen[epoch][0]))
            judged = [e for e in seen if e >= first]
            awake = [e for e in judged if seen[e][1] >= alive]
            counting = [e for e in judged if not awake or e >= awake[0]]
            best = max(counting, key=lambda e: (seen[e][0], -e)) if counting and self.usable else epoch
            if self.usable and awake and epoch - best >= patience:
                break
            loss, fell = sum(losses.values()), last_loss - sum(losses.values())
            if enough is not None and fell < enough * abs(loss):
                break
            last_loss = loss
        value, _, kept = seen[best]
        return start if start is not None and not value > start[0] else (value, kept)

    def matrix_of(self, model):
        return lambda: model.matrix(self.data.n_users, self.data.n_items)

    # -- mini-batches of one model

    def train(self, stage, model, terms, lam, batch_size, **length):
        o, terms = self.o, self.weighted(self.with_negatives(terms))
        names = sorted(term.name for term in terms)
        adam = naive.Adam(model.params, o.lr)

        def one_epoch(epoch):
            sums = 0.0
            for batch in batches(epoch_samples(terms, o.seed, stage, epoch), batch_size):
                sums = sums + term_losses(model, batch, o.loss, len(terms))
                adam.step(model.params, model.gradient(batch, o.loss, lam), batch)
            return {name: total / weight if weight else 0.0 for name, (total, weight) in zip(names, sums, strict=True)}

        return self.run(stage, one_epoch, self.matrix_of(model), model, **length)[1]

    def with_negatives(self, terms):
        """Term n beside S_c, unless term d says no to unobserved pairs already."""
        names = {term.name for term in terms}
        if not self.o.negatives or "c" not in names or "d" in names:
            return terms
        return [*terms, drawn_negatives(self.data, self.o.negatives)]

    def weighted(self, terms):
        """The theorems' weights: a, c, d over |D|, e over |S_t|, a sample of d standing for |S_u| / |S_a| pairs."""
        if self.o.weighting == "sample":
            return terms
        total, n_pairs, weighed = sum(term.n for term in terms), self.data.n_users * self.data.n_items, []
        for term in terms:
            term = copy.copy(term)
            if term.pairs is not None:
                term.factor = total * len(term.pairs) / (term.n * n_pairs)
            else:
                term.w = term.w * total / (term.n if term.name == "e" else n_pairs)
            weighed.append(term)
        return weighed

    def part(self, part):
        return feedback(self.data, part, self.o)

    def pretrained_c(self, lam):
        terms = [observed("a", self.part("S_t"))] if "a" in self.o.pretrain_terms else []
        terms.append(observed("c", self.part("S_c")))
        return self.train("M_c", new_model(self.data, self.o, "c"), terms, lam, self.o.batch_size)

    def pretrained_t(self, lam, batch_size, **length):
        terms = [observed("e", self.part("S_t"))]
        return self.train("M_t", new_model(self.data, self.o, "t"), terms, lam, batch_size, **length)

    def teacher(self, **length):
        return self.pretrained_t(self.o.teacher_lam, self.o.teacher_batch_size, **length)

    # -- two models side by side

    def jointly(self, M_c, M_t, terms, with_e1, pull=None):
        """Batch by batch, each seeing the other as it was before the batch; M_t cycles through S_t."""
        o, terms = self.o, self.with_negatives(terms)
        names = sorted(term.name for term in terms)
        d = names.index("d") if "d" in names else None
        adam_c, adam_t = naive.Adam(M_c.params, o.lr), naive.Adam(M_t.params, o.lr)
        S_t = self.cycle("refine-t", o.teacher_batch_size) if with_e1 else itertools.repeat(NOTHING)

        def one_epoch(epoch):
            sums, sums_e = 0.0, 0.0
            for batch in batches(epoch_samples(terms, o.seed, "refine", epoch), o.batch_size):
                for_t = next(S_t)
                if d is not None:
                    own = batch.terms == d
                    users, items, w = batch.users[own], batch.items[own], batch.weights[own]
                    batch.targets[own] = naive.predict(o.loss, M_t.scores(users, items))
                    if o.loss in SYMMETRIC:
                        y = naive.predict(o.loss, M_c.scores(users, items))
                        for_t = joined(for_t, batch_of(users, items, y, w, np.ones(len(users), int)))
                anchors_c, anchors_t = (pull(M_t, batch), pull(M_c, for_t)) if pull else (None, None)
                sums = sums + term_losses(M_c, batch, o.loss, len(names))
                step_c = M_c.gradient(batch, o.loss, o.lam, anchors_c)
                if len(for_t.users):
                    sums_e = sums_e + term_losses(M_t, for_t, o.loss, 1)[0]
                    step_t = M_t.gradient(for_t, o.loss, o.teacher_lam, anchors_t)
                    adam_t.step(M_t.params, step_t, for_t)
                adam_c.step(M_c.params, step_c, batch)
            found = {name: total / weight if weight else 0.0 for name, (total, weight) in zip(names, sums, strict=True)}
            return found | ({"e": sums_e[0] / sums_e[1]} if with_e1 else {})

        return self.run("refine", one_epoch, self.matrix_of(M_c), (M_c, M_t))[1]

    def cycle(self, stage, batch_size):
        """Batches of S_t without end, reshuffled whenever all of them were seen."""
        terms = [observed("e", self.part("S_t"))]
        for turn in itertools.count(1):
            yield from batches(epoch_samples(terms, self.o.seed, stage, turn), batch_size)


NOTHING = batch_of(*(np.zeros(0, int),) * 2, *(np.zeros(0),) * 2, np.zeros(0, int))


def joined(first, second):
    names = ("users", "items", "targets", "weights", "terms")
    return batch_of(*(np.concatenate([getattr(first, name), getattr(second, name)]) for name in names))


# -- the methods


def base(recipe):
    return recipe.pretrained_c(recipe.o.lam), None


def unif(recipe):
    return recipe.pretrained_t(recipe.o.lam, recipe.o.batch_size), None


def kept(recipe, terms):
    return [term for term in terms if term.name in recipe.o.terms]


def combine(recipe):
    terms = kept(recipe, [observed("a", recipe.part("S_t")), observed("c", recipe.part("S_c"))])
    model = new_model(recipe.data, recipe.o, "c")
    return recipe.train("M_c", model, terms, recipe.o.lam, recipe.o.batch_size), None


def ips(recipe):
    o, data = recipe.o, recipe.data
    if o.propensity is not None:
        p = np.asarray(o.propensity)
    elif data.propensities is not None:
        p = np.asarray(data.propensities)
    else:
        p = naive_bayes(data)
    weights = 1 / p
    if o.clip is not None:
        weights = np.where(weights > o.clip, o.clip, weights)
    if o.normalise:
        weights = weights / (weights.sum() / len(weights))
    terms = [observed("c", recipe.part("S_c"), weights)]
    return recipe.train("M_c", new_model(data, o, "c"), terms, o.lam, o.batch_size), None


def naive_bayes(data):
    """P(O | y) = P(y | O) P(O) / P(y), shares of labels by the logs' own weights."""
    S_c, S_t = data.triplets("S_c"), data.triplets("S_t")

    def share(part, y):
        return part.weights[part.labels == y].sum(dtype=float) / part.weights.sum(dtype=float)

    P_O = len(S_c.labels) / data.n_users / data.n_items
    return np.array([share(S_c, y) * P_O / share(S_t, y) for y in S_c.labels])


def cause(recipe):
    o, data = recipe.o, recipe.data

    def pull(other, batch):
        def rows(side):
            if o.side not in (f"{side}s", "both"):
                return np.zeros((0, o.rank))
            return other.params[f"{side}_factors"][getattr(batch, f"{side}s")].copy()

        strength, kind = o.gamma / max(len(batch.users), 1), ("l1", "frobenius").index(o.norm)
        return SimpleNamespace(users=rows("user"), items=rows("item"), strength=strength, kind=kind)

    models = new_model(data, o, "c"), new_model(data, o, "t")
    terms = kept(recipe, [observed("c", recipe.part("S_c"))])
    return recipe.jointly(*models, terms, "e" in o.terms, pull)


def eq_2_terms(recipe, t):
    """a, c, d and e.2 with the teacher t, those of them that are kept."""
    S_t = recipe.part("S_t")
    residuals = S_t[2] - t(S_t[0], S_t[1])
    terms = [observed("a", S_t), observed("c", recipe.part("S_c")), drawn(recipe.data, recipe.o, t)]
    if "b" in recipe.o.terms:
        S_c = recipe.part("S_c")
        terms.append(observed("b", S_c, recipe.o.b_weight, t(S_c[0], S_c[1]) - S_c[2]))
    return kept(recipe, [*terms, observed("e", S_t, targets=residuals)])


def refined(recipe, M_t):
    """Eq. 2 over W_c, M_t frozen."""
    o = recipe.o
    t = taught_by(None if o.shrink == 1 else M_t, o.loss, o.shrink, mean_target(recipe.data, o))
    terms = eq_2_terms(recipe, t)
    M_c = recipe.pretrained_c(o.pretrain_lam)
    return recipe.train("refine", M_c, terms, o.lam, o.batch_size, begun=True), M_t


def bridge(recipe):
    o, data = recipe.o, recipe.data
    if o.solver == "exact":
        return exact(recipe)
    M_t = recipe.teacher()
    if o.teacher == "frozen":
        return refined(recipe, M_t)
    terms = kept(recipe, [observed("c", recipe.part("S_c")), drawn(data, o, everywhere=True)])
    return recipe.jointly(recipe.pretrained_c(o.pretrain_lam), M_t, terms, with_e1=True)


def dub(recipe):
    o, data = recipe.o, recipe.data
    if o.solver == "exact":
        return exact(recipe)
    M_t = recipe.teacher()
    if o.loss != "mae":
        return refined(recipe, M_t)
    terms = [observed("a", recipe.part("S_t")), observed("c", recipe.part("S_c")), drawn(data, o)]
    return recipe.jointly(recipe.pretrained_c(o.pretrain_lam), M_t, kept(recipe, terms), "e" in o.terms)


# -- exact sums over all pairs: dense matrices of weights and targets


def exact(recipe):
    o = recipe.o
    M_t = None if o.shrink == 1 else recipe.teacher(epochs=200, patience=5)
    t = taught_by(M_t, o.loss, o.shrink, mean_target(recipe.data, o))
    rows = start_of_rows(recipe)
    _, model, _ = solve(recipe, t, o.gamma, o.exposure_power, rows, by_row=False, of_S_t=1.0)
    return model, M_t


def dub_x(recipe):
    if recipe.o.backbone == "ncf":
        return dub_x_of_ncf(recipe), None
    return solved_x(recipe, "refine")[:2]


SHARED_WITH_MF = ("rank", "gamma", "exposure_power", "terms", "targets", "negative", "target_slope", "monitor", "seed")
SHARED_WITH_MF += (
    "grade_spread",
    "randomized_weight",
    "teacher",
    "teacher_value",
    "shrink",
    "teacher_lam",
    "teacher_batch_size",
)


def dub_x_of_ncf(recipe):
    """mf's sums in mini-batches, a draw of d for |S_u| / |S_a| pairs at a third, from mf's factors at unit variance."""
    o, data = recipe.o, recipe.data
    mf = Recipe(data, "dub-x", {name: getattr(o, name) for name in SHARED_WITH_MF})
    mf.history = recipe.history
    solved, _, t, gamma, power = solved_x(mf, "embeddings")
    o.negative = mf.o.negative
    o.gamma, o.exposure_power = gamma / 3 * len(naive.unobserved(data)) / len(data.triplets("S_c").users), power
    S_t, S_c = recipe.part("S_t"), recipe.part("S_c")
    if o.negative == "unobserved":
        S_c = clicked(data, o, t, gamma, *row_weights(data, power))
    residuals = S_t[2] - t(S_t[0], S_t[1])
    terms = [observed("a", S_t, o.randomized_weight), observed("c", S_c), drawn(data, o, t)]
    terms.append(observed("e", S_t, o.randomized_weight, residuals))
    model, axes = new_model(data, o, "c"), np.linalg.svd(solved.Q[:, :-2])[2][::-1]
    for name, rows in (("user_factors", solved.P[:, :-2]), ("item_factors", solved.Q[:, :-2])):
        turned = [rows @ axis * (1 if ((solved.Q[:, :-2] @ axis) ** 3).sum() >= 0 else -1) for axis in axes]
        model.params[name] = np.array(turned).T / max(math.sqrt((rows**2).mean()), 1e-3)
    return recipe.train("refine", model, kept(recipe, terms), o.lam, o.batch_size, begun=True)


def solved_x(recipe, only):
    """mf's (M_c, M_t, teacher, gamma, p), the best of what was to choose from; `only` names a stage without choice."""
    o, data = recipe.o, recipe.data
    shrink = o.shrink
    M_t = recipe.teacher(epochs=200, patience=5) if o.teacher == "model" and shrink < 1 else None
    mean = mean_target(data, o)
    if M_t is not None:
        t = taught_by(M_t, o.loss, shrink, mean, o.teacher_value - mean)
    elif o.teacher == "item":
        _, items, y, w = recipe.part("S_t")
        rates = [((w * y)[items == i].sum() + 40 * mean) / (w[items == i].sum() + 40) for i in range(data.n_items)]
        t = lambda users, items: (np.array(rates) + o.teacher_value - mean)[items]  # noqa: E731
    else:
        t = taught_by(None, o.loss, 0.0, o.teacher_value)
    enough = recipe.usable and (data.triplets("S_va").labels > 0).sum() >= 30
    searched = o.gamma == "auto" and enough and "d" in o.terms
    gammas = (0.03, 0.01, 0.003) if searched else (0.03 if o.gamma == "auto" else o.gamma,)
    powers = (0.75, 1.0) if searched else (1.0 if o.gamma == "auto" else 0.75,)
    powers = powers if o.exposure_power is None else (o.exposure_power,)
    rows, found = start_of_rows(recipe), []
    for power in powers:
        for gamma in gammas:
            stage = f"gamma {gamma:g}, p {power}" if len(gammas) * len(powers) > 1 else only
            kept_value, model, rows = solve(recipe, t, gamma, power, rows, True, o.randomized_weight, stage)
            found.append((kept_value, model, gamma, power))
    if searched and o.grade_spread is None and o.targets == "graded":
        best, _, gamma, power = max(found, key=lambda each: each[0])
        o.grade_spread, stage = 1.4, f"gamma {gamma:g}, p {power}, spread 1.4"
        kept_value, model, rows = solve(recipe, t, gamma, power, rows, True, o.randomized_weight, stage)
        found.append((kept_value, model, gamma, power))
        o.grade_spread = 1.4 if kept_value > best else 1.0
    if searched and o.negative == "auto":
        best, _, gamma, power = max(found, key=lambda each: each[0])
        spread = ", spread 1.4" if o.grade_spread == 1.4 else ""
        o.negative, stage = "unobserved", f"gamma {gamma:g}, p {power}{spread}, negatives unobserved"
        kept_value, model, rows = solve(recipe, t, gamma, power, rows, True, o.randomized_weight, stage)
        found.append((kept_value, model, gamma, power))
        o.negative = "unobserved" if kept_value > best else 0.2
    _, model, gamma, power = max(found, key=lambda each: each[0])
    return model, M_t, t, gamma, power


def clicked(data, o, t, gamma, A, C):
    """S_c of clicks alone: (users, items, y, w), pairs without one as unobserved ones."""
    users, items, *_ = feedback(data, "S_c", o)
    found = data.triplets("S_c")
    y, w = t(users, items), gamma * A[users] * C[items]
    for n, label in enumerate(found.labels):
        share = found.grades[n] if o.targets == "rates" and data.has_rates else label
        if share > 0:
            y[n], w[n] = 1.0, found.weights[n] * share * (1 + o.target_slope / 2)
    return users, items, y, w


def start_of_rows(recipe):
    """[p, b_u, 1] and [q, 1, b_i] of a random model."""
    params = new_model(recipe.data, recipe.o, "c").params
    n_users, n_items = recipe.data.n_users, recipe.data.n_items
    P = np.column_stack([params["user_factors"], np.zeros(n_users), np.ones(n_users)])
    return P, np.column_stack([params["item_factors"], np.ones(n_items), np.zeros(n_items)])


def solve(recipe, t, gamma, power, rows, by_row, of_S_t, stage="refine"):
    """Sweeps of exact row solves; (kept metric, kept model, the rows of the last sweep)."""
    o, data = recipe.o, recipe.data
    shape = data.n_users, data.n_items
    every = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    T = t(*every).reshape(shape)
    A, C = row_weights(data, power)
    S_t, S_c = recipe.part("S_t"), recipe.part("S_c")
    if o.negative == "unobserved":
        S_c = clicked(data, o, t, gamma, A, C)
    W, Y = np.zeros(shape), np.zeros(shape)  # sum of w, sum of w y
    square = 0.0  # sum of w y^2
    unseen = gamma * np.outer(A, C) * ("d" in o.terms)
    totals_u, totals_i = unseen.sum(axis=1), unseen.sum(axis=0)
    for letter, (users, items, y, w) in (("a", S_t), ("b", S_c), ("c", S_c), ("e", S_t)):
        if letter in o.terms:
            y = {"e": y - T[users, items], "b": T[users, items] - y}.get(letter, y)
            w = w * {"b": getattr(o, "b_weight", 0.0), "c": 1.0}.get(letter, of_S_t)
            np.add.at(W, (users, items), w)
            np.add.at(Y, (users, items), w * y)
            np.add.at(totals_u, users, w)
            np.add.at(totals_i, items, w)
            square += (w * y**2).sum()
    for users, items, *_ in (S_t, S_c):
        unseen[users, items] = 0.0
    lam = o.lam
    if lam is None:
        lam = 2 * o.cutoff * (math.sqrt(totals_u.mean()) + math.sqrt(totals_i.mean()))
    wd_u = lam * (totals_u / totals_u.mean() if by_row else np.ones(shape[0]))
    wd_i = lam * (totals_i / totals_i.mean() if by_row else np.ones(shape[1]))
    terms = [(W + unseen, np.divide(Y + unseen * T, W + unseen, out=np.zeros(shape), where=W + unseen > 0))]
    state = {"P": rows[0].copy(), "Q": rows[1].copy()}

    def one_sweep(epoch):
        state["P"] = naive_als.solve_users(terms, state["P"], state["Q"], wd_u, 0.1)
        state["Q"] = naive_als.solve_items(terms, state["P"], state["Q"], wd_i, 0.1)
        P, Q = state["P"], state["Q"]
        S = P @ Q.T
        total = (W * S**2 - 2 * Y * S).sum() + square + (unseen * (S - T) ** 2).sum()
        total += 0.5 * (wd_u @ (P[:, :-2] ** 2).sum(1) + wd_i @ (Q[:, :-2] ** 2).sum(1))
        return {"total": total + 0.1 * ((P[:, -2] ** 2).sum() + (Q[:, -1] ** 2).sum())}

    value, best = recipe.run(stage, one_sweep, lambda: state["P"] @ state["Q"].T, state, enough=1e-4)
    return value, Rows(best["P"], best["Q"]), (state["P"], state["Q"])


class Rows:
    """A model of extended rows: only its scores mean something, rows may be rotated together."""

    def __init__(self, P, Q, scale=1.0, shift=0.0):
        self.P, self.Q, self.scale, self.shift = P, Q, scale, shift
        self.params = None

    def matrix(self, n_users, n_items):
        return self.scale * (self.P @ self.Q.T) + self.shift


# -- AutoDebias: meta-gradients by complex steps, dJ/dphi = Im J(phi + ih) / h

GROUPS = ("a", "b", "c", "a_prime", "b_prime", "c_prime", "mu")
EXACT_RATES = {"a": (3e-2, 1e-2), "a_prime": (3e-3, 1e-2), "mu": (0.3, 1e-4)}
EXACT_RATES |= {"b": EXACT_RATES["a"], "c": EXACT_RATES["a"]}
EXACT_RATES |= {"b_prime": EXACT_RATES["a_prime"], "c_prime": EXACT_RATES["a_prime"]}
SAMPLED_RATES = {name: (1e-2 if name == "mu" else 1e-3, 0.0) for name in GROUPS}
H = 1e-20


def new_phi(recipe):
    data, seed = recipe.data, recipe.o.seed
    std_u, std_i = math.sqrt(2 / data.n_users), math.sqrt(2 / data.n_items)
    sizes = {"a": (data.n_users, std_u), "b": (data.n_items, std_i), "c": (2, 1e-3), "c_prime": (2, 1e-3)}
    sizes |= {"a_prime": sizes["a"], "b_prime": sizes["b"], "mu": (3, 1e-3)}
    phi = {name: generator(seed, "phi", name).normal(0.0, sizes[name][1], sizes[name][0]) for name in GROUPS}
    A, C = row_weights(data, recipe.o.exposure_power)
    phi["a_prime"] += 5 * np.log(A)
    phi["b_prime"] += 5 * np.log(C)
    return phi


def by_complex_steps(J, phi):
    """dJ/dphi of an analytic J."""
    found = {}
    for name, values in phi.items():
        found[name] = np.zeros_like(values)
        for k in range(len(values)):
            moved = {other: array.astype(complex) for other, array in phi.items()}
            moved[name][k] += 1j * H
            found[name][k] = J(moved).imag / H
    return found


class PhiAdam:
    """Adam with the decay coupled into the gradient; every group counts its own steps."""

    def __init__(self, phi, rates):
        self.rates, self.t = rates, dict.fromkeys(phi, 0)
        self.m, self.v = ({name: np.zeros_like(array) for name, array in phi.items()} for _ in range(2))

    def step(self, phi, gradient, weights_move):
        for name in phi:
            if name != "mu" and not weights_move:
                continue
            self.t[name] += 1
            (lr, wd), t = self.rates[name], self.t[name]
            g = gradient[name] + wd * phi[name]
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g**2
            phi[name] -= lr * self.m[name] / (1 - 0.9**t) / (np.sqrt(self.v[name] / (1 - 0.999**t)) + 1e-8)


def autodebias(recipe):
    return (autodebias_exact(recipe) if recipe.o.solver == "exact" else autodebias_sampled(recipe)), None


def autodebias_exact(recipe):
    """Full batches over all pairs: meta-gradient, step of phi, then a step of every row with its own step size."""
    o, data = recipe.o, recipe.data
    tanh, shape = o.imputation == "tanh", (data.n_users, data.n_items)

    def spread(columns):
        users, items, y, w = columns
        return users, items, 2 * y - 1 if tanh else y, w

    users, items, r, v = spread(recipe.part("S_c"))
    S_t = spread(recipe.part("S_t"))
    y = (data.triplets("S_c").labels > 0).astype(int)
    lam = o.lam
    if lam is None:
        weight = v.sum() + o.alpha * shape[0] * shape[1]
        lam = 2 * o.cutoff * (2 if tanh else 1) * (math.sqrt(weight / shape[0]) + math.sqrt(weight / shape[1]))

    def weights(phi):
        """(w1, r), (alpha w2, m) as matrices."""
        M = np.tanh(phi["mu"]) if tanh else 1 / (1 + np.exp(-phi["mu"]))
        dtype = phi["mu"].dtype
        w1, R = np.zeros(shape, dtype), np.zeros(shape)
        w1[users, items] = v * np.exp((phi["a"][users] + phi["b"][items] + phi["c"][y]) / 5)
        R[users, items] = r
        o_1 = np.zeros(shape, int)
        o_1[users, items] = 1
        w2 = o.alpha * np.exp((phi["a_prime"][:, None] + phi["b_prime"] + phi["c_prime"][o_1]) / 5)
        m = np.full(shape, M[0])
        m[users, items] = M[1 + y]
        return w1, R, w2, m

    def gradient(phi, P, Q):
        w1, R, w2, m = weights(phi)
        S = P @ Q.T
        E = 2 * w1 * (S - R) + 2 * w2 * (S - m)
        dP, dQ = E @ Q, E.T @ P
        dP[:, :-2] += lam * P[:, :-2]
        dQ[:, :-2] += lam * Q[:, :-2]
        dP[:, -1], dQ[:, -2] = 0, 0
        return dP, dQ

    def step_sizes(phi, P, Q):
        w1, _, w2, _ = weights(phi)
        n_P, n_Q = (P[:, :-2] ** 2).sum(1) + 1, (Q[:, :-2] ** 2).sum(1) + 1
        return 1 / (2 * (w1 + w2) @ n_Q + lam), 1 / (2 * (w1 + w2).T @ n_P + lam)

    P, Q = start_of_rows(recipe)
    phi, state = new_phi(recipe), {"P": P, "Q": Q}
    adam = PhiAdam(phi, EXACT_RATES)

    def one_epoch(epoch):
        P, Q = state["P"], state["Q"]
        eta_P, eta_Q = step_sizes(phi, P, Q)

        def J(moved):
            dP, dQ = gradient(moved, P, Q)
            ahead_P, ahead_Q = P - eta_P[:, None] * dP, Q - eta_Q[:, None] * dQ
            return (S_t[3] * ((ahead_P[S_t[0]] * ahead_Q[S_t[1]]).sum(1) - S_t[2]) ** 2).sum()

        adam.step(phi, by_complex_steps(J, phi), weights_move=epoch > o.weights_from)
        w1, R, w2, m = weights(phi)
        S = P @ Q.T
        before = (w1 * (S - R) ** 2).sum() + (w2 * (S - m) ** 2).sum()
        before += lam / 2 * ((P[:, :-2] ** 2).sum() + (Q[:, :-2] ** 2).sum())
        (dP, dQ), (eta_P, eta_Q) = gradient(phi, P, Q), step_sizes(phi, P, Q)
        state["P"], state["Q"] = P - eta_P[:, None] * dP, Q - eta_Q[:, None] * dQ
        return {"total": before}

    first = o.weights_from + 1
    _, best = recipe.run("refine", one_epoch, lambda: state["P"] @ state["Q"].T, state, first=first, alive=0.01)
    return Rows(best["P"], best["Q"], 0.5, 0.5) if tanh else Rows(best["P"], best["Q"])


def autodebias_sampled(recipe):
    """Mini-batches of S_c and of draws from D - S_c; before each batch phi looks one step of size 1 ahead."""
    o, data = recipe.o, recipe.data
    S_c = recipe.part("S_c")
    n, seen = len(S_c[0]), set(zip(S_c[0].tolist(), S_c[1].tolist(), strict=True))
    D = itertools.product(range(data.n_users), range(data.n_items))
    unobserved = [pair for pair in D if pair not in seen]
    classes = np.concatenate([(data.triplets("S_c").labels > 0).astype(int), np.full(n, 2)])  # 2: not observed
    phi, model = new_phi(recipe), new_model(data, o, "c")
    rates = {name: (lr * o.meta_every, wd) for name, (lr, wd) in SAMPLED_RATES.items()}
    adam_phi, adam = PhiAdam(phi, rates), naive.Adam(model.params, o.lr)
    cycle = recipe.cycle("refine-t", o.batch_size)

    def weigh(phi, batch):
        """(weight, target) of every sample: w1 r and alpha w2 M_y merged into one."""
        u, i, y = batch.users, batch.items, batch.terms
        M = 1 / (1 + np.exp(-phi["mu"]))
        free = y == 2
        w2 = o.alpha * np.exp((phi["a_prime"][u] + phi["b_prime"][i] + phi["c_prime"][np.where(free, 0, 1)]) / 5)
        w2 = np.where(free, w2 * len(unobserved) / n, w2)
        m = M[np.where(free, 0, 1 + y)]
        w1 = np.where(free, 0.0, batch.v * np.exp((phi["a"][u] + phi["b"][i] + phi["c"][np.where(free, 0, y)]) / 5))
        return w1 + w2, (w1 * batch.r + w2 * m) / (w1 + w2)

    def learn_phi(batch, weights_move):
        slope = naive.LOSSES[o.loss][1]
        weights, targets = weigh(phi, batch)
        now = batch_of(batch.users, batch.items, targets, weights, batch.terms)
        ahead = copy.deepcopy(model)
        for name, g in model.gradient(now, o.loss, o.lam).items():
            ahead.params[name] -= g
        g = ahead.gradient(next(cycle), o.loss, 0.0)
        s, turns = model.scores(batch.users, batch.items), []
        for u, i in zip(batch.users, batch.items, strict=True):
            parts = naive.score_gradient(model.params, model.shape, u, i)
            turns.append(sum(np.sum(g[name][index] * ds) for name, index, ds in parts))
        turns = -np.array(turns) / len(turns)  # how far J moves with each sample's dl/ds

        def J(moved):
            w, y = weigh(moved, batch)
            return (turns * w * slope(s, y)).sum()

        adam_phi.step(phi, by_complex_steps(J, phi), weights_move)

    def one_epoch(epoch):
        users, items = np.array(naive.draw(key(o.seed, "refine", "d", epoch), unobserved, n)).T
        order = permutation(key(o.seed, "refine", "shuffle", epoch), 2 * n)
        users, items = np.concatenate([S_c[0], users])[order], np.concatenate([S_c[1], items])[order]
        r, v = np.concatenate([S_c[2], np.zeros(n)])[order], np.concatenate([S_c[3], np.zeros(n)])[order]
        sums = 0.0
        for number, start in enumerate(range(0, 2 * n, o.batch_size)):
            here = slice(start, start + o.batch_size)
            batch = batch_of(users[here], items[here], None, None, classes[order][here])
            batch.r, batch.v = r[here], v[here]
            if number % o.meta_every == 0:
                learn_phi(batch, weights_move=epoch > o.weights_from)
            batch.weights, batch.targets = weigh(phi, batch)
            sums = sums + term_losses(model, batch, o.loss, 3)
            adam.step(model.params, model.gradient(batch, o.loss, o.lam), batch)
        of_c = sums[:2].sum(axis=0)
        return {"c": of_c[0] / of_c[1], "d": sums[2, 0] / sums[2, 1] if o.alpha else 0.0}

    return recipe.run("refine", one_epoch, recipe.matrix_of(model), model)[1]


# -- baselines: scores without training


class Fixed:
    """A model that is its scores."""

    def __init__(self, scores):
        self.scores, self.params = scores, None

    def matrix(self, n_users, n_items):
        return self.scores


def untrained(recipe, scores):
    return recipe.run("M_c", lambda epoch: {}, lambda: scores, Fixed(scores), epochs=1)[1], None


def popularity(recipe):
    """The share of all users with a positive of the item in S_c."""
    data, S_c = recipe.data, recipe.data.triplets("S_c")
    values = [((S_c.items == i) & (S_c.labels > 0)).sum() / data.n_users for i in range(data.n_items)]
    return untrained(recipe, np.tile(values, (data.n_users, 1)))


def popularity_t(recipe):
    """An item's share of positives in S_t, drawn towards that of all by forty pairs."""
    data, S_t = recipe.data, recipe.data.triplets("S_t")
    w, y = S_t.weights.astype(float), S_t.labels.astype(float)
    pi = (w * y).sum() / w.sum()
    values = [((w * y)[S_t.items == i].sum() + 40 * pi) / (w[S_t.items == i].sum() + 40) for i in range(data.n_items)]
    return untrained(recipe, np.tile(values, (data.n_users, 1)))


def random(recipe):
    """Products of random factors."""
    return untrained(recipe, new_model(recipe.data, recipe.o, "c").matrix(recipe.data.n_users, recipe.data.n_items))


TWINS = {
    "base": base,
    "unif": unif,
    "combine": combine,
    "ips": ips,
    "cause": cause,
    "bridge": bridge,
    "autodebias": autodebias,
    "dub": dub,
    "dub-x": dub_x,
    "popularity": popularity,
    "popularity-t": popularity_t,
    "random": random,
}


def fit(data, method, **given):
    """(M_c, M_t or None, [(stage, epoch, {term: loss}, metric)])."""
    recipe = Recipe(data, method, given)
    M_c, M_t = TWINS[method](recipe)
    average_for_the_unmet(recipe, M_c)
    return M_c, M_t, recipe.history


def average_for_the_unmet(recipe, model):
    """Users of whom M_c has learned nothing get the mean row of the others."""
    data, terms = recipe.data, set(recipe.o.terms)
    parts = [part for part, letters in (("S_c", "cd"), ("S_t", "ae")) if terms & set(letters)]
    parts = ["S_c"] if recipe.method == "cause" else parts
    met = np.isin(np.arange(data.n_users), np.concatenate([data.triplets(part).users for part in parts]))
    tables = [model.P] if isinstance(model, Rows) else []
    if isinstance(model, Model):
        tables = [model.params[name] for name in ("user_factors", "user_bias") if name in model.params]
    for table in tables:
        table[~met] = table[met].mean(axis=0)
