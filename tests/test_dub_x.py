"""DUB-X as a method, and exposure weights in the other methods."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb import stream
from dubnb._check import InputError
from dubnb.backbones.extended import Extended
from dubnb.backbones.mf import MF
from dubnb.data.partition import PARTS
from dubnb.methods import _exact, dub_x
from dubnb.objective import als, exposure, teachers, terms
from dubnb.objective import autodebias as meta
from dubnb.objective.targets import Targets
from tests import naive, naive_all_pairs, naive_als

N_USERS, N_ITEMS = 60, 25
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of the hash, with the JIT off


@pytest.fixture(scope="module")
def data():
    """Feedback by two tastes, and popular items more often seen; small enough for the JIT to be off."""
    from scipy.sparse import coo_matrix

    rng = np.random.default_rng(0)
    taste = (np.arange(N_USERS)[:, None] + np.arange(N_ITEMS)) % 2 == 0
    likes = rng.random((N_USERS, N_ITEMS)) < np.where(taste, 0.6, 0.1)
    seen = rng.random((N_USERS, N_ITEMS)) < np.linspace(0.6, 0.05, N_ITEMS)
    part = rng.choice(4, (N_USERS, N_ITEMS), p=[0.85, 0.05, 0.05, 0.05])
    where = [(part == 0) & seen, *(part == number for number in (1, 2, 3))]
    sets = [coo_matrix((likes[mask].astype(float), np.nonzero(mask)), shape=likes.shape) for mask in where]
    return dubnb.Partition.from_matrices(*sets)


@pytest.fixture(scope="module")
def graded(data):
    """The same feedback, with grades of five levels on their label's side."""
    rng = np.random.default_rng(3)
    parts = {}
    for part in PARTS:
        log = data.triplets(part)
        levels = np.where(log.labels > 0, rng.integers(3, 5, len(log.labels)), rng.integers(0, 3, len(log.labels)))
        parts[part] = log._replace(grades=levels / 4)
    return dubnb.Partition(parts, (N_USERS, N_ITEMS))


def resolved(data=None, **params):
    return dubnb.DubX(**{"gamma": 0.05, "exposure_power": 0.75, "randomized_weight": 5.0} | params).resolve(data)


def problem_of(data, p, M_t=None):
    return p.exact_problem(p._all_terms(SimpleNamespace(data=data), M_t))


@pytest.mark.parametrize("open_still", [{"gamma": "auto"}, {"exposure_power": None}])
def test_no_term_is_made_before_gamma_and_p_are_chosen(data, open_still):
    with pytest.raises(TypeError, match="chosen by the recipe"):
        problem_of(data, resolved(data, **open_still))


def weak_model():
    """An M_t with every part at work."""
    rng = np.random.default_rng(2)
    rows = naive_all_pairs.extend(*(rng.normal(size=n) for n in ((N_USERS, 3), N_USERS, (N_ITEMS, 3), N_ITEMS)))
    return MF.from_extended(Extended(*(part.astype(np.float32) for part in rows)), b0=0.4)


def dense_teacher(data, p, M_t):
    """t of every pair, as the docstring has it."""
    if p.teacher == "constant":
        return np.full((N_USERS, N_ITEMS), p.teacher_value)
    if p.teacher == "item":
        return np.tile(teachers.shifted_rates(data, p.teacher_value).values, (N_USERS, 1))
    mean = data.triplets("S_t").labels.mean()
    return p.shrink * mean + (1 - p.shrink) * M_t.score_rows(np.arange(N_USERS)) + p.teacher_value - mean


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"terms": "acde", "teacher": "item", "teacher_value": 0.05},
        {"terms": "acde", "teacher": "model", "teacher_value": 0.05, "shrink": 0.7},
        {"terms": "cd"},
    ],
)
def test_objective_is_the_one_of_the_docstring(data, params):
    assert_objective(data, resolved(data, rank=3, **params), negative=0.2)


def test_grades_take_the_place_of_labels_by_default(graded):
    p = resolved(graded, rank=3)
    assert p.targets == "graded"
    assert_objective(graded, p)
    assert_objective(graded, resolved(graded, rank=3, targets="binary"), negative=0.2)


def assert_objective(data, p, negative=None):
    """The problem's objective against the docstring's, pair by pair; `negative`: the target of a negative of S_c."""
    M_t = weak_model() if p.teacher == "model" else None
    ready = als.prepare(problem_of(data, p, M_t))
    rng = np.random.default_rng(1)
    P, Q = naive_all_pairs.extend(*(rng.normal(size=size) for size in ((N_USERS, 3), N_USERS, (N_ITEMS, 3), N_ITEMS)))
    s, S_c, S_t = P @ Q.T, data.triplets("S_c"), data.triplets("S_t")
    t = dense_teacher(data, p, M_t)
    A, C = exposure.row_weights(data, 0.75)
    weight, total = np.zeros(s.shape), 0.0
    y_c, y_t = (np.where(log.labels > 0, 1, log.grades if negative is None else 0) for log in (S_c, S_t))
    if negative is not None:
        y_c = np.where(S_c.labels > 0, 1, negative)
    for term, pairs, w, y in (
        ("c", S_c, 0.5 + y_c, y_c),
        ("a", S_t, np.full(len(y_t), 5.0), y_t),
        ("e", S_t, np.full(len(y_t), 5.0), y_t - t[S_t.users, S_t.items]),
    ):
        if term in p.terms:
            total += (w * (s[pairs.users, pairs.items] - y) ** 2).sum()
            weight[pairs.users, pairs.items] += w
    unseen = np.ones(s.shape)
    for pairs in (S_c, S_t):
        unseen[pairs.users, pairs.items] = 0
    total += 0.05 * (unseen * np.outer(A, C) * (s - t) ** 2).sum()
    W_u, W_i = weight.sum(1) + 0.05 * A * C.sum(), weight.sum(0) + 0.05 * C * A.sum()
    lam = 2 * 0.25 * (np.sqrt(W_u.mean()) + np.sqrt(W_i.mean()))
    for rows, row_weight in ((P, W_u), (Q, W_i)):
        total += (lam / 2 * row_weight / row_weight.mean() * (rows[:, :-2] ** 2).sum(1)).sum()
    total += 0.1 * ((P[:, -2] ** 2).sum() + (Q[:, -1] ** 2).sum())
    assert als.objective(ready, P, Q) == pytest.approx(total, rel=1e-6)


@pytest.fixture
def a_small_S_va_chooses(monkeypatch):
    monkeypatch.setattr(dub_x, "FEWEST", 1)


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_chooses_gamma_and_p_on_S_va(data):
    auto = dubnb.DubX(rank=3).fit(data)
    tried = auto.history_.groupby("stage", sort=False)["va_auc"].max()
    stages = [f"gamma {g:g}, p {p}" for p in (0.75, 1.0) for g in (0.03, 0.01, 0.003)]
    best = tried.iloc[:6].idxmax()
    assert list(tried.index) == [*stages, f"{best}, negatives unobserved"]
    assert f"gamma {auto.params_['gamma']:g}, p {auto.params_['exposure_power']}" == best
    assert auto.params_["negative"] == ("unobserved" if tried.iloc[-1] > tried[best] else 0.2)
    S_va = data.triplets("S_va")
    kept = naive.auc(auto.weights_.score_pairs(S_va.users, S_va.items), S_va.labels)
    assert kept == pytest.approx(tried.max(), abs=1e-6)
    given = dubnb.DubX(rank=3, gamma=0.02).fit(data)
    assert given.history_["stage"].unique().tolist() == ["refine"] and given.params_["exposure_power"] == 0.75


def test_few_positives_choose_nothing_and_it_is_said(data, graded):
    positives = int(data.triplets("S_va").labels.sum())
    assert 1 < positives < dub_x.FEWEST
    with pytest.warns(UserWarning, match=f"S_va has {positives} positives: gamma 0.03 and exposure_power 1 are fixed"):
        model = dubnb.DubX(rank=3, epochs=2).fit(graded)
    chosen = [model.params_[name] for name in ("gamma", "exposure_power", "grade_spread")]
    assert chosen == [0.03, 1.0, 1.0] and model.history_["stage"].unique().tolist() == ["refine"]
    with pytest.warns(UserWarning, match="are fixed"):
        assert dubnb.DubX(rank=3, epochs=2, exposure_power=0.5).fit(data).params_["exposure_power"] == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dubnb.DubX(rank=3, epochs=2, gamma=0.02).fit(data)  # nothing to choose, nothing to say


def test_thirty_positives_are_enough_to_choose_on():
    method = dubnb.DubX().resolve()
    for positives, n in ((30, 6), (29, 1)):
        labels = (np.arange(100) < positives).astype(float)
        data = SimpleNamespace(triplets=lambda part, labels=labels: SimpleNamespace(labels=labels))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = method._candidates(SimpleNamespace(data=data, validation=SimpleNamespace(usable=True)))
        assert len(found) == n and len(said) == (n == 1)


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_chooses_the_spread_of_grades_on_S_va_last(graded, monkeypatch):
    """At the best gamma and p, not the first; not with 0/1 targets, nor where it or gamma is given."""
    monkeypatch.setattr(dub_x, "GAMMAS", (0.003, 0.03, 1.0))  # 1 comes first, and is too much
    auto = dubnb.DubX(rank=3).fit(graded)
    tried = auto.history_.groupby("stage", sort=False)["va_auc"].max()
    best = tried.iloc[:6].idxmax()
    assert best != tried.index[0]
    assert len(tried) == 7 and tried.index[-1] == f"{best}, spread 1.4"
    expected = 1.4 if tried.iloc[-1] > tried.iloc[:6].max() else 1.0
    assert auto.params_["grade_spread"] == expected
    S_va = graded.triplets("S_va")
    kept = naive.auc(auto.weights_.score_pairs(S_va.users, S_va.items), S_va.labels)
    assert kept == pytest.approx(tried.max(), abs=1e-6)
    for options, stages in (({"targets": "binary"}, 6), ({"grade_spread": 1.0}, 6), ({"gamma": 0.02}, 1)):
        model = dubnb.DubX(rank=3, **options).fit(graded)
        assert model.history_["stage"].nunique() == stages and model.params_["grade_spread"] == 1.0
    monkeypatch.setattr(dub_x, "GAMMAS", (0.003, 0.03))  # two to choose from are enough
    assert dubnb.DubX(rank=3, epochs=2, exposure_power=0.75).fit(graded).history_["stage"].nunique() == 3


def test_the_first_of_equal_candidates_is_kept(monkeypatch):
    """The most gamma: absence tells as much as S_va allows."""
    auc = dict(
        zip([(p, g) for p in (0.75, 1.0) for g in (0.03, 0.01, 0.003)], (0.5, 0.7, 0.6, 0.7, 0.7, 0.1), strict=True)
    )
    fit = SimpleNamespace(pretrain=None, kept=None)
    monkeypatch.setattr(dubnb.DubX, "_can_choose", lambda self, fit: True)

    def minimise(self, fit, problem, rows, name):
        fit.kept = auc[self.exposure_power, self.gamma]
        return name

    method = dubnb.DubX().resolve()
    monkeypatch.setattr(dubnb.DubX, "minimise", minimise)
    for name in ("random_rows", "_all_terms", "exact_problem"):
        monkeypatch.setattr(dubnb.DubX, name, lambda *arguments: None)
    assert method._solve(fit, "refine") == ("gamma 0.01, p 0.75", None)
    assert (method.gamma, method.exposure_power, method.grade_spread) == (0.01, 0.75, 1.0)


def test_a_teacher_that_is_all_mean_needs_no_model():
    for options, trained in (
        ({}, False),
        ({"teacher": "item"}, False),
        ({"teacher": "model"}, True),
        ({"teacher": "model", "shrink": 1.0}, False),
        ({"teacher": "model", "backbone": "ncf"}, False),  # its mf has one
    ):
        stages = dubnb.DubX(**options).resolve().pretraining()
        assert [stage.name for stage in stages] == ["M_t"] * trained
        assert all((stage.epochs, stage.patience) == (200, 5) for stage in stages)


def test_factors_are_turned_towards_where_their_cubes_add_up_to_more():
    Q = np.random.default_rng(4).standard_normal((9, 4))
    turn = dub_x._upright(Q)
    np.testing.assert_allclose(turn.T @ turn, np.eye(4), atol=1e-12)
    gram = (Q @ turn).T @ (Q @ turn)
    np.testing.assert_allclose(gram, np.diag(np.sort(np.diag(gram))), atol=1e-12)
    assert (((Q @ turn) ** 3).sum(axis=0) > 0).all()
    for flipped in range(4):
        signs = np.where(np.arange(4) == flipped, -1.0, 1.0)
        np.testing.assert_allclose(Q * signs @ dub_x._upright(Q * signs), Q @ turn, atol=1e-12)
    np.testing.assert_array_equal(dub_x._upright(np.array([[1.0], [-1.0]])), np.linalg.eigh([[2.0]])[1])


def test_spread_moves_grades_of_S_c_apart(graded):
    """By hand: .25 + 1.8 (g - .25); a positive stays 1, S_t as it is, and no weight falls below 0."""
    rule = Targets("graded", slope=2.0, spread=1.8)
    S_c, S_t = graded.triplets("S_c"), graded.triplets("S_t")
    y = np.where(S_c.labels > 0, 1.0, np.select([S_c.grades == 0, S_c.grades == 0.25], [-0.2, 0.25], 0.7))
    found = rule.of(graded, "S_c")
    np.testing.assert_allclose(found.labels, y, atol=1e-6)
    np.testing.assert_allclose(found.weights, np.maximum(2 * y, 0), atol=1e-6)
    np.testing.assert_array_equal(rule.of(graded, "S_t").labels, np.where(S_t.labels > 0, 1.0, S_t.grades))


def test_one_cutoff_suits_logs_of_any_size(data):
    """lam is 2 c times the scale of noise; a given lam switches that off, and both together are refused."""
    p = resolved(data)
    problem = problem_of(data, p)
    observed = len(data.triplets("S_t").users) * 5 + (0.5 + np.where(data.triplets("S_c").labels > 0, 1, 0.2)).sum()
    total = observed + 0.05 * N_USERS * N_ITEMS
    expected = 2 * 0.25 * (np.sqrt(total / N_USERS) + np.sqrt(total / N_ITEMS))
    assert problem.wd_u.mean() == pytest.approx(expected, rel=1e-5) == problem.wd_i.mean()
    assert problem_of(data, resolved(data, lam=3.0)).wd_u.mean() == pytest.approx(3.0, rel=1e-5)
    with pytest.raises(InputError, match="both set the decay"):
        resolved(data, lam=3.0, cutoff=0.2)


def test_power_zero_is_the_unweighted_problem(data):
    problem = problem_of(data, resolved(data, exposure_power=0))
    assert (problem.A == 1).all()
    assert (problem.C == 1).all()


def test_fit_ends_where_no_row_wants_to_move(data, monkeypatch):
    """After many sweeps one more solve of all users, by the dense twin, moves no score."""
    monkeypatch.setattr(_exact, "CONVERGED", -np.inf)
    binary = {"rank": 2, "lam": 1.0, "gamma": 0.05, "negative": 0.0, "target_slope": 0.0}
    model = dubnb.DubX(epochs=100, patience=100, randomized_weight=5.0, **binary).fit(data)
    assert (np.diff(model.history_["loss_total"]) < 1e-4).all()
    p = resolved(data, **binary)
    problem = problem_of(data, p)
    ready = als.prepare(problem)
    P, Q = (rows.astype(np.float64) for rows in MF.new((N_USERS, N_ITEMS), 2, p.seed, "c").extended())
    for _ in range(100):
        als.sweep(ready, P, Q)
    streams = [(*data.triplets("S_c")[:3], 1.0), (*data.triplets("S_t")[:3], 5.0)]
    dense = naive_all_pairs.dense_terms((N_USERS, N_ITEMS), streams, 0.05, 0.0, problem.A, problem.C)
    solved = naive_als.solve_users(dense, P, Q, problem.wd_u, als.BIAS_RIDGE)
    assert np.abs((solved - P) @ Q.T).max() < 1e-3
    assert als.objective(ready, P, Q) == pytest.approx(model.history_["loss_total"].iloc[-1], rel=1e-4)


def test_learns_tastes_better_than_chance_and_is_reproducible(data):
    model, again = (dubnb.DubX(rank=4).fit(data) for _ in range(2))
    assert model.evaluate(data)["auc"] > 0.65
    assert all_scores(model).tobytes() == all_scores(again).tobytes()
    assert (model.history_.groupby("stage")["epoch"].max() <= 30).all()


NCF = {"backbone": "ncf", "rank": 4, "epochs": 6, "lr": 0.01}


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_ncf_begins_with_mfs_factors_gamma_and_power(data):
    mf, ncf = dubnb.DubX(rank=4).fit(data), dubnb.DubX(**NCF).fit(data)
    for name in ("gamma", "exposure_power", "negative"):
        assert ncf.params_[name] == mf.params_[name]
    stages = ncf.history_["stage"].unique().tolist()
    assert stages == [*mf.history_["stage"].unique(), "refine"] and len(stages) == 8
    assert ncf.teacher_ is None and ncf.params_["loss"] == "bce"
    assert ncf.evaluate(data)["auc"] > 0.65
    given = dubnb.DubX(**NCF, gamma=0.02, exposure_power=1.0).fit(data)
    assert given.history_["stage"].unique().tolist() == ["embeddings", "refine"]


def test_ncfs_embeddings_are_mfs_factors_upright_and_of_unit_variance(data):
    """Whatever the rotation in which row solves end; each side's Gram matrix is in proportion to mf's."""
    mf = dubnb.DubX(rank=3, gamma=0.02).fit(data)
    factors = {name: mf.weights_.arrays()[name] for name in ("user_factors", "item_factors")}
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    begun = []
    for rotation in (np.eye(3), turn):
        solved = SimpleNamespace(arrays=lambda r=rotation: {name: (f @ r).astype("f4") for name, f in factors.items()})
        stage = dubnb.DubX(backbone="ncf", rank=3).resolve(data).stage("M_c")
        begun.append(dub_x._embedded(SimpleNamespace(new=lambda stage: stage.new(data)), stage, solved))
    for side, name in (("users", "user_factors"), ("items", "item_factors")):
        rows, again = (getattr(M_c, side) for M_c in begun)
        np.testing.assert_allclose(rows, again, rtol=1e-3, atol=1e-4)
        assert np.mean(rows**2) == pytest.approx(1.0, rel=1e-5)
        given = factors[name]
        np.testing.assert_allclose(rows @ rows.T, given @ given.T / np.mean(given**2), rtol=1e-3, atol=1e-4)
    gram = begun[0].items.T @ begun[0].items
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-3)


def test_ncf_survives_files_and_refit(data, tmp_path):
    model = dubnb.DubX(**NCF, teacher="model").fit(data, refit=True)
    assert model.history_["stage"].iloc[-1] == "refit refine"
    model.save(tmp_path / "m.npz")
    assert dubnb.load(tmp_path / "m.npz").decision_function([1], [2]) == model.decision_function([1], [2])


def test_low_rank_teacher_is_trained_kept_and_shrunk(data, tmp_path):
    few = {"rank": 2, "lam": 0.5, "gamma": 0.05, "epochs": 3}
    plain, weak, shrunk = (
        dubnb.DubX(**few, **other).fit(data)
        for other in ({}, {"teacher": "model", "shrink": 0.2}, {"teacher": "model", "shrink": 1.0})
    )
    assert all_scores(shrunk).tobytes() == all_scores(plain).tobytes()  # the mean, shifted to teacher_value
    assert shrunk.teacher_ is None
    assert not np.array_equal(all_scores(weak), all_scores(plain))
    assert weak.history_["stage"].unique().tolist() == ["M_t", "refine"]
    assert (weak.history_["stage"] == "refine").sum() == 3
    weak.save(tmp_path / "m.npz")
    loaded = dubnb.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.teacher_.score_rows([0]), weak.teacher_.score_rows([0]))


@pytest.mark.parametrize("teacher", ["item", "model"])
def test_teachers_from_S_t_need_it(data, teacher):
    from scipy.sparse import coo_matrix

    alone = dubnb.Partition.from_matrices(data.S_c, coo_matrix((N_USERS, N_ITEMS)), data.S_va, data.S_te)
    with pytest.raises(InputError, match="S_t is empty"):
        dubnb.DubX(rank=2, terms="cd", teacher=teacher).fit(alone)


def test_is_registered_and_survives_a_file(data, tmp_path):
    model = dubnb.make("dub-x", rank=3, epochs=2, exposure_power=(0.5, 1.0)).fit(data)
    model.save(tmp_path / "m.npz")
    loaded = dubnb.load(tmp_path / "m.npz")
    assert isinstance(loaded, dubnb.DubX)
    assert loaded.get_params() == model.get_params()
    assert loaded.decision_function([1], [2]) == model.decision_function([1], [2])


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"backbone": "ncf", "cutoff": 0.2}, "cutoff"),
        ({"backbone": "ncf", "weighting": "theory"}, "dub-x's own weights"),
        ({"loss": "bce"}, "loss"),
        ({"lam": 0.0}, "lam"),
        ({"exposure_power": -0.5}, "exposure_power"),
        ({"teacher": "none"}, "teacher"),
        ({"shrink": 1.5}, "shrink"),
        ({"teacher_lam": -1.0}, "teacher_lam"),
        ({"weighting": "theory"}, "weighting"),
        ({"randomized_weight": -1.0}, "randomized_weight"),
        ({"teacher_value": float("nan")}, "teacher_value"),
    ],
)
def test_refuses_wrong_parameters(params, word):
    with pytest.raises(InputError, match=word):
        dubnb.DubX(**params).resolved_params()


# The same weights in other methods


def all_scores(model):
    scores = model.decision_function(np.arange(N_USERS)[:, None], np.arange(N_ITEMS))
    assert np.isfinite(scores).all()
    return scores


def test_sampled_term_d_weighs_pairs_by_exposure(data):
    A, C = exposure.row_weights(data, (1.0, 0.5))
    term = terms.term_d(data, 0.3, exposure_power=(1.0, 0.5))
    sample = stream.empty(term.size)
    term.samples(0, "refine", 1)(sample)
    np.testing.assert_allclose(sample.weights, 0.3 * A[sample.users] * C[sample.items], rtol=1e-6)
    plain = stream.empty(term.size)
    terms.term_d(data, 0.3).samples(0, "refine", 1)(plain)
    np.testing.assert_allclose(plain.weights, 0.3, rtol=1e-6)


def test_logged_weight_of_term_d_is_that_of_its_epoch(data):
    epochs = terms.EpochStreams([terms.term_c(data), terms.term_d(data, 0.3, exposure_power=1.0)], 0, "refine")
    sums = []
    for epoch in (1, 2):
        sample = epochs.draw(epoch)
        d = sample.terms == epochs.names.index("d")
        assert epochs.weight_sums[1] == pytest.approx(sample.weights[d].sum(), rel=1e-5)
        assert epochs.weight_sums[0] == pytest.approx(sample.weights[~d].sum(), rel=1e-5)
        sums.append(epochs.weight_sums[1])
    assert sums[0] != sums[1]


@pytest.mark.parametrize("params", [{"loss": "bce"}, {"loss": "bce", "backbone": "ncf"}, {"loss": "mae"}])
@pytest.mark.needs_jit
@pytest.mark.filterwarnings("ignore:S_va has 0 pairs")
def test_sampled_dub_takes_exposure_weights(data, params):
    blind = dubnb.Partition.from_matrices(data.S_c, data.S_t, None, data.S_te)  # or the start might be kept
    plain, weighted = (
        dubnb.DUB(rank=3, epochs=2, batch_size=64, exposure_power=p, **params).fit(blind) for p in (0.0, 0.75)
    )
    assert not np.array_equal(all_scores(weighted), all_scores(plain))


@pytest.mark.parametrize("method", [dubnb.Bridge, dubnb.DUB])
def test_exact_solver_takes_exposure_weights(data, method):
    params = {"loss": "squared", "solver": "exact", "rank": 2, "epochs": 3}
    plain, weighted = (method(exposure_power=p, **params).fit(data) for p in (0.0, 0.75))
    assert not np.array_equal(all_scores(weighted), all_scores(plain))


def test_autodebias_starts_from_exposure_weights(data, monkeypatch):
    started = {}

    def first_epoch(base, phi, adam, P, Q, S_t, number, **options):
        started.setdefault("weights", meta.weights_of(phi, base.activation))
        return 0.0, 0.0

    monkeypatch.setattr(meta, "epoch", first_epoch)
    ratio = []
    for power in (0.0, 0.75):
        started.clear()
        dubnb.AutoDebias(rank=2, epochs=1, exposure_power=power).fit(data)
        ratio.append(started["weights"])
    A, C = exposure.row_weights(data, 0.75)
    np.testing.assert_allclose(ratio[1].A / ratio[0].A, A)
    np.testing.assert_allclose(ratio[1].C / ratio[0].C, C)


@pytest.mark.parametrize("name", ["bridge", "dub", "autodebias"])
def test_others_refuse_a_wrong_exposure_power(name):
    with pytest.raises(InputError, match="exposure_power"):
        dubnb.make(name, exposure_power=-1).resolved_params()
