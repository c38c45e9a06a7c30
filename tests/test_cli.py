"""The command line: through a subprocess what only a process shows, in-process the breadth of inputs."""

import argparse
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import choice
from dubnb.cli import COMMANDS, main
from dubnb.cli import sweep as sweep_command
from dubnb.cli._options import parse_value, read_settings
from dubnb.methods import METHODS, _head, dub_x
from dubnb.report import tables

REPO = Path(__file__).resolve().parents[1]
QUICK = ("--set", "rank=4", "--set", "epochs=2", "--set", "batch_size=32")
BELL = "bell\x07"  # a user whose name a terminal would obey

# Without the JIT, the hash behind the random streams overflows as it should, and NumPy says so.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


def write_logs(folder, user_names, columns="user,item,label"):
    """a.csv (S_c) and b.csv (randomized): 30 users x 20 items, ratings 1-5."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(30 * 20)
    for name, chosen in (("a.csv", pairs[:300]), ("b.csv", pairs[300:500])):
        lines = [f"{user_names[pair // 20]},{100 + pair % 20},{rng.integers(1, 6)}" for pair in chosen]
        (folder / name).write_text("\n".join([columns, *lines]) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logs with int users and a model of them, and logs with str users in `named`."""
    folder = tmp_path_factory.mktemp("cli")
    write_logs(folder, range(30))
    (folder / "named").mkdir()
    write_logs(folder / "named", [BELL, *(f"u{k}" for k in range(1, 30))], columns="who,what,stars")
    assert run(folder, "fit", *own(), "--method", "dub", *QUICK, "--out", "m.npz", "--quiet").returncode == 0
    return folder


def own(biased="a.csv", random="b.csv"):
    return ["--biased", biased, "--random", random, "--threshold", "3"]


def run(folder, *args, stdout=subprocess.PIPE):
    """`python -m dubnb` in `folder`."""
    return python(folder, "-m", "dubnb", *args, stdout=stdout)


def python(folder, *args, stdout=subprocess.PIPE):
    path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=folder, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=3600)


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """main(argv) in the folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(folder)

    def call(*argv):
        code = main([str(part) for part in argv])
        return code, *capsys.readouterr()

    return call


# ---- what a process shows ------------------------------------------------------------------------------------------


def test_fit_evaluate_recommend_round_trip(folder, tmp_path):
    model = str(tmp_path / "own.npz")
    fit = run(folder, "fit", *own(), "--method", "combine", *QUICK, "--seed", "3", "--out", model, "--json")
    assert fit.returncode == 0, fit.stderr
    assert "30 users x 20 items" in fit.stderr  # the summary of the data
    fitted = json.loads(fit.stdout)
    assert fitted["params"]["seed"] == 3 and fitted["params"]["rank"] == 4 and fitted["epochs"] == {"M_c": 2}
    sizes = fitted["data"]["pairs"]
    assert sizes["S_c"] == 300 and sizes["S_t"] + sizes["S_va"] + sizes["S_te"] == 200
    assert fitted["data"]["split"]["shares"] == [0.4, 0.25, 0.35]  # a log of few positives
    best = dubnb.load(model).history_["va_auc"].max()
    assert fitted["validation"] == {"metric": "auc", "value": best} and fitted["test"]["protocol"] == "full-ranking"

    evaluated = run(folder, "evaluate", *own(), "--model", model, "--json")
    remarks = evaluated.stderr.count("would do better") + evaluated.stderr.count("split by a hash")
    assert evaluated.returncode == 0 and evaluated.stderr.count("\n") == remarks
    assert json.loads(evaluated.stdout).items() >= fitted["test"].items()

    loaded = dubnb.load(model)
    items, scores = loaded.recommend([5, 2], k=3)
    listed = run(folder, "recommend", "--model", model, "--users", "5,2", "-k", "3", "--json")
    assert listed.returncode == 0 and listed.stderr == ""
    for entry, user, row, numbers in zip(json.loads(listed.stdout)["users"], (5, 2), items, scores, strict=True):
        assert entry == {"user": user, "items": row.tolist(), "scores": numbers.tolist()}


@pytest.mark.parametrize(
    "argv, said",
    [
        (
            ["fti"],
            f"command='fti' is unknown: choose one of {', '.join(c.NAME for c in COMMANDS)}; did you mean 'fit'?",
        ),
        (["fit", "--data", "../x", "--method", "dub", "--out", "n.npz"], "'../x' is unknown"),
        (["fit", *own("no.csv"), "--method", "dub", "--out", "n.npz"], "no.csv"),
        (["evaluate", *own(), "--model", "a.csv"], "a.csv"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(folder, argv, said):
    before = files(folder)
    done = run(folder, *argv)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("dubnb: ") and said in done.stderr
    assert files(folder) == before


def test_a_closed_pipe_is_not_a_failure(folder):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(folder, "recommend", "--model", "m.npz", "--users", "1,2", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_line_and_code_1(folder):
    with open("/dev/full", "w") as full:
        done = run(folder, "recommend", "--model", "m.npz", "--users", "1,2", stdout=full)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


SHORT_OF_MEMORY = """
import sys
class Full:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError("libarrow.so: failed to map segment from shared object")
sys.meta_path.insert(0, Full())
from dubnb.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("biased, out", [("a.csv", "x.parquet"), ("a.parquet", "x.csv")])
def test_a_library_that_cannot_be_loaded_is_not_said_to_be_missing(biased, out, folder):
    pd.read_csv(folder / "a.csv").to_parquet(folder / "a.parquet")
    words = ["recommend", "--model", "m.npz", "--all", "--out", out]
    if biased == "a.parquet":
        words = ["audit", *own(biased)]
    done = python(folder, "-c", SHORT_OF_MEMORY, *words)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "failed to map segment" in done.stderr
    assert "memory" in done.stderr and "unexpected" not in done.stderr and "extra" not in done.stderr


def test_help_and_version_import_nothing_heavy(folder):
    code = (
        "import sys, atexit; atexit.register(lambda: print('numba' in sys.modules)); import dubnb.cli; dubnb.cli.main()"
    )
    done = python(folder, "-c", code, "--help")
    assert done.returncode == 0 and "recommend" in done.stdout and done.stdout.endswith("False\n")
    assert run(folder, "--version").stdout == f"dubnb {dubnb.__version__}\n"


# ---- fit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, said",
    [
        (["--method", "dbu"], "did you mean 'dub'?"),
        (["--set", "gama=1"], "did you mean 'gamma'?"),
        (["--set", "TERMS=a"], "'TERMS' is unknown"),
        (["--set", "rank"], "--set name=value"),
        (["--set", "rank=ten"], "rank='ten' must be a whole number or none"),
        (["--set", "lam=nan"], "finite"),
        (["--set", "rank=" + "9" * 5000], "must be a whole number"),
        (["--set", "loss=mes"], "did you mean 'mse'?"),
        (["--set", "seed=1", "--seed", "2"], "seed is given twice"),
        (["--seed", "-1"], "seed=-1"),
        (["--seed", "x"], "invalid int value: 'x'"),
        (["--threads", "0"], "threads=0"),
        (["--backbone", "nfc"], "did you mean 'ncf'?"),
        (["--data", "simulated"], "--biased is for your own files"),
        (["--user", "who"], "'who' is missing"),
        (["--threshold", "nan"], "threshold"),
        (["--bakbone=ncf"], "did you mean '--backbone'?"),
        (["more"], "unrecognized arguments: more"),
        (["--out", "m.npz"], "exists already"),
        (["--out", "."], "exists already"),
        (["--out", ".", "--overwrite"], "is a directory"),
        (["--out", "none/x.npz"], "does not exist"),
        (["--out", "a.csv/x.npz"], "a.csv/x.npz"),
        (["--out", "x\0.npz"], "null byte"),
    ],
)
def test_fit_refuses(call, folder, options, said):
    before = files(folder)
    code, out, err = call("fit", *own(), "--method", "dub", "--out", "new.npz", *options)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("dubnb: ") and said in err
    assert files(folder) == before


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "empty"),
        (b"user,item,label\n", "no rows"),
        (b"user,label\n1,2\n", "'item' is missing: name the column with --item;"),
        (b"user,item,label\n1,2\n", "line 2"),
        (b"user,item,label\n,2,1\n", "missing"),
        (b"user,item,label\n1,2,good\n", "'good'"),
        (b"user,item,label\n1,2,\0\n", "NUL"),
        (b"user,item,label\nx\x1b[31m,2,1\n", "make ids int or str in both"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_fit_refuses_bad_logs(call, folder, tmp_path, content, said):
    bad = tmp_path / "bad.csv"
    bad.write_bytes(content)
    for logs in (own(biased=bad), own(random=bad)):
        code, out, err = call("fit", *logs, "--method", "base", "--out", tmp_path / "x.npz")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert said in err and "\x1b" not in err
    assert files(tmp_path) == [Path("bad.csv")]


def test_fit_checks_the_output_before_it_reads_the_data(call):
    code, _, err = call("fit", *own("no.csv"), "--method", "base", "--out", "m.npz")
    assert code == 2 and "m.npz" in err


def test_fit_reports_the_model_and_not_what_was_tried_and_left(call, tmp_path, monkeypatch):
    monkeypatch.setattr(dub_x, "FEWEST", 1)
    monkeypatch.setattr(dub_x, "FOLDS", 2)
    monkeypatch.setattr(_head, "LEAST_POSITIVES", 1)
    given = ("--data", "simulated", "--set", "gamma=0.03", "--set", "rank=8")
    for name, options in (("chosen", (*own(), "--set", "rank=2")), ("given", given)):
        out = tmp_path / f"{name}.npz"
        options = (*options, "--set", "epochs=3", "--out", out, "--quiet")
        code, text, _ = call("fit", "--method", "dub-x", *options)
        history = dubnb.load(out).history_
        left = history["stage"][history["chosen"] == 0]
        first, validation, *chosen = text.splitlines()[:4]
        assert code == 0 and f"refine {(history['stage'] == 'refine').sum()}" in first and len(left)
        assert f"and {left.nunique()} others that were not chosen" in first and not any(s in first for s in left)
        assert 0 < float(validation.split()[2]) <= 1
        if name == "chosen":
            settings = choice.chosen_settings(dubnb.load(out).history_rows_)
            assert chosen[0] == f"chosen of {settings.candidates} settings: {settings.name}"
            assert f"{settings.difference:+.2f} +- {settings.standard_error:.2f} standard errors" in chosen[1]
            assert settings.runner_up in chosen[1] and settings.runner_up != settings.name
        else:
            assert chosen[0].startswith("head of users: ")
        heads = [line for line in text.splitlines() if line.startswith("head of users: ")]
        added = (history["stage"][history["chosen"] == 1] == "head of users").any()
        tried = int((history["stage"] == "head of users").any())
        assert [line.rpartition(", ")[2] for line in heads] == ["added" if added else "left out"] * tried


def test_fit_reports_the_mixture_that_was_chosen(call, tmp_path):
    options = ("--set", "gamma=0.03", "--set", "rank=4", "--set", "epochs=3", "--out", tmp_path / "m.npz", "--quiet")
    _, text, _ = call("fit", "--method", "dub-xi", "--data", "simulated", *options)
    model, S_va = dubnb.load(tmp_path / "m.npz"), dubnb.load_dataset("simulated").unseen("S_va")
    auc = dubnb.metrics.auc(model.weights_.score_pairs(S_va.users, S_va.items), S_va.labels)
    first, validation, *_ = text.splitlines()
    assert f"validation auc {auc:.4f} " in validation
    assert f"blend {model.params_['blend']:g} 1, and" in first and first.count("blend") == 1


def test_overwrite_replaces(call, tmp_path):
    out = tmp_path / "x.npz"
    out.write_text("old")
    code, text, err = call("fit", *own(), "--method", "base", *QUICK, "--out", out, "--overwrite", "--quiet")
    assert code == 0 and err.count("\n") == err.count("would do better")
    assert "validation auc" in text and "protocol full-ranking" in text and str(out) in text
    assert dubnb.load(out).params_["epochs"] == 2
    assert len(dubnb.load(out).history_) == 2
    assert files(tmp_path) == [Path("x.npz")]


def test_a_randomized_log_without_positives_is_one_line_and_code_2(call, tmp_path):
    lines = Path("b.csv").read_text().splitlines()
    none = tmp_path / "none.csv"
    none.write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",1" for line in lines[1:])]))
    words = ("fit", *own(random=none), "--method", "dub-x", "--out", tmp_path / "x.npz", "--quiet")
    code, out, err = call(*words)
    assert (code, out, err.count("\n")) == (2, "", 1) and "no positive among the" in err and "dub-x learns" in err
    assert files(tmp_path) == [Path("none.csv")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # without the JIT, NumPy sees the overflow too
def test_divergence_is_one_line_and_code_1(call, tmp_path):
    out = tmp_path / "x.npz"
    code, text, err = call("fit", *own(), "--method", "base", *QUICK, "--set", "lr=1e30", "--out", out, "--quiet")
    assert (code, text) == (1, "") and "diverged" in err.splitlines()[-1]
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "kind, text, value",
    [
        (int, "7", 7),
        (int | None, "none", None),
        (float, "1e-3", 1e-3),
        (float | None, "2", 2.0),
        (str, "none", "none"),
        (str | None, "acd", "acd"),
        (tuple[int, ...] | None, "100,50", (100, 50)),
        (tuple[int, ...] | None, "100", (100,)),
        (tuple[int, ...] | None, "None", None),
        (float | tuple[float, float], ".5,1", (0.5, 1.0)),
        (float | tuple[float, float], ".5", 0.5),
        (float | str | None, "auto", "auto"),
        (float | str | None, "2", 2.0),
        (bool, "False", False),
    ],
)
def test_parse_value(kind, text, value):
    assert parse_value("x", text, kind) == value
    assert type(parse_value("x", text, kind)) is type(value)


def test_settings_are_as_in_python(folder):
    words = ["exposure_power=.5,1", "gamma=auto", "hidden=40,20", "rank=none"]
    read = read_settings(words, METHODS["dub-x"], {"seed": 3})
    expected = {"seed": 3, "exposure_power": (0.5, 1.0), "gamma": "auto", "hidden": (40, 20), "rank": None}
    assert read == expected
    model = dubnb.make("dub-x", exposure_power=(0.5, 1.0)).resolve()
    assert dubnb.make("dub-x", exposure_power=read["exposure_power"]).resolve().get_params() == model.get_params()
    assert read_settings(["normalise=false"], METHODS["ips"]) == {"normalise": False}
    assert read_settings(["propensity=logistic"], METHODS["ips"]) == {"propensity": "logistic"}
    with pytest.raises(dubnb.InputError, match="naive-bayes, logistic"):
        dubnb.make("ips", **read_settings(["propensity=.5"], METHODS["ips"])).resolve()


def test_a_misspelt_option_is_named_before_a_missing_one(call):
    code, _, err = call("fit", *own(), "--metod", "dub", "--out", "new.npz")
    assert code == 2 and "--metod" in err and "did you mean '--method'?" in err


def test_every_command_is_a_file_with_the_same_parts():
    names = sorted(path.stem for path in (REPO / "dubnb" / "cli").glob("*.py") if not path.stem.startswith("_"))
    assert sorted(command.NAME for command in COMMANDS) == names
    for command in COMMANDS:
        assert command.SUMMARY and command.SEED_HELP and command.notes() and callable(command.add_options)
        assert callable(command.run)


def test_a_new_metric_is_printed(call, monkeypatch):
    from dubnb import metrics

    monkeypatch.setitem(metrics.METRICS, "rho", metrics.Metric(lambda hits, n, k: n / k, "Rho@{k}", "lists", at_k=True))
    code, out, _ = call("evaluate", *own(), "--model", "m.npz")
    assert code == 0 and "Rho@5" in out and "Rho@10" in out


@pytest.mark.parametrize(
    "options, said",
    [
        (["--systems", "base,dbu"], "did you mean 'dub'?"),
        (["--systems", ","], "no system is named"),
        (["--backbone", "mf,nfc"], "did you mean 'ncf'?"),
        (["--budget", "ful"], "did you mean 'full'?"),
        (["--n-jobs", "0"], "n_jobs=0"),
        (["--sytems", "base"], "did you mean '--systems'?"),
    ],
)
def test_reproduce_refuses(call, tmp_path, options, said):
    pytest.importorskip("matplotlib")
    code, out, err = call("reproduce", "rq1", *own("no.csv"), "--out", tmp_path / "new", *options)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err  # before the data are read
    assert not (tmp_path / "new").exists()


# ---- evaluate and recommend ----------------------------------------------------------------------------------------


def test_evaluate_prints_the_library_s_numbers(call):
    data = dubnb.Partition.from_frames("a.csv", "b.csv", threshold=3)
    expected = dubnb.load("m.npz").evaluate(data, protocol="test-items")
    code, out, err = call("evaluate", *own(), "--model", "m.npz", "--protocol", "test-items")
    assert code == 0 and err.count("\n") == err.count("would do better") + err.count("split by a hash of user and item")
    assert "protocol test-items" in out
    lines = [line.split() for line in out.splitlines() if len(line.split()) > 1]
    shown = {words[0]: words[1] for words in lines}
    beside = [words[2] for words in lines if words[0] in ("AUC", "nDCG@5")]
    assert beside == [f"{expected[name]:.4f}" for name in ("popularity_auc", "popularity_ndcg")]
    names = {"AUC": "auc", "nDCG@5": "ndcg", "P@5": "p@5", "P@10": "p@10", "R@5": "r@5", "R@10": "r@10"}
    assert shown.items() >= {name: f"{expected[key]:.4f}" for name, key in names.items()}.items()


def test_exit_code_3_says_that_a_model_is_below(call):
    command = ("evaluate", *own(), "--model", "m.npz")
    result = json.loads(call(*command, "--json")[1])
    for metric in ("auc", "ndcg"):
        asked = () if metric == "auc" else ("--metric", metric)  # auc is what the fit watched
        below = result[metric] < result[f"popularity_{metric}"]
        code, out, err = call(*command, "--fail-below", "popularity", *asked, "--json")
        assert code == (3 if below else 0) and ("exit code 3" in err) == below
        held = json.loads(out)["fail_below"]
        assert held["below"] == below and (held["metric"], held["asked"]) == (metric, "popularity")
        assert (held["value"], held["least"]) == (result[metric], result[f"popularity_{metric}"])
    for metric, least, expected in (
        ("auc", result["auc"], 0),
        ("auc", result["auc"] + 1e-6, 3),
        ("p@5", result["p@5"] - 1e-6, 0),
        ("log_loss", result["log_loss"] + 1e-6, 0),  # less is better
        ("log_loss", result["log_loss"] - 1e-6, 3),
    ):
        code, out, err = call(*command, "--metric", metric, "--fail-below", repr(least))
        assert code == expected and "protocol full-ranking" in out, (metric, least)


def test_fail_below_counts_a_nan_metric_as_below(call, tmp_path):
    lines = Path("b.csv").read_text().splitlines()
    same = tmp_path / "same.csv"
    same.write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",1" for line in lines[1:])]))
    code, out, err = call("evaluate", *own(random=same), "--model", "m.npz", "--fail-below", "0", "--json")
    assert code == 3 and json.loads(out)["fail_below"]["value"] is None and "auc nan" in err


@pytest.mark.parametrize(
    "options, said",
    [
        (["--fail-below", "base"], "must be popularity or a number"),
        (["--fail-below", "nan"], "must be popularity or a number"),
        (["--metric", "auc"], "goes with --fail-below"),
        (["--metric", "aux", "--fail-below", "0"], "did you mean 'auc'?"),
        (["--metric", "p@5", "--fail-below", "popularity"], "metric='p@5' is unknown"),
    ],
)
def test_fail_below_refuses(call, options, said):
    code, out, err = call("evaluate", *own(), "--model", "m.npz", "--quiet", *options)
    lines = [line for line in err.splitlines() if "warning" not in line]
    assert (code, out, len(lines)) == (2, "", 1) and said in err


def test_evaluate_on_other_data_warns_in_one_line(call):
    code, out, err = call("evaluate", *own(), "--data-seed", "1", "--model", "m.npz")
    assert code == 0 and out
    split, *lines = [line for line in err.splitlines() if "below popularity's" not in line]
    assert len(lines) == 1 and lines[0].startswith("dubnb: warning: ") and "other data" in lines[0]
    assert split.startswith("split by a hash of user and item: ") and "trained or chosen on, are left out" in lines[0]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--protocol", "test-item"], "did you mean 'test-items'?"),
        (["--model", "no.npz"], "no.npz"),
        (["--model", "."], "directory"),
        (["--biased", "named/a.csv"], "missing"),
        (["--data-seed", "-1"], "seed"),
    ],
)
def test_evaluate_refuses(call, options, said):
    code, out, err = call("evaluate", *own(), "--model", "m.npz", *options)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_corrupt_models_are_refused(call, tmp_path):
    whole = Path("m.npz").read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:200] + bytes([whole[200] ^ 255]) + whole[201:]):
        (tmp_path / "bad.npz").write_bytes(content)
        code, out, err = call("recommend", "--model", tmp_path / "bad.npz", "--users", "1")
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_unknown_users_are_named_and_the_others_served(call):
    code, out, err = call("recommend", "--model", "m.npz", "--users", "1, 77,x,1e1,99999999999999999999", "-k", "2")
    assert code == 0 and err.count("\n") == 2
    assert all(name in err for name in (" 77", "'x'", "'1e1'", "'99999999999999999999'")) and "'1'" not in err
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["user", "rank", "item", "score"]
    assert [line[:2] for line in lines[1:]] == [["1", "1"], ["1", "2"], ["77", "1"], ["77", "2"]]
    listed = json.loads(call("recommend", "--model", "m.npz", "--users", "1,77", "--json")[1])["users"]
    assert [entry.get("fallback", False) for entry in listed] == [False, True]


def test_everyone_s_lists_go_to_a_file(call, tmp_path):
    out, few = tmp_path / "recs.parquet", tmp_path / "few.csv"
    code, text, err = call("recommend", "--model", "m.npz", "--all", "-k", "3", "--out", out, "--quiet")
    assert (code, err) == (0, "") and text.startswith("90 rows for 30 users, written to")
    table = pd.read_parquet(out)
    items, _ = dubnb.load("m.npz").recommend(np.arange(30), k=3)
    assert table["item"].to_numpy().reshape(30, 3).tolist() == items.tolist()
    few.write_text("item\n103\n107\n99\n")
    options = ("--users", "1,2", "--filter", few, "--out", out, "--overwrite", "--json")
    assert json.loads(call("recommend", "--model", "m.npz", *options)[1])["users"] == 2
    assert set(pd.read_parquet(out)["item"]) <= {103, 107}
    few.write_text("user,item\n0,100\n0,103\n1,103\n1,104\n0,99\n77,100\n")
    assert call("recommend", "--model", "m.npz", "--all", "--filter", few, "--out", out, "--overwrite")[0] == 0
    named = np.array([(0, 100), (0, 103), (1, 103), (1, 104)])
    unseen = set(map(tuple, named[dubnb.load("m.npz").seen_.find(named[:, 0], named[:, 1] - 100) < 0]))
    assert set(map(tuple, pd.read_parquet(out)[["user", "item"]].to_numpy())) == unseen and {u for u, _ in unseen} == {
        0,
        1,
    }
    for text in ("other\n3\n", "item\n99\n"):
        few.write_text(text)
        code, _, err = call("recommend", "--model", "m.npz", "--all", "--filter", few, "--out", tmp_path / "x.parquet")
        assert code == 2 and "--filter" in err and err.count("\n") == 1


def test_lists_go_to_the_kind_of_file_that_out_names(call, tmp_path):
    code, text, err = call("recommend", "--model", "m.npz", "--all", "-k", "3", "--out", tmp_path / "recs.csv")
    assert (code, err) == (0, "") and text.startswith("90 rows for 30 users, written to")
    lines = (tmp_path / "recs.csv").read_text().splitlines()
    assert lines[0] == "user,rank,item,score,fallback" and len(lines) == 91
    code, _, err = call("recommend", "--model", "absent.npz", "--all", "--out", tmp_path / "recs.txt")
    assert code == 2 and "recs.txt' must end in .csv or .parquet" in err and err.count("\n") == 1
    assert not (tmp_path / "recs.txt").exists()


def test_export_writes_vectors(call, tmp_path):
    code, text, err = call("export", "--model", "m.npz", "--out", tmp_path / "vectors")
    assert (code, err) == (0, "") and "user_vectors.npy" in text
    users, items = (np.load(tmp_path / "vectors" / f"{side}_vectors.npy") for side in ("user", "item"))
    raw = dubnb.load("m.npz").decision_function(np.arange(30)[:, None], np.arange(100, 120))
    np.testing.assert_allclose(users @ items.T, raw, rtol=1e-4, atol=1e-5)
    assert call("export", "--model", "m.npz", "--out", tmp_path / "vectors")[0] == 2
    assert "files" in json.loads(call("export", "--model", "m.npz", "--out", tmp_path / "b", "--json")[1])


@pytest.mark.parametrize(
    "options, said",
    [
        (["--users", "7e,x"], "2 of 2 users"),
        (["--all"], "--all writes a file: say where with --out"),
        (["--users", " , "], "has no ids"),
        (["--users", "1", "-k", "0"], "-k=0"),
        (["--users-file", "no.txt"], "no.txt"),
        (["--users-file", "."], "cannot be read"),
        (["--users-file", "m.npz"], "UTF-8"),
        (["--users", "1", "--users-file", "a.csv"], "not allowed with"),
        ([], "--users"),
    ],
)
def test_recommend_refuses(call, options, said):
    code, out, err = call("recommend", "--model", "m.npz", *options)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_a_list_ends_where_the_items_end(call):
    seen = np.diff(dubnb.load("m.npz").seen_[0])[4]
    code, out, _ = call("recommend", "--model", "m.npz", "--users", "4", "-k", 10**6, "--json")
    assert code == 0
    assert len(json.loads(out)["users"][0]["items"]) == 20 - seen


def test_str_ids_and_named_columns(call, tmp_path):
    columns = ["--user", "who", "--item", "what", "--label", "stars"]
    logs = own("named/a.csv", "named/b.csv")
    out = tmp_path / "x.npz"
    assert call("fit", *logs, *columns, "--method", "base", *QUICK, "--out", out, "--quiet")[0] == 0
    (tmp_path / "users.txt").write_text(f"{BELL}\nu3\n\nnobody\x1b[2J\n")
    code, text, err = call("recommend", "--model", out, "--users-file", tmp_path / "users.txt", "-k", "1")
    assert code == 0
    assert "bell\\x07" in text and "u3" in text and "\x07" not in text
    assert "nobody" in err and "\x1b" not in err
    listed = json.loads(call("recommend", "--model", out, "--users-file", tmp_path / "users.txt", "--json")[1])
    assert [entry["user"] for entry in listed["users"][:2]] == [BELL, "u3"] and listed["users"][2]["fallback"]


# ---- tables --------------------------------------------------------------------------------------------------------


def test_text_table():
    shown = tables.text(("name", "x"), [("a", 1.0), ("b\n", float("nan"))], "<>")
    assert shown == "name       x\na     1.0000\nb\\n        -"


def test_markdown_table():
    shown = tables.markdown(("name", "x"), [("a|b<c", 3)], "<>")
    assert shown == "| name | x |\n| :-- | --: |\n| a\\|b&lt;c | 3 |"


def test_mark_best_stars_all_that_print_alike():
    assert tables.mark_best([0.1, 0.30001, 0.30002, float("nan")]) == ["0.1000 ", "0.3000*", "0.3000*", "- "]
    assert tables.mark_best([-1.0, 0.5]) == ["-1.0000 ", "0.5000*"]


INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "dubnb.cli":
            os.kill(os.getpid(), signal.Signals[sys.argv[1]])
sys.meta_path.insert(0, Impatient())
signal.signal(signal.SIGINT, signal.default_int_handler)
from dubnb.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("name, code, said", [("SIGINT", 130, "Ctrl-C"), ("SIGTERM", 143, "SIGTERM")])
def test_a_signal_while_the_command_is_still_being_imported_is_one_line(name, code, said, tmp_path):
    done = python(tmp_path, "-c", INTERRUPTED_WHILE_IMPORTING, name)
    assert done.returncode == code and done.stderr == f"dubnb: stopped by {said}\n"


STOPPED_IN_AN_EXEC = """
import sys
import dubnb.cli
from dubnb.__main__ import main

def run():
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")

dubnb.cli.main = run
sys.exit(main())
"""


def test_ctrl_c_in_an_exec_gives_130_too(tmp_path):
    """namedtuple and others call exec; Python would end by the signal itself, which only a shell takes for 130."""
    (tmp_path / "stopped.py").write_text(STOPPED_IN_AN_EXEC)
    done = python(tmp_path, "-m", "stopped")
    assert (done.returncode, done.stderr) == (130, "dubnb: stopped by Ctrl-C\n")


# The process gets the signal when the bytes of a file have been written to its temporary file, before it is renamed.
STOPPED_WHILE_WRITING = """
import os, signal, sys, threading
number, fsync = signal.Signals[sys.argv.pop(1)], os.fsync
def stop(descriptor):
    fsync(descriptor)
    for _ in range(2):
        os.kill(os.getpid(), number)
        number is signal.SIGTERM or signal.signal(number, signal.SIG_IGN)
os.fsync = stop
signal.signal(signal.SIGINT, signal.default_int_handler)
from dubnb.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("name, code, said", [("SIGINT", 130, "Ctrl-C"), ("SIGTERM", 143, "SIGTERM")])
@pytest.mark.parametrize(
    "command",
    [
        ["fit", "--data", "simulated", "--method", "popularity", "--out", "written"],
        ["recommend", "--model", "m.npz", "--all", "--out", "written.csv"],
        ["export", "--model", "m.npz", "--out", "written"],
        ["audit", "--biased", "a.csv", "--random", "b.csv", "--threshold", "3", "--out", "written"],
    ],
    ids=lambda command: command[0],
)
def test_a_stopped_command_leaves_no_file_behind(command, name, code, said, folder, tmp_path):
    for file in ("a.csv", "b.csv", "m.npz"):
        os.symlink(folder / file, tmp_path / file)
    done = python(tmp_path, "-c", STOPPED_WHILE_WRITING, name, *command, "--quiet")
    assert done.returncode == code and done.stderr.endswith(f"dubnb: stopped by {said}\n")
    assert "Traceback" not in done.stderr
    left = {path.name for path in tmp_path.rglob("*")} - {"a.csv", "b.csv", "m.npz"}
    assert left <= {"written"} and not (tmp_path / "written").is_file()


def test_one_log_with_options_of_every_kind(call, folder, tmp_path):
    lines = ["uid;vid;stars;when;rnd"]
    rng = np.random.default_rng(1)
    for k, pair in enumerate(rng.permutation(600)[:400]):
        lines.append(f"{pair // 20:03d};v{pair % 20};{rng.integers(1, 6)};{k};{k % 2}")
    path = tmp_path / "one.txt"
    path.write_text("\n".join(lines))
    log = ["--log", path, "--is-random", "rnd", "--sep", ";", "--user", "uid", "--item", "vid", "--label", "stars"]
    fit = ["--method", "base", *QUICK, "--out", tmp_path / "m.npz", "--overwrite", "--json", "--quiet"]
    options = ["--timestamp", "when", "--split", "time", "--shares", ".5,.25,.25", "--duplicates", "error"]
    code, out, err = call("fit", *log, *options, "--threshold", "3", *fit)
    assert code == 0 and "rows of the biased log are no older than S_va" in err
    expected = dubnb.Partition.from_table(
        path, is_random="rnd", sep=";", user="uid", item="vid", label="stars", timestamp="when", split="time",
        shares=(0.5, 0.25, 0.25), threshold=3,
    )  # fmt: skip
    assert json.loads(out)["data"]["fingerprint"] == expected.fingerprint
    for more, said in (
        ([], "pass --threshold (labels above it are positive)"),
        (["--threshold", "3", "--split", "time"], "name their column with --timestamp"),
        (["--threshold", "3", "--shares", ".5"], "--shares=(0.5,) must be three shares"),
        (["--threshold", "3", "--shares", "a"], "--shares 'a' must be three numbers"),
        (["--threshold", "3", "--data-seed", "-1"], "--data-seed=-1 must be"),
        (["--threshold", "3", "--user-type", "float"], "--user-type='float' is unknown"),
        (["--biased", "a.csv"], "or --log FILE and --is-random COLUMN"),
    ):
        code, out, err = call("fit", *log, *more, *fit[:-2])
        assert (code, out) == (2, "") and said in err, err


def test_defaults_of_the_sweep_command_are_those_of_the_function():
    parser = argparse.ArgumentParser()
    sweep_command.add_options(parser)
    given = vars(parser.parse_args([]))
    own = {name: each.default for name, each in inspect.signature(dubnb.sweep).parameters.items()}
    shared = given.keys() & own.keys() - {"method", "out"}  # these two are required
    assert shared >= {"grid", "seeds", "n_jobs", "halving", "select", "protocol", "retries", "retry_failed"}
    assert {name: given[name] for name in shared} == {name: own[name] for name in shared}
