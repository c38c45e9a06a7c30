"""Click-only logs: warnings, drawn negatives, and what is refused."""

import warnings

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.data.partition import PARTS, Partition
from dubnb.objective.terms import EpochStreams, term_n
from tests import naive
from tests.method_tools import QUICK


def clicks(data):
    parts = {part: data.triplets(part)._replace(grades=None) for part in PARTS}
    parts["S_c"] = parts["S_c"].take(parts["S_c"].labels > 0)
    return Partition(parts, (data.n_users, data.n_items))


@pytest.fixture(scope="module")
def data():
    return clicks(naive.small_partition(20, 15, n_c=120, n_t=40, n_va=40, n_te=40))


def test_click_only_logs_are_recognised(data):
    assert data.click_only
    assert dubnb.Base().resolve(data).negatives == 4
    assert dubnb.Base().resolve(naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)).negatives == 0


def test_term_n_draws_zeros_from_S_u_anew(data):
    term = term_n(data, 3)
    streams = EpochStreams([term], seed=0, stage="M_c")
    first, second = ({(u, i) for u, i in zip(s.users.tolist(), s.items.tolist(), strict=True)} for s in draws(streams))
    observed = {tuple(pair) for part in ("S_c", "S_t") for pair in zip(*data.triplets(part)[:2], strict=True)}
    assert first != second and not (first | second) & observed
    assert term.size == 3 * len(data.triplets("S_c").users)


def draws(streams):
    for epoch in (1, 2):
        drawn = streams.draw(epoch)
        assert (drawn.targets == 0).all()
        yield drawn._replace(users=drawn.users.copy(), items=drawn.items.copy())


def test_negatives_weigh_by_activity_and_popularity(data):
    term = term_n(data, 2)
    streams = EpochStreams([term], seed=0, stage="M_c")
    drawn = streams.draw(1)
    S_c = data.triplets("S_c")
    of_users, of_items = np.bincount(S_c.users, minlength=20) + 1.0, np.bincount(S_c.items, minlength=15) + 1.0
    A, C = of_users / of_users.mean(), of_items**0.75 / (of_items**0.75).mean()
    np.testing.assert_allclose(drawn.weights, A[drawn.users] * C[drawn.items], rtol=1e-5)


@pytest.mark.parametrize("name", ["base", "combine", "cause"])
def test_sampled_methods_say_and_draw(name, data):
    with pytest.warns(UserWarning, match=r"positives alone \(a log of clicks\): 4 unobserved pairs") as caught:
        model = dubnb.make(name, **QUICK).fit(data)
    assert caught[0].filename == __file__ and "loss_n" in model.history_
    assert model.params_["negatives"] == 4


def test_exact_solvers_say_that_absence_is_zero(data):
    with pytest.warns(UserWarning, match="unobserved pairs are weighted zeros"):
        dubnb.DubX(rank=3, epochs=2).fit(data)


def said_of(method, data):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = method.fit(data)
    return model, [str(each.message) for each in caught if "positives alone" in str(each.message)]


def test_negatives_are_said_where_they_are_drawn(data):
    """dub-x on ncf has no stage without term d; bridge and dub pre-train M_c on S_c alone."""
    model, (said,) = said_of(dubnb.DubX(backbone="ncf", **QUICK), data)
    assert "unobserved pairs are weighted zeros" in said and "loss_n" not in model.history_
    model, (said,) = said_of(dubnb.DubX(backbone="ncf", terms="ac", **QUICK), data)
    assert "4 unobserved pairs for each are drawn" in said and "loss_n" in model.history_
    for name in ("bridge", "dub"):
        for backbone in ("mf", "ncf"):
            model, (said,) = said_of(dubnb.make(name, backbone=backbone, **QUICK), data)
            assert "4 unobserved pairs for each are drawn" in said and "loss_n" in model.history_


def test_methods_that_would_predict_1_everywhere_are_refused(data):
    with pytest.raises(InputError, match="negatives=0: base would predict 1 for every pair"):
        dubnb.Base(negatives=0, **QUICK).fit(data)
    with pytest.raises(InputError, match="naive Bayes gives every pair the same propensity"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dubnb.IPS(**QUICK).fit(data)
    with pytest.raises(InputError, match="propensity='learned' compares its labels"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dubnb.IPS(propensity="learned", **QUICK).fit(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dubnb.IPS(propensity=np.full(len(data.triplets("S_c").users), 0.5), **QUICK).fit(data)
        dubnb.Combine(negatives=0, **QUICK).fit(data)  # S_t has true negatives
        dubnb.IPS(propensity="logistic", **QUICK).fit(data)
    for name in ("dr", "mrdr", "stable-dr"):
        with pytest.raises(InputError, match="would impute 1 for every pair"):
            dubnb.make(name, propensity="logistic", **QUICK).fit(data)


@pytest.mark.slow
@pytest.mark.needs_jit
@pytest.mark.parametrize("name", ["base", "combine", "bridge", "dub", "autodebias", "dub-x"])
def test_click_methods_beat_popularity(name):
    """bench/clicks.py has the table."""
    data = clicks(dubnb.load_dataset("simulated"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = dubnb.make(name).fit(data).evaluate(data, truth=False)
    assert result["auc"] > result["popularity_auc"] + 0.05 and result["ndcg"] > result["popularity_ndcg"] + 0.01
