"""Whole fits as an independent program: every method from the paper's formulas, in plain NumPy and float64.

Nothing of dubnb's training is used: of dubnb come the Partition, and the keys, generators and shuffles, so that both
programs see the same samples. `fit(data, method, **parameters)` gives the models that SPEC and docstrings say
the method ends with; defaults too are written down again here. `TWINS` lists the methods that have a twin.
"""

import copy
import itertools
import math
import warnings
from types import SimpleNamespace

import numpy as np

from dubnb._random import generator, key, uniform
from dubnb.objective.terms import empty_stream, shuffle
from tests import naive, naive_als, naive_item_item

TERMS = "abcden"
SYMMETRIC = ("mae", "mse", "squared")  # term d reaches M_t too

# -- defaults: SPEC sections 4, 5, 10, 11


def power_of_two(n, steps, low, high):
    return min(high, max(low, 2 ** round(math.log2(max(n, 1) / steps))))


def weight_of_S_t(n_c, n_t):
    return min(5.0, max(2.0, 5 * math.sqrt(n_c / max(n_t, 1) * 5_400 / 311_704)))


def settings(data, method, given):
    """Every parameter of a method: what is given, else the default."""
    n_c, n_t = len(data.triplets("S_c").users), len(data.triplets("S_t").users)
    backbone, loss = given.get("backbone", "mf"), given.get("loss")
    solver = given.get("solver") or "sampled"
    if method in ("ials", "ease"):
        solver = "exact"
    of_x = method in ("dub-x", "dub-i", "dub-xi")
    if backbone == "mf" and (of_x or (method == "autodebias" and loss in (None, "squared"))):
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
            method,
            (
                {"dub": "acde", "ials": "cd", "relmf": "cd", "popularity-t": "e", "weigh": "ac"}
                | dict.fromkeys(ROBUST, "cd")
            ).get(method, "acd" if of_x else "c"),
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
    if of_x and method != "dub-i" and backbone == "mf":
        o["randomized_weight"] = "auto"
    if of_x and method != "dub-i":
        o["teacher"] = "auto"
    if method == "dub-i":
        o["randomized_weight"] = weight_of_S_t(n_c, n_t)
    if of_x:
        o["targets"] = "graded" if data.graded else "rates" if data.has_rates else "binary"
        rated = data.graded and data.grading != "ranks"
        o["negative"] = 0.2 if rated or (data.triplets("S_c").labels > 0).all() else "auto"
    o |= given
    batch = o["batch_size"]
    o.setdefault("teacher_batch_size", min(own_batch, batch))
    if method in ROBUST:
        o.setdefault("teacher_lam", 1e-4 * 1024 / batch)
        o.setdefault("clip", 10 * data.n_users * data.n_items / n_c)
    o.setdefault("teacher_lam", 1e-2 * 128 / o["teacher_batch_size"])
    o.setdefault("pretrain_lam", 1e-4 * 1024 / batch)
    o.setdefault("pretrain_terms", "ac" if "a" in o["terms"] and backbone == "mf" and n_t >= 0.03 * n_c else "c")
    if o["lam"] is None and solver == "sampled":
        mf = backbone == "mf"
        at_1024 = {"ips": 3e-5 if mf else 1e-4, "bridge": 4e-5 if mf else 1e-5, "dub": 4e-5 if mf else 1e-5}
        at_1024 |= {"bpr": 3e-5, "pda": 3e-5, "stable-dr": 3e-4}
        at_1024 |= {"dr": 1e-5, "mrdr": 1e-5} if mf else {}
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
ROBUST = ("dr", "mrdr", "stable-dr")
OWN_DEFAULTS = {
    **{(method, "sampled"): {"propensity": None, "gamma": 1.0} for method in ROBUST},
    ("bpr", "sampled"): {"patience": 20},
    ("pda", "sampled"): {"power": 0.05, "patience": 20},
    ("dib", "sampled"): {"alpha": 0.15, "gamma": 0.05},
    ("refine", "sampled"): {"alpha": 0.5},
    ("ips", "sampled"): {"propensity": None, "clip": None, "normalise": True},
    ("cause", "sampled"): {"gamma": 1e-2, "side": "items", "norm": "l1"},
    ("bridge", "sampled"): {"shrink": 0.0, "teacher": "frozen"},
    ("dub", "sampled"): {"shrink": 0.0, "b_weight": 0.1},
    ("bridge", "exact"): {"gamma": 0.05, "cutoff": 0.2, "shrink": 1.0, "teacher": "frozen", **SWEEPS},
    ("dub", "exact"): {"gamma": 0.05, "cutoff": 0.2, "shrink": 1.0, "b_weight": 0.1, **SWEEPS},
    ("dub-x", "exact"): {**X, "cutoff": "auto", **SWEEPS},
    ("dub-i", "exact"): {
        **X,
        "gamma": 0.025,
        "exposure_power": (1.0, 0.75),
        "teacher": "auto",
        "cutoff": 0.9,
        "epochs": 12,
    },
    ("dub-xi", "exact"): {**X, "cutoff": "auto", "blend": "auto", **SWEEPS},
    ("dub-x", "sampled"): {**X, "lr": 3e-4},
    ("ease", "exact"): {"cutoff": 2.8},
    ("relmf", "sampled"): {"gamma": 10.0, "power": 0.5, "clip": 5.0},
    ("ials", "exact"): {"alpha": 0.03, "cutoff": 0.25, **SWEEPS},
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
    negative, weights = 0.2 if isinstance(o.negative, str) else o.negative, log_weights(found)
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
        w[n] = weights[n] * (max(0, 1 - o.target_slope / 2 + o.target_slope * y[n]) if part == "S_c" else 1.0)
    return np.array(users), np.array(items), y, w


def log_weights(part):
    """The log's own weights, times the inverse propensities where it has some."""
    weights = part.weights.astype(float)
    return weights if part.propensities is None else weights * naive.importance(part.propensities)


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
    A, C = row_weights(data, o.exposure_power)
    n = len(data.triplets("S_c").users)
    pairs = all_but(data, np.zeros(0), np.zeros(0)) if everywhere else naive.unobserved(data)
    return SimpleNamespace(name="d", n=n, pairs=pairs, t=t, gamma=o.gamma, A=A, C=C, factor=1.0)


def all_but(data, users, items):
    """All pairs of D but these."""
    seen = set(zip(users.tolist(), items.tolist(), strict=True))
    return [pair for pair in itertools.product(range(data.n_users), range(data.n_items)) if pair not in seen]


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
    source, target = empty_stream(n), empty_stream(n)
    source.users[:] = np.arange(n)
    shuffle(key, source, target)
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


def means(totals):
    """{name: mean} of {name: (total, weight)}; 0 without weight."""
    return {name: total / weight if weight else 0.0 for name, (total, weight) in totals.items()}


def mean_of(values):
    """The mean, to 12 decimals if there are several."""
    return values[0] if len(values) == 1 else round(sum(values) / len(values), 12)


class Recipe:
    """One fit: the data, the parameters, and the losses of every epoch as they come."""

    def __init__(self, data, method, given):
        self.data, self.o, self.method, self.given = data, settings(data, method, given), method, given
        self.history = []
        S_va = data.triplets("S_va")
        self.usable = 0 < (S_va.labels > 0).sum() < len(S_va.labels)

    def validation(self, matrix):
        S_va = self.data.triplets("S_va")
        if self.o.monitor == "auc":
            scores, own = matrix[S_va.users, S_va.items], S_va.propensities
            if own is not None:
                return naive.weighted_auc(scores, S_va.labels, naive.importance(own) * S_va.weights)
            return naive.auc(scores, S_va.labels)
        return weighted_ndcg(self.data, matrix, np.ones(self.data.n_users))

    def run(
        self,
        stage,
        one_epoch,
        matrix,
        state,
        patience=None,
        epochs=None,
        first=1,
        alive=0.0,
        enough=None,
        begun=False,
        window=5,
    ):
        """(metric, copy of `state`) of the epoch that is kept.

        Epochs before `first` do not count; once an epoch is a user's own by a share of `alive`, none before it does.
        An epoch counts by the mean metric of the last `window` epochs that count, itself included. Training stops
        `patience` epochs after the best, or when the loss falls by less than `enough` of it. Where it has `begun` is
        kept unless both the mean and the metric of an epoch are better.
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
            mean = {e: mean_of([seen[k][0] for k in counting if e - window < k <= e]) for e in counting}
            best = max(counting, key=lambda e: (mean[e], -e)) if counting and self.usable else epoch
            if self.usable and awake and epoch - best >= patience:
                break
            loss, fell = sum(losses.values()), last_loss - sum(losses.values())
            if enough is not None and fell < enough * abs(loss):
                break
            last_loss = loss
        if start is not None:
            better = [e for e in counting if min(mean[e], seen[e][0]) > start[0]]
            if not better:
                return start
            best = max(better, key=lambda e: (mean[e], -e))
        value, _, kept = seen[best]
        return value, kept

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
            return means(dict(zip(names, sums, strict=True)))

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
            return means(dict(zip(names, sums, strict=True))) | ({"e": sums_e[0] / sums_e[1]} if with_e1 else {})

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
    weights = inverse_propensities(recipe)
    if o.normalise:
        weights = weights / (weights.sum() / len(weights))
    terms = [observed("c", recipe.part("S_c"), weights)]
    return recipe.train("M_c", new_model(data, o, "c"), terms, o.lam, o.batch_size), None


def inverse_propensities(recipe):
    """1 / P(O), at most o.clip: an array, a column of the log, or one of three estimates."""
    o, data = recipe.o, recipe.data
    if o.propensity is not None and not isinstance(o.propensity, str):
        p = np.asarray(o.propensity)
    elif o.propensity is None and data.propensities is not None:
        p = np.asarray(data.propensities)
    else:
        estimates = {"logistic": logistic_of_counts, "learned": logs_told_apart, "naive-bayes": naive_bayes}
        p = estimates[o.propensity or "naive-bayes"](data)
    return 1 / p if o.clip is None else np.where(1 / p > o.clip, o.clip, 1 / p)


def newton(X, y, w=1.0, penalty=0.0):
    """The coefficients of a logistic regression."""
    theta, penalty = np.zeros(X.shape[1]), np.broadcast_to(penalty, X.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-X @ theta))
        H = (X * (w * p * (1 - p))[:, None]).T @ X + np.diag(penalty)
        theta = theta + np.linalg.lstsq(H, X.T @ (w * (y - p)) - penalty * theta, rcond=1e-10)[0]
    return theta


def logistic_of_counts(data):
    """P(O) by a logistic regression over every single pair."""
    S_c = data.triplets("S_c")
    every = np.divmod(np.arange(data.n_users * data.n_items), data.n_items)
    n_u = np.array([(S_c.users == u).sum() for u in range(data.n_users)])
    n_i = np.array([(S_c.items == i).sum() for i in range(data.n_items)])
    X = np.column_stack([np.ones(len(every[0])), np.log1p(n_u[every[0]]), np.log1p(n_i[every[1]])])
    O = np.zeros((data.n_users, data.n_items))
    O[S_c.users, S_c.items] = 1.0
    p = 1 / (1 + np.exp(-X @ newton(X, O.ravel())))
    return p.reshape(O.shape)[S_c.users, S_c.items]


def logs_told_apart(data):
    """P(O) times the odds that a pair is of S_c rather than of S_t, by a logistic regression over both logs."""
    S_c, S_t = data.triplets("S_c"), data.triplets("S_t")
    rows, w, y = [], [], []
    for part, own in ((S_c, 1.0), (S_t, 0.0)):
        for k, (u, i) in enumerate(zip(part.users, part.items, strict=True)):
            counts = (S_c.users == u).sum(), (S_c.items == i).sum()
            rows.append([1.0, part.labels[k], np.log(1 + counts[0]), np.log(1 + counts[1])])
        w.extend(part.weights if own else log_weights(part))
        y.extend([own] * len(part.users))
    X, w, y = np.array(rows), np.array(w, float), np.array(y)
    odds = np.exp(X @ newton(X, y, w, [0.0, 1.0, 1.0, 1.0]))[y == 1] * w[y == 0].sum() / w[y == 1].sum()
    return np.clip(odds * len(S_c.users) / (data.n_users * data.n_items), 0, 1)


def naive_bayes(data):
    """P(O | y) = P(y | O) P(O) / P(y), shares of labels by the logs' own weights."""
    S_c, S_t = data.triplets("S_c"), data.triplets("S_t")

    def share(part, y):
        weights = log_weights(part)
        return weights[part.labels == y].sum() / weights.sum()

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
    solved, _, t, gamma, power, _ = solved_x(mf, "embeddings")
    o.negative, o.grade_spread = mf.o.negative, mf.o.grade_spread
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


FEWEST, ENOUGH = 30, 1_000  # positives of S_va that a choice, and a choice without folds, need


def solved_x(recipe, only, needs_folds=False):
    """mf's (M_c, M_t, teacher, gamma, p, [(fold, M_c there)]), the best of what was to choose from.

    `only` names a stage without choice. `needs_folds`: a model without choice is also solved on small folds.
    """
    o, data = recipe.o, recipe.data
    positives = (data.triplets("S_va").labels > 0).sum()
    searched = o.gamma == "auto" and can_choose(recipe) and "d" in o.terms
    p = (1.0, 0.75) if o.exposure_power is None else o.exposure_power
    start = {"gamma": 0.03 if o.gamma == "auto" else o.gamma, "power": p, "spread": o.grade_spread or 1.0}
    start["negative"] = 0.2 if o.negative == "auto" else o.negative
    start["teacher"] = "constant" if o.teacher == "auto" else o.teacher
    n_c, n_t = (len(data.triplets(part).users) for part in ("S_c", "S_t"))
    start["cutoff"] = 0.25 if o.cutoff == "auto" else o.cutoff
    start["of_S_t"] = weight_of_S_t(n_c, n_t) if o.randomized_weight == "auto" else o.randomized_weight
    rounds = [[{}]]
    if searched:
        rounds += [[{"spread": 1.4}]] if o.grade_spread is None and o.targets == "graded" else []
        rounds += [[{"negative": "unobserved"}]] if o.negative == "auto" else []
        grid = itertools.product(((1.0, 0.75), 1.0) if o.exposure_power is None else (p,), (0.06, 0.03, 0.01, 0.003))
        rounds.append([{"gamma": gamma, "power": power} for power, gamma in grid if (gamma, power) != (0.03, p)])
        if n_t and {"a", "e"} & set(o.terms):
            rounds += [[{"teacher": "item"}]] if o.teacher == "auto" else []
            rounds += [[{"of_S_t": 0.0}]] if o.randomized_weight == "auto" else []
        if o.cutoff == "auto" and o.lam is None and sum(map(len, rounds)) < 12:
            rounds += [[{"cutoff": 0.2}]]
    M_t = recipe.teacher(epochs=200, patience=5) if o.teacher == "model" and o.shrink < 1 else None
    logs = [recipe]
    if searched and positives < ENOUGH:
        logs = [Recipe(fold, "dub-x", recipe.given) for fold in four_folds(data, o.seed)]
    states = [start_of_rows(log) for log in logs]
    best, kept_metrics, kept_models = start, None, None
    for changes in rounds if searched else []:
        found = []
        for change in changes:
            candidate, judged, models = best | change, [], []
            for n, log in enumerate(logs):
                own_M_t = M_t if log is recipe else None
                model, states[n], _ = solve_x(log, candidate, own_M_t, states[n], stage_of(candidate))
                models.append(model)
                judged.append(metrics_of_users(model, log.data))
            sizes = [len(log.data.triplets("S_va").users) for log in logs]
            mean = [sum(s * part[k] for s, part in zip(sizes, judged, strict=True)) / sum(sizes) for k in (0, 1, 2, 3)]
            weights = (1, 0.5) if o.monitor == "auc" else (0, 1)
            errors = 1.5 if "cutoff" in change else 1.0
            found.append((difference(mean, kept_metrics, weights, errors), candidate, mean, models))
        gain, *winner = max(found, key=lambda each: each[0])
        if gain > -math.inf:
            best, kept_metrics, kept_models = winner
    if logs != [recipe]:
        for n, log in enumerate(logs, 1):
            recipe.history += [(f"fold {n}, {stage}", *rest) for stage, *rest in log.history]
    held_out = list(zip(logs, kept_models, strict=True)) if logs != [recipe] else []
    if logs != [recipe] or not searched:
        kept_models = [solve_x(recipe, best, M_t, start_of_rows(recipe), only)[0]]
    if needs_folds and not searched and can_choose(recipe) and positives < ENOUGH:
        for n, fold in enumerate(four_folds(data, o.seed), 1):
            log = Recipe(fold, "dub-x", recipe.given)
            held_out.append((log, solve_x(log, best, None, start_of_rows(log), stage_of(best))[0]))
            recipe.history += [(f"fold {n}, {stage}", *rest) for stage, *rest in log.history]
    o.grade_spread, o.negative, o.randomized_weight = best["spread"], best["negative"], best["of_S_t"]
    o.cutoff = best["cutoff"]
    return kept_models[0], M_t, taught_x(recipe, best, M_t), best["gamma"], best["power"], held_out


def can_choose(recipe):
    return recipe.usable and (recipe.data.triplets("S_va").labels > 0).sum() >= FEWEST


def four_folds(data, seed):
    """S_va is a fourth of the randomized pairs, with a fourth of the positives, S_t the rest."""
    S_t, S_va = data.triplets("S_t"), data.triplets("S_va")
    columns = [None if a is None else np.concatenate([a, b]) for a, b in zip(S_t, S_va, strict=True)]
    order = list(generator(seed, "choice-folds").permutation(len(columns[0])))
    order = [j for j in order if columns[2][j] == 0] + [j for j in order if columns[2][j] == 1]
    for k in range(4):
        own = np.isin(np.arange(len(order)), order[k::4])
        parts = [S_t._make([None if c is None else c[mask] for c in columns]) for mask in (~own, own)]
        yield data.replace(S_t=parts[0], S_va=parts[1])


def stage_of(candidate):
    words = f"gamma {candidate['gamma']:g}, p {candidate['power']}"
    words += ", spread 1.4" if candidate["spread"] == 1.4 else ""
    words += ", negatives unobserved" if candidate["negative"] == "unobserved" else ""
    words += f", {candidate['teacher']} teacher" if candidate["teacher"] != "constant" else ""
    words += ", without S_t" if candidate["of_S_t"] == 0 else ""
    return words + (", cutoff 0.2" if candidate["cutoff"] == 0.2 else "")


def taught_x(recipe, candidate, M_t):
    """The target t of an unseen pair."""
    o, data = recipe.o, recipe.data
    mean = mean_target(data, o)
    if M_t is not None:
        return taught_by(M_t, o.loss, o.shrink, mean, o.teacher_value - mean)
    if candidate["teacher"] != "item":
        return taught_by(None, o.loss, 0.0, o.teacher_value)
    return item_teacher(recipe)


def solve_x(recipe, candidate, M_t, rows, stage):
    """(model, rows of the last sweep, metric) of one candidate."""
    o = recipe.o
    o.grade_spread, o.negative, o.cutoff = candidate["spread"], candidate["negative"], candidate["cutoff"]
    t = taught_x(recipe, candidate, M_t)
    value, model, rows = solve(
        recipe, t, candidate["gamma"], candidate["power"], rows, True, candidate["of_S_t"], stage
    )
    return model, rows, value


def metrics_of_users(model, data):
    """(AUC, how much each user moves it, mean nDCG, how much each user moves it), on S_va."""
    matrix = model.matrix(data.n_users, data.n_items)
    return *influences(weighted_auc, data, matrix), *influences(weighted_ndcg, data, matrix)


def difference(new, old, weights, errors=1.0):
    """By how much AUC and nDCG are better, in standard errors; -inf if by less than `errors` paired ones."""
    if old is None:
        return math.inf
    total, moves = 0.0, np.zeros(len(old[1]))
    for k, weight in zip((0, 2), weights, strict=True):
        if weight and standard_error(old[k + 1]):
            total += weight * (new[k] - old[k]) / standard_error(old[k + 1])
            moves = moves + weight * (new[k + 1] - old[k + 1]) / standard_error(old[k + 1])
    return total if total > errors * standard_error(moves) else -math.inf


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


def dense_problem(recipe, t, gamma, power, of_S_t):
    """The exact objective, a number per pair: see the SimpleNamespace."""
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
    observed = np.zeros(shape, dtype=bool)
    for users, items, *_ in (S_t, S_c):
        observed[users, items] = True
    unseen[observed] = 0.0
    lam = o.lam
    if lam is None:
        lam = 2 * o.cutoff * (math.sqrt(totals_u.mean()) + math.sqrt(totals_i.mean()))
    return SimpleNamespace(**{name: value for name, value in locals().items() if name in PROBLEM})


PROBLEM = ("shape", "W", "Y", "T", "A", "C", "square", "unseen", "observed", "totals_u", "totals_i", "lam")


def solve(recipe, t, gamma, power, rows, by_row, of_S_t, stage="refine"):
    """Sweeps of exact row solves; (kept metric, kept model, the rows of the last sweep)."""
    found = dense_problem(recipe, t, gamma, power, of_S_t)
    shape, W, Y, T, _, _, square, unseen, _, totals_u, totals_i, lam = (getattr(found, name) for name in PROBLEM)
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

    value, best = recipe.run(stage, one_sweep, lambda: state["P"] @ state["Q"].T, state, enough=1e-4, window=1)
    return value, Rows(best["P"], best["Q"]), (state["P"], state["Q"])


def ease(recipe):
    """Each item's regression on all others over the positives, with a ridge, by the inverse of the Gram matrix."""
    o, data = recipe.o, recipe.data
    X = np.zeros((data.n_users, data.n_items))
    for letter, part in (("a", "S_t"), ("c", "S_c")):
        found = data.triplets(part)
        if letter in o.terms:
            X[found.users, found.items] = found.labels > 0
    lam = o.lam
    if lam is None:
        lam = (o.cutoff * (math.sqrt(X.sum() / data.n_users) + math.sqrt(X.sum() / data.n_items))) ** 2
    scores = np.zeros(X.shape)
    for i in range(data.n_items):
        others = np.arange(data.n_items) != i
        Z = X[:, others]
        scores[:, i] = Z @ np.linalg.solve(Z.T @ Z + lam * np.eye(data.n_items - 1), Z.T @ X[:, i])
    return untrained(recipe, scores, "solve")


def relmf(recipe):
    """Positives with the target 1 / theta, theta the root of an item's share of the most popular one's positives."""
    o, data = recipe.o, recipe.data
    S_c = data.triplets("S_c")
    liked = S_c.labels > 0
    counts = np.array([(S_c.items[liked] == i).sum() for i in range(data.n_items)])
    targets = np.array([(counts.max() / counts[i]) ** o.power for i in S_c.items[liked]])
    targets = targets if o.clip is None else np.minimum(targets, o.clip)
    c = observed("c", (S_c.users[liked], S_c.items[liked], targets, S_c.weights[liked].astype(float)))
    d = drawn(data, o, lambda users, items: np.zeros(len(users)))
    d.pairs = all_but(data, S_c.users[liked], S_c.items[liked])
    return recipe.train("M_c", new_model(data, o, "c"), kept(recipe, [c, d]), o.lam, o.batch_size), None


# -- objectives that couple scores


def with_slopes(model, batch, slopes):
    """The batch as one of the squared loss, whose derivative 2 (s - y) is then the slope."""
    targets = model.scores(batch.users, batch.items) - np.asarray(slopes) / 2
    return batch_of(batch.users, batch.items, targets, batch.weights, batch.terms)


def bpr(recipe):
    """Each positive against one item that the user has not liked, by the logistic loss of the difference."""
    o, data = recipe.o, recipe.data
    parts = {"a": "S_t", "c": "S_c"}
    found = {letter: recipe.data.triplets(part) for letter, part in parts.items() if letter in o.terms}
    liked = {u: set() for u in range(data.n_users)}
    for part in found.values():
        for u, i, label in zip(part.users.tolist(), part.items.tolist(), part.labels, strict=True):
            liked[u] |= {i} if label > 0 else set()
    terms = []
    for letter, part in found.items():
        own = (part.labels > 0) & np.array([len(liked[u]) < data.n_items for u in part.users.tolist()])
        terms.append(observed(letter, (part.users[own], part.items[own], part.labels[own], log_weights(part)[own])))
    factors = np.ones(data.n_items)
    if recipe.method == "pda":
        S_c = data.triplets("S_c")
        counts = np.array([((S_c.items == i) & (S_c.labels > 0)).sum() for i in range(data.n_items)])
        factors = ((counts + 1) / (counts.max() + 1)) ** o.power
    plain, model = recipe.method == "bpr", new_model(data, o, "c")
    adam = naive.Adam(model.params, o.lr)

    def x_of(s, i):
        """(x, dx/ds)"""
        if plain:
            return s, 1.0
        return factors[i] * (s + 1 if s >= 0 else math.exp(s)), factors[i] * (1 if s >= 0 else math.exp(s))

    def one_epoch(epoch):
        samples, sums = epoch_samples(terms, o.seed, "M_c", epoch), np.zeros((len(terms), 2))
        of_others, others = key(o.seed, "M_c", "others", epoch), []
        for n, u in enumerate(samples.users.tolist()):
            rest = [i for i in range(data.n_items) if i not in liked[u]]
            others.append(rest[int(uniform(of_others, n) * len(rest))])
        for start in range(0, len(others), o.batch_size):
            here = slice(start, start + o.batch_size)
            u, i, j, w = samples.users[here], samples.items[here], np.array(others[here]), samples.weights[here]
            slopes_i, slopes_j = [], []
            for n, (s_i, s_j) in enumerate(zip(model.scores(u, i), model.scores(u, j), strict=True)):
                (x_i, d_i), (x_j, d_j) = x_of(s_i, i[n]), x_of(s_j, j[n])
                sums[samples.terms[here][n]] += w[n] * np.log1p(np.exp(x_j - x_i)), w[n]
                against = 1 / (1 + math.exp(x_i - x_j))
                slopes_i.append(-against * d_i)
                slopes_j.append(against * d_j)
            both = batch_of(np.r_[u, u], np.r_[i, j], None, 2 * np.r_[w, w], np.zeros(2 * len(u), int))
            both = with_slopes(model, both, slopes_i + slopes_j)
            adam.step(model.params, model.gradient(both, "squared", o.lam), both)
        return means(dict(zip(sorted(term.name for term in terms), sums, strict=True)))

    return recipe.run("M_c", one_epoch, recipe.matrix_of(model), model)[1], None


def two_coupled(recipe, terms, batches_of):
    """Two models; `batches_of(batch, M_c, M_t)` gives each one's (batch, loss), and {name: (total, weight)}."""
    o, data = recipe.o, recipe.data
    M_c, M_t = new_model(data, o, "c"), new_model(data, o, "t")
    adam_c, adam_t = naive.Adam(M_c.params, o.lr), naive.Adam(M_t.params, o.lr)
    lam_t = o.teacher_lam if recipe.method in ROBUST else o.lam

    def one_epoch(epoch):
        totals = {}
        for batch in batches(epoch_samples(terms, o.seed, "M_c", epoch), o.batch_size):
            (for_c, loss_c), (for_t, loss_t), losses = batches_of(batch, M_c, M_t)
            for name, pair in losses.items():
                totals[name] = totals.get(name, 0.0) + np.array(pair)
            step_c = M_c.gradient(for_c, loss_c, o.lam) if len(for_c.users) else None
            step_t = M_t.gradient(for_t, loss_t, lam_t) if len(for_t.users) else None
            for adam, model, step, own in ((adam_c, M_c, step_c, for_c), (adam_t, M_t, step_t, for_t)):
                if step is not None:
                    adam.step(model.params, step, own)
        return means(totals)

    return recipe.run("M_c", one_epoch, recipe.matrix_of(M_c), (M_c, M_t))[1]


def robust(recipe):
    """Wang et al. (2019), Guo et al. (2021) or Li et al. (2023): cross-entropy, M_t imputes."""
    o, data = recipe.o, recipe.data
    W = np.maximum(inverse_propensities(recipe), 1)
    c = observed("c", recipe.part("S_c"), W)
    d = drawn(data, o)
    d.pairs = all_but(data, c.users, c.items)
    k = d.n / len(d.pairs)
    bce = naive.LOSSES["bce"][0]

    def batches_of(batch, M_c, M_t):
        own = batch.terms == 0
        s, t = M_c.scores(batch.users, batch.items), naive.predict("bce", M_t.scores(batch.users, batch.items))
        r, W = batch.targets, batch.weights
        of_t = W[own] * (W[own] - 1 if recipe.method == "mrdr" else 1) * k
        columns = batch.users[own], batch.items[own]
        for_t = batch_of(*columns, r[own], of_t * s[own] ** 2, batch.terms[own])
        losses = {"t": ((of_t * (bce(s[own], r[own]) - bce(s[own], t[own])) ** 2).sum(), of_t.sum())}
        if recipe.method == "stable-dr":
            imputed = bce(s, t)
            tau = 0.0
            if (~own).any() and own.any():
                gaps = imputed[own] - np.average(imputed, weights=np.where(own, k, 1.0))
                low, high = -4.0, 4.0
                for _ in range(200):  # bisection: the tilted mean grows with tau
                    tau = (low + high) / 2
                    low, high = (tau, high) if (W[own] * np.exp(tau * gaps) * gaps).sum() < 0 else (low, tau)
                w = W[own] * np.exp(tau * gaps)
            else:
                w = W[own]
            w = w / w.mean() if own.any() else w
            losses |= {"c": ((w * bce(s[own], r[own])).sum(), w.sum()), "d": (imputed[~own].sum(), (~own).sum())}
            return (batch_of(*columns, r[own], w, batch.terms[own]), "bce"), (for_t, "mse"), losses
        y, w = np.where(own, t + W * (r - t), t), np.where(own, k, W)
        for name, mine in (("c", own), ("d", ~own)):
            e, imputed = bce(s[mine], r[mine]), bce(s[mine], t[mine])
            values = imputed + (W[mine] * (e - imputed) if name == "c" else 0.0)
            losses[name] = (w[mine] * values).sum(), w[mine].sum()
        return (batch_of(batch.users, batch.items, y, w, batch.terms), "bce"), (for_t, "mse"), losses

    return two_coupled(recipe, [c, d], batches_of)


def dib(recipe):
    """An unbiased and a biased part, the latter kept from predicting the label alone."""
    o, bce = recipe.o, naive.LOSSES["bce"][0]
    terms = recipe.with_negatives([observed("c", recipe.part("S_c"))])
    names = sorted(term.name for term in terms)

    def batches_of(batch, M_c, M_t):
        s, b = M_c.scores(batch.users, batch.items), M_t.scores(batch.users, batch.items)
        y, w = batch.targets, batch.weights
        errors = [naive.predict("bce", x) - y for x in (s, b, s + b)]
        slopes_c = (1 - o.alpha) * errors[0] + o.alpha * errors[2]
        slopes_t = o.alpha * errors[2] - o.gamma * errors[1]
        values = w * ((1 - o.alpha) * bce(s, y) - o.gamma * bce(b, y) + o.alpha * bce(s + b, y))
        losses = {"t": ((w * bce(b, y)).sum(), w.sum())}
        for n, name in enumerate(names):
            losses[name] = values[batch.terms == n].sum(), w[batch.terms == n].sum()
        for_c, for_t = with_slopes(M_c, batch, slopes_c), with_slopes(M_t, batch, slopes_t)
        return (for_c, "squared"), (for_t, "squared"), losses

    return two_coupled(recipe, terms, batches_of)


# -- other uses of S_t


def distil(recipe):
    """M_t on S_t first: its predictions refine labels or weigh them, or its weights are the start."""
    o, data = recipe.o, recipe.data
    M_t, S_c = recipe.teacher(), recipe.part("S_c")
    t = naive.predict(o.loss, M_t.scores(S_c[0], S_c[1]))
    terms, model, begun = [observed("c", S_c)], new_model(data, o, "c"), recipe.method == "transfer"
    if recipe.method == "refine":
        terms = [observed("c", S_c, targets=(1 - o.alpha) * S_c[2] + o.alpha * t)]
    if recipe.method == "weigh":
        w = 1 - np.abs(data.triplets("S_c").labels - np.clip(t, 0, 1))
        terms = kept(recipe, [observed("a", recipe.part("S_t")), observed("c", S_c, w / w.mean())])
    if begun:
        model = copy.deepcopy(M_t)
    return recipe.train("M_c", model, terms, o.lam, o.batch_size, begun=begun), M_t


def ials(recipe):
    """Positives are 1, all other pairs are 0 with weight alpha; rows decay by their weight; no biases."""
    o, data = recipe.o, recipe.data
    shape = data.n_users, data.n_items
    alpha = o.alpha * ("d" in o.terms)
    W, Y = np.full(shape, alpha), np.zeros(shape)
    weight_u, weight_i = np.full(shape[0], alpha * shape[1]), np.full(shape[1], alpha * shape[0])
    for letter, part in (("a", "S_t"), ("c", "S_c")):
        found = data.triplets(part)
        for u, i, label, w in zip(found.users, found.items, found.labels, found.weights, strict=True):
            if letter in o.terms and label > 0:
                W[u, i], Y[u, i] = w, 1.0
                weight_u[u] += w
                weight_i[i] += w
    lam = o.lam
    if lam is None:
        lam = 2 * o.cutoff * (math.sqrt(weight_u.mean()) + math.sqrt(weight_i.mean()))
    decay_u, decay_i = lam * weight_u / weight_u.mean(), lam * weight_i / weight_i.mean()
    P, Q = (rows[:, :-2] for rows in start_of_rows(recipe))
    state = {"P": P, "Q": Q}

    def solved(W, Y, other, decay):
        rows = []
        for w, y, wd in zip(W, Y, decay, strict=True):
            rows.append(np.linalg.solve((other.T * w) @ other + wd / 2 * np.eye(o.rank), other.T @ (w * y)))
        return np.array(rows)

    def one_sweep(epoch):
        state["P"] = solved(W, Y, state["Q"], decay_u)
        state["Q"] = solved(W.T, Y.T, state["P"], decay_i)
        squares = decay_u @ (state["P"] ** 2).sum(1) + decay_i @ (state["Q"] ** 2).sum(1)
        return {"total": (W * (state["P"] @ state["Q"].T - Y) ** 2).sum() + squares / 2}

    _, best = recipe.run("refine", one_sweep, lambda: state["P"] @ state["Q"].T, state, enough=1e-4, window=1)
    return Rows(best["P"], best["Q"]), None


def item_teacher(recipe):
    """t of each item: its rate in S_t, drawn towards the mean by forty pairs, and shifted to the teacher's value."""
    mean, (_, items, y, w) = mean_target(recipe.data, recipe.o), recipe.part("S_t")
    rates = [((w * y)[items == i].sum() + 40 * mean) / (w[items == i].sum() + 40) for i in range(recipe.data.n_items)]
    return lambda users, items: (np.array(rates) + recipe.o.teacher_value - mean)[items]


def dub_i(recipe, stage="solve"):
    """Item-item coefficients after some steps of conjugate gradients, all pairs one by one."""
    o, data = recipe.o, recipe.data
    if o.grade_spread is None:
        o.grade_spread = 1.0
    if o.negative == "auto":
        o.negative = 0.2
    if o.teacher == "auto":
        o.teacher = "item" if {"a", "e"} & set(o.terms) else "constant"
    t = item_teacher(recipe) if o.teacher == "item" else taught_by(None, o.loss, 0.0, o.teacher_value)
    found = dense_problem(recipe, t, o.gamma, o.exposure_power, o.randomized_weight)
    S_c, seen, y = data.triplets("S_c"), np.zeros(found.shape, dtype=bool), np.zeros(found.shape)
    seen[S_c.users, S_c.items] = True
    y[S_c.users, S_c.items] = S_c.labels
    if o.targets == "graded":
        users, items, targets, _ = recipe.part("S_c")
        y[users, items] = targets
    elif o.targets == "rates":
        y[S_c.users, S_c.items] = S_c.grades if data.has_rates else S_c.labels
    X = naive_item_item.inputs(seen, y)
    target = np.divide(found.Y, found.W, out=np.zeros(found.shape), where=found.W > 0)
    a = o.gamma * found.A * ("d" in o.terms)
    B, c = naive_item_item.conjugate_gradients(
        X, found.observed, found.W, target, a, found.C, found.T, found.lam, o.epochs
    )
    scores = c[:, None] + X @ B.T
    return untrained(recipe, scores, stage)


def dub_xi(recipe):
    """(1 - v) dub-x / sd + v dub-i / sd, v chosen on folds or S_va by the metrics that choose dub-x's settings."""
    o, chooses = recipe.o, recipe.o.blend == "auto"
    M_c, M_t, *_, folds = solved_x(recipe, "refine", needs_folds=chooses)
    shared = ("targets", "negative", "target_slope", "randomized_weight", "grade_spread", "terms", "teacher_value")

    def item_item(log):
        own = Recipe(log.data, "dub-i", {name: getattr(o, name) for name in (*shared, "monitor")})
        own.history = log.history
        return dub_i(own, "item-item")[0].scores

    def mixed(log, M_c, share, S_i):
        rest = share * S_i / S_i.std() if share else 0.0
        model = Rows(M_c.P.copy(), M_c.Q, (1 - share) / (M_c.P @ M_c.Q.T).std(), rest)
        return log.run(f"blend {share:g}", lambda epoch: {}, log.matrix_of(model), model, epochs=1)[1]

    def clearest(judged, sizes):
        """The share with the largest clear gain over 0, or 0; every share has its metrics on each part."""
        mean = {
            share: [sum(s * part[k] for s, part in zip(sizes, parts, strict=True)) / sum(sizes) for k in (0, 1, 2, 3)]
            for share, parts in judged.items()
        }
        weights = (1, 0.5) if o.monitor == "auc" else (0, 1)
        gains = {share: difference(own, mean[0.0], weights) for share, own in mean.items() if share}
        best = max(gains, key=gains.get)
        return best if gains[best] > -math.inf else 0.0

    shares = (0.0, 0.25, 0.4, 0.5)
    if chooses and not can_choose(recipe):
        o.blend = 0.0
    elif chooses and folds:
        judged = {share: [] for share in shares}
        for n, (log, own_M_c) in enumerate(folds, 1):
            log.history = []
            S_i = item_item(log)
            for share in shares:
                judged[share].append(metrics_of_users(mixed(log, own_M_c, share, S_i), log.data))
            recipe.history += [(f"fold {n}, {stage}", *rest) for stage, *rest in log.history]
        o.blend = clearest(judged, [len(log.data.triplets("S_va").users) for log, _ in folds])
    S_i = item_item(recipe) if o.blend else None
    if o.blend != "auto":
        return mixed(recipe, M_c, o.blend, S_i), M_t
    models = {share: mixed(recipe, M_c, share, S_i) for share in shares}
    return models[
        clearest({share: [metrics_of_users(model, recipe.data)] for share, model in models.items()}, [1])
    ], M_t


def influences(metric, data, scores):
    """(metric, its derivative in every user's weight), by central differences."""
    found, step = np.zeros(data.n_users), 1e-5
    for user in range(data.n_users):
        weights = np.ones(data.n_users)
        weights[user] += step
        above = metric(data, scores, weights)
        weights[user] -= 2 * step
        found[user] = (above - metric(data, scores, weights)) / (2 * step)
    return metric(data, scores, np.ones(data.n_users)), np.where(np.abs(found) < 1e-9, 0.0, found)


def weighted_auc(data, scores, weights):
    users, items, labels, *_ = data.triplets("S_va")
    s, w, won = scores[users, items], weights[users], 0.0
    for p in np.flatnonzero(labels > 0):
        for n in np.flatnonzero(labels == 0):
            won += w[p] * w[n] * ((s[p] > s[n]) + 0.5 * (s[p] == s[n]))
    return won / (w[labels > 0].sum() * w[labels == 0].sum())


def weighted_ndcg(data, scores, weights):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of other metrics, which a small fold does not have
        _, per_user = naive.evaluate(scores, data, "full-ranking", (5,), part="S_va", beside=False)
    users = list(per_user)
    return np.average([per_user[user]["ndcg"] for user in users], weights=weights[users])


def standard_error(influence):
    n = np.count_nonzero(influence)
    return math.sqrt((influence**2).sum() * n / (n - 1)) if n > 1 else 0.0


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
    _, best = recipe.run(
        "refine", one_epoch, lambda: state["P"] @ state["Q"].T, state, first=first, alive=0.01, window=1
    )
    return Rows(best["P"], best["Q"], 0.5, 0.5) if tanh else Rows(best["P"], best["Q"])


def autodebias_sampled(recipe):
    """Mini-batches of S_c and of draws from D - S_c; before each batch phi looks one step of size 1 ahead."""
    o, data = recipe.o, recipe.data
    S_c = recipe.part("S_c")
    n, unobserved = len(S_c[0]), all_but(data, S_c[0], S_c[1])
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


def untrained(recipe, scores, stage="M_c"):
    return recipe.run(stage, lambda epoch: {}, lambda: scores, Fixed(scores), epochs=1)[1], None


def popularity(recipe):
    """The share of all users with a positive of the item in S_c."""
    data, S_c = recipe.data, recipe.data.triplets("S_c")
    values = [((S_c.items == i) & (S_c.labels > 0)).sum() / data.n_users for i in range(data.n_items)]
    return untrained(recipe, np.tile(values, (data.n_users, 1)))


def popularity_t(recipe):
    """An item's share of positives in S_t, drawn towards that of all by forty pairs."""
    data, S_t = recipe.data, recipe.data.triplets("S_t")
    w, y = log_weights(S_t), S_t.labels.astype(float)
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
    "ease": ease,
    "ials": ials,
    "relmf": relmf,
    "dub-i": dub_i,
    "dub-xi": dub_xi,
    "bpr": bpr,
    "pda": bpr,
    **dict.fromkeys(ROBUST, robust),
    "dib": dib,
    **dict.fromkeys(("refine", "weigh", "transfer"), distil),
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
