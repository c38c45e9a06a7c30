"""Commands in this process, with models and results that are made up: what they read, refuse, pass on and print."""

import argparse
import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import selftest
from dubnb._check import DivergenceError, InputError
from dubnb.cli import _budget, _data, _output, _values, fit, main, recommend, sweep
from dubnb.cli import selftest as selftest_command
from dubnb.cli._parser import Parser
from dubnb.experiments.compare import Claim, Compared, Verdict
from dubnb.experiments.study import Case
from dubnb.experiments.systems import Choice, System
from dubnb.methods import METHODS
from dubnb.sweeps.engine import Resources
from dubnb.sweeps.errors import SweepError
from tests.test_experiments import tiny_log


def options(add, *words, **more):
    """The parsed words of a command's options, beside those of every command."""
    parser = Parser(prog="dubnb")
    add(parser)
    common = {"seed": None, "json": False, "quiet": True, "traceback": False}
    return argparse.Namespace(**(vars(parser.parse_args([str(word) for word in words])) | common | more))


# ---- the parser ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "the following arguments are required: COMMAND"),
        (["--vers"], "the following arguments are required: COMMAND"),  # no abbreviation of --version
        (["fit", "--data", "coat", "--method", "dub"], "required: --out"),
        (["fit", "--data", "coat", "--out", "x"], "required: --method"),
        (["evaluate", "--data", "coat"], "required: --model"),
        (["recommend", "--users", "1"], "required: --model"),
        (["recommend", "--model", "m.npz"], "one of the arguments --users --users-file --all is required"),
        (["export", "--out", "x"], "required: --model"),
        (["export", "--model", "m.npz"], "required: --out"),
        (["reproduce", "rq1", "--data", "coat"], "required: --out"),
        (["compare", "--data", "coat"], "required: --out"),
        (["sweep", "--data", "coat", "--out", "x"], "--method is missing"),
        (["sweep", "--data", "coat", "--method", "dub"], "--out is missing"),
        (["fit", "--zzz"], "unrecognized arguments: --zzz; see 'dubnb fit --help'"),
    ],
)
def test_what_is_missing_or_unknown_is_named(words, said, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dubnb: ") and err.count("\n") == 1 and said in err


def test_only_misspelt_options_are_refused_before_the_rest_is_read():
    parser = Parser(prog="dubnb x")
    parser.add_argument("--method")
    for fine in (["--method", "dub"], ["--method=dub"], ["--", "--metod"], ["-- a b"], ["-x"], ["metod"], []):
        parser.check_words(fine)
    for word in ("--metod", "--metod=dub"):
        with pytest.raises(
            InputError, match=f"unrecognized arguments: {word}; did you mean '--method'[?]; see 'dubnb x"
        ):
            parser.check_words(["dub", word, "--", "x"])


def test_words_come_from_the_command_line_where_none_are_given(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dubnb", "fit", "--metod", "dub"])
    assert main() == 2
    assert "did you mean '--method'?" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["dubnb", "fti"])
    assert main() == 2
    assert "command='fti' is unknown" in capsys.readouterr().err


def test_help_says_what_a_command_does(capsys):
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Write embeddings whose plain inner product is the model's score, as .npy and Parquet (mf)." in text
    assert "--seed N unused: nothing here is random" in text and "dubnb export --model m.npz --out vectors" in text


@pytest.mark.parametrize(
    "error, code, said",
    [
        (MemoryError("4 GB"), 1, "out of memory: 4 GB"),
        (DivergenceError("diverged"), 1, "diverged"),
        (InputError("bad"), 2, "bad"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (OSError(5, "gone"), 1, "the system refused: [Errno 5] gone"),
        (KeyError("x"), 1, "unexpected KeyError: 'x' (--traceback shows where)"),
    ],
)
def test_failures_are_one_line_and_a_code(error, code, said, monkeypatch, capsys):
    def fail(path):
        raise error

    monkeypatch.setattr(dubnb, "load", fail)
    monkeypatch.setattr(_output, "abandon_stdout", lambda: None)
    monkeypatch.delenv("DUBNB_TRACEBACK", raising=False)
    assert main(["export", "--model", "m.npz", "--out", "x"]) == code
    assert capsys.readouterr().err == f"dubnb: {said}\n"


# ---- values ----------------------------------------------------------------------------------------------------------


def test_seeds_begin_at_0():
    assert [_values.first_seed(argparse.Namespace(seed=seed)) for seed in (None, 0, 7)] == [0, 0, 7]
    with pytest.raises(InputError, match="--seed=-1"):
        _values.first_seed(argparse.Namespace(seed=-1))


@pytest.mark.parametrize(
    "kind, text, said",
    [
        (int, "x", "--set x='x' must be a whole number$"),
        (int, "none", "must be a whole number$"),
        (float | None, "x", "must be a number or none$"),
        (tuple[float, float], ".5", "must be two numbers with a comma between, such as .5,1$"),
        (tuple[float, float], "1,2,3", "must be two numbers"),
        (tuple[int, ...] | None, "1,x", "must be whole numbers with commas between, such as 100,50 or none$"),
        (float | tuple[float, float], "1,2,3", "must be a number or two numbers"),
        (bool, "yes", "x='yes' is unknown"),
        (np.ndarray | None, "1", "x takes an array"),
    ],
)
def test_values_that_cannot_be_read_are_refused_with_the_rule(kind, text, said):
    with pytest.raises(InputError, match=said):
        _values.parse_value("x", text, kind)


def test_values_of_several_kinds_are_the_first_that_fits():
    assert _values.parse_value("x", "NONE", int | None) is None and _values.parse_value("x", "TRUE", bool) is True
    assert _values.parse_value("x", "1,2", tuple[float, float]) == (1.0, 2.0)
    assert _values.parse_value("x", "1,2,3", tuple[int, ...]) == (1, 2, 3)
    assert _values.parse_value("x", "none", str) == "none" and _values.parse_value("x", "auto", float | str) == "auto"


def test_settings_are_read_beside_what_is_given():
    dub = METHODS["dub"]
    assert _values.read_settings(["rank=5", "terms=acd"], dub) == {"rank": 5, "terms": "acd"}
    given = {"seed": 3}
    assert _values.read_settings(["rank=5"], dub, given) == {"seed": 3, "rank": 5} and given == {"seed": 3}
    for wrong, said in (("rank", "has no value"), ("ranc=5", "did you mean 'rank'"), ("seed=4", "seed is given twice")):
        with pytest.raises(InputError, match=said):
            _values.read_settings([wrong], dub, given)


def test_names_stand_between_commas():
    assert [_values.listed(text) for text in (None, "", "a", " a, b ,,c")] == [None, (), ("a",), ("a", "b", "c")]


def test_budget_options_have_defaults():
    args = options(lambda parser: _budget.add_options(parser, "mf"), "--out", "x")
    assert (args.budget, args.n_jobs, args.systems, args.backbone) == ("quick", 1, None, None)
    assert _budget.choice(args) == Choice()
    assert _budget.choice(argparse.Namespace(systems="dub, base", backbone="mf,ncf")) == Choice(
        ("dub", "base"), ("mf", "ncf")
    )
    notes = _budget.notes("system", "dubnb compare")
    assert "  smoke  3 candidates per system, 2 seeds; a check that everything runs" in "\n".join(notes)
    assert "  beyond     bridge exact, dub exact, dub-x binary, dub-x graded, dub-x rates" in notes


# ---- the data --------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch):
    """What `_data.load` asks the library for."""
    told = []

    def tell(*what):
        told.append(what)
        return SimpleNamespace(split=None)

    for name in ("load_dataset", "Partition"):
        made = SimpleNamespace(
            from_table=lambda *given, **named: tell("table", given, named),
            from_frames=lambda *given, **named: tell("frames", given, named),
        )
        record = made if name == "Partition" else lambda *given, **named: tell("dataset", given, named)
        monkeypatch.setattr(dubnb, name, record)
    return told


def test_data_by_name_or_in_files(loaded):
    def load(*words):
        _data.load(options(_data.add_options, *words))
        return loaded.pop()

    assert load("--data", "coat", "--data-dir", "d") == (
        "dataset",
        ("coat",),
        {"seed": 0, "data_dir": "d", "quiet": True},
    )
    assert load("--data", "simulated", "--data-seed", "4")[2]["seed"] == 4
    files = ("--biased", "b.csv", "--random", "r.csv")
    own = {"split_seed": 0, "quiet": True}
    assert load(*files) == ("frames", ("b.csv", "r.csv"), own)
    assert load("--log", "l.csv", "--is-random", "rnd") == ("table", ("l.csv",), {"is_random": "rnd"} | own)
    columns = {name: f"the {name}" for name in _data.COLUMNS}
    words = [word for name, value in columns.items() for word in (f"--{name}", value)]
    assert load(*files, *words)[2] == columns | own
    kinds = ("--user-type", "int", "--item-type", "str", "--threshold", "3", "--split", "time", "--duplicates", "max")
    expected = {"user_type": "int", "item_type": "str", "threshold": 3.0, "split": "time", "duplicates": "max"}
    assert load(*files, *kinds)[2] == expected | own
    assert load(*files, "--shares", ".5,.25,.25")[2]["shares"] == (0.5, 0.25, 0.25)
    for text, sep in (("tab", "\t"), (r"\t", "\t"), (";", ";")):
        assert load(*files, "--sep", text)[2]["sep"] == sep


@pytest.mark.parametrize(
    "words, said",
    [
        ((), "no data: give --data NAME"),
        (("--biased", "b"), "no data"),
        (("--biased", "b", "--random", "r", "--log", "l"), "no data"),
        (("--data", "coat", "--biased", "b"), "biased= is for your own files: leave it or --data 'coat' out"),
        (("--data", "coat", "--user", "u"), "user= is for your own files"),
        (("--biased", "b", "--random", "r", "--data-dir", "d"), "--data-dir goes with --data"),
        (("--biased", "b", "--random", "r", "--shares", "a,b"), "--shares 'a,b' must be three numbers"),
    ],
)
def test_data_that_are_not_told_are_refused(words, said, loaded):
    with pytest.raises(InputError, match=said):
        _data.load(options(_data.add_options, *words))
    assert not loaded


def test_facts_and_words_of_the_data():
    data = tiny_log()
    about = {"name": "tiny", "fingerprint": data.fingerprint, "users": 60, "items": 30}
    sizes = {part: len(data.triplets(part).labels) for part in ("S_c", "S_t", "S_va", "S_te")}
    more = {"pairs": sizes, "removed_from_S_c": data.removed, "held_back": 0, "split": None}
    assert _data.facts(data) == about | more
    assert len(set(sizes.values())) > 2
    args = options(_data.add_options, "--log", "my log.csv", "--is-random", "rnd", "--user", "u", "--threshold", "3")
    expected = ["--data-seed", "0", "--log", "my log.csv", "--is-random", "rnd", "--user", "u", "--threshold", "3.0"]
    assert _data.words(args) == expected
    assert "  simulated" in _data.notes() and _data.notes().startswith("datasets:\n")


# ---- what is printed -------------------------------------------------------------------------------------------------


def test_json_has_plain_types(capsys):
    document = {
        1: (np.float32(0.5), np.arange(2), float("nan")),
        "a": {"b": math.inf, "c": -1.5, "d": None, "e": "x", "f": 3},
    }
    _output.print_json(document)
    expected = {"1": [0.5, [0, 1], None], "a": {"b": None, "c": -1.5, "d": None, "e": "x", "f": 3}}
    text = capsys.readouterr().out
    assert json.loads(text) == expected and text.startswith('{\n  "1": [')


def test_text_is_printed_in_the_encoding_that_there_is(monkeypatch, capsys):
    printed = []
    monkeypatch.setattr("builtins.print", lambda text: printed.append(text))
    for encoding, expected in (("ascii", "\\xe9"), ("utf-8", "é"), (None, "é")):
        monkeypatch.setattr("sys.stdout", SimpleNamespace(encoding=encoding))
        _output.print_text("é")
        assert printed.pop() == expected


def test_metrics_stand_beside_popularity_s_and_the_truth_below(capsys):
    result = {"protocol": "full-ranking", "auc": 0.7, "ndcg": 0.1, "p@5": 0.2, "personal": 0.5}
    result |= {"popularity_auc": 0.6, "popularity_ndcg": 0.05}
    data = SimpleNamespace(name="a log\x07")
    _output.print_metrics(result, data)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a log\\x07, protocol full-ranking"
    assert [line.split() for line in lines[1:]] == [
        ["metric", "S_te", "popularity"],
        ["AUC", "0.7000", "0.6000"],
        ["nDCG@50", "0.1000", "0.0500"],
        ["P@5", "0.2000"],
    ]
    more = {"truth_auc": 0.8, "truth_ndcg": 0.3, "truth_users": 7}
    more |= {"left_out_pairs": 3, "unknown_users": 1234, "unknown_items": 2, "protocol": "test-items"}
    _output.print_metrics(result | more, data)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split()[0] == "nDCG@5" and "unknown to the model: 1,234 users, 2 items" in lines
    below = lines[next(k for k, line in enumerate(lines) if line.startswith("unbiased truth, all pairs outside")) + 1 :]
    assert [line.split() for line in below] == [["metric", "truth"], ["AUC", "0.8000"], ["nDCG@50", "0.3000"]]
    shares = {"liked@5": 0.4, "liked@10": 0.31, "judged@5": 7, "popularity_liked@10": 0.2}
    shares |= {"judged@10": 1234, "liked@10_low": 0.25, "liked@10_high": 0.375, "auc_with_overlap": 0.9}
    _output.print_metrics(result | shares, data)
    lines = capsys.readouterr().out.splitlines()
    assert lines[6].split() == ["liked@10", "0.3100", "0.2000"] and "0.9000" not in "".join(lines)
    assert lines[7].endswith("was liked (95 % interval 0.2500 to 0.3750; 1,234 judged)") and len(lines) == 8
    _output.print_metrics(result | {"liked@10": math.nan, "judged@10": 3, "popularity_liked@10": math.nan}, data)
    assert capsys.readouterr().out.splitlines()[-1].endswith("was liked (3 judged: too few)")


def test_a_path_is_tried_before_work_is_done_for_it(tmp_path):
    there = tmp_path / "there"
    there.write_text("mine")
    with pytest.raises(InputError, match="exists already: choose another --out or add --overwrite"):
        _output.check_writable(there, overwrite=False)
    _output.check_writable(there, overwrite=True)
    _output.check_writable(tmp_path / "new", overwrite=False)
    with pytest.raises(InputError, match="does not exist"):
        _output.check_writable(tmp_path / "no" / "new", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"] and there.read_text() == "mine"


def test_remarks_are_for_those_who_want_them(capsys):
    _output.remarks(argparse.Namespace(quiet=True))("a")
    _output.remarks(argparse.Namespace(quiet=False))("b\x07")
    assert capsys.readouterr() == ("", "b\\x07\n")


# ---- fit -------------------------------------------------------------------------------------------------------------


def test_help_of_fit_stands_in_columns():
    notes = fit.method_notes().splitlines()
    column = 3 + 1 + max(map(len, METHODS))
    first = notes.index("methods:")
    for line, name in zip(notes[first + 1 :], METHODS, strict=False):
        assert line.split()[0] == name and line[:column].strip() == name and line[column] != " "
    assert notes[first + 1][column:] == "one model on the biased log."
    below = notes[notes.index("parameters for --set (VALUE none: the method's own default):") + 1 :]
    assert all(len(line) <= 79 and line[column - 1] == " " and line[column] != " " for line in below)
    own = " ".join(" ".join(below).split())
    assert "all backbone, loss, rank, " in own and " ips also propensity, clip, normalise cause also gamma, side" in own
    named = {line.split()[0] for line in below if line[2] != " "}
    assert "all" in named and not named & {"base", "unif", "popularity"}  # these add nothing


def test_long_lists_are_wrapped_at_79():
    lines = fit._wrapped("all", ["a"] * 30, 15).splitlines()
    assert [len(line) for line in lines] == [77, 46] and lines[1].startswith(" " * 18 + "a, a")


class FittedOnce:
    """Stands for a fitted model with two stages of training."""

    name, backbone, params_ = "dub", "mf", {"monitor": "auc", "seed": 3}

    def __init__(self):
        self.calls = []
        self.history_ = pd.DataFrame(
            {
                "stage": ["M_t", "M_t", "M_t", "M_c", "M_c"],
                "epoch": [1, 2, 3, 1, 2],
                "va_auc": [0.5, 0.9, 0.6, 0.7, 0.65],
                "seconds": [1.0] * 5,
            }
        )

    def fit(self, data, **named):
        self.calls.append(("fit", data, named))

    def save(self, *given):
        self.calls.append(("save", *given))

    def evaluate(self, data):
        return {"protocol": "full-ranking", "auc": 0.7, "ndcg": 0.1, "popularity_auc": 0.6, "popularity_ndcg": 0.05}


def test_fit_tells_epochs_by_stage_and_the_last_stage_s_best(monkeypatch, tmp_path, capsys):
    model, data, out = FittedOnce(), tiny_log(), tmp_path / "m.npz"
    monkeypatch.setattr(fit, "_new_model", lambda args: model)
    monkeypatch.setattr(_data, "load", lambda args: data)
    words = ["fit", "--data", "simulated", "--method", "dub", "--out", str(out)]
    assert main([*words, "--overwrite"]) == 0
    text, remarks = capsys.readouterr()
    assert text.startswith("dub (mf), epochs: M_t 3, M_c 2; 5.0 s of training\nvalidation auc 0.7000 (S_va)\n\ntiny, ")
    assert text.endswith(f"\n\nsaved as {out}\n") and remarks.splitlines() == data.summary().splitlines()
    assert model.calls == [("fit", data, {"quiet": False, "threads": 1, "refit": False}), ("save", str(out), True)]
    assert main([*words, "--json", "--quiet", "--threads", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert model.calls[2:] == [("fit", data, {"quiet": True, "threads": 2, "refit": False}), ("save", str(out), False)]
    assert document["epochs"] == {"M_t": 3, "M_c": 2} and document["seconds"] == 5.0
    assert document["validation"] == {"metric": "auc", "value": 0.7} and document["model"] == str(out)
    assert document["params"] == model.params_ and document["data"] == _data.facts(data)


def test_fit_gives_its_method_what_was_said():
    args = argparse.Namespace(method="dub", seed=3, backbone=None, set=["rank=5"])
    model = fit._new_model(args)
    assert (model.name, model.seed, model.rank, model.backbone) == ("dub", 3, 5, "mf")
    args = argparse.Namespace(method="base", seed=None, backbone="ncf", set=[])
    assert (fit._new_model(args).seed, fit._new_model(args).backbone) == (METHODS["base"]().seed, "ncf")
    with pytest.raises(InputError, match="seed is given twice"):
        fit._new_model(argparse.Namespace(method="dub", seed=3, backbone=None, set=["seed=3"]))


# ---- recommend -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "7", "-7", "+7", " 7 ", str(2**64 - 1), str(-(2**63)), "007"])
def test_whole_ids_are_read(text):
    assert recommend._parsed_id(text, "int") == int(text)


@pytest.mark.parametrize("text", ["", "x", "1e1", "1_0", "7.0", str(2**64), str(-(2**63) - 1), "9" * 21])
def test_what_is_no_whole_id_is_none(text):
    assert recommend._parsed_id(text, "int") is None and recommend._parsed_id(text, "str") == text


def frame(users, items, labels):
    return pd.DataFrame({"user": users, "item": items, "label": labels})


@pytest.fixture(scope="module")
def popular(tmp_path_factory):
    """Models of popularity with ids of either kind, user a (10) has had item p (50): ({kind: path}, directory)."""
    folder, paths = tmp_path_factory.mktemp("popular"), {}
    for kind, users, items in (("int", [10, 11, 12], [50, 51, 52, 53]), ("str", list("abc"), list("pqrs"))):
        biased = frame([users[k] for k in (0, 0, 1, 2)], [items[k] for k in (0, 1, 1, 2)], [1, 1, 1, 0])
        random = frame([users[k % 3] for k in range(6)], [items[k] for k in (3, 3, 3, 2, 2, 1)], [0, 1, 0, 1, 0, 1])
        data = dubnb.Partition.from_frames(biased, random, shares=(0.34, 0.33, 0.33))
        paths[kind] = str(folder / f"{kind}.npz")
        dubnb.make("popularity").fit(data).save(paths[kind])
    return paths, folder


@pytest.fixture
def say(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def test_recommend_prints_lists_and_names_who_is_unknown(popular, say):
    paths, _ = popular
    model = dubnb.load(paths["int"])
    items, scores = model.recommend([11, 10], k=4)
    listed = [row[~np.isnan(s)].tolist() for row, s in zip(items, scores, strict=True)]
    assert {len(own) for own in listed} != {4}  # some have run out
    code, out, err = say("recommend", "--model", paths["int"], "--users", "11,x,10", "--json")
    document = json.loads(out)
    assert code == 0 and err == "dubnb: warning: 1 of 3 users are no ids of the model's kind (int): 'x'\n"
    assert [entry["user"] for entry in document["users"]] == [11, 10] and document["unknown"] == ["x"]
    assert [entry["items"] for entry in document["users"]] == listed and document["k"] == 10
    assert [len(entry["scores"]) for entry in document["users"]] == [len(own) for own in listed]
    code, out, _ = say("recommend", "--model", paths["int"], "--users", "11,10")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["user", "rank", "item", "score"]
    rows = [(user, rank, item) for user, own in zip((11, 10), listed, strict=True) for rank, item in enumerate(own, 1)]
    assert [tuple(map(int, line[:3])) for line in lines[1:]] == rows
    assert [
        len(e["items"])
        for e in json.loads(say("recommend", "--model", paths["int"], "--users", "11", "-k", "1", "--json")[1])["users"]
    ] == [1]


def test_only_some_unreadable_users_are_named(popular, say):
    paths, folder = popular
    wrong = [f"w{k}" for k in range(11)]
    _, _, err = say("recommend", "--model", paths["int"], "--users", ",".join(["10", *wrong[:10]]))
    assert err.endswith("'w8', 'w9'\n")
    (folder / "users.txt").write_text("\ufeff10\n\n" + "\n".join(wrong) + "\n", encoding="utf-8")
    code, out, err = say("recommend", "--model", paths["int"], "--users-file", folder / "users.txt", "--json")
    assert code == 0 and err.endswith("'w8', 'w9', ...\n") and "11 of 12 users" in err
    assert [entry["user"] for entry in json.loads(out)["users"]] == [10] and json.loads(out)["unknown"] == wrong
    (folder / "none.txt").write_text(" \n\n")
    for words, said in (
        (["--users", "x,y"], "2 of 2 users are no ids of the model's kind (int): 'x', 'y'; give ids like 10"),
        (["--users-file", folder / "none.txt"], "names nobody"),
        (["--users", "10", "--filter", "f.csv"], "--filter writes a file: say where with --out"),
        (["--all"], "--all writes a file"),
        (["--all", "--out", paths["int"]], "exists already"),
    ):
        code, out, err = say("recommend", "--model", paths["int"], *words)
        assert (code, out) == (2, "") and said in err


def test_a_fallback_is_marked_in_json_only(popular, say):
    paths, _ = popular
    _, out, _ = say("recommend", "--model", paths["str"], "--users", "a,nobody", "--json")
    assert [entry.get("fallback") for entry in json.loads(out)["users"]] == [None, True]


@pytest.mark.parametrize("kind", ["int", "str"])
def test_candidates_come_from_a_table(kind, popular, tmp_path):
    paths, _ = popular
    model = dubnb.load(paths[kind])
    users, items = model.user_ids_.values, model.item_ids_.values
    path = tmp_path / "filter.csv"

    def read(**columns):
        pd.DataFrame(columns).to_csv(path, index=False)
        return recommend._read_filter(str(path), model)

    unknown = 99 if kind == "int" else "zz"
    found = read(item=[items[2], unknown, items[0], items[2]])
    assert found.tolist() == [items[0], items[2]]
    assert read(item=[items[0]]).tolist() == [items[0]] and read(item=[items[1]]).tolist() == [items[1]]
    pairs = [(users[0], items[1]), (users[2], items[0]), (users[0], items[1]), (unknown, items[0]), (users[1], unknown)]
    matrix = read(user=[user for user, _ in pairs], item=[item for _, item in pairs])
    dense = np.zeros((len(users), len(items)))
    dense[0, 1], dense[2, 0] = 2, 1
    assert matrix.toarray().tolist() == dense.tolist() and matrix.nnz == 2
    pd.DataFrame({"item": [items[1]]}).to_parquet(tmp_path / "filter.parquet")
    assert recommend._read_filter(str(tmp_path / "filter.parquet"), model).tolist() == [items[1]]
    for columns, said in (
        ({"item": [unknown]}, "names no item that the model knows"),
        ({"other": [1]}, "has no rows with a column 'item'"),
        ({"item": []}, "has no rows with a column 'item'"),
    ):
        with pytest.raises(InputError, match=said):
            read(**columns)
    with pytest.raises(InputError, match="cannot be read"):
        recommend._read_filter(str(tmp_path / "no.csv"), model)


def test_text_ids_of_digits_stay_text(tmp_path):
    """A CSV file's 007 is the id "007" where the model's ids are text, of users and of items alike."""
    biased = frame(["007", "008", "007"], ["01", "01", "02"], [1, 1, 0])
    data = dubnb.Partition.from_frames(biased, frame(["007", "008", "008"], ["03", "03", "02"], [1, 0, 1]))
    model = dubnb.make("popularity").fit(data)
    path = tmp_path / "filter.csv"
    path.write_text("user,item\n007,03\n008,01\n")
    found = recommend._read_filter(str(path), model).toarray()
    assert [tuple(pair) for pair in np.argwhere(found).tolist()] == [(0, 2), (1, 0)]


def test_lists_go_to_a_file(popular, say, tmp_path):
    paths, _ = popular
    out, few = tmp_path / "recs.parquet", tmp_path / "few.csv"
    few.write_text("item\n53\n")
    code, text, err = say("recommend", "--model", paths["int"], "--all", "-k", "1", "--out", out, "--quiet")
    assert (code, text, err) == (0, f"3 rows for 3 users, written to {out}\n", "")
    words = ["recommend", "--model", paths["int"], "--users", "11,12", "--out", out, "--filter", few, "--quiet"]
    assert say(*words)[0] == 2  # it is there already
    code, text, _ = say(*words, "--overwrite", "--json")
    document = json.loads(text)
    assert code == 0 and (document["users"], document["k"], document["out"]) == (2, 10, str(out))
    table = pd.read_parquet(out)
    assert document["rows"] == len(table) and set(table["item"]) == {53} and set(table["user"]) <= {11, 12}


# ---- commands that run many fits -------------------------------------------------------------------------------------


def sweep_args(*words, **more):
    def add(parser):
        sweep.add_options(parser)

    return options(add, *words, **more)


def test_a_sweep_is_asked_for_what_was_said(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr("dubnb.sweeps.run.sweep", lambda *given, **named: told.append((given, named)))
    monkeypatch.setattr(_data, "load", lambda args: "the log")
    out = str(tmp_path / "s")
    sweep._search(sweep_args("--method", "dub", "--out", out))
    (given, named), defaults = told.pop(), {"n_jobs": 1, "full": False, "halving": False, "protocol": "full-ranking"}
    assert given == (METHODS["dub"], "mf", "the log", "wide")
    defaults |= {"scheduler": None, "time_limit": None, "retries": 2, "retry_failed": False, "pretrained": None}
    assert named == defaults | {
        "out": out,
        "seeds": range(1),
        "random": None,
        "fixed": {},
        "select": "auc",
        "quiet": True,
    }
    words = [
        "--method",
        "dub",
        "--out",
        out,
        "--seeds",
        "3",
        "--n-jobs",
        "2",
        "--random-search",
        "5",
        "--set",
        "rank=4",
    ]
    words += [
        "--select",
        "ndcg,0.5,auc",
        "--retries",
        "0",
        "--halving",
        "--full",
        "--retry-failed",
        "--time-limit",
        "9",
    ]
    sweep._search(sweep_args(*words, "--grid", "even", "--backbone", "ncf", seed=4))
    given, named = told.pop()
    assert given[1:] == ("ncf", "the log", "even") and named["seeds"] == range(4, 7) and named["fixed"] == {"rank": 4}
    assert (named["select"], named["random"], named["n_jobs"]) == (("ndcg", 0.5, "auc"), 5, 2)
    assert (named["retries"], named["time_limit"], named["halving"], named["full"]) == (0, 9.0, True, True)
    with pytest.raises(InputError, match="tolerance must be a number"):
        sweep._selection("auc,x,ndcg")
    assert sweep._selection("auc,ndcg") == "auc,ndcg"


def swept(**changes):
    trials = pd.DataFrame({"status": ["done", "failed", "done"], "reason": [None, "diverged", None]})
    numbers = {"mean": 0.75, "std": 0.0707, "values": [0.7, 0.8]}
    few = {"mean": 0.3, "std": None, "values": [None, 0.3]}
    best = {"point": {"lam": 0.1, "rank": 4}, "protocol": "full-ranking"}
    best["metrics"] = {"va_auc": numbers, "auc": few, "truth_p@5": numbers, "personal": numbers}
    return SimpleNamespace(**({"out": "runs/x", "trials": trials, "best": best} | changes))


def test_a_sweep_s_outcome_in_words(capsys):
    done = swept()
    document, text = sweep._outcome(done)
    assert capsys.readouterr().err == "dubnb: warning: a trial ended with diverged\n"
    assert document == {"out": "runs/x", "trials": {"done": 2, "failed": 1}, "best": done.best}
    assert text.splitlines() == [
        "runs/x: 2 done, 1 failed",
        "best on S_va: lam=0.1, rank=4",
        "",
        "metric                mean    spread   per seed (full-ranking)",
        "va_auc              0.7500    0.0707   0.7000 0.8000",
        "auc                 0.3000         -   - 0.3000",
        "truth_p@5           0.7500    0.0707   0.7000 0.8000",
    ]
    assert "best on S_va: the only point" in sweep._outcome(swept(best=done.best | {"point": {}}))[1]
    many = pd.DataFrame({"status": ["failed"] * 5, "reason": ["a", "b", "a", "c", "d"]})
    capsys.readouterr()
    with pytest.raises(SweepError, match="no point finished on all its seeds: see the reasons in runs/x/"):
        sweep._outcome(swept(trials=many, best=None))
    assert [line[-1] for line in capsys.readouterr().err.splitlines()] == ["a", "b", "c"]


def test_how_a_sweep_stands_in_words(monkeypatch, capsys):
    now = {"method": "dub", "backbone": "mf", "running": True, "counts": {"failed": 1, "done": 2}, "trials": 9}
    now |= {"select": ["ndcg"], "best": {"metrics": {"va_ndcg": 0.25}}, "damaged": 3}
    monkeypatch.setattr("dubnb.sweeps.standing.status", lambda out: now | {"out": out})
    assert main(["sweep", "--status", "runs/x"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "dub (mf), running",
        "trials: 2 done, 1 failed; 9 asked for last",
        "best trial so far: va_ndcg 0.2500",
        "3 rows are damaged: run the sweep again, and their trials are run again",
    ]
    now |= {"running": False, "counts": {}, "best": None, "damaged": 0}
    document, text = sweep._status("runs/y")
    assert text == "dub (mf), not running\ntrials: none yet; 9 asked for last" and document["out"] == "runs/y"


def test_compare_and_reproduce_pass_on_what_was_said(monkeypatch, capsys, tmp_path):
    data, told, out, verdicts = tiny_log(), [], str(tmp_path / "r"), [()]
    monkeypatch.setattr(_data, "load", lambda args: data)

    def compared(*given):
        told.append(given)
        base, dub = (Case(System(name, name, "mf")) for name in ("base", "dub"))
        claim = Claim("percentile", dub, base, "difference", 0.02, 0.01, 0.03)
        verdict = Verdict(dub, base, [dub], [claim], verdicts[-1])
        return Compared(
            ["Take dub.", "It is better."],
            "dub",
            None,
            None,
            "percentile",
            verdict,
            None,
            {},
            f"{out}/report.html",
            out,
        )

    monkeypatch.setattr("dubnb.experiments.compare.compare", compared)
    words = f"compare --data simulated --out {out} --systems dub,base --budget smoke --seed 4".split()
    assert main([*words, "--n-jobs", "2", "--quiet"]) == 0
    said = f"Take dub.\nIt is better.\nReport: {out}/report.html\nTo ship: {out}/ship.npz\n"
    assert capsys.readouterr().out == said
    verdicts.append(("interval holds 0",))
    assert main([*words, "--quiet"]) == 0 and "To ship" not in capsys.readouterr().out
    verdicts.pop()
    *given, _, named, metric = told.pop(0)
    told.clear()
    assert metric is None and given == [data, out, "smoke", Choice(("dub", "base")), 4, Resources(n_jobs=2, quiet=True)]
    assert named == ["--data", "simulated", "--data-seed", "0"]
    assert main([*words, "--json", "--metric", "ndcg"]) == 0 and told.pop()[-1] == "ndcg"
    document = json.loads(capsys.readouterr().out)
    gain = {"metric": "percentile", "over": "base", "kind": "difference", "value": 0.02, "low": 0.01, "high": 0.03}
    assert document["gains"] == [gain] and document["rival"] == "base" and document["metric"] == "percentile"
    assert document["takes"] is True and document["why_not"] == [] and document["ship"] == f"{out}/ship.npz"
    assert document["winner"] == "dub" and document["model"] == f"{out}/winner.npz" and document["data"]["users"] == 60

    def reproduced(order, data, n_jobs, quiet, say):
        told.append((order, data, n_jobs, quiet))
        return [{"experiment": "rq1", "answer": ["a.", "b."], "report": "x/report.html"}]

    monkeypatch.setattr("dubnb.experiments.reproduce.reproduce", reproduced)
    words = f"reproduce rq1 --data simulated --out {out} --backbone mf --seed 3 --n-jobs 2".split()
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == "rq1: a. b.\nReport: x/report.html\n"
    order, given, n_jobs, quiet = told.pop()
    assert (order.experiment, order.out, order.budget, order.seed) == ("rq1", out, "quick", 3) and given is data
    assert order.choice == Choice(backbones=("mf",)) and (n_jobs, quiet) == (2, True)
    assert list(order.data_words) == ["--data", "simulated", "--data-seed", "0"]


def test_a_selftest_s_table(monkeypatch, capsys):
    told = []
    checks = [
        selftest.Comparison("dub", "tiny", "cpu", True, "alike", 2.04, (1.5, 1.2, 1.9)),
        selftest.Comparison("base", "tiny", "cpu", True, "alike"),
    ]

    def run(skipped):
        return lambda *given: told.append(given) or selftest.Result({"dubnb": "1", "numba": "2"}, checks, skipped)

    monkeypatch.setattr(selftest, "run", run([]))
    assert main(["selftest", "--device", "cpu", "--largest", "tiny", "--seed", "5"]) == 0
    assert told.pop()[:3] == ("cpu", "tiny", 5)
    out, err = capsys.readouterr()
    assert out.startswith("dubnb 1\nnumba 2\n\n") and out.endswith(f"\n\n{selftest_command.INVITATION}\n") and err == ""
    assert out.splitlines()[4].split() == ["dub", "tiny", "cpu", "pass", "alike", "2.0", "1.50", "1.20-1.90"]
    assert out.splitlines()[5].split() == ["base", "tiny", "cpu", "pass", "alike", "-", "-", "-"]
    monkeypatch.setattr(selftest, "run", run(["a GPU", "all else"]))
    assert main(["selftest"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nskipped: a GPU\nskipped: all else\n") and selftest_command.INVITATION not in out
    assert told.pop()[:3] == ("auto", "large", 0)
    assert main(["selftest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checks"][1]["passed"] is True


def test_warmup_fits_each_and_counts_kernels(monkeypatch, capsys, tmp_path):
    from dubnb import _jit, _kernel_cache
    from dubnb.cli import warmup

    made = []
    for number in (1, 2):
        (tmp_path / f"{number}.kernel").write_bytes(b"x" * 1_000_000 * number)
    fitted = SimpleNamespace(fit=lambda data: SimpleNamespace(evaluate=lambda data: None))
    monkeypatch.setattr(dubnb, "make", lambda method, **params: made.append((method, params)) or fitted)
    monkeypatch.setattr(dubnb, "load_dataset", lambda name: name)
    monkeypatch.setattr(_jit, "JIT_ENABLED", True)
    monkeypatch.setattr(_kernel_cache, "directories", lambda: ("/nowhere", "/no", str(tmp_path)))
    monkeypatch.setattr(
        warmup, "_fits", lambda: [("base", {"backbone": "mf"}), ("dub", {"backbone": "mf", "solver": "exact"})]
    )
    assert main(["warmup"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == ["1/2 base, mf", "2/2 dub, mf, exact"]
    assert out == f"2 kernels, 3.0 MB: {tmp_path}\n" and made[0] == ("base", warmup.TINY | {"backbone": "mf"})
