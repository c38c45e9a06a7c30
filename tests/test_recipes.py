"""Whole fits against an independent program: every method x backbone x solver x terms, three epochs of mini-batches.

The kernels have twins of their own; what is tested here is how the parts are put together. A method that is registered
without a twin or without cases fails by its name.
"""

import itertools
import warnings

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data.partition import PARTS, Partition
from dubnb.methods import METHODS, dub_x, make
from tests import naive_recipes

QUICK = {"rank": 3, "epochs": 3, "patience": 3, "batch_size": 7, "teacher_batch_size": 4, "lr": 0.02, "lam": 0.02}
TEACHER = {"teacher_lam": 0.05}
PRETRAIN = {**TEACHER, "pretrain_lam": 0.01}
SWEEPS = {"rank": 3, "epochs": 3, "solver": "exact"}
NCF = {"backbone": "ncf"}


def subsets(letters):
    return ["".join(kept) for n in range(1, len(letters) + 1) for kept in itertools.combinations(letters, n)]


def without(options, *names):
    return {name: value for name, value in options.items() if name not in names}


ONE = without(QUICK, "teacher_batch_size")
TAUGHT = QUICK | PRETRAIN | {"gamma": 0.7}
X = {"rank": 3, "epochs": 3}
ITEM_ITEM = {"epochs": 3}
RULES = {"targets": "binary", "negative": 0.3, "target_slope": 1.5}
CASES = {
    "base": [
        *({**ONE, "loss": loss} for loss in ("bce", "mse", "squared", "mae")),
        ONE | NCF,
        ONE | NCF | {"hidden": (5, 4), "activation": "relu"},
        ONE | NCF | {"activation": "sigmoid", "loss": "mse"},
        ONE | {"weighting": "theory"},
        ONE | {"monitor": "ndcg", "seed": 3},
        ONE | {"epochs": 8, "patience": 1},
        ONE | {"targets": "graded", "target_slope": 1.0},
        ONE | {"data": "rates", "targets": "rates", "target_slope": 1.0, "negative": 0.3},
        ONE | RULES,
        ONE | {"negatives": 2},
        ONE | {"negatives": 1, "weighting": "theory"},
    ],
    "unif": [ONE, ONE | NCF, ONE | {"targets": "graded"}, ONE | {"weighting": "theory"}, ONE | RULES],
    "combine": [
        *(ONE | backbone | {"terms": terms} for backbone in ({}, NCF) for terms in subsets("ac")),
        ONE | {"weighting": "theory"},
        ONE | RULES,
        ONE | {"targets": "graded"},
        ONE | {"negatives": 2},
    ],
    "ips": [
        ONE,
        ONE | NCF,
        ONE | {"clip": 2.5},
        ONE | {"clip": 2.5, "normalise": False},
        ONE | {"propensity": "own"},
        *(ONE | {"propensity": "logistic", "data": data} for data in ("plain", "clicks", "propensities")),
        ONE | {"propensity": "naive-bayes", "data": "propensities"},
        *(ONE | {"propensity": "learned", "data": data} for data in ("plain", "propensities")),
        ONE | {"data": "propensities"},
        ONE | {"targets": "graded", "target_slope": 1.0},
    ],
    "cause": [
        *(
            QUICK | TEACHER | {"gamma": 0.5} | own
            for own in ({}, NCF, {"terms": "c"}, {"loss": "mae"}, {"loss": "mse"})
        ),
        *(
            QUICK | TEACHER | {"gamma": 0.5, "side": side, "norm": norm}
            for side in ("items", "users", "both")
            for norm in ("l1", "frobenius")
        ),
        QUICK | TEACHER | NCF | {"gamma": 0.5, "side": "both", "norm": "frobenius"},
        QUICK | TEACHER | RULES | {"gamma": 0.5},
        QUICK | TEACHER | {"gamma": 0.5, "targets": "graded"},
        QUICK | TEACHER | {"gamma": 0.5, "negatives": 2},
    ],
    "bridge": [
        *(TAUGHT | backbone | {"terms": terms} for backbone in ({}, NCF) for terms in subsets("cd")),
        *(
            TAUGHT | {"teacher": "joint", "loss": loss, **own}
            for loss in ("bce", "mse", "squared", "mae")
            for own in ({}, {"exposure_power": 0.5})
        ),
        *(TAUGHT | NCF | {"teacher": "joint", "loss": loss} for loss in ("bce", "mse")),
        *(TAUGHT | {"teacher": "joint", "terms": terms} for terms in "cd"),
        TAUGHT | {"shrink": 0.4, "exposure_power": (0.5, 1.0)},
        TAUGHT | {"pretrain_terms": "ac"},
        *(SWEEPS | {"terms": terms} for terms in ("c", "cd")),
        SWEEPS | PRETRAIN | {"shrink": 0.4, "lam": 3.0, "gamma": 0.2, "teacher_batch_size": 4},
    ],
    "dub": [
        *(TAUGHT | {"terms": terms} for terms in subsets("acde")),
        *(TAUGHT | NCF | {"terms": terms} for terms in ("acde", "acd", "cd", "ade", "ce")),
        *(TAUGHT | {"loss": loss, "shrink": 0.3} for loss in ("mse", "squared")),
        *(TAUGHT | {"loss": "mae", "terms": terms} for terms in subsets("acde") if terms != "e"),
        TAUGHT | NCF | {"loss": "mae"},
        TAUGHT | {"loss": "mae", "exposure_power": 0.5},
        TAUGHT | {"shrink": 1.0},
        TAUGHT | {"weighting": "theory"},
        TAUGHT | {"weighting": "theory", "terms": "ad", "exposure_power": 0.5},
        TAUGHT | {"monitor": "ndcg"},
        TAUGHT | {"seed": 3},
        TAUGHT | {"pretrain_terms": "c"},
        TAUGHT | {"terms": "abcde", "b_weight": 0.4},
        TAUGHT | {"terms": "ac", "negatives": 2},
        TAUGHT | {"targets": "graded", "target_slope": 1.0, "shrink": 0.5},
        TAUGHT | RULES,
        TAUGHT | {"epochs": 8, "patience": 1},
        *(SWEEPS | {"terms": terms} for terms in subsets("acde") if terms not in ("d", "e")),
        *(SWEEPS | {"shrink": shrink, "teacher_batch_size": 4, "teacher_lam": 0.05} for shrink in (0.0, 0.4)),
        SWEEPS | {"exposure_power": (0.5, 1.0), "lam": 2.0, **RULES},
        SWEEPS | {"epochs": 20, "patience": 1},
        SWEEPS | {"epochs": 40, "patience": 40},
        SWEEPS | {"terms": "abcde", "b_weight": 0.4},
    ],
    "autodebias": [
        *(
            {"rank": 3, "epochs": 4, "patience": 4, "weights_from": 1, **own}
            for own in (
                {},
                {"lam": 3.0, "alpha": 0.4},
                {"imputation": "sigmoid", "lam": 2.0},
                {"imputation": "sigmoid"},
                {"exposure_power": (0.5, 1.0), "seed": 2},
                {"targets": "graded", "target_slope": 1.0},
                {"imputation": "sigmoid", **RULES},
            )
        ),
        *(
            ONE | {"weights_from": 1, "alpha": 0.2, "solver": "sampled"} | own
            for own in ({}, NCF, {"loss": "mse"}, {"loss": "squared"}, {"exposure_power": 0.5, **RULES})
        ),
        ONE | {"loss": "bce"},
        ONE | {"loss": "bce", "weights_from": 1, "meta_every": 1},
    ],
    "dub-x": [
        X,
        X | {"gamma": 0.05},
        X | {"gamma": 0.05, "grade_spread": 1.8, "target_slope": 2.0},
        X | {"exposure_power": (0.5, 1.0)},
        X | {"teacher": "item", "teacher_value": 0.1, "gamma": 0.05},
        X | {"teacher": "model", "gamma": 0.05, "teacher_batch_size": 4, "teacher_lam": 0.05},
        X | {"teacher": "model", "gamma": 0.05, "terms": "acde", "teacher_value": 0.1, "shrink": 0.5},
        X | {"targets": "binary"},
        X | {"lam": 2.0, "gamma": 0.1, "randomized_weight": 3.0},
        *(X | {"data": data} for data in ("clicks", "rates", "ranks")),
        *(X | {"data": data, "gamma": 0.05, "negative": "unobserved"} for data in ("clicks", "rates", "ranks")),
        X | {"data": "rates", "gamma": 0.05, "negative": 0.4, "teacher": "item", "teacher_value": 0.1},
        X | {"data": "rates", "negative": "unobserved", "gamma": 0.05, "teacher": "model", "teacher_batch_size": 4},
        X | {"data": "rates", "targets": "binary", "target_slope": 1.5, "exposure_power": 0.0},
        *(ONE | NCF | {"data": data} for data in ("clicks", "rates")),
        ONE | NCF | {"data": "rates", "gamma": 0.05, "negative": "unobserved"},
        *(X | {"gamma": 0.05, "terms": terms} for terms in subsets("acde") if terms not in ("d", "e")),
        ONE | NCF,
        ONE | NCF | {"gamma": 0.05, "exposure_power": (0.5, 1.0), "hidden": (5, 4), "activation": "sigmoid"},
        *(ONE | NCF | {"gamma": 0.05, "terms": terms} for terms in ("acde", "ac")),
        ONE | NCF | {"gamma": 0.05, "terms": "cd", "exposure_power": 0.0},
        ONE | NCF | {"loss": "squared", "targets": "binary", "randomized_weight": 3.0, "monitor": "ndcg", "seed": 3},
        ONE | NCF | {"teacher": "item", "teacher_value": 0.1, "gamma": 0.05},
        QUICK | NCF | TEACHER | {"teacher": "model", "gamma": 0.05, "terms": "acde", "shrink": 0.5},
    ],
    "ease": [
        {},
        *({"terms": terms} for terms in ("ac", "a")),
        {"lam": 3.0, "data": "clicks"},
        {"cutoff": 0.5, "monitor": "ndcg"},
    ],
    "ials": [
        X,
        *(X | {"terms": terms} for terms in ("acd", "ad")),
        X | {"alpha": 0.2, "lam": 0.7, "seed": 3},
        X | {"data": "clicks", "monitor": "ndcg", "epochs": 20, "patience": 1},
    ],
    "dub-i": [
        *(ITEM_ITEM | {"terms": terms} for terms in subsets("acde") if terms not in ("d", "e")),
        *({"data": data} for data in ("clicks", "rates", "ranks")),
        {"data": "rates", "negative": "unobserved"},
        {"teacher": "constant", "teacher_value": 0.1, "lam": 2.0, "gamma": 0.2, "exposure_power": 0.5},
        {"targets": "binary", "epochs": 40, "monitor": "ndcg"},
    ],
    "dub-xi": [
        *(X | {"gamma": 0.05, "blend": 0.4, "terms": terms} for terms in ("acde", "acd", "cd", "ac", "ad")),
        *(X | {"gamma": 0.05, "blend": blend} for blend in (0.0, 1.0)),
        X | {"gamma": 0.05},
        X | {"data": "clicks", "seed": 3},
        X | {"data": "rates"},
    ],
    "relmf": [
        *(ONE | {"terms": terms, "gamma": 0.5} for terms in ("cd", "c", "d")),
        ONE | NCF,
        ONE | {"power": 1.0, "clip": None, "loss": "squared", "seed": 3},
        ONE | {"data": "clicks", "clip": 1.2, "weighting": "theory"},
    ],
    "bpr": [
        *(ONE | {"terms": terms} for terms in ("ac", "a", "c")),
        ONE | NCF,
        ONE | {"data": "clicks", "seed": 3, "monitor": "ndcg"},
    ],
    "pda": [
        ONE | {"power": 0.5},
        ONE | {"terms": "a"},
        ONE | NCF | {"power": 1.0, "terms": "ac"},
        ONE | {"data": "clicks", "power": 0.0},
    ],
    **{
        name: [
            ONE | TEACHER,
            ONE | TEACHER | NCF,
            ONE | {"clip": 2.5, "propensity": "logistic", "seed": 3},
            ONE | {"propensity": "learned"},
            ONE | {"data": "propensities", "gamma": 2.0, "clip": None},
            ONE | RULES,
        ]
        for name in ("dr", "mrdr", "stable-dr")
    },
    "dib": [ONE, ONE | NCF, ONE | {"alpha": 0.4, "gamma": 0.3, "seed": 3}, ONE | {"negatives": 2}],
    "refine": [QUICK | TEACHER, QUICK | NCF | {"alpha": 0.2}, QUICK | {"loss": "squared"} | RULES],
    "weigh": [*(QUICK | TEACHER | {"terms": terms} for terms in ("ac", "c", "a")), QUICK | NCF, QUICK | RULES],
    "transfer": [QUICK | TEACHER, QUICK | NCF, QUICK | {"loss": "mse", "epochs": 8, "patience": 1}],
    "popularity": [{}],
    "popularity-t": [{}],
    "random": [{"seed": 3}],
}
ONLY_DEFAULTS = {"rank": 3, "epochs": 3}


def cases():
    """(method, options) of every twin, and each backbone and solver with its defaults alone."""
    for method in METHODS:
        for backbone, solver in METHODS[method].SETTINGS:
            chosen = {"backbone": backbone} | ({"solver": solver} if "solver" in make(method).get_params() else {})
            yield method, ONLY_DEFAULTS | chosen
            yield method, ONLY_DEFAULTS | chosen | {"data": "explored"}
        for options in CASES.get(method, []):
            yield method, options


def name_of(case):
    method, options = case
    return method + " " + " ".join(f"{k}:{v}" for k, v in options.items() if k not in QUICK or QUICK[k] != v)


ALL = list(cases())


def partition(n_users=8, n_items=7, propensities=False, explored=False):
    """Few pairs, with weights of their own and grades."""
    rng = np.random.default_rng(5)
    pairs, parts, start = rng.permutation(n_users * n_items), {}, 0
    for part, size in (("S_t", 10), ("S_va", 10), ("S_te", 6), ("S_c", 17)):
        users, items = np.divmod(pairs[start : start + size], n_items)
        labels = rng.permutation((np.arange(size) % 3 == 0).astype(float))
        weights = rng.choice([0.5, 1.0, 1.5, 2.0], size)
        parts[part] = users, items, labels, weights, np.where(labels > 0, 1.0, rng.choice([0.0, 0.25, 0.5], size))
        start += size
    own = rng.uniform(0.1, 0.9, 17) if propensities else None
    if explored:
        for part in ("S_t", "S_va", "S_te"):
            parts[part] = *parts[part], rng.choice([0.01, 0.2, 0.3, 0.6], len(parts[part][0]))
    return Partition(parts, (n_users, n_items), propensities=own)


def changed(grading, grades):
    """The same pairs with other grades, made of labels and a random number each."""
    data, parts, rng = partition(), {}, np.random.default_rng(6)
    for part in PARTS:
        log = data.triplets(part)
        parts[part] = log._replace(grades=grades(log.labels, rng.random(len(log.labels))))
    return Partition(parts, (data.n_users, data.n_items), grading=grading)


DATA = {
    "plain": partition(),
    "propensities": partition(propensities=True),
    "explored": partition(explored=True),  # a randomized log with propensities
    "clicks": changed(None, lambda labels, u: None),
    "rates": changed("impressions", lambda labels, u: np.select([u < 0.3, u < 0.7], [labels, np.rint(5 * u) / 5], 0)),
    "ranks": changed("ranks", lambda labels, u: np.where(labels > 0, 0.75 + 0.25 * u, 0.5 * u)),
}


def both(method, options):
    """(dubnb's fitted model, the twin's models and history, the data)."""
    options = dict(options)
    data = DATA[options.pop("data", "plain")]
    if options.get("propensity") == "own":
        options["propensity"] = np.linspace(0.1, 0.9, len(data.triplets("S_c").users))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = make(method, **options).fit(data)
    return model, naive_recipes.fit(data, method, **options), data


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_twin(method):
    assert method in naive_recipes.TWINS, f"write the twin of {method!r} in tests/naive_recipes.py"
    assert CASES.get(method), f"give {method!r} some cases in tests/test_recipes.py"


def allowed(method, letters):
    try:
        make(method, terms="".join(letters)).resolve()
    except InputError:
        return False
    return True


@pytest.mark.parametrize("method", METHODS)
def test_the_cases_keep_and_leave_out_every_term(method):
    """Some case keeps all terms, and each letter that may be left out is left out by one."""
    letters = set(METHODS[method].TERMS)
    kept = [set(options.get("terms", make(method).resolve().terms)) for _, options in ALL if _ == method]
    assert letters in kept
    for letter in filter(lambda letter: allowed(method, letters - {letter}), letters):
        assert any(letter not in terms for terms in kept), f"no case of {method} without term {letter}"


def close(found, expected, what):
    scale = max(np.abs(expected).max(), 0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=what)


@pytest.mark.parametrize("method,options", ALL, ids=map(name_of, ALL))
def test_fit_equals_the_independent_program(method, options):
    model, (M_c, M_t, history), data = both(method, options)
    every = np.divmod(np.arange(data.n_users * data.n_items), data.n_items)
    for which, weights, twin in (("M_c", model.weights_, M_c), ("M_t", model.teacher_, M_t)):
        assert (weights is None) == (twin is None), which
        if twin is None:
            continue
        scores = twin.matrix(data.n_users, data.n_items)
        close(weights.score_pairs(*every), scores.ravel(), f"{which}'s scores")
        for name, expected in (twin.params or {}).items():
            close(weights.arrays()[name], expected, f"{which}'s {name}")
    compare_histories(model.history_, history)


CHOICES = [
    {},
    {"monitor": "ndcg"},
    {"exposure_power": 0.5, "teacher": "constant"},
    {"targets": "binary", "negative": "auto"},
    {"grade_spread": 1.0, "randomized_weight": 3.0},
    {"terms": "cd"},
    {"terms": "acde", "seed": 1},
    {"data": "clicks"},
    {"data": "ranks"},
    {"backbone": "ncf", "data": "ranks"},
]


@pytest.mark.parametrize("options", CHOICES, ids=str)
@pytest.mark.parametrize("enough", [1, 100], ids=["S_va", "folds"])
def test_the_choice_of_dub_x_equals_the_independent_program(options, enough, monkeypatch):
    for module in (dub_x, naive_recipes):
        monkeypatch.setattr(module, "FEWEST", 1)
        monkeypatch.setattr(module, "ENOUGH", enough)
    test_fit_equals_the_independent_program("dub-x", X | options)


@pytest.mark.parametrize(
    "options", [{}, {"data": "clicks"}, {"gamma": 0.05}, {"gamma": 0.05, "monitor": "ndcg", "seed": 1}], ids=str
)
@pytest.mark.parametrize("enough", [1, 100], ids=["S_va", "folds"])
def test_the_choice_of_dub_xi_equals_the_independent_program(options, enough, monkeypatch):
    for module in (dub_x, naive_recipes):
        monkeypatch.setattr(module, "FEWEST", 1)
        monkeypatch.setattr(module, "ENOUGH", enough)
    test_fit_equals_the_independent_program("dub-xi", X | options)


def compare_histories(frame, history):
    """Stages, epochs, every term's mean loss, and the metric."""
    assert list(zip(frame["stage"], frame["epoch"], strict=True)) == [(stage, epoch) for stage, epoch, *_ in history]
    metric = next(column for column in frame if column.startswith("va_"))
    for (_, row), (stage, epoch, losses, value) in zip(frame.iterrows(), history, strict=True):
        for term, loss in losses.items():
            assert row[f"loss_{term}"] == pytest.approx(loss, rel=2e-5, abs=1e-6), (stage, epoch, term)
        assert row[metric] == pytest.approx(value, abs=1e-9), (stage, epoch)
