"""dubnb bound, audit and plan at the command line: documents, pages, and one line with code 2 for bad input."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dubnb.cli import main
from dubnb.report import theory
from dubnb.theory.bound import Bound, Quantity, Trace


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A small pair of CSV files, and the options that name them."""
    folder, rng = tmp_path_factory.mktemp("logs"), np.random.default_rng(0)
    pairs = rng.permutation(60 * 40)
    biased, random = pairs[:700], pairs[700:1500]
    for name, chosen in (("biased", biased), ("random", random)):
        rows = [f"u{p // 40},i{p % 40},{int((p // 40 + p % 40) % 5 == 0 or rng.random() < 0.1)}" for p in chosen]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,label", *rows]) + "\n")
    return ["--biased", str(folder / "biased.csv"), "--random", str(folder / "random.csv")]


def run(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.needs_jit
def test_bound_prints_terms_and_draws_them(logs, capsys, tmp_path):
    model = tmp_path / "m.npz"
    settings = [word for setting in ("rank=3", "epochs=2") for word in ("--set", setting)]
    assert run(capsys, "fit", *logs, "--method", "base", *settings, "--out", model, "--quiet")[0] == 0
    code, out, _ = run(capsys, "bound", *logs, "--model", model, "--loss", "mae", "--json", "--quiet")
    document = json.loads(out)
    assert code == 0 and set(document["terms"]) == {"a", "b", "c", "d", "e", "bias", "slack"}
    assert document["terms"]["b"]["value"] is None and document["terms"]["b"]["high"] > 0
    code, out, _ = run(capsys, "bound", *logs, "--model", model, "--quiet")
    assert code == 0 and "no Delta" in out
    code, out, err = run(capsys, "bound", *logs)
    assert code == 2 and "no model" in err and len(err.splitlines()) == 1
    code, _, err = run(capsys, "bound", *logs, "--model", model, "--plot", tmp_path / "x.pdf")
    assert code == 2 and "must end in .html or .svg" in err
    code, _, err = run(capsys, "bound", *logs, "--plot", tmp_path / "x.svg", "--slack", "design")
    assert code == 2 and "--slack is about the bound of a model" in err and not (tmp_path / "x.svg").exists()
    code, _, err = run(capsys, "bound", *logs, "--model", model, "--loss", "mae", "--largest-weight", "2", "--quiet")
    assert code == 2 and "--largest-weight has no use with slack paper" in err
    code, _, err = run(capsys, "bound", *logs, "--model", model, "--loss", "hinge")
    assert code == 2 and "loss='hinge' is unknown" in err


@pytest.mark.needs_jit
def test_value_of_a_saved_model_in_text_and_json(logs, capsys, tmp_path):
    model, lines = tmp_path / "m.npz", Path(logs[3]).read_text().splitlines()
    random = tmp_path / "random.csv"  # half of the items are shown three times as often as the others
    rows = [f"{line},{0.0375 if int(line.split(',')[1][1:]) < 20 else 0.0125}" for line in lines[1:]]
    random.write_text("\n".join([f"{lines[0]},p", *rows]) + "\n")
    files = [*logs[:3], random, "--random-propensity", "p"]
    settings = [word for setting in ("rank=3", "epochs=2") for word in ("--set", setting)]
    assert run(capsys, "fit", *files, "--method", "base", *settings, "--out", model, "--quiet")[0] == 0
    code, out, _ = run(capsys, "value", *files, "--model", model, "-k", "7", "--json", "--quiet")
    document = json.loads(out)
    assert code == 0 and document["k"] == 7 and document["data"]["pairs"]["S_c"] == 700
    policies = {each["policy"] for each in document["estimates"]}
    assert policies == {"model", "popularity", "random", "exploration", "log"}
    code, out, _ = run(capsys, "value", *files, "--model", model, "--quiet")
    assert code == 0 and "exploration" in out and "snips" in out
    code, _, err = run(capsys, "value", *files, "--model", model, "-k", "0")
    assert code == 2 and "k=0" in err
    code, _, err = run(capsys, "value", *logs, "--model", model, "--quiet")  # without propensities it is another log
    assert code == 2 and "fit it on this log" in err


@pytest.mark.needs_jit
def test_audit_answers_in_text_json_and_a_page(logs, capsys, tmp_path):
    page = tmp_path / "audit.html"
    code, out, _ = run(capsys, "audit", *logs, "--draws", "99", "--out", page, "--quiet")
    assert code == 0 and "Is every item shown as often as chance allows?" in out and page.exists()
    text = page.read_text()
    assert "Does the randomized log show items at random?" in text and 'class="verdict good"' in text
    assert "counts of items vary as much as chance explains" in text  # the reason, without a click or a hover
    assert 'aria-label="shown over expected' in text and "\033" not in out and "most popular" in out
    code, out, _ = run(capsys, "audit", *logs, "--draws", "99", "--json", "--quiet")
    document = json.loads(out)
    assert code == 0 and document["uniform"] is True and len(document["answers"]) >= 8
    code, _, err = run(capsys, "audit", *logs, "--draws", "99", "--out", page, "--quiet")
    assert code == 2 and "exists already" in err
    code, _, err = run(capsys, "audit", *logs, "--draws", "3")
    assert code == 2 and "n_draws=3" in err


def test_plan_refuses_what_it_cannot_plan(logs, capsys, tmp_path):
    folder = tmp_path
    (folder / "few.csv").write_text("user,item,label\nu0,i0,1\nu1,i1,0\nu2,i2,0\nu3,i3,1\n")
    words = ["--biased", logs[1], "--random", folder / "few.csv", "--out", tmp_path / "plan", "--quiet"]
    code, _, err = run(capsys, "plan", *words)
    assert code == 2 and len([line for line in err.splitlines() if "warning" not in line]) == 1
    code, _, err = run(capsys, "plan", *logs, "--out", tmp_path / "plan", "--methods", "base,dob", "--quiet")
    assert code == 2 and "method='dob' is unknown" in err


def test_verdicts_are_coloured_on_a_terminal_only(monkeypatch):
    from dubnb.cli import audit

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert audit._colours() and audit._painted("NO  ", "no") == "\033[1;31mNO  \033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not audit._colours()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert not audit._colours()


def test_the_section_of_a_bound_draws_its_known_parts_and_lists_all():
    pytest.importorskip("matplotlib")
    known, unknown = Quantity.known("S_t", 0.25), Quantity("S_c", None, 0.1, 0.4)
    terms, total = {"a": known, "b": unknown}, Quantity("their sum", None, 0.35, 0.65)
    of_log = Bound("dub", "a log", "bce", "Theorem 4.5", True, "sum", 0.05, terms, total, total, None, {}, (), None)
    figure, table = theory.bound_section(of_log).parts
    assert figure.drawing.name == "bound-parts" and "+0.2500" in figure.drawing.svg
    assert 'aria-label="the parts of the bound: a"' in figure.drawing.svg
    assert [row[0] for row in table.rows] == ["a", "b", "sum", "ideal"]
    assert [cell.value for cell in table.rows[1][1:4]] == [None, 0.1, 0.4]


def test_the_table_of_a_trace_has_the_best_method_of_every_term_in_bold():
    """The lowest term and the highest AUC; a reader takes the bold method for the better one."""
    frame = pd.DataFrame(
        {"method": ["x", "y"], "stage": ["M_c", "M_c"], "epoch": [1, 1]} | {name: [0.2, 0.7] for name in theory.PANELS}
    )
    table = theory.trace_section(Trace("bce", "a log", frame)).parts[-1]
    for column, name in enumerate(table.header[1:], 1):
        assert [row[column].best for row in table.rows] == ([False, True] if name == "auc" else [True, False]), name
