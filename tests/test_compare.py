"""`dubnb compare`: the second round, the winner and its gain, the answer in words, the files."""

import html
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.data.partition import Partition
from dubnb.evaluation import JudgedUsers
from dubnb.experiments import budgets, pages
from dubnb.experiments import compare as comparing
from dubnb.experiments.compare import DEFAULTS
from dubnb.experiments.study import WHOLE, Case, Design, SeedResult, Study, Winner
from dubnb.experiments.systems import BASELINES, PAPER, Choice, System
from dubnb.methods import Method
from dubnb.report.page import render
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.runner import Resources
from dubnb.sweeps.worker import TestOutput
from tests.sweep_tools import tiny_log

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUICK = budgets.BUDGETS["quick"]._replace(bootstraps=200, seeds=2)


def system(name, group=PAPER):
    group = BASELINES if name in ("popularity", "popularity-t", "random") else group
    return System(name, "base" if name == DEFAULTS else name.split()[0], "mf", (), group)


def log(n_users=300, va=(60, 240), te=(150, 450)):
    """A log whose S_va and S_te have so many positives and negatives."""
    parts, first = {}, 0
    for part, (positives, negatives) in {"S_c": (50, 50), "S_t": (50, 100), "S_va": va, "S_te": te}.items():
        pairs = np.arange(first, first := first + positives + negatives)
        labels = (np.arange(len(pairs)) % (1 + negatives // positives) == 0).astype(float)
        labels[:] = 0
        labels[:positives] = 1
        parts[part] = (pairs % n_users, pairs // n_users, labels)
    return Partition(parts, (n_users, 20), name="made up")


def judged_users(percentile, liked=None, judged=None):
    """Made-up users: percentiles (nan where they liked nothing), and likes among what was judged."""
    n = len(percentile)
    liked, judged = (np.zeros(n, np.int64) if each is None else np.asarray(each) for each in (liked, judged))
    return JudgedUsers(np.arange(n), np.full(n, np.nan), percentile, np.ones(n), (10,), liked[None], judged[None])


def study_of(systems, metric="percentile", data=None, budget=QUICK):
    """Judged systems {name: (S_va, S_te)}: arrays of percentiles, or of (liked, judged)."""
    data = log() if data is None else data
    cases = [Case(system(name)) for name in systems]
    study = Study(Design(data, {WHOLE: data}, cases, metric), budget, "work")
    for case, parts in zip(cases, systems.values(), strict=True):
        users, values = {}, {}
        for part, own in zip(("S_va", "S_te"), parts, strict=True):
            if metric == "liked@10":
                percentile, liked, judged = own
                users[part] = judged_users(percentile, liked, judged)
                values[part] = {"liked@10": liked.sum() / judged.sum(), "percentile": float(np.nanmean(percentile))}
            else:
                users[part] = judged_users(own)
                values[part] = {"percentile": float(np.nanmean(own))}
        n = len(data.triplets("S_te").users)
        shown = (np.arange(2), {}, np.zeros((2, 10), int), np.zeros(n), np.full(n, 0.5), np.full(n, 0.5))
        metrics = values["S_te"] | {f"va_{name}": value for name, value in values["S_va"].items()}
        study.results[case] = [SeedResult(seed, metrics, TestOutput(*shown, users)) for seed in (0, 1)]
        study.winners[case] = Winner({}, {}, {}, 1, 0.5)
    return study


def noisy(mean, seed=0, n=300, spread=0.2):
    """Percentiles around a mean; the same seed has most of its noise in common, so that systems can be told apart."""
    common, own = (np.random.default_rng(each).standard_normal(n) for each in (seed, (seed, round(1e4 * mean))))
    return mean + spread * (common + own / 20) - np.mean(spread * (common + own / 20))


def shares(rate, n=2000, seed=0, percentile=0.6):
    """(percentiles, liked, judged) of users of whom one item each was judged."""
    liked = (np.random.default_rng(seed).random(n) < rate).astype(np.int64)
    return noisy(percentile, n=n), liked, np.ones(n, np.int64)


# ---- the first round -------------------------------------------------------------------------------------------------


def fit(value, done=True, judged=500, metric="percentile"):
    metrics = {f"va_{metric}": value, "va_judged@10": judged, "va_liked@10_low": 0.1, "va_liked@10_high": 0.3}
    return SimpleNamespace(done=done, metrics=metrics if done else {}, seconds=1.0, reason=None)


def test_the_best_on_S_va_go_on_beside_the_rivals_dub_x_and_the_baselines():
    scores = {"base": 0.5, "unif": 0.6, "combine": 0.1, "ips": 0.7, "cause": 0.8, "bridge": 0.95, "dub": math.nan}
    screened = {system(name): fit(value) for name, value in scores.items()}
    screened[system("dub-x binary")] = fit(0.2)
    screened[system("autodebias")] = fit(0.99, done=False)  # failed: it cannot go on
    screened[system("popularity")] = fit(0.1)
    names = [each.name for each in comparing.second_round(screened, "percentile")]
    assert names == ["base", "combine", "ips", "cause", "bridge", "dub-x binary", "popularity"]


def test_liked_at_10_chooses_where_S_va_judges_enough_of_every_system():
    screened = {system("base"): fit(0.5, judged=100), system("dub"): fit(0.5, judged=300)}
    screened[system("random")] = fit(0.5, judged=3)  # baselines need not
    assert comparing.chosen_metric(screened)[0] == "liked@10"
    screened[system("dub")] = fit(0.5, judged=99)
    metric, why = comparing.chosen_metric(screened)
    assert metric == "percentile" and "judges only 99 recommended items" in why and "100 are needed" in why
    assert comparing.chosen_metric(screened, "ndcg")[0] == "ndcg"


def test_base_also_runs_with_nothing_searched():
    data = tiny_log()
    system_ = System("base", "base", "mf")
    for budget in budgets.BUDGETS.values():
        searched, fixed = comparing._with_defaults(system_, data)
        assert (searched, fixed.name) == (system_, DEFAULTS)
        assert budgets.search_of(fixed, budget, data).n_points == 1 < budgets.search_of(searched, budget, data).n_points
        resolved = fixed.model().resolved_params(data)
        assert resolved == system_.model().resolved_params(data)
    assert comparing._with_defaults(system("dub"), data) == [system("dub")]


def test_one_metric_screens_stops_chooses_and_is_claimed():
    data = tiny_log()
    run = comparing._Run(data, "work", "quick", 0, None, lambda line: None, None)
    few, many = ({system(n): fit(0.5, judged=judged) for n in ("base", "dub")} for judged in (20, 200))
    design = run.study(few).design
    assert (design.select, design.monitor, design.tie) == ("percentile", "percentile", None)
    design = run.study(many).design
    assert (design.select, design.monitor) == ("liked@10", "percentile")
    assert design.tie == (pytest.approx(0.05), "percentile")  # a standard error of liked@10
    assert [case.system.name for case in design.cases] == ["base", DEFAULTS, "dub"]
    for metric in ("auc", "ndcg", "user_auc"):
        screened = {system(n): fit(0.5, metric=metric) for n in ("base", "dub")}
        design = comparing._Run(data, "work", "quick", 0, None, lambda line: None, metric).study(screened).design
        assert (design.select, design.monitor) == (metric, metric)


# ---- who wins, and by how much ---------------------------------------------------------------------------------------


def test_the_rival_is_the_best_of_base_its_defaults_and_combine_on_S_va():
    """A search of base that chose worse settings by chance is not what a winner is held against."""
    parts = {"base": 0.55, DEFAULTS: 0.62, "combine": 0.6, "dub": 0.75, "popularity": 0.5}
    study = study_of({name: (noisy(mean), noisy(mean, 1)) for name, mean in parts.items()})
    verdict = comparing.reach_verdict(study)
    assert verdict.best.system.name == "dub" and verdict.rival.system.name == DEFAULTS and verdict.takes
    to_rival, to_popularity = verdict.claims
    assert to_rival.second == verdict.rival and to_popularity.second.system.name == "popularity"
    assert (to_rival.metric, to_rival.kind) == ("percentile", "difference")
    assert to_rival.value == pytest.approx(0.13) and 0.12 < to_rival.low < 0.13 < to_rival.high < 0.14
    assert to_popularity.value == pytest.approx(0.25)


def test_the_best_has_the_largest_mean_over_seeds_on_S_va():
    study = study_of({"base": (noisy(0.6), noisy(0.6)), "dub": (noisy(0.7), noisy(0.7))})
    dub = study.design.cases[1]
    lucky, other = study.results[dub]
    study.results[dub] = [lucky, other._replace(metrics={"percentile": 0.7, "va_percentile": 0.2})]
    assert comparing.reach_verdict(study).best.system.name == "base"


def test_dub_x_is_taken_among_systems_that_S_va_cannot_tell_apart():
    level = {"base": (noisy(0.6), noisy(0.6)), "dub-x binary": (noisy(0.595, seed=7), noisy(0.65))}
    verdict = comparing.reach_verdict(study_of(level))
    assert verdict.best.system.name == "dub-x binary"
    assert [case.system.name for case in verdict.level] == ["base", "dub-x binary"]
    told = comparing.reach_verdict(study_of({**level, "dub-x binary": (noisy(0.5, seed=7), noisy(0.65))}))
    assert told.best.system.name == "base" and [case.system.name for case in told.level] == ["base"]


@pytest.mark.parametrize("errors, told_apart", [(1.7, False), (2.2, True)])
def test_systems_are_told_apart_by_a_95_percent_interval(errors, told_apart):
    """dub-x is so many standard errors worse on S_va."""
    best, noise = noisy(0.6), np.random.default_rng(7).normal(size=len(noisy(0.6)))
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    worse = best - 0.1 * (noise + errors / np.sqrt(len(best)))
    verdict = comparing.reach_verdict(study_of({"base": (best, noisy(0.6)), "dub-x binary": (worse, noisy(0.6))}))
    assert ([case.system.name for case in verdict.level] == ["base"]) == told_apart


def test_liked_at_10_is_promised_as_a_ratio_with_its_interval():
    systems = {"base": (shares(0.2), shares(0.2)), "dub": (shares(0.4, seed=1), shares(0.4, seed=2))}
    study = study_of(systems, "liked@10", data=log(2000, (600, 1400), (600, 1400)))
    verdict = comparing.reach_verdict(study)
    (claim,) = verdict.claims
    assert (
        verdict.takes and claim.kind == "ratio" and claim.low < 2 < claim.high and claim.value == pytest.approx(2, 0.1)
    )
    found, _ = page_of(study, verdict)
    *_, share, judged = next(row for row in found.sections[2].parts[0].rows if row[0].text == "dub")
    assert judged.value == 2000 and share.value == pytest.approx(0.4, abs=0.02) and " to " in share.spread
    first, *gains = comparing.answer(study, verdict)
    assert first.startswith("Take dub (mf). Of the items that dub recommends, ") and "judged 2,000 of them" in first
    assert gains[0].startswith("Against a model of your biased log alone, searched in the same way (base): +")
    assert "% liked items (95 % interval over users, for these fitted models: +" in gains[0]


def test_intervals_hold_95_percent():
    """Of a gain in percentiles and in liked items, against other programs."""
    better = {"base": (noisy(0.6), noisy(0.6)), "dub": (noisy(0.75), noisy(0.75))}
    (claim,) = comparing.reach_verdict(study_of(better, budget=QUICK._replace(bootstraps=2000))).claims
    gains = better["dub"][1] - better["base"][1]
    half = 1.96 * gains.std(ddof=1) / np.sqrt(len(gains))
    assert claim.value == pytest.approx(gains.mean())
    assert (claim.low, claim.high) == pytest.approx((gains.mean() - half, gains.mean() + half), abs=half / 8)
    own, other = shares(0.4, seed=2), shares(0.2)
    data = log(2000, (600, 1400), (600, 1400))
    study = study_of({"base": (shares(0.2), other), "dub": (shares(0.4, seed=1), own)}, "liked@10", data=data)
    (claim,) = comparing.reach_verdict(study).claims
    one, two = own[1].mean(), other[1].mean()
    draws = np.random.default_rng(0).integers(2000, size=(2000, 2000))
    low, high = np.quantile(own[1][draws].mean(axis=1) / other[1][draws].mean(axis=1), (0.025, 0.975))
    assert claim.value == pytest.approx(one / two, rel=0.02)
    assert (claim.low, claim.high) == pytest.approx((low, high), abs=(high - low) / 8)


def test_without_likes_of_the_rival_there_is_no_ratio_and_it_is_said():
    nothing = shares(0.0)
    systems = {"base": (shares(0.2), nothing), "dub": (shares(0.4, seed=1), shares(0.4, seed=2))}
    study = study_of(systems, "liked@10", data=log(2000, (600, 1400), (600, 1400)))
    verdict = comparing.reach_verdict(study)
    assert math.isnan(verdict.claims[0].value) and verdict.claims[0].low > 1
    said = comparing.answer(study, verdict)
    assert "finds no liked item that the test part judged" in said[1]


# ---- what cannot be told ---------------------------------------------------------------------------------------------

BETTER = {"base": (noisy(0.6), noisy(0.6)), "dub": (noisy(0.75), noisy(0.75))}


def test_smoke_takes_nothing():
    study = study_of(BETTER, budget=QUICK._replace(name="smoke"))
    verdict = comparing.reach_verdict(study)
    assert verdict.why_not == ("smoke",) and not verdict.takes
    said = comparing.answer(study, verdict)
    assert said[0].startswith("This run says nothing") and not any("Take" in each for each in said)
    assert any("--budget quick" in each for each in said) and not any("percentile" in each for each in said)


@pytest.mark.parametrize("va, te, few", [((29, 100), (100, 100), True), ((30, 100), (99, 100), True)])
def test_few_positives_take_nothing_and_say_how_much_traffic_would_do(va, te, few):
    study = study_of(BETTER, data=log(va=va, te=te))
    verdict = comparing.reach_verdict(study)
    assert verdict.why_not == ("few positives",)
    said = comparing.answer(study, verdict)
    assert f"has {va[0]} in the validation part (30 are needed) and {te[0]} in the test part" in said[0]
    rows = 150 + sum(va) + sum(te)
    wanted = rows * max(30 / va[0], 100 / te[0])
    assert wanted <= comparing.needed_rows(study, verdict) < 1.2 * wanted
    assert f"this log has {rows:,}" in said[1] and not any("Take" in each for each in said)
    enough = study_of(BETTER, data=log(va=(30, 100), te=(100, 100)))
    assert comparing.reach_verdict(enough).takes


def test_an_interval_that_holds_0_takes_nothing_and_says_what_it_would_take():
    study = study_of({"base": (noisy(0.6), noisy(0.6)), "dub": (noisy(0.7), noisy(0.61, seed=5))})
    verdict = comparing.reach_verdict(study)
    (claim,) = verdict.claims
    assert verdict.why_not == ("interval holds 0",) and claim.low < 0 < claim.high
    said = comparing.answer(study, verdict)
    assert said[0] == "This log cannot tell which system to take: the difference may be chance."
    assert any("which may be chance" in each for each in said) and not any("Take" in each for each in said)
    n, needed = comparing.n_random_pairs(study), comparing.needed_rows(study, verdict)
    half, gain = (claim.high - claim.low) / 2, max(abs(claim.value), 0.01)
    assert n * (half / gain) ** 2 == pytest.approx(needed, rel=0.1)
    assert said[-1].startswith("winner.npz holds dub (mf), the best guess")


def test_worse_than_the_rival_on_the_test_part_is_said():
    study = study_of({"base": (noisy(0.6), noisy(0.7)), "dub": (noisy(0.7), noisy(0.6))})
    verdict = comparing.reach_verdict(study)
    assert verdict.why_not == ("worse",)
    assert comparing.answer(study, verdict)[0].startswith("Do not take dub")
    means = {"base": (0.6, 0.6), "dub": (0.7, 0.65), "popularity": (0.5, 0.75)}
    study = study_of({name: (noisy(va), noisy(te)) for name, (va, te) in means.items()})
    verdict = comparing.reach_verdict(study)
    assert verdict.why_not == ("worse",) and verdict.claims[0].is_certain
    assert comparing.answer(study, verdict)[0].endswith("on the test part it is worse than popularity.")


def test_base_is_kept_where_nothing_does_better():
    study = study_of(
        {"base": (noisy(0.7), noisy(0.7)), "dub": (noisy(0.6), noisy(0.6)), "popularity": (noisy(0.5),) * 2}
    )
    verdict = comparing.reach_verdict(study)
    assert "base" in verdict.why_not and "no rival" in verdict.why_not
    assert comparing.answer(study, verdict)[0].startswith(
        "No system does better on the validation part than a model of"
    )


# ---- the page --------------------------------------------------------------------------------------------------------


def page_of(study, verdict=None):
    found = comparing.findings(study, {system("base"): fit(0.5)}, verdict)
    return found, pages.study_page(comparing._AS_EXPERIMENT, study, found, "dubnb compare --biased mine.csv")


def test_the_answer_agrees_with_the_warnings_under_it():
    study = study_of(BETTER, budget=QUICK._replace(name="smoke"))
    _, page = page_of(study)
    assert any("Budget smoke" in warning for warning in page.warnings)
    assert "smoke" in page.answer[0] and "Take" not in " ".join(page.answer)
    assert page.sections[0].parts[0].note.startswith("Ship neither")
    doubtful = study_of({"base": (noisy(0.6), noisy(0.6)), "dub": (noisy(0.7), noisy(0.61, seed=5))})
    assert page_of(doubtful)[1].sections[0].parts[0].note.startswith("This page does not recommend to ship dub.")


def test_the_page_uses_plain_words_and_names_the_file_to_ship():
    study = study_of(BETTER)
    found, page = page_of(study)
    titles = [section.title for section in found.sections]
    assert titles[:3] == ["Which file to ship", "Results on the test part (S_te)", "How much better than the rivals"]
    assert titles[-2:] == ["The first round", "Words"]
    (files,) = found.sections[0].parts
    assert [row[0] for row in files.rows] == ["winner.npz", "ship.npz"] and "Ship ship.npz" in files.note
    for sentence in page.answer:
        assert not any(symbol in sentence for symbol in ("S_c", "S_va", "S_te"))
    text = render(page)
    assert "biased log (S_c)" in text and "liked items per hundred" not in text
    (table,) = found.sections[2].parts
    assert table.header[-2:] == ["liked@10", "judged"]
    gains = {row[0].text: row[2:4] for row in table.rows}
    assert gains["base"][1] == "the rival" and gains["dub"][0].value == pytest.approx(0.15)
    assert "base (defaults), base and combine" in table.note and "for these fitted models" in table.note
    assert found.sections[-2].parts[0].rows == [["base", "mf", 0.5, 500, 1.0, ""]]
    (gallery,) = found.sections[3].parts
    assert titles[3] == "What a user sees" and all(f">{name}<" in gallery.figures[0].drawing.svg for name in BETTER)


def test_make_this_again_names_the_users_own_paths():
    words = ["--biased", "my log.csv", "--random", "r.csv"]
    command = pages.rerun_command(("compare",), words, "quick", 3, Choice(), "runs/my page")
    assert command == "dubnb compare --biased 'my log.csv' --random r.csv --budget quick --seed 3 --out 'runs/my page'"
    narrow = pages.rerun_command(("compare",), [], "full", 0, Choice(("base", "dub"), ("mf",)), "x", "auc")
    assert narrow == "dubnb compare --budget full --seed 0 --metric auc --systems base,dub --backbone mf --out x"


# ---- from end to end -------------------------------------------------------------------------------------------------


@pytest.mark.needs_jit
def test_a_comparison_from_end_to_end(monkeypatch, tmp_path):
    def fit_again(*args, **options):
        raise AssertionError("the driver fits a model that a worker has fitted and saved")

    monkeypatch.setattr(Method, "fit", fit_again)
    data, choice = tiny_log(), Choice(("base", "combine", "unif", "popularity"))
    out, quiet = tmp_path / "c", Resources(quiet=True)
    lines = []
    done = dubnb.compare(data, out, "smoke", choice, seed=3, resources=quiet, say=lines.append)
    assert "each of 4 systems once" in lines[0] and "about" in lines[1]
    rows = [row for row in Ledger(out / "work" / "fits").rows() if row["status"] == "done"]
    assert {row["params"]["monitor"] for row in rows} == {"percentile"} and done.metric == "percentile"
    assert not done.takes and "smoke" in done.verdict.why_not
    loaded = dubnb.load(out / "winner.npz")
    users, items = data.triplets("S_te").users, data.triplets("S_te").items
    assert np.array_equal(loaded.decision_function(users, items), done.model.decision_function(users, items))
    assert done.model.params_["seed"] == 3 and min(row["seed"] for row in rows) == 3
    assert not (out / "work" / "models").exists()
    ship = dubnb.load(out / "ship.npz")
    assert ship.refit_["on"] == "all" and ship.name == done.model.name and ship.params_ == done.model.params_
    assert ship.judged_["auc"] == pytest.approx(done.model.evaluate(data)["auc"])
    page = (out / "report.html").read_text()
    assert done.answer and all(sentence.split("(")[0].strip() in page for sentence in done.answer)
    assert "UNFINISHED" not in page and f"--out {out}" in page
    assert done.promise.startswith("Off-policy value: ") and done.promise in repr(done)
    assert_page_has_the_value(page, done, dubnb.value(loaded, data, k=10))
    about = json.loads((out / "about.json").read_text())
    assert about["experiment"] == "compare" and about["metric"] is None
    again = dubnb.compare(data, out, "smoke", choice, seed=3, resources=quiet)
    assert list(again.answer) == list(done.answer) and len(Ledger(out / "work" / "fits").rows()) == len(rows)
    with pytest.raises(InputError, match="give another --out, or ask for the same"):
        dubnb.compare(data, out, "quick", choice, seed=3, resources=quiet)
    with pytest.raises(InputError, match="give another --out, or ask for the same"):
        dubnb.compare(data, out, "smoke", choice, seed=3, resources=quiet, metric="auc")


def assert_page_has_the_value(page, done, expected):
    """The page quotes the promise, and every estimate that `dubnb value` prints for the winner's file."""
    shown = html.unescape(re.sub(r"<[^>]+>", " ", page))
    assert " ".join(done.promise.split()) in " ".join(shown.split())
    assert done.value.to_dict() == expected.to_dict()
    rows = [html.unescape(re.sub(r"<[^>]+>", " ", row)).split() for row in page.split("<tr")]
    for each in expected.estimates:
        numbers = [f"{each.judged:,}", f"{each.effective:,.0f}"]
        numbers += [] if each.value != each.value else [f"{each.value:.4f}", f"{each.low:.4f}", f"{each.high:.4f}"]
        assert any(each.estimator in row and set(numbers) <= set(row) for row in rows), each


@pytest.mark.needs_jit
@pytest.mark.filterwarnings("ignore")
def test_the_promise_is_the_doubly_robust_value_of_the_top_10():
    data = dubnb.load_dataset("simulated", seed=0)
    model = dubnb.make("popularity").fit(data)
    found = dubnb.value(model, data, k=10)
    own = next(each for each in found.estimates if (each.policy, each.estimator) == ("model", "dr"))
    said = comparing.value_sentence("popularity", found)
    assert f"would like {100 * own.value:.1f} % of the items (doubly robust, 95 % interval" in said
    assert "+0.0 points" in said and said.endswith("against the most popular items.")


def test_a_log_that_cannot_choose_is_refused(tmp_path):
    data = tiny_log()
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_te")} | {"S_va": ([], [], [])}
    with pytest.raises(InputError, match="S_va must hold both labels"):
        dubnb.compare(dubnb.Partition(parts, (data.n_users, data.n_items)), tmp_path / "c")
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va")} | {"S_te": ([], [], [])}
    with pytest.raises(InputError, match="S_te must hold both labels"):
        dubnb.compare(dubnb.Partition(parts, (data.n_users, data.n_items)), tmp_path / "c")
    with pytest.raises(InputError, match="budget='fast' is unknown"):
        dubnb.compare(data, tmp_path / "c", "fast")
    with pytest.raises(InputError, match="metric='likes' is unknown"):
        dubnb.compare(data, tmp_path / "c", metric="likes")
