"""`dubnb arena`: equal budgets, the leaderboard, ranks over data sets, models from elsewhere, the files."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import dubnb
from bench import biases as biases_bench
from bench import public_sizes
from bench.coverage_compare import in_this_process
from dubnb import cli, stats
from dubnb._check import InputError
from dubnb.data.biases import BIASES, make_biased
from dubnb.experiments import arena as arenas
from dubnb.experiments.arena import arena, inputs_of
from dubnb.experiments.budgets import BUDGETS, search_of
from dubnb.experiments.study import Case, Study
from dubnb.experiments.systems import GROUPS, Choice
from dubnb.report import figures, latex
from dubnb.sweeps.ledger import Ledger
from tests.studies import tiny_log

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHORT = BUDGETS["quick"]._replace(points=3, seeds=2, bootstraps=50, epoch_share=0.02)  # as quick, but little of it
FEW = Choice(("base", "combine", "popularity", "random"))
# After Demsar (2006), table 6: AUC of four variants of C4.5 on 14 data sets; one tie of the rounded values (.975) is
# broken, so that the mean ranks are the published ones
C45 = """.763 .768 .771 .798  .599 .591 .590 .569  .954 .971 .968 .967  .628 .661 .654 .657  .882 .888 .886 .898
.936 .931 .916 .931  .661 .668 .609 .685  .583 .583 .563 .625  .775 .838 .866 .875  1 1 1 1  .940 .962 .965 .962
.619 .666 .614 .669  .972 .981 .976 .975  .957 .978 .946 .970"""


def shifted(seed):
    """A tiny log of its own."""
    logs = make_biased(BIASES["bias-none"], seed, rows=2000, random_rows=1500, rounds=2)
    return logs.partition(f"log {seed}")


@pytest.fixture(scope="module")
def logs():
    return {f"log {seed}": shifted(seed) for seed in (1, 2, 3)}


@pytest.fixture(scope="module", autouse=True)
def short_budget():
    """The budget quick in small, and fits in this process."""
    with mock.patch.dict(BUDGETS, {"quick": SHORT}):
        yield


@pytest.fixture
def in_process():
    with mock.patch("dubnb.sweeps.runner.run_fits", in_this_process):
        yield


@pytest.fixture(scope="module")
def done(logs, tmp_path_factory):
    out = tmp_path_factory.mktemp("arena") / "out"
    others = {"truth": lambda data: truth_of(data)}
    with mock.patch("dubnb.sweeps.runner.run_fits", in_this_process):
        return arena(logs, out, "quick", Choice((*FEW.names, "dub-x binary")), others=others)


def truth_of(data):
    """Scores that know everything."""
    rows = data.user_ids.rows, data.item_ids.rows
    return lambda users, items: data.truth.probability(rows[0](users, "user"), rows[1](items, "item"))


# ---- equal budgets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [3, 9, 15, 75])
@pytest.mark.parametrize("grid", ["near", "even"])
def test_no_system_has_more_candidates_than_the_budget(data, points, grid):
    budget = BUDGETS["full"]._replace(points=points, grid=grid, extensions=0, counts_inner=True)
    for system in Choice.everything().systems(data):
        search = search_of(system, budget, data)
        found = search.points()
        assert len(found) == search.n_points == len({tuple(point.values()) for point in found})
        assert len(found) * search.inner <= max(points, search.inner), system.name
        if search.inner == 1 and grid == "near" and search.axes and points > 3:
            assert len(found) >= 0.6 * points, (system.name, found)
        for values in search.axes.values():
            middle = values[len(values) // 2]
            assert any(middle in point.values() for point in found)


def test_search_keeps_the_points_nearest_to_the_middle(data):
    (base,) = Choice(("base",), ("mf",)).systems(data)
    budget = SHORT._replace(points=12, counts_inner=True)
    search = search_of(base, budget, data)
    assert [len(values) for values in search.axes.values()] == [4, 4] and search.n_points == 12
    default = base.model().resolve(data)
    assert {"lam": pytest.approx(default.lam, rel=0.01), "rank": default.rank} in search.points()
    corners = [{name: values[0] for name, values in search.axes.items()}]
    assert not any(corner in search.points() for corner in corners)


@pytest.mark.parametrize("points", [9, 14, 30])
@pytest.mark.parametrize("name", ["ease", "ease with S_t"])
def test_a_search_of_one_parameter_stays_near_its_default(data, name, points):
    (system,) = Choice((name,), ("mf",)).systems(data)
    for counts_inner in (True, False):
        budget = BUDGETS["quick"]._replace(points=points, counts_inner=counts_inner)
        (cutoffs,) = search_of(system, budget, data).axes.values()
        assert len(cutoffs) == points and max(cutoffs) <= 9.1 * min(cutoffs)
        assert system.model().resolve(data).cutoff in cutoffs


@pytest.mark.parametrize("name", ["dub-x", "dub-xi", "base", "ease"])
def test_inner_candidates_are_those_that_a_fit_tries(logs, name):
    data = logs["log 1"]
    model = dubnb.make(name, rank=2, epochs=1)
    declared = model.inner_candidates(data)
    history = model.fit(data).history_
    stages = set(history["stage"])
    tried = {stage for stage in stages if re.search("gamma|blend", stage)}
    tried = {re.sub(r"^fold \d, ", "", stage) for stage in tried} - {"blend 0"}
    assert declared == max(1, len(tried))


def test_equal_budget_is_that_of_the_most_inner_candidates(logs):
    systems = {label: Choice(("base", "dub-x binary")).systems(log, ("mf",)) for label, log in logs.items()}
    inner = max(system.model().inner_candidates(log) for label, log in logs.items() for system in systems[label])
    assert inner > 5
    quick = BUDGETS["quick"]._replace(epoch_share=None)
    assert arenas.equal_budget(quick, logs, systems).points == inner
    assert arenas.equal_budget(quick._replace(points=100), logs, systems).points == 100
    assert arenas.equal_budget(BUDGETS["smoke"], logs, systems).points == BUDGETS["smoke"].points
    assert not arenas.equal_budget(quick, logs, systems).extensions


# ---- ranks over data sets ------------------------------------------------------------------------------------------


def test_rank_test_repeats_demsars_example():
    found = stats.rank_test(np.array(C45.split(), float).reshape(14, 4))
    np.testing.assert_allclose(found.mean_ranks, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    from scipy.stats import f

    assert found.p == pytest.approx(f.sf(3.69, 3, 39), rel=0.01)


def test_rank_test_has_demsars_critical_values_and_keeps_its_level():
    from scipy import integrate
    from scipy.stats import norm, studentized_range

    published = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164)  # Demsar (2006), table 5 (a)
    rng = np.random.default_rng(0)
    for k, expected in enumerate(published, start=2):
        q = stats.rank_test(rng.random((8, k))).critical_difference / np.sqrt(k * (k + 1) / 48)
        assert q == pytest.approx(expected, abs=0.001)
        assert q == pytest.approx(studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2), rel=1e-6)
        # the range of k standard normals is below sqrt(2) q with probability .95, by its definition
        below = integrate.quad(
            lambda z, k=k, q=q: k * norm.pdf(z) * (norm.cdf(z) - norm.cdf(z - np.sqrt(2) * q)) ** (k - 1), -8, 12
        )[0]
        assert below == pytest.approx(0.95, abs=1e-5)
    alarms = [stats.rank_test(rng.random((8, 5))) for _ in range(400)]
    assert np.mean([each.p < 0.05 for each in alarms]) < 0.08
    assert np.mean([np.ptp(each.mean_ranks) > each.critical_difference for each in alarms]) < 0.08
    same = stats.rank_test(np.tile([3.0, 2.0, 1.0], (6, 1)))
    assert same.p == 0.0 and same.mean_ranks.tolist() == [1, 2, 3]


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((1, 3)), np.ones((3, 1)), [[1.0, np.nan], [1.0, 2.0]]])
def test_rank_test_refuses_what_it_cannot_rank(bad):
    with pytest.raises(InputError, match="at least 2 data sets"):
        stats.rank_test(bad)


def test_cliques_are_the_largest_runs_within_the_difference():
    assert figures.rank_cliques([1.0, 1.5, 3.0, 3.2], 0.6) == [(0, 1), (2, 3)]
    assert figures.rank_cliques([1.0, 2.0, 3.0], 1.0) == [(0, 1), (1, 2)]
    assert figures.rank_cliques([1.0, 2.0, 3.0], 5.0) == [(0, 2)]
    assert figures.rank_cliques([1.0, 4.0], 1.0) == []


def test_diagram_names_every_system_and_its_rank():
    ranks = {f"system {k}": 1.0 + k for k in range(23)}
    drawn = figures.critical_difference("ranks", ranks, 3.0)
    for name in ranks:
        assert f">{name} {ranks[name]:.1f}<" in drawn.svg or f">{ranks[name]:.1f} {name}<" in drawn.svg
    assert "critical difference 3.00<" in drawn.svg
    assert "longer than the line" in figures.critical_difference("ranks", {"a": 1.0, "b": 2.0}, 3.0).svg


# ---- the leaderboard -----------------------------------------------------------------------------------------------


def test_leaderboard_is_ordered_by_ranks_over_data_sets(done, logs):
    study = done.study
    names = [row["system"] for row in done.leaderboard]
    assert names[0] == "truth" and set(names) == {*FEW.names, "dub-x binary", "truth"}
    values = np.array([[row["values"][label] for row in done.leaderboard] for label in logs])
    expected = (-values).argsort(axis=1).argsort(axis=1).mean(axis=0) + 1
    np.testing.assert_allclose([row["mean_rank"] for row in done.leaderboard], expected)
    assert sorted(expected) == expected.tolist()
    for row in done.leaderboard:
        for label in logs:
            case = next(c for c in study.results if (c.system.name, c.condition) == (row["system"], label))
            assert row["values"][label] == pytest.approx(
                np.mean([fit.metrics["percentile"] for fit in study.results[case]])
            )
    assert study.finished and "truth (elsewhere) has the best mean rank" in done.answer[0]
    assert "Nemenyi" in done.answer[1]


def test_an_answer_does_not_list_nearly_all_systems():
    names = list("abcdefgh")
    assert arenas._names_in_words(names[1:], names) == "any other system"
    assert arenas._names_in_words(names[1:7], names) == "b, c, d, e, f and g"
    assert arenas._names_in_words(names[1:3], names[:3]) == "b and c"


def test_candidates_are_counted(done, logs):
    rows = {row["system"]: row for row in done.leaderboard}
    study = done.study
    assert rows["popularity"]["candidates"] == [1, 1, 1] and rows["truth"]["candidates"] is None
    assert max(rows["base"]["candidates"]) <= study.budget.points
    for fits, counted, log in zip(
        *(rows["dub-x binary"][name] for name in ("fits", "candidates")), logs.values(), strict=True
    ):
        inner = dubnb.DubX(targets="binary").inner_candidates(log)  # 1 where S_va has too few positives to choose
        assert counted == fits * inner and fits == max(1, study.budget.points // inner)
    assert max(rows["dub-x binary"]["candidates"]) > 3
    for case, fits in study.tried.items():
        assert len(fits) == study.winners[case].n_points
    assert rows["base"]["search_cpu_seconds"] == pytest.approx(
        sum(fit.cpu_seconds for case, fits in study.tried.items() if case.system.name == "base" for fit in fits)
    )
    assert rows["base"]["training_cpu_seconds"] > 0 and rows["base"]["peak_mb"] > 10


def test_draws_of_one_world_count_once(logs, tmp_path, in_process):
    first, second, third = (log.replace(name=name) for log, name in zip(logs.values(), "aab", strict=True))
    found = arena({"a 1": first, "a 2": second, "b": third}, tmp_path / "out", "quick", FEW)
    assert arenas.datasets_of(found.study) == {"a": ["a 1", "a 2"], "b": ["b"]}
    means = arenas.dataset_means(found.study, "percentile")
    for system, (of_a, _) in means.items():
        each = [found.study.mean(Case(system, label), "percentile") for label in ("a 1", "a 2")]
        assert of_a == pytest.approx(np.mean(each))
    assert "2 data sets are too few" in found.answer[1]


def test_worlds_that_share_their_people_are_not_called_independent(logs, done, tmp_path, in_process):
    """Friedman's test takes data sets as independent; the worlds bias-* of a seed are not."""
    assert "share their people" not in " ".join(done.answer) + (Path(done.out) / "report.html").read_text()
    few, names = Choice(("popularity", "random")), ("bias-none", "bias-loop", "other")
    worlds = {name: log.replace(name=name) for name, log in zip(names, logs.values(), strict=True)}
    found = arena(worlds, tmp_path / "out", "quick", few)
    assert "share their people" in found.answer[-1]
    assert (tmp_path / "out" / "report.html").read_text().count("share their people") == 2  # the answer, the diagram


def test_files_hold_the_leaderboard(done, logs):
    out = Path(done.out)
    page, text = (out / "report.html").read_text(), (out / "results.md").read_text()
    for row in done.leaderboard:
        assert row["system"] in page and row["system"] in text
    assert "Critical differences" in page and (out / "figures" / "arena-ranks.svg").exists()
    assert all(f"On {label}" in page for label in logs)
    sizes = page.split("The logs")[1]
    assert all(
        f"{len(log.triplets('S_te').users):,}" in sizes and log.fingerprint[:12] in sizes for log in logs.values()
    )
    frame = pd.read_csv(out / "results.csv")
    assert set(frame["condition"]) == set(logs)
    assert {"percentile", "ndcg", "cpu_seconds", "peak_mb", "candidates", "search_cpu_seconds"} <= set(frame["metric"])
    tex, bib = (out / "leaderboard.tex").read_text(), (out / "references.bib").read_text()
    lines = [line for line in tex.splitlines() if "&" in line]
    tables = 2  # values, and gains over popularity
    assert len(lines) == tables * (1 + len(done.leaderboard)) and tex.count(r"\textbf") == len(logs)
    assert all(line.endswith(r"\\") for line in lines)
    cited = {key for keys in re.findall(r"\\cite\{([^}]*)\}", tex) for key in keys.split(",")}
    entries = re.findall(r"@\w+\{([^,]+),", bib)
    assert cited <= set(entries) and "demsar2006" in entries and len(entries) == len(set(entries))
    assert "keywords" not in bib and "schnabel2016" not in bib


def test_every_reference_names_its_authors_and_is_dated():
    text = latex.bibtex_entries(dubnb.methods.METHODS)
    assert "and others" not in text and "keywords" not in text
    for entry in re.split(r"\n(?=@)", text):
        if not entry.startswith("@misc"):
            assert all(re.search(rf"\n  {field} = \{{.+\}}", entry) for field in ("title", "author", "year")), entry
    pages = re.findall(r"pages = \{(\d+)--(\d+)\}", text)
    assert len(pages) >= 12 and all(int(first) < int(last) for first, last in pages)


def latex_row(system, log, **more):
    """A row of the leaderboard with one log."""
    row = {"system": system, "method": "", "backbone": "any", "mean_rank": 1.0, "values": {log: 0.5}}
    return row | {"gains": {log: None}, "training_cpu_seconds": None, "candidates": None} | more


def test_latex_escapes_names():
    text = latex.latex_table([latex_row("50 % of a_b & co", "x_1")], ["x_1"], "nDCG@50")
    assert r"50 \% of a\_b \& co & \textbf{0.5000} & -- & --" in text and r"x\_1" in text
    text = latex.latex_table([latex_row("bpr with S_t", "x", gains={"x": (0.1, 0.05, 0.15)})], ["x"], "nDCG@50")
    assert r"bpr with $S_t$ & \textbf{0.5000} & $+0.050$ to $+0.150$ & --" in text and "gain over" in text
    assert latex.citations("ips") == ["schnabel2016"] and latex.citations("base") == []
    assert latex.citations("ips", "ips learned") == ["schnabel2016", "wang2021"]


def test_every_reference_is_cited_by_a_system():
    """A system's row cites the entries of its method and of itself, and none is left over."""
    every = [name for group in GROUPS.values() for system, (method, _) in group.items() for name in (method, system)]
    used = set(re.findall(r"@\w+\{([^,]+),", latex.bibtex_entries(every)))
    assert used == set(latex._bibtex())
    row = latex_row("ips learned", "x", method="ips")
    assert r"ips learned~\cite{schnabel2016,wang2021} &" in latex.latex_table([row], ["x"], "auc")


def test_latex_names_backbones_where_there_are_two():
    rows = [latex_row("base", "x", backbone=backbone) for backbone in ("mf", "ncf")]
    assert "base & mf &" in latex.latex_table(rows, ["x"], "auc")
    assert "base & ncf &" in latex.latex_table(rows, ["x"], "auc")
    assert "mf" not in latex.latex_table(rows[:1], ["x"], "auc")


PAPER = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
\input{leaderboard.tex}
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="LaTeX is not installed: nothing is compiled")
@pytest.mark.parametrize("n_logs", [1, 5])
def test_latex_compiles_and_fits_the_page(tmp_path, n_logs):
    """Every system on both backbones and on logs with long names: no error, no warning, no line beyond the margin."""
    logs = [f"bias-popularity, seed {k} & 50_%" for k in range(n_logs)]
    gain, no_gain = ({log: each for log in logs} for each in ((-0.111, -0.222, -0.333), None))
    rows = [
        latex_row(name, "", method=method, backbone=backbone, gains=gain, values=dict.fromkeys(logs, 0.5))
        | {"training_cpu_seconds": 123.45, "candidates": [12]}
        for backbone in ("mf", "ncf")
        for group in GROUPS.values()
        for name, (method, _) in group.items()
    ]
    names = {name for row in rows for name in (row["method"], row["system"])}
    missing = latex_row("a # b", "", mean_rank=None, backbone="elsewhere", gains=no_gain)
    rows.append(missing | {"values": dict.fromkeys(logs, np.nan)})
    (tmp_path / "leaderboard.tex").write_text(latex.latex_table(rows, logs, "liked@10"))
    (tmp_path / "references.bib").write_text(latex.bibtex_entries(names))
    (tmp_path / "paper.tex").write_text(PAPER)
    steps = [["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]] * 3
    steps.insert(1, ["bibtex", "paper"])
    for step in steps:
        done = subprocess.run(step, cwd=tmp_path, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-2000:]
        assert step[0] != "bibtex" or "Warning" not in done.stdout, done.stdout
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert not re.search(r"Warning|Overfull|Float too large", log), log[-3000:]


def test_intervals_are_printed_only_where_their_coverage_is_recorded(logs, tmp_path, in_process):
    log = {"log 1": logs["log 1"]}
    for metric, shown in (("percentile", True), ("auc", False)):
        found = arena(log, tmp_path / metric, "quick", FEW, metric=metric)
        claims = arenas.claims_over_popularity(found.study)
        table = arenas._log_table(found.study, "log 1", list(found.study.results), claims)
        gains = [row[table.header.index("gain over popularity")] for row in table.rows]
        assert all(bool(gain.spread) == shown for gain in gains if gain.value is not None)
        assert ("No coverage is recorded" in table.note) != shown
        for row in found.leaderboard:
            gain, is_popularity = row["gains"]["log 1"], row["system"] == "popularity"
            assert (gain is not None) == (shown and not is_popularity)
            if gain is not None:
                popular = next(each for each in found.leaderboard if each["system"] == "popularity")
                assert gain[0] == pytest.approx(row["values"]["log 1"] - popular["values"]["log 1"])
                assert gain[1] < gain[0] < gain[2]
                assert f"{gain[1]:+.4f} to {gain[2]:+.4f}" in (tmp_path / metric / "report.html").read_text()
        assert "best" in found.answer[0] and "on log 1" in found.answer[0]


def test_smoke_concludes_nothing(logs, tmp_path, in_process):
    found = arena(logs, tmp_path / "out", "smoke", Choice(("popularity", "random")))
    assert len(found.answer) == 1 and "says nothing" in found.answer[0]
    assert "has one fit" in (tmp_path / "out" / "report.html").read_text()
    tex = (tmp_path / "out" / "leaderboard.tex").read_text()
    captions = [line for line in tex.splitlines() if line.startswith(r"\caption") and "continued" not in line]
    assert len(captions) == 2 and all("says nothing about the systems" in caption for caption in captions)


@pytest.mark.parametrize("metric", ["percentile", "liked@10", "user_auc", "auc", "ndcg"])
def test_the_page_says_what_the_metric_is(logs, tmp_path, in_process, metric):
    arena(logs["log 1"], tmp_path / "out", "quick", Choice(("popularity",)), metric=metric)
    page = (tmp_path / "out" / "report.html").read_text()
    said = {"percentile": "rank below it", "liked@10": "the share that was liked", "ndcg": "in a list of 50"}
    assert said.get(metric, "one half is chance") in page


# ---- what systems read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("base", {"S_c"}),
        ("unif", {"S_t"}),
        ("combine", {"S_c", "S_t"}),
        ("ips", {"S_c", "propensities"}),
        ("ips learned", {"S_c", "S_t"}),
        ("dub-x graded", {"S_c", "S_t", "grades"}),
        ("popularity-t", {"S_t"}),
        ("transfer", {"S_c", "S_t"}),  # it starts from a model of S_t, and two epochs of S_c may not be better on S_va
        ("ease", {"S_c"}),
        ("ease with S_t", {"S_c", "S_t"}),
        ("ials with S_t", {"S_c", "S_t"}),
        ("bpr with S_t", {"S_c", "S_t"}),
        ("random", set()),
    ],
)
def test_inputs_are_those_that_change_the_model(name, reads):
    small = arenas._small_log(("levels", False, True))
    (system,) = Choice((name,), ("mf",)).systems(small)
    assert {each for each, read in inputs_of(system, small).items() if read} == reads


def test_ips_reads_S_t_without_a_column_of_propensities():
    small = arenas._small_log((None, False, False))
    (system,) = Choice(("ips",), ("mf",)).systems(small)
    assert {each for each, read in inputs_of(system, small).items() if read} == {"S_c", "S_t"}


def test_inputs_of_a_log_of_clicks():
    small = arenas._small_log((None, True, False))
    assert small.click_only
    (system,) = Choice(("ease",), ("mf",)).systems(small)
    assert inputs_of(system, small)["S_c"]


def test_a_system_that_refuses_a_log_does_not_stop_the_arena(tmp_path, in_process):
    """Clicks alone: ips has no propensities that differ, and says so in the report; the others are ranked."""
    log = make_biased(BIASES["bias-none"], 1, rows=4000, random_rows=1500, rounds=2).partition("log")
    S_c = log.triplets("S_c")
    clicks = log.replace(S_c=S_c.take(S_c.labels > 0))
    found = arena(clicks, tmp_path / "out", "quick", Choice(("ips", "popularity", "random")))
    last = found.leaderboard[-1]
    assert last["system"] == "ips" and last["mean_rank"] is None and last["reads"] is None
    assert "popularity" in found.answer[0] and "positives alone" in (tmp_path / "out" / "report.html").read_text()


# ---- models from elsewhere -----------------------------------------------------------------------------------------


def test_outside_model_has_the_numbers_of_evaluate(logs, tmp_path, in_process):
    data = logs["log 1"]
    model = dubnb.Combine(rank=4, epochs=3).fit(data)
    seeds = []

    def factory(data, seed):
        seeds.append(seed)
        return model.decision_function

    others = {"a function": model.decision_function, "a factory": factory}
    found = arena(data, tmp_path / "out", "quick", Choice(("popularity",)), others=others)
    expected = dubnb.evaluate(model.decision_function, data)
    for name, n_fits in (("a function", 1), ("a factory", SHORT.seeds)):
        case = next(case for case in found.study.results if case.system.name == name)
        fits = found.study.results[case]
        assert len(fits) == n_fits
        for metric in ("auc", "ndcg", "percentile", "liked@10", "truth_auc"):
            assert fits[0].metrics[metric] == pytest.approx(expected[metric], nan_ok=True)
    assert seeds == list(found.study.seeds)
    assert found.study.fitted.keys() == {case for case in found.study.results if case.system.name == "popularity"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a function" in page and "a factory" in page


def test_outside_model_that_fails_is_reported(logs, tmp_path, in_process):
    def broken(data):
        raise ZeroDivisionError("no\nreason")

    found = arena(logs["log 1"], tmp_path / "out", "quick", Choice(("popularity", "random")), others={"broken": broken})
    assert list(found.study.failures.values()) == ["ZeroDivisionError: no reason"]
    assert found.leaderboard[-1]["system"] == "broken" and found.leaderboard[-1]["mean_rank"] is None
    assert found.answer[-1] == "broken has no result on log 1: ZeroDivisionError: no reason."
    assert "ZeroDivisionError" in (tmp_path / "out" / "report.html").read_text()
    with mock.patch.dict(found.study.failures, {next(iter(found.study.failures)): "InputError: did it diverge?"}):
        assert arenas._failed_others(found.study) == ["broken has no result on log 1: InputError: did it diverge?"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"base": lambda data: None}, "is a system of dubnb"),
        ({"x": 3}, "is a int"),
        ({"x": lambda users: users}, "takes 1 arguments"),
        ({"x": lambda users, items: users}, "judged on 3 logs"),
    ],
)
def test_wrong_others_are_refused_before_anything_runs(logs, tmp_path, others, message):
    with pytest.raises(InputError, match=message):
        arena(logs, tmp_path / "out", "quick", FEW, others=others)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["sklearn_model", "implicit_als"])
def test_example_models_stand_on_the_leaderboard(tmp_path, in_process, name):
    package = {"sklearn_model": "sklearn", "implicit_als": "implicit"}[name]
    pytest.importorskip(package, reason=f"{package} is not installed: it is no dependency of dubnb")
    spec = importlib.util.spec_from_file_location("arena_others", EXAMPLES / "arena_others.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    log = make_biased(BIASES["bias-selection"], 1, rows=8000, random_rows=2000, rounds=2).partition("log")
    found = arena(log, tmp_path / "out", "quick", Choice(("random",)), others={name: getattr(module, name)})
    assert not found.study.failures
    assert [row["system"] for row in found.leaderboard] == [name, "random"]


# ---- inputs, interruptions, the command ----------------------------------------------------------------------------


def test_wrong_inputs_are_refused(logs, tmp_path):
    data = logs["log 1"]
    for wrong, message in (({}, "no data"), ({"x": 3}, "is a int"), ({"x": data, "y": data}, "are the same")):
        with pytest.raises(InputError, match=message):
            arena(wrong, tmp_path / "out", "quick", FEW)
    with pytest.raises(InputError, match="nothing to run"):
        arena(data, tmp_path / "out", "quick", Choice(("dub-x graded",)))
    with pytest.raises(InputError, match="metric"):
        arena(data, tmp_path / "out", "quick", FEW, metric="p@5")
    empty = data.replace(S_va=data.triplets("S_va").take(data.triplets("S_va").labels > 0))
    with pytest.raises(InputError, match=r"S_va of .* must hold both labels"):
        arena(empty, tmp_path / "out", "quick", FEW)


def test_another_question_in_the_same_directory_is_refused(done, logs):
    with pytest.raises(InputError, match="give another --out"):
        arena(logs, done.out, "quick", FEW)


@pytest.mark.needs_jit
def test_arena_goes_on_after_an_interruption(tmp_path, data, monkeypatch):
    other = tiny_log(40, 20, name="other")
    logs, choice, out = {"one": data, "two": other}, Choice(("base", "popularity")), tmp_path / "out"
    run, calls = Study.run_fits, []

    def interrupted(self, trials, *args, **options):
        calls.append(len(trials))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(self, trials, *args, **options)

    monkeypatch.setattr(Study, "run_fits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arena(logs, out, "quick", choice)
    assert "UNFINISHED" in (out / "report.html").read_text()

    def rows():
        ledger = Ledger(out / "work" / "fits")
        found = {row["key"]: row for row in ledger.rows()}
        ledger.close()
        return found

    kept = rows()
    assert len(kept) == calls[0]
    found = arena(logs, out, "quick", choice)
    assert found.study.finished and "UNFINISHED" not in (out / "report.html").read_text()
    after = rows()
    assert all(after[key] == row for key, row in kept.items()) and len(after) > len(kept)


def test_command_prints_the_leaderboard(tmp_path, capsys, in_process):
    words = ["arena", "--worlds", "bias-none", "--systems", "popularity,random", "--budget", "quick", "--quiet"]
    assert cli.main([*words, "--out", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].startswith("popularity") and "Report:" in printed
    assert "percentile on bias-none" in printed.splitlines()[0]
    assert re.search(r"^random .* -0\.\d{4} to -0\.\d{4} ", printed, re.M)
    assert cli.main([*words, "--draws", "2", "--data-seed", "7", "--json", "--out", str(tmp_path / "b")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["data"]) == {"bias-none, seed 7", "bias-none, seed 8"}
    assert [row["system"] for row in document["leaderboard"]] == ["popularity", "random"]
    assert "--draws 2" in (tmp_path / "b" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--draws", "2", "--data", "simulated"], "--draws goes with --worlds"),
        (["--worlds", "coat"], "--data coat --data-dir"),
        (["--worlds", "nowhere"], "nowhere"),
        (["--worlds", ","], "names no world"),
        (["--worlds", "bias-none,bias-none"], "twice"),
        ([], "no data"),
    ],
)
def test_command_refuses_wrong_logs(tmp_path, capsys, words, message):
    assert cli.main(["arena", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


# ---- public data sets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kuairand", "kuairec", "open-bandit"])
def test_arena_runs_on_files_of_public_layout(tmp_path, capsys, in_process, name):
    sizes = {"kuairand": (60, 40, 1500, 900), "kuairec": (60, 40, 1500, 900), "open-bandit": (400, 12, 1500, 2500)}
    options = {"small": (40, 30)} if name == "kuairec" else {}
    public_sizes.WRITERS[name](tmp_path / "files", sizes[name], **options)
    words = ["arena", "--data", name, "--data-dir", str(tmp_path / "files"), "--systems", "base,popularity,random"]
    assert cli.main([*words, "--json", "--quiet", "--out", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    (data,) = document["data"].values()
    assert data["name"].startswith(name) and min(data["pairs"].values()) > 0
    assert {row["system"] for row in document["leaderboard"]} == {"base", "popularity", "random"}
    assert all(row["mean_rank"] is not None for row in document["leaderboard"])
    assert f"--data {name}" in (tmp_path / "out" / "report.html").read_text()


CHOSEN = {"cpu_seconds": 1.0, "personal": 0.2, "candidates": 5, "factor": 0.5}
CHOSEN |= {"by_default": {"truth_liked@10": 0.1, "personal": 0.0}}


def test_table_of_biases_orders_methods_and_counts_intervals():
    lines = []
    for world in BIASES:
        for seed in (1000, 1001):
            for rank, method in enumerate(("dub-x", "base", "popularity")):
                numbers = dict.fromkeys(biases_bench.METRICS, 0.3 - 0.1 * rank + 0.001 * (seed - 1000))
                gain = {"gain": 0.1, "low": 0.05, "high": 0.15, "true_gain": 0.1 if seed == 1000 else 0.2}
                about = {"world": world, "seed": seed, "method": method, "metrics": numbers}
                lines.append(about | CHOSEN | gain)
        lines.append({"world": world, "seed": 1000, "method": "unif", "failed": "InputError: no"})
    record, coverage = biases_bench.summary(lines)
    assert [own["world"] for own in coverage] == list(BIASES)
    assert {own["coverage"] for own in coverage} == {0.5} and {own["logs"] for own in coverage} == {2}
    assert "unif on bias-none: InputError: no" in record["failed"] and record["unfinished"] == []
    assert set(record["methods"]) == {"dub-x", "base", "popularity"}
    part, _ = biases_bench.summary([line for line in lines if line["world"] != "bias-loop" or line["method"] == "base"])
    assert part["unfinished"] == ["bias-loop"] and "bias-loop" not in part["methods"]["base"]
    assert record["methods"]["base"]["bias-loop"]["truth_liked@10"] == 0.2005
    rows = biases_bench.table(record).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["dub-x", "base", "popularity"]
    assert rows[0].count("**0.300**") + rows[0].count("**0.301**") == len(BIASES) and "**" not in rows[1]


def test_differences_to_base_are_paired_by_whole_seeds():
    """Seeds differ by .1, methods by .02, .03 and .04: the interval is that of the three differences."""
    lines = []
    for seed, gain in ((1000, 0.02), (1001, 0.03), (1002, 0.04), (1003, 0.5)):
        for world in list(BIASES)[: 1 if seed == 1003 else None]:  # the last seed is not whole
            for method, value in (("base", 0.1 * (seed - 999)), ("dub-x", 0.1 * (seed - 999) + gain)):
                numbers = dict.fromkeys(biases_bench.METRICS, value)
                about = {"world": world, "seed": seed, "method": method, "metrics": numbers}
                lines.append(about | CHOSEN | {"gain": 0.1, "low": 0.05, "high": 0.15, "true_gain": 0.1})
    record, _ = biases_bench.summary(lines)
    half = 4.3027 * 0.01 / np.sqrt(3)  # the t quantile with two degrees of freedom
    found = record["over_base"]["dub-x"]
    assert found["seeds"] == 3 and found["difference"] == pytest.approx(0.03, abs=1e-4)
    assert (found["low"], found["high"]) == pytest.approx((0.03 - half, 0.03 + half), abs=1e-4)
    assert "+0.030 (+0.005 to +0.055)" in biases_bench.table(record)
    few, _ = biases_bench.summary([line for line in lines if line["seed"] < 1002])
    assert few["over_base"] == {} and "over base" not in biases_bench.table(few)


def test_bench_of_biases_chooses_regularisation_on_S_va(logs):
    data = logs["log 1"]
    with mock.patch.object(biases_bench, "FACTORS", (1.0, 0.1, 0.05)):
        model, kept = biases_bench.best_of("base", data)
        assert kept["candidates"] == 3 and model.params_["lam"] == pytest.approx(
            kept["factor"] * dubnb.Base().resolve(data).lam
        )
        values = [
            arenas.judge(found.weights_, data, part="S_va").result["percentile"]
            for _, found, _ in biases_bench.candidates("base", data)
        ]
        assert arenas.judge(model.weights_, data, part="S_va").result["percentile"] == max(values)
    _, popular = biases_bench.best_of("popularity", data)
    assert popular["candidates"] == 1
