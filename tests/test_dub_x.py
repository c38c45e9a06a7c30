"""DUB-X as a method, and exposure weights in the other methods."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.backbones.mf import MF, Extended
from dubnb.choice import UserInfluence, chosen_settings, tried_settings
from dubnb.data.partition import PARTS
from dubnb.evaluation import monitored_influences
from dubnb.experiments import compare
from dubnb.methods import _exact, dub_x
from dubnb.methods._head import validation_folds
from dubnb.objective import als, terms
from dubnb.objective.terms import Targets, exposure_weights, shifted_rates
from dubnb.train import Fit
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
    return p.exact_problem(p.all_terms(SimpleNamespace(data=data), M_t))


def weak_model():
    """An M_t with every part at work."""
    rng = np.random.default_rng(2)
    rows = naive_all_pairs.extend(*(rng.normal(size=n) for n in ((N_USERS, 3), N_USERS, (N_ITEMS, 3), N_ITEMS)))
    return MF.from_extended(Extended(*(part.astype(np.float32) for part in rows)), b0=0.4)


def dense_teacher(data, p, M_t):
    """t of every pair, as the docstring has it."""
    if p.teacher in ("auto", "constant"):
        return np.full((N_USERS, N_ITEMS), p.teacher_value)
    if p.teacher == "item":
        return np.tile(shifted_rates(data, p.teacher_value).values, (N_USERS, 1))
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
    A, C = exposure_weights(data, 0.75)
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
    monkeypatch.setattr(dub_x, "ENOUGH", 1)
    monkeypatch.setattr(dub_x, "ENOUGH_OF_LARGE", 1)


FIRST = dub_x.Candidate(0.03, (1.0, 0.75), "constant", 2.0, 1.0, 0.2, 0.25)
GRID = [(gamma, p) for p in ((1.0, 0.75), 1.0) for gamma in (0.06, 0.03, 0.01, 0.003)]


def gamma_and_p(candidate):
    return candidate.gamma, candidate.exposure_power


def chosen(data, monkeypatch, worth, **params):
    """(the resolved method after its recipe, the candidates in order), where `worth(candidate)` is the AUC of each.

    Users differ in AUC by .1 either way, and candidates by .001 from user to user: the paired error is small.
    """
    tried = []

    def judged(candidate, data, monitor):
        noise = np.where(np.arange(data.n_users) % 2 == 0, 1.0, -1.0)
        own = 0.1 * noise + 0.001 * np.random.default_rng(len(tried)).normal(size=data.n_users)
        of_users = (own - own.mean()) / data.n_users
        return (UserInfluence(worth(candidate), of_users), UserInfluence(0.5, of_users))

    def solve(self, trial, candidate, stage, rough=None):
        tried.append(candidate)
        return candidate

    monkeypatch.setattr(dub_x, "monitored_influences", judged)
    monkeypatch.setattr(dubnb.DubX, "_solve", solve)
    method = dubnb.DubX(rank=3, **params).resolve(data)
    kept, _ = method.recipe(Fit(data, "auc"))
    assert kept._asdict() == {name: getattr(method, name) for name in kept._fields}
    return kept, tried


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_equal_candidates_leave_the_default_and_are_tried_in_the_order_of_the_docstring(graded, monkeypatch):
    kept, tried = chosen(graded, monkeypatch, lambda candidate: 0.7)
    first = FIRST._replace(randomized_weight=tried[0].randomized_weight)
    assert kept == tried[0] == first and len(tried) == 12
    assert tried[1] == first._replace(grade_spread=1.4)
    assert [gamma_and_p(candidate) for candidate in tried[2:9]] == [own for own in GRID if own != gamma_and_p(first)]
    last = ({"teacher": "item"}, {"randomized_weight": 0.0}, {"cutoff": 0.2})
    assert tried[9:] == [first._replace(**change) for change in last]
    barely = lambda candidate: 0.7 + 1e-6 * (candidate.gamma == 0.01)  # noqa: E731
    assert chosen(graded, monkeypatch, barely)[0] == first


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_a_clearly_better_candidate_is_taken_and_later_changes_build_on_it(data, monkeypatch):
    def worth(candidate):
        better = {(0.01, (1.0, 0.75)): 0.02, (0.003, 1.0): 0.04, (0.06, 1.0): 0.03}.get(gamma_and_p(candidate), 0.0)
        better += 0.05 * (candidate.negative == "unobserved") + 0.01 * (candidate.teacher == "item")
        return 0.6 + better - 0.2 * (candidate.randomized_weight == 0)

    kept, tried = chosen(data, monkeypatch, worth, negative="auto")
    assert kept == tried[-3] and kept[:3] == (0.003, 1.0, "item") and kept.negative == "unobserved"
    assert tried[-2:] == [kept._replace(randomized_weight=0.0), kept._replace(cutoff=0.2)]
    kept, tried = chosen(data, monkeypatch, lambda candidate: 0.6 + 0.1 * (candidate.randomized_weight == 0))
    assert kept.randomized_weight == 0


@pytest.mark.usefixtures("a_small_S_va_chooses")
@pytest.mark.parametrize("errors,cutoff", [(1.4, 0.25), (1.6, 0.2)])
def test_the_smaller_cutoff_needs_a_clearer_gain(data, errors, cutoff, monkeypatch):
    """The same gain by the paired standard error of that very comparison."""
    compare = dub_x.compare_candidates
    better = lambda candidate: 0.6 + 0.01 * (candidate.cutoff == 0.2)  # noqa: E731

    def compared(*args):
        found = compare(*args)
        return found._replace(standard_error=found.difference / errors)

    monkeypatch.setattr(dub_x, "compare_candidates", compared)
    assert chosen(data, monkeypatch, better, grade_spread=1.0)[0].cutoff == cutoff


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_a_smaller_cutoff_that_is_chosen_decays_less(data, monkeypatch):
    """It is solved with its own decay, and a fit that starts from the model keeps it."""
    monkeypatch.setattr(dub_x, "CUTOFF_ERRORS", -np.inf)
    decays, weighed = {}, dub_x.DubX.exact_terms

    def exact_terms(self, terms, *rest):
        found = weighed(self, terms, *rest)
        decays.setdefault(self.cutoff, []).append(found.decays[0].mean())
        return found

    monkeypatch.setattr(dub_x.DubX, "exact_terms", exact_terms)
    model = dubnb.DubX(rank=3, head=None, randomized_weight=2.0, exposure_power=1.0, teacher="constant").fit(data)
    assert model.params_["cutoff"] == 0.2 and model.history_["stage"].iloc[-1].endswith(", cutoff 0.2")
    assert set(decays) == {0.2, 0.25} and max(decays[0.2]) < min(decays[0.25])
    again = dubnb.DubX(rank=3, head=None, randomized_weight=2.0, epochs=1).fit(data, start=model)
    assert again.params_["cutoff"] == 0.2


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_only_what_is_not_given_is_chosen(graded, monkeypatch):
    for params, number in (
        ({"grade_spread": 1.0}, 11),
        ({"targets": "binary", "negative": 0.2}, 11),
        ({"exposure_power": 0.5}, 8),
        ({"teacher": "constant", "randomized_weight": 3.0}, 10),
        ({"terms": "cd"}, 10),
        ({"cutoff": 0.25}, 11),
        ({"lam": 3.0}, 11),
        ({"negative": "auto"}, 12),  # both the spread and the negatives are tried, and the cutoff is not
        ({"terms": "ac"}, 1),
        ({"gamma": 0.02}, 1),
    ):
        _, tried = chosen(graded, monkeypatch, lambda candidate: 0.7, **params)
        assert len(tried) == number, params
        for name, value in params.items():
            assert value == "auto" or all(getattr(candidate, name, value) == value for candidate in tried)


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_history_names_the_chosen_solve_and_every_difference(data):
    auto = dubnb.DubX(rank=3).fit(data)
    stages = auto.history_.groupby("stage", sort=False)
    assert len(stages) == 12 and (stages["choice_difference"].nunique() <= 1).all()
    found = stages[["choice_difference", "choice_error", "chosen", "va_auc"]].max()
    assert np.isnan(found["choice_difference"].iloc[0]) and found["choice_difference"].iloc[1:].notna().all()
    best = found[found["chosen"] == 1]
    assert len(best) == 1 and f"gamma {auto.params_['gamma']:g}, p {auto.params_['exposure_power']}" in best.index[0]
    S_va = data.triplets("S_va")
    kept = naive.auc(auto.weights_.score_pairs(S_va.users, S_va.items), S_va.labels)
    assert kept == pytest.approx(best["va_auc"].iloc[0], abs=1e-6)
    tried = tried_settings(auto.history_rows_)
    assert [each.name for each in tried] == list(found.index[1:])
    np.testing.assert_allclose(
        [each[1:] for each in tried], found[["choice_difference", "choice_error"]].to_numpy()[1:]
    )
    settings = chosen_settings(auto.history_rows_)
    assert (settings.name, settings.candidates) == (best.index[0], 12)
    lead = stages[["lead_of_choice", "lead_error"]].max()
    assert lead.loc[settings.name].tolist() == [0.0, 0.0]
    others = lead.drop(settings.name)
    assert settings.runner_up == others["lead_of_choice"].idxmin()
    assert settings[3:] == tuple(others.loc[settings.runner_up])
    if best.index[0] == found.index[0]:  # one unit for both numbers: the first settings' standard errors
        np.testing.assert_allclose(others["lead_of_choice"], -found["choice_difference"].to_numpy()[1:], atol=1e-9)
        np.testing.assert_allclose(others["lead_error"], found["choice_error"].to_numpy()[1:], atol=1e-9)
    (section,) = compare._tried(auto)
    assert f"runner-up ({settings.runner_up}) is {settings.difference:+.2f}" in section.parts[0].note
    assert [row[0] for row in section.parts[0].rows] == [each.name for each in tried]
    given = dubnb.DubX(rank=3, gamma=0.02).fit(data)
    assert tried_settings(given.history_rows_) == [] == compare._tried(given)
    assert given.history_["stage"].unique().tolist() == ["refine"] and given.params_["exposure_power"] == (1.0, 0.75)


@pytest.mark.usefixtures("a_small_S_va_chooses")
@pytest.mark.parametrize("enough", [1, 100])
def test_nothing_is_chosen_on_S_te(data, enough, monkeypatch):
    monkeypatch.setattr(dub_x, "ENOUGH", enough)
    S_te = data.triplets("S_te")
    garbage = data.replace(S_te=S_te._replace(labels=1 - S_te.labels))
    models = [dubnb.DubX(rank=3).fit(log) for log in (data, garbage)]
    assert len({all_scores(model).tobytes() for model in models}) == 1
    assert models[0].params_ == models[1].params_


def test_few_positives_choose_nothing_and_it_is_said(data, graded):
    positives = int(data.triplets("S_va").labels.sum())
    assert 1 < positives < dub_x.FEWEST
    with pytest.warns(UserWarning, match=f"S_va has {positives} positives: gamma 0.03 and exposure_power .* are fixed"):
        model = dubnb.DubX(rank=3, epochs=2).fit(graded)
    fixed = [model.params_[name] for name in ("gamma", "exposure_power", "grade_spread", "teacher")]
    assert fixed == [0.03, (1.0, 0.75), 1.0, "constant"] and model.history_["stage"].unique().tolist() == ["refine"]
    with pytest.warns(UserWarning, match="are fixed"):
        assert dubnb.DubX(rank=3, epochs=2, exposure_power=0.5).fit(data).params_["exposure_power"] == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dubnb.DubX(rank=3, epochs=2, gamma=0.02).fit(data)  # nothing to choose, nothing to say


def test_settings_that_an_S_va_of_one_class_leaves_fixed_are_named(data):
    S_va = data.triplets("S_va")
    liked = data.replace(S_va=S_va.take(S_va.labels > 0))
    with pytest.warns(UserWarning) as said:
        model = dubnb.DubXI(rank=2, epochs=2).fit(liked)
    words = " ".join(str(each.message) for each in said)
    assert "S_va cannot judge auc: gamma 0.03 and exposure_power (1.0, 0.75) are fixed" in words
    assert "S_va cannot judge auc: blend 0 is fixed" in words and model.params_["blend"] == 0 and model.head_ is None
    with pytest.warns(UserWarning) as said:
        dubnb.DubX(rank=2, epochs=2, terms="ac").fit(liked)
    assert "fixed" not in " ".join(str(each.message) for each in said)  # without term d there is no gamma


def test_a_single_fold_that_can_be_judged_does_not_choose(data, monkeypatch):
    """All negatives but one are in S_c: one fold has both labels, and S_va chooses alone."""
    monkeypatch.setattr(dub_x, "FEWEST", 1)
    S_va, S_t = data.triplets("S_va"), data.triplets("S_t")
    S_t, positive = S_t.take(S_t.labels > 0), S_va.labels > 0
    few = data.replace(S_t=S_t, S_va=S_va.take(positive | (np.arange(len(positive)) == np.flatnonzero(~positive)[0])))
    model = dubnb.DubX(rank=2, epochs=1, head=None, exposure_power=1.0, teacher="constant").fit(few)
    assert not model.history_["stage"].str.startswith("fold").any()
    assert not model.history_["stage"].str.endswith("all users").any()


@pytest.mark.parametrize("positives,stages", [(29, 1), (30, 11), (100, 10)])
def test_thirty_positives_choose_by_folds_and_enough_without(positives, stages, monkeypatch):
    """Eleven stages: ten candidates in each of four folds, and the chosen one on the whole log."""
    monkeypatch.setattr(dub_x, "ENOUGH", 100)
    rng = np.random.default_rng(1)
    pairs = rng.permutation(60 * 25)
    parts, first = {}, 0
    for part, size in (("S_c", 600), ("S_t", 300), ("S_va", 300), ("S_te", 100)):
        labels = rng.permutation((np.arange(size) < (positives if part == "S_va" else size // 3)).astype(float))
        parts[part] = (*np.divmod(pairs[first : first + size], 25), labels)
        first += size
    data = dubnb.Partition(parts, (60, 25))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = dubnb.DubX(rank=2, epochs=1, negative=0.2, teacher="constant", head=None).fit(data)
    names = model.history_["stage"].str.replace(r"fold \d, ", "", regex=True).unique()
    assert len(names) == stages and any("are fixed" in str(each.message) for each in said) == (positives < 30)
    assert model.history_["stage"].nunique() == {29: 1, 30: 41, 100: 10}[positives]


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_a_large_log_is_chosen_on_a_sample_of_its_users(data, monkeypatch):
    """A sample of all users chooses as the log itself does; a smaller one has all users with randomized pairs."""
    S_c = data.triplets("S_c")
    some = data.replace(**{part: data.triplets(part).take(data.triplets(part).users < 30) for part in ("S_t", "S_va")})
    usual = dubnb.DubX(rank=3).fit(some)
    monkeypatch.setattr(dub_x, "LARGE", 10)
    every = dubnb.DubX(rank=3).fit(some)
    names = ("gamma", "exposure_power", "teacher", "negative", "randomized_weight")
    assert [every.params_[name] for name in names] == [usual.params_[name] for name in names]
    stages = every.history_["stage"].unique()
    assert list(stages[:-1]) == list(usual.history_["stage"].unique()) and stages[-1].endswith(", all users")
    monkeypatch.setattr(dub_x, "SAMPLED", int((S_c.users < 30).sum() + 0.4 * (S_c.users >= 30).sum()))
    method = dubnb.DubX(rank=3).resolve(some)
    fit = Fit(some, "auc")
    (trial,) = method._trials(dub_x.CandidateLog(fit, None, method.random_rows(fit)))
    weights = trial.sample.weights
    randomized = np.isin(np.arange(N_USERS), np.concatenate([some.triplets(part).users for part in ("S_t", "S_va")]))
    assert (
        (weights[randomized] == 1).all() and len(set(weights[~randomized])) == 2 and (weights[~randomized] == 0).any()
    )
    np.testing.assert_allclose(weights[S_c.users].sum(), len(S_c.users), rtol=0.2)  # they stand for the whole log
    assert set(trial.fit.data.triplets("S_c").users) <= set(np.flatnonzero(weights))
    c, *_, d = method._terms(trial.fit, FIRST, None, trial.sample)
    A, C = exposure_weights(some, (1.0, 0.75))
    np.testing.assert_allclose(d.row_weights[0], A * weights)
    np.testing.assert_allclose(d.row_weights[1], C)
    np.testing.assert_allclose(c.weights, (0.5 + np.where(c.targets > 0.5, 1, 0.2)) * weights[c.users], rtol=1e-6)
    assert dubnb.DubX(rank=3).fit(some).evaluate(some)["auc"] > 0.55


def users_of_randomized(data):
    return np.unique(np.concatenate([data.triplets(part).users for part in ("S_t", "S_va")]))


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_candidates_of_a_large_log_are_solved_roughly_and_the_winner_exactly(data, monkeypatch):
    monkeypatch.setattr(dub_x, "LARGE", 10)
    solves = []

    def minimise(self, fit, terms, rows, name, rough=None):
        solves.append((name, len(fit.data.triplets("S_c").users), rough))
        return minimised(self, fit, terms, rows, name, rough)

    minimised = dub_x.DubX.minimise
    monkeypatch.setattr(dub_x.DubX, "minimise", minimise)
    monkeypatch.setattr(dub_x, "SAMPLED", 1)
    some = data.replace(**{part: data.triplets(part).take(data.triplets(part).users < 30) for part in ("S_t", "S_va")})
    dubnb.DubX(rank=3).fit(some)
    *candidates, (last, n_pairs, rough) = solves
    assert last.endswith(", all users") and rough is None and n_pairs == len(data.triplets("S_c").users)
    assert [each[2] for each in candidates] == [dub_x.FIRST_ON_SAMPLE] + 11 * [dub_x.NEXT_ON_SAMPLE]
    assert max(each[1] for each in candidates) < 0.7 * n_pairs


def test_folds_of_a_large_log_with_few_positives_have_its_sample_of_users(data, monkeypatch):
    """All users of S_t and S_va are in every fold with all their pairs; the final solve is on all users."""
    for name, value in {"FEWEST": 1, "LARGE": 10, "SAMPLED": 1, "ENOUGH_OF_LARGE": 10**6}.items():
        monkeypatch.setattr(dub_x, name, value)
    some = data.replace(**{part: data.triplets(part).take(data.triplets(part).users < 30) for part in ("S_t", "S_va")})
    method, fit = dubnb.DubX(rank=3).resolve(some), Fit(some, "auc")
    trials = method._trials(dub_x.CandidateLog(fit, None, method.random_rows(fit)))
    assert len(trials) == dub_x.FOLDS
    S_c = some.triplets("S_c")
    for trial in trials:
        own = trial.fit.data.triplets("S_c").users
        assert len(own) < len(S_c.users)
        of_all = np.bincount(S_c.users, minlength=N_USERS)
        people = users_of_randomized(some)
        np.testing.assert_array_equal(np.bincount(own, minlength=N_USERS)[people], of_all[people])
        assert (trial.sample.weights[people] == 1).all()
    model = dubnb.DubX(rank=3).fit(some)
    history = model.history_
    assert history["stage"].str.startswith("fold 4").any() and (history["stage"] == "refine").any()
    assert model.evaluate(some)["auc"] > 0.55


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_a_sample_judges_S_va_and_the_head_as_the_whole_log_does(data, monkeypatch):
    monkeypatch.setattr(dub_x, "LARGE", 10)
    monkeypatch.setattr(dub_x, "SAMPLED", 1)
    some = data.replace(**{part: data.triplets(part).take(data.triplets(part).users < 40) for part in ("S_t", "S_va")})
    method, fit = dubnb.DubX(rank=3).resolve(some), Fit(some, "auc")
    (trial,) = method._trials(dub_x.CandidateLog(fit, None, method.random_rows(fit)))
    assert len(trial.fit.data.triplets("S_c").users) < len(some.triplets("S_c").users)
    weights = dubnb.DubX(rank=3, gamma=0.03, head=None).fit(some).weights_
    for one, other in zip(
        validation_folds(some, weights, 0), validation_folds(trial.fit.data, weights, 0), strict=True
    ):
        for metric, twin in zip(
            monitored_influences(weights, one.data, "auc"),
            monitored_influences(weights, other.data, "auc"),
            strict=True,
        ):
            assert metric.value == twin.value
            np.testing.assert_array_equal(metric.of_users, twin.of_users)


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


def test_fit_ends_at_a_stationary_point(data, monkeypatch):
    """After many sweeps one more solve of all users, by the dense twin, moves no score."""
    monkeypatch.setattr(_exact, "CONVERGED", -np.inf)
    binary = {"rank": 2, "lam": 1.0, "gamma": 0.05, "negative": 0.0, "target_slope": 0.0}
    model = dubnb.DubX(epochs=100, patience=100, randomized_weight=5.0, exposure_power=0.75, **binary).fit(data)
    assert (np.diff(model.history_["loss_total"]) < 1e-4).all()
    p = resolved(data, **binary)
    problem = problem_of(data, p)
    ready = als.prepare(problem)
    P, Q = (rows.astype(np.float64) for rows in MF.new((N_USERS, N_ITEMS), 2, p.seed, "c").extended())
    for _ in range(100):
        als.sweep_rows(ready, P, Q)
    streams = [(*data.triplets("S_c")[:3], 1.0), (*data.triplets("S_t")[:3], 5.0)]
    dense = naive_all_pairs.dense_terms((N_USERS, N_ITEMS), streams, 0.05, 0.0, problem.A, problem.C)
    solved = naive_als.solve_users(dense, P, Q, problem.wd_u, als.BIAS_RIDGE)
    assert np.abs((solved - P) @ Q.T).max() < 1e-3
    assert als.objective(ready, P, Q) == pytest.approx(model.history_["loss_total"].iloc[-1], rel=1e-4)


NCF = {"backbone": "ncf", "rank": 4, "epochs": 6, "lr": 0.01}


@pytest.mark.usefixtures("a_small_S_va_chooses")
def test_ncf_begins_with_mfs_factors_and_settings(data):
    of_ncf = {"randomized_weight": 5.0}  # ncf's default, which is not chosen
    mf, ncf = dubnb.DubX(rank=4, seed=1, **of_ncf).fit(data), dubnb.DubX(**NCF, seed=1).fit(data)
    for name in ("gamma", "exposure_power", "negative", "teacher", "grade_spread"):
        assert ncf.params_[name] == mf.params_[name]
    stages = ncf.history_["stage"].unique().tolist()
    assert stages == [*mf.history_["stage"].unique(), "refine"] and len(stages) == 12
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


@pytest.fixture(scope="module")
def without_S_t(data):
    from scipy.sparse import coo_matrix

    return dubnb.Partition.from_matrices(data.S_c, coo_matrix((N_USERS, N_ITEMS)), data.S_va, data.S_te)


@pytest.mark.parametrize("teacher", ["item", "model"])
def test_teachers_from_S_t_need_it(without_S_t, teacher):
    remedy = rf"S_t is empty, and teacher='{teacher}' of dub-x needs it: set terms='cd', teacher='constant'"
    with pytest.raises(InputError, match=remedy):
        dubnb.DubX(rank=2, terms="cd", teacher=teacher).fit(without_S_t)


@pytest.mark.parametrize("method", ["dub-x", "dub-i", "dub-xi"])
def test_without_S_t_the_default_terms_are_refused_and_cd_is_trained(without_S_t, method, monkeypatch):
    monkeypatch.setattr(dub_x, "FEWEST", 1)
    with pytest.raises(InputError, match=rf"S_t is empty, and term a .*of {method} needs? it: set terms='cd'"):
        dubnb.make(method).fit(without_S_t)
    model = dubnb.make(method, terms="cd").fit(without_S_t)
    assert model.params_["teacher"] == "constant" and not model.resolve(without_S_t).reads_S_t()
    assert np.isfinite(all_scores(model)).all()


def test_few_positives_leave_dub_i_out_of_dub_xi(data):
    few = data.replace(S_va=data.triplets("S_va").take(slice(0, 12)))
    with pytest.warns(UserWarning, match=r"positives: blend 0 is fixed; choosing it needs 30"):
        model = dubnb.DubXI(rank=2, gamma=0.05, epochs=2).fit(few)
    assert model.params_["blend"] == 0.0 and model.resolve(few).inner_candidates(few) == 1


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"backbone": "ncf", "cutoff": 0.2}, "cutoff"),
        ({"backbone": "ncf", "weighting": "theory"}, "dub-x, which has its own"),
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


@pytest.mark.parametrize("enough", [1, 1_000], ids=["S_va", "folds"])
def test_history_says_by_how_much_every_share_of_dub_i_was_better(enough, monkeypatch):
    monkeypatch.setattr(dub_x, "ENOUGH", enough)
    data = dubnb.load_dataset("simulated", seed=0)
    model = dubnb.DubXI(rank=4, epochs=2, exposure_power=1.0, teacher="constant", head=None).fit(data)
    gains = {each.name: each for each in tried_settings(model.history_rows_) if each.name.startswith("blend")}
    assert list(gains) == ["blend 0.25", "blend 0.4", "blend 0.5"]
    clear = {name: each.difference for name, each in gains.items() if each.difference > each.standard_error}
    assert f"blend {model.params_['blend']:g}" == max(clear, key=clear.get, default="blend 0")
    judged = model.history_[model.history_["stage"].str.contains("blend 0.25")]
    folds = [stage for stage in judged["stage"] if stage.startswith("fold")]
    assert len(folds) == (4 if enough > 1 else 0) and judged["choice_difference"].nunique() == 1
