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
from dubnb._check import DivergenceError, InputError, Terminated
from dubnb.cli import _options, _output, main
from dubnb.cli import selftest as selftest_command
from dubnb.cli._options import Parser
from dubnb.experiments.compare import Claim, Compared, Verdict
from dubnb.experiments.study import Case
from dubnb.experiments.systems import Choice, System
from dubnb.methods import METHODS
from dubnb.sweeps.runner import Resources


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


def test_words_come_from_the_command_line_where_none_are_given(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["dubnb", "fit", "--metod", "dub"])
    assert main() == 2
    assert "did you mean '--method'?" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["dubnb", "fti"])
    assert main() == 2
    assert "command='fti' is unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, code, said",
    [
        (MemoryError("4 GB"), 1, "out of memory: 4 GB"),
        (
            MemoryError(),
            1,
            "out of memory: allow more (`ulimit -v`, or the container's limit), or lower rank or the number of pairs",
        ),
        (
            RuntimeError("can't start new thread"),
            1,
            "the system refused a thread (can't start new thread): allow more memory (`ulimit -v`) or processes "
            "(`ulimit -u`)",
        ),
        (RuntimeError("x"), 1, "unexpected RuntimeError: x (--traceback shows where)"),
        (DivergenceError("diverged"), 1, "diverged"),
        (InputError("bad"), 2, "bad"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (Terminated(), 143, "stopped by SIGTERM"),
        (Terminated("3 trials are kept"), 143, "stopped by SIGTERM: 3 trials are kept"),
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
    assert main(["export", "--model", "m.npz", "--out", "x", "--traceback"]) == code
    assert "Traceback" in capsys.readouterr().err


# ---- values ----------------------------------------------------------------------------------------------------------


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
        _options.parse_value("x", text, kind)


# ---- the data --------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch):
    """What `load_data` asks the library for."""
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
        _options.load_data(options(_options.add_data_options, *words))
        return loaded.pop()

    assert load("--data", "coat", "--data-dir", "d")[1:] == (("coat",), {"seed": 0, "data_dir": "d", "quiet": True})
    assert load("--data", "simulated", "--data-seed", "4")[2]["seed"] == 4
    files = ("--biased", "b.csv", "--random", "r.csv")
    own = {"split_seed": 0, "quiet": True}
    assert load(*files) == ("frames", ("b.csv", "r.csv"), own)
    assert load("--log", "l.csv", "--is-random", "rnd") == ("table", ("l.csv",), {"is_random": "rnd"} | own)
    columns = {name: f"the {name}" for name in _options.COLUMNS}
    words = [word for name, value in columns.items() for word in (f"--{name.replace('_', '-')}", value)]
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
def test_missing_data_options_are_refused(words, said, loaded):
    with pytest.raises(InputError, match=said):
        _options.load_data(options(_options.add_data_options, *words))
    assert not loaded


def test_facts_and_words_of_the_data(data):
    about = {"name": "tiny", "fingerprint": data.fingerprint, "users": 60, "items": 30}
    sizes = {part: len(data.triplets(part).labels) for part in ("S_c", "S_t", "S_va", "S_te")}
    more = {"pairs": sizes, "removed_from_S_c": data.removed, "held_back": 0, "split": None}
    assert _options.data_document(data) == about | more
    assert len(set(sizes.values())) > 2
    words = ["--log", "my log.csv", "--is-random", "rnd", "--user", "u", "--threshold", "3"]
    args = options(_options.add_data_options, *words)
    assert _options.data_words(args) == ["--data-seed", "0", *words[:-1], "3.0"]


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


# ---- fit -------------------------------------------------------------------------------------------------------------


def test_help_fits_a_screen_and_leads_to_the_lists(capsys, monkeypatch):
    from dubnb.data.datasets import DATASETS

    def printed(*words, columns="80"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit) as end:
            main(list(words))
        assert end.value.code == 0
        return capsys.readouterr().out

    for columns in ("80", "100"):
        text = printed("fit", "--help", columns=columns)
        assert len(text.splitlines()) <= 40 and "--help-methods" in text and "--help-data" in text
    methods, data = printed("sweep", "--help-methods"), printed("audit", "--help-data")
    assert {line.split()[0] for line in methods.splitlines() if line.strip()} >= set(METHODS)
    assert "ips           also propensity, clip, normalise" in methods
    budgets = printed("compare", "--help").partition("budgets:")[2].partition("example:")[0]
    assert "quick" in budgets and max(map(len, [*methods.splitlines(), *budgets.splitlines()])) < 80
    assert {line.split()[0] for line in data.splitlines() if line.strip()} >= set(DATASETS) | {"--sep", "--drop-bad"}


# ---- recommend -------------------------------------------------------------------------------------------------------


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
        (["--users", "x,y"], "2 of 2 users are not ids of the model's kind (int): 'x', 'y'; give ids like 10"),
        (["--users-file", folder / "none.txt"], "has no ids"),
        (["--users", "10", "--filter", "f.csv"], "--filter writes a file: say where with --out"),
        (["--all"], "--all writes a file"),
        (["--all", "--out", paths["int"]], "exists already"),
    ):
        code, out, err = say("recommend", "--model", paths["int"], *words)
        assert (code, out) == (2, "") and said in err


@pytest.fixture
def listed(say, tmp_path):
    """The pairs that `recommend --all` lists, as text."""
    out = tmp_path / "lists.csv"

    def run(model, *words):
        code, _, err = say("recommend", "--model", model, "--all", "-k", 4, "--out", out, "--overwrite", *words)
        assert code == 0, err
        return set(map(tuple, pd.read_csv(out, dtype=str)[["user", "item"]].to_numpy()))

    return run


@pytest.mark.parametrize("kind", ["int", "str"])
def test_candidates_come_from_a_table(kind, popular, say, listed, tmp_path):
    path, model = tmp_path / "filter.csv", popular[0][kind]
    everything, known = listed(model), dubnb.load(model)
    users, items = known.user_ids_.values, known.item_ids_.values
    unknown = 99 if kind == "int" else "zz"

    def allowed(**columns):
        pd.DataFrame(columns).to_csv(path, index=False)
        return listed(model, "--filter", path)

    def of_items(*wanted):
        return {pair for pair in everything if pair[1] in map(str, wanted)}

    assert allowed(item=[items[2], unknown, items[0], items[2]]) == of_items(items[2], items[0]) < everything
    assert allowed(item=[items[3]]) == of_items(items[3]) != set()
    some = sorted(everything)[::2]
    rows = [*some, some[0], (unknown, items[0]), (users[1], unknown)]
    assert allowed(user=[user for user, _ in rows], item=[item for _, item in rows]) == set(some) < everything
    pd.DataFrame({"item": [items[3]]}).to_parquet(tmp_path / "filter.parquet")
    assert listed(model, "--filter", tmp_path / "filter.parquet") == of_items(items[3])
    for columns, said in (
        ({"item": [unknown]}, "names no item that the model knows"),
        ({"other": [1]}, "has no column 'item'"),
        ({"item": []}, "no rows"),
        ({"item": [items[0], ""]}, "filter.csv: column 'item', row 2: id"),
        (None, "filter.csv"),
    ):
        path.unlink()
        if columns is not None:
            pd.DataFrame(columns).to_csv(path, index=False)
        code, _, err = say("recommend", "--model", model, "--all", "--out", tmp_path / "x.csv", "--filter", path)
        assert code == 2 and said in err and not (tmp_path / "x.csv").exists()
        path.touch()


def test_ids_of_the_shell_are_read_as_fit_reads_them(popular, say, tmp_path):
    """Whole numbers are plain ones: 007, +7 and 1_0 are other ids. 7.0 is 7, as pandas writes it."""
    paths, _ = popular
    users = ["10", " 11 ", "12.0", str(2**64 - 1), "-7"]
    wrong = ["010", "+10", "1_0", "1e1", "\u0661\u0660", str(2**64), "NA", "9" * 21]
    (tmp_path / "users").write_text("\n".join(users + wrong), encoding="utf-8")
    code, out, _ = say("recommend", "--model", paths["int"], "--users-file", tmp_path / "users", "--json")
    assert code == 2, "no column holds both -7 and 2**64 - 1"
    (tmp_path / "users").write_text("\n".join(users[:-1] + wrong), encoding="utf-8")
    code, out, _ = say("recommend", "--model", paths["int"], "--users-file", tmp_path / "users", "--json")
    assert [entry["user"] for entry in json.loads(out)["users"]] == [10, 11, 12, 2**64 - 1]
    assert code == 0 and json.loads(out)["unknown"] == wrong
    (tmp_path / "f.csv").write_text("user,item\n10,052\n10,53\n010,52\nNA,52\n")
    words = ("--users", "10,11", "--filter", tmp_path / "f.csv", "--out", tmp_path / "r.csv")
    code, _, err = say("recommend", "--model", paths["int"], *words)
    assert code == 0 and "3 of 4 rows have ids that the model does not know, such as user '10' and item '052'" in err
    assert pd.read_csv(tmp_path / "r.csv")[["user", "item"]].to_numpy().tolist() == [[10, 53]]
    code, _, err = say(
        "recommend", "--model", paths["int"], *words[:3], tmp_path / "none.csv", *words[4:], "--overwrite"
    )
    assert code == 2 and "--filter" in err and err.count("\n") == 1


def test_NA_and_null_are_ids_in_every_file(say, tmp_path):
    """What `fit` accepts as an id, --filter and --users-file accept too."""
    (tmp_path / "b.csv").write_text("user,item,label\nNA,null,1\nnull,x,1\nNA,x,0\n7,y,1\n")
    (tmp_path / "r.csv").write_text("user,item,label\nNA,y,1\nnull,null,0\nnull,y,1\n7,x,0\n7,7,1\n")
    data = dubnb.Partition.from_frames(tmp_path / "b.csv", tmp_path / "r.csv")
    dubnb.make("popularity").fit(data).save(tmp_path / "m.npz")
    out = tmp_path / "lists.csv"

    def listed(users, *words):
        (tmp_path / "users").write_text(users)
        given = ("--users-file", tmp_path / "users", "--out", out, "--overwrite", *words)
        assert say("recommend", "--model", tmp_path / "m.npz", *given)[0] == 0
        return set(map(tuple, pd.read_csv(out, dtype=str, keep_default_na=False)[["user", "item"]].to_numpy()))

    assert listed("NA\nnull\n") >= {("NA", "7"), ("null", "7"), ("null", "null")}
    (tmp_path / "f.csv").write_text("item\nnull\n")
    assert listed("null\n7\n", "--filter", tmp_path / "f.csv") == {("null", "null"), ("7", "null")}
    (tmp_path / "f.csv").write_text("user,item\nNA,7\nnull,null\n7,7\n7,NA\n")
    assert listed("NA\nnull\n", "--filter", tmp_path / "f.csv") == {("NA", "7"), ("null", "null")}


def test_text_ids_of_digits_stay_text(listed, tmp_path):
    """A CSV file's 007 is the id "007" where the model's ids are text, of users and of items alike."""
    biased = frame(["007", "008", "007"], ["01", "01", "02"], [1, 1, 0])
    data = dubnb.Partition.from_frames(biased, frame(["007", "008", "008"], ["03", "03", "02"], [1, 0, 1]))
    path, model = tmp_path / "filter.csv", tmp_path / "m.npz"
    dubnb.make("popularity").fit(data).save(model)
    everything = listed(model)
    pair = sorted(everything)[0]
    path.write_text("user,item\n" + ",".join(pair) + "\n")
    assert listed(model, "--filter", path) == {pair} < everything
    path.write_text("user,item\n" + ",".join(each.lstrip("0") for each in pair) + "\n")
    assert listed(model, "--filter", path) == set()


# ---- commands that run many fits -------------------------------------------------------------------------------------


def swept(**changes):
    trials = pd.DataFrame({"status": ["done", "failed", "done"], "reason": [None, "diverged", None]})
    numbers = {"mean": 0.75, "std": 0.0707, "values": [0.7, 0.8]}
    few = {"mean": 0.3, "std": None, "values": [None, 0.3]}
    best = {"point": {"lam": 0.1, "rank": 4}, "protocol": "full-ranking"}
    best["metrics"] = {"va_auc": numbers, "auc": few, "truth_p@5": numbers, "personal": numbers}
    return SimpleNamespace(**({"out": "runs/x", "trials": trials, "best": best} | changes))


@pytest.fixture
def sweeps(monkeypatch):
    """Sweeps that are not run: what each was given, and the result of all."""
    calls = SimpleNamespace(given=[], result=swept())

    def sweep(*given, **named):
        calls.given.append((given, named))
        return calls.result

    monkeypatch.setattr("dubnb.sweeps.run.sweep", sweep)
    monkeypatch.setattr(_options, "load_data", lambda args: "the log")
    return calls


def test_sweep_command_passes_its_options_on(sweeps, tmp_path, capsys):
    out = str(tmp_path / "s")
    command = ["sweep", "--method", "dub", "--out", out, "--quiet"]
    assert main(command) == 0
    (given, named), defaults = sweeps.given.pop(), {"n_jobs": 1, "full": False, "halving": False}
    assert given == (METHODS["dub"], "mf", "the log", "wide")
    defaults |= {"scheduler": None, "time_limit": None, "retries": 2, "retry_failed": False, "pretrained": None}
    defaults |= {"out": out, "seeds": range(1), "random": None, "fixed": {}, "select": "auc", "quiet": True}
    assert named == defaults | {"protocol": "full-ranking"}
    words = "--seeds 3 --seed 4 --n-jobs 2 --random-search 5 --set rank=4 --select ndcg,0.5,auc --grid even"
    words = f"{words} --backbone ncf --retries 0 --halving --full --retry-failed --time-limit 9".split()
    assert main([*command, *words]) == 0
    given, named = sweeps.given.pop()
    assert given[1:] == ("ncf", "the log", "even") and named["seeds"] == range(4, 7) and named["fixed"] == {"rank": 4}
    assert (named["select"], named["random"], named["n_jobs"]) == (("ndcg", 0.5, "auc"), 5, 2)
    assert (named["retries"], named["time_limit"], named["halving"], named["full"]) == (0, 9.0, True, True)
    assert main([*command, "--select", "auc,ndcg"]) == 0 and sweeps.given.pop()[1]["select"] == "auc,ndcg"
    capsys.readouterr()
    assert main([*command, "--select", "auc,x,ndcg"]) == 2 and not sweeps.given
    assert "tolerance must be a number" in capsys.readouterr().err


def test_a_sweep_s_outcome_in_words(sweeps, tmp_path, capsys):
    command = ["sweep", "--method", "dub", "--out", str(tmp_path / "s")]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert err == "dubnb: warning: a trial ended with diverged\n"
    lines = out.splitlines()
    assert lines[0] == "runs/x: 2 done, 1 failed" and "lam=0.1, rank=4" in lines[1]
    assert [line.split() for line in lines[4:]] == [
        ["va_auc", "0.7500", "0.0707", "0.7000", "0.8000"],
        ["auc", "0.3000", "-", "-", "0.3000"],
        ["truth_p@5", "0.7500", "0.0707", "0.7000", "0.8000"],
    ]
    assert main([*command, "--json"]) == 0
    document = {"out": "runs/x", "trials": {"done": 2, "failed": 1}, "best": sweeps.result.best}
    assert json.loads(capsys.readouterr().out) == document
    many = pd.DataFrame({"status": ["failed"] * 5, "reason": ["a", "b", "a", "c", "d"]})
    sweeps.result = swept(trials=many, best=None)
    assert main(command) == 1
    *reasons, error = capsys.readouterr().err.splitlines()
    assert "no point finished on all its seeds: see the reasons in runs/x/" in error
    assert [line[-1] for line in reasons] == ["a", "b", "c"]


def test_how_a_sweep_stands_in_words(monkeypatch, capsys):
    now = {"method": "dub", "backbone": "mf", "running": True, "counts": {"failed": 1, "done": 2}, "trials": 9}
    now |= {"select": ["ndcg"], "best": {"metrics": {"va_ndcg": 0.25}}, "damaged": 3}
    monkeypatch.setattr("dubnb.sweeps.run.status", lambda out: now | {"out": out})
    assert main(["sweep", "--status", "runs/x"]) == 0
    text = capsys.readouterr().out
    assert "dub (mf), running" in text and "2 done, 1 failed; 9 asked for last" in text
    assert "va_ndcg 0.2500" in text and "3 rows are damaged" in text
    now |= {"running": False, "counts": {}, "best": None, "damaged": 0}
    assert main(["sweep", "--status", "runs/y"]) == 0
    text = capsys.readouterr().out
    assert "not running" in text and "none yet" in text and "damaged" not in text
    assert main(["sweep", "--status", "runs/y", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == "runs/y"


def test_compare_and_reproduce_pass_on_what_was_said(data, monkeypatch, capsys, tmp_path):
    told, out, verdicts = [], str(tmp_path / "r"), [()]
    monkeypatch.setattr(_options, "load_data", lambda args: data)

    def compared(*given):
        told.append(given)
        base, dub = (Case(System(name, name, "mf")) for name in ("base", "dub"))
        claim = Claim("percentile", dub, base, "difference", 0.02, 0.01, 0.03)
        verdict = Verdict(dub, base, [dub], [claim], verdicts[-1])
        answer, report = ["Take dub.", "It is better."], f"{out}/report.html"
        return Compared(answer, "dub", None, None, "percentile", verdict, None, {}, report, out)

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
        selftest.DeviceCheck("dub", "tiny", "cpu", True, "alike", 2.04, (1.5, 1.2, 1.9)),
        selftest.DeviceCheck("base", "tiny", "cpu", True, "alike"),
    ]

    def run(skipped):
        return lambda *given: (
            told.append(given) or selftest.SelftestResult({"dubnb": "1", "numba": "2"}, checks, skipped)
        )

    monkeypatch.setattr(selftest, "run", run([]))
    assert main(["selftest", "--device", "cpu", "--largest", "tiny", "--seed", "5"]) == 0
    assert told.pop()[:3] == ("cpu", "tiny", 5)
    out = capsys.readouterr().out
    assert out.splitlines()[4].split() == ["dub", "tiny", "cpu", "pass", "alike", "2.0", "1.50", "1.20-1.90"]
    assert out.splitlines()[5].split() == ["base", "tiny", "cpu", "pass", "alike", "-", "-", "-"]
    assert selftest_command.INVITATION in out
    monkeypatch.setattr(selftest, "run", run(["a GPU", "all else"]))
    assert main(["selftest"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nskipped: a GPU\nskipped: all else\n") and selftest_command.INVITATION not in out
    assert told.pop()[:3] == ("auto", "large", 0)
    assert main(["selftest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checks"][1]["passed"] is True
