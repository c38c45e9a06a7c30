"""Sweeps that nothing disturbs: grids, selection, shared pre-training, resuming, halving, files, bad input."""

import contextlib
import errno
import json
import mmap
import os
import sqlite3
import subprocess

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import cli
from dubnb.methods import METHODS
from dubnb.sweeps import SweepError, grid, local, runner, status, worker
from dubnb.sweeps import ledger as ledgers
from dubnb.sweeps.ledger import LEDGER, LOCK, Ledger, only_driver
from dubnb.sweeps.trial import planned, trial_key
from dubnb.sweeps.worker import Pretrained
from tests.sweep_tools import FIXED, QUICK, Faulty, comparable, fits, tiny_log

GRID = {"rank": [2, 3], "gamma": [0.1, 1.0]}
TWO_EPOCHS = {"quiet": True, "fixed": {"epochs": 2}}


def snapshot(directory):
    """The content of every file, except those that SQLite keeps beside an open database."""
    kept = [
        path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix[-4:] not in ("-shm", "-wal")
    ]
    return {path: path.read_bytes() for path in kept}


# ---- grids

SEARCHED = [name for name, method in METHODS.items() if not method.is_baseline]  # baselines have nothing to search


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.parametrize("which", grid.NAMES)
def test_every_method_declares_grids_whose_points_are_all_valid(name, which):
    axes = grid.axes(METHODS[name], "mf", which, {}, tiny_log())
    points = grid.points(axes)
    assert len(points) == np.prod([len(values) for values in axes.values()]) > 1
    for point in points:
        planned(METHODS[name], tiny_log(), point)


def test_the_papers_grid():
    axes = grid.axes(dubnb.DUB, "mf", "paper", {}, tiny_log())
    assert axes["rank"] == [50, 100, 200] and axes["lam"] == axes["gamma"] == [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]


@pytest.mark.parametrize("name", SEARCHED)
def test_the_wide_grid_holds_the_defaults(name):
    axes = grid.axes(METHODS[name], "mf", "wide", {}, tiny_log())
    defaults = METHODS[name]().resolved_params(tiny_log())
    chosen_on_S_va = (None, "auto")
    assert all(defaults[each] in (*values, *chosen_on_S_va) for each, values in axes.items())


def test_random_search_draws_distinct_points_and_more_of_them_extend():
    axes = {"rank": list(range(1, 11)), "lam": [1e-5, 1e-4, 1e-3]}
    few, more = grid.points(axes, 5), grid.points(axes, 12)
    assert len(few) == 5 and len(more) == 12 and all(point in more for point in few)
    assert len({tuple(point.values()) for point in more}) == 12 and more != grid.points(axes)[:12]


def test_equal_values_have_equal_keys_whatever_their_type():
    keys = {trial_key("m", {"lam": value}, "d") for value in (1, 1.0, np.float64(1).item())}
    assert len(keys) == 1 and trial_key("m", {"lam": 2}, "d") not in keys
    assert trial_key("m", {"flag": True}, "d") != trial_key("m", {"flag": 1}, "d")
    assert trial_key("m", {"lam": 1}, "other") not in keys and trial_key("n", {"lam": 1}, "d") not in keys


# ---- whole sweeps


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of dub with two seeds, and where it is."""
    out = tmp_path_factory.mktemp("sweep") / "s"
    return dubnb.sweep("dub", data=tiny_log(), grid=GRID, out=out, seeds=2, n_jobs=2, **TWO_EPOCHS), out


def test_a_sweep_returns_trials_the_best_and_a_fitted_model(finished):
    found, _ = finished
    assert len(found.trials) == 8 and set(found.trials.status) == {"done"}
    assert found.trials.key.is_monotonic_increasing and found.trials.key.is_unique
    means = found.trials.groupby(["rank", "gamma"]).va_auc.mean()
    point = found.best["point"]
    assert means[point["rank"], point["gamma"]] == pytest.approx(means.max())
    assert found.best["metrics"]["va_auc"]["mean"] == pytest.approx(means.max())
    assert found.best["seeds"] == [0, 1] and len(found.best["metrics"]["auc"]["values"]) == 2
    assert found.best_params["gamma"] == point["gamma"] and "seed" not in found.best_params


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_best_model_fitted_again_has_the_recorded_metrics(finished):
    found, _ = finished
    model = found.fit_best(seed=1)
    assert model.evaluate(tiny_log())["auc"] == found.best["metrics"]["auc"]["values"][1]


def test_files_are_derived_from_the_ledger(finished):
    found, out = finished
    written = pd.read_csv(out / "results.csv")
    assert list(written.columns) == list(found.trials.columns) and (written.va_auc == found.trials.va_auc).all()
    assert {"rank", "lam", "gamma", "seed", "va_auc", "auc", "ndcg", "protocol"} <= set(written.columns)
    assert json.loads((out / "best.json").read_text()) == json.loads(json.dumps(found.best))
    assert sorted(os.listdir(out)) == [
        "best.json",
        "best.npz",
        "ledger.sqlite",
        "lock.sqlite",
        "pretrained",
        "results.csv",
    ]
    row = Ledger(out).rows()[0]
    assert (
        row["data"] == tiny_log().fingerprint
        and row["versions"]["dubnb"]
        and 30 < row["peak_mb"] < 20_000
        and row["seconds"] > 0
    )


def test_models_are_pretrained_once_for_all_who_share_them(finished):
    _, out = finished
    rows = Ledger(out).rows()
    n_shared = 2 * 2 * 2  # M_c and M_t, per rank and seed
    assert sum(row["trained"] for row in rows) == n_shared == len(list((out / "pretrained").iterdir()))
    assert sum(row["reused"] for row in rows) == 2 * len(rows) - n_shared


def test_results_do_not_depend_on_the_number_of_workers(finished, tmp_path):
    found, _ = finished
    alone = dubnb.sweep("dub", data=tiny_log(), grid=GRID, out=tmp_path / "s", seeds=2, n_jobs=1, **TWO_EPOCHS)
    assert comparable(alone.trials).equals(comparable(found.trials)) and alone.best == found.best


def test_running_again_runs_nothing_and_a_wider_grid_runs_the_rest(tmp_path):
    fixed = FIXED | {"where": str(tmp_path)}
    arguments = {"data": tiny_log(), "out": tmp_path / "s", "fixed": fixed, "quiet": True}
    first = dubnb.sweep(Faulty, grid={"lam": [1e-4, 1e-3]}, **arguments)
    again = dubnb.sweep(Faulty, grid={"lam": [1e-4, 1e-3]}, **arguments)
    assert len(fits(tmp_path)) == 2 and again.trials.equals(first.trials) and again.best == first.best
    wider = dubnb.sweep(Faulty, grid={"lam": [1e-4, 1e-2]}, seeds=2, **arguments)
    assert len(fits(tmp_path)) == 5 and len(wider.trials) == 5 and wider.best["points"] == 2


def test_running_again_removes_what_a_killed_driver_left_even_if_nothing_is_to_run(tmp_path):
    arguments = {"data": tiny_log(), "grid": {"lam": [1e-4]}, "out": tmp_path, **QUICK}
    dubnb.sweep("base", **arguments)
    left = [tmp_path / local.DATA, tmp_path / ".dubnb-1.tmp", tmp_path / "pretrained" / ".dubnb-2.tmp"]
    for path in left:
        path.write_bytes(b"half")
    dubnb.sweep("base", **arguments)
    assert not any(path.exists() for path in left)


def test_abandoned_temporaries_in_a_shared_directory_are_removed(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    old, new = shared / ".dubnb-old.tmp", shared / ".dubnb-new.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    dubnb.sweep("base", data=tiny_log(), grid={"lam": [1e-4]}, out=tmp_path / "s", pretrained=shared, **QUICK)
    assert not old.exists() and new.exists()


def test_semaphores_of_a_killed_driver_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SHARED_MEMORY", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    theirs, alive, others = (tmp_path / f"sem.loky-{pid}-x" for pid in (dead.pid, os.getpid(), 10**7))
    for path in (theirs, alive, others):
        path.touch()
    arguments = {"data": tiny_log(), "grid": {"lam": [1e-4]}, "out": tmp_path / "s", **QUICK}
    dubnb.sweep("base", **arguments)
    assert theirs.exists() and Ledger(tmp_path / "s").about("drivers") == [os.getpid()]
    with contextlib.closing(Ledger(tmp_path / "s", {})) as ledger:
        ledger.note("drivers", [dead.pid, os.getpid()])
    dubnb.sweep("base", **arguments)
    assert not theirs.exists() and alive.exists() and others.exists()


def test_a_full_disk_names_the_file_and_the_remedy(tmp_path, monkeypatch):
    data = tiny_log()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local, "open", full, raising=False)
    with pytest.raises(SweepError, match=r"No space left on device; make room there.*data\.bin"):
        dubnb.sweep("base", data=data, grid={"lam": [1e-4]}, out=tmp_path / "s", **QUICK)
    assert not (tmp_path / "s" / "data.bin").exists()


def test_no_more_workers_start_than_there_are_trials(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(local, "Slot", lambda *args, slot=local.Slot: made.append(slot(*args)) or made[-1])
    dubnb.sweep("base", data=tiny_log(), grid={"lam": [1e-4]}, out=tmp_path / "s", n_jobs=50, **QUICK)
    assert len(made) == 1


@pytest.mark.parametrize(
    "select, best", [(["auc", 0.0, None], "a"), (["ndcg", 0.0, None], "b"), (["auc", 0.1, "p@5"], "c")]
)
def test_status_ranks_by_what_the_sweep_selects_on(select, best, tmp_path):
    values = {"a": (0.9, 0.1, 0.0), "b": (0.5, 0.8, 0.9), "c": (0.85, 0.5, 0.3)}
    with contextlib.closing(Ledger(tmp_path, {"method": "m"})) as ledger:
        ledger.note("select", select)
        for key, numbers in values.items():
            metrics = dict(zip(("va_auc", "va_ndcg", "va_p@5"), numbers, strict=True))
            ledger.record({"key": key, "status": "done", "params": {}, "metrics": metrics})
    assert status(tmp_path)["best"]["key"] == best and status(tmp_path)["select"] == select


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_best_model_is_left_as_a_file_and_follows_the_best(tmp_path):
    data, out = tiny_log(), tmp_path / "s"
    arguments = {"data": data, "out": out, "seeds": [3, 4], **QUICK}
    found = dubnb.sweep("base", grid={"lam": [1e-1]}, **arguments)
    model = dubnb.load(out / "best.npz")
    assert model.params_["lam"] == 1e-1 and model.params_["seed"] == 3
    assert model.evaluate(data)["auc"] == found.best["metrics"]["auc"]["values"][0]
    content, written = (out / "best.npz").read_bytes(), (out / "best.npz").stat().st_mtime_ns
    dubnb.sweep("base", grid={"lam": [1e-1]}, **arguments)
    assert (out / "best.npz").stat().st_mtime_ns == written  # nothing has changed, so nothing is fitted
    (out / "best.npz").write_bytes(content[:-1])
    dubnb.sweep("base", grid={"lam": [1e-1]}, **arguments)
    pairs = np.arange(40), np.arange(40)
    again = dubnb.load(out / "best.npz")
    assert (again.decision_function(*pairs) == model.decision_function(*pairs)).all()
    wider = dubnb.sweep("base", grid={"lam": [1e-1, 1e-6, 1.0]}, select="ndcg", **arguments)
    assert dubnb.load(out / "best.npz").params_["lam"] == wider.best["point"]["lam"]


def test_a_damaged_row_is_run_again_and_said(tmp_path, capsys):
    out, fixed = tmp_path / "s", FIXED | {"where": str(tmp_path)}
    arguments = {"data": tiny_log(), "grid": {"lam": [1e-4, 1e-3, 1e-2]}, "out": out, "fixed": fixed, "quiet": True}
    first = dubnb.sweep(Faulty, **arguments)
    with contextlib.closing(sqlite3.connect(out / LEDGER)) as connection, connection:
        connection.execute(
            "UPDATE trials SET metrics = replace(metrics, '0.', '0.9') WHERE key = ?", (first.trials.key[1],)
        )
    now = status(out)
    assert now["damaged"] == 1 and now["counts"] == {"done": 2}
    again = dubnb.sweep(Faulty, **arguments)
    assert len(fits(tmp_path)) == 4 and "1 rows of the ledger are damaged" in capsys.readouterr().err
    assert comparable(again.trials).equals(comparable(first.trials)) and status(out)["damaged"] == 0


def test_halving_gives_survivors_the_whole_of_the_epochs(tmp_path):
    fixed = {"rank": 2, "epochs": 9}
    arguments = {"data": tiny_log(), "grid": {"lam": [1e-5, 1e-4, 1e-3, 1e-2]}, "fixed": fixed, "quiet": True}
    found = dubnb.sweep("base", out=tmp_path / "a", halving=True, n_jobs=2, **arguments)
    assert found.trials.groupby("epochs").size().to_dict() == {1: 4, 3: 2, 9: 1} and found.best_params["epochs"] == 9
    again = dubnb.sweep("base", out=tmp_path / "b", halving=True, **arguments)
    assert comparable(again.trials).equals(comparable(found.trials))


def test_a_damaged_pretrained_model_is_trained_again(tmp_path):
    arguments = {"data": tiny_log(), "pretrained": str(tmp_path / "p"), "quiet": True}
    arguments["fixed"] = QUICK["fixed"] | {"pretrain_terms": "c"}  # or bridge and dub start elsewhere on so small a log
    first = dubnb.sweep("dub", grid={"gamma": [0.1]}, out=tmp_path / "a", **arguments)
    damaged = sorted((tmp_path / "p").iterdir())
    assert len(damaged) == 2
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-200])
    second = dubnb.sweep("dub", grid={"gamma": [0.1]}, out=tmp_path / "b", **arguments)
    bridge = dubnb.sweep("bridge", grid={"gamma": [0.1]}, out=tmp_path / "c", **arguments)
    assert comparable(second.trials).equals(comparable(first.trials)) and len(bridge.trials) == 1
    assert [Ledger(tmp_path / name).rows()[0]["trained"] for name in "abc"] == [2, 2, 0]


def test_a_store_that_cannot_be_written_only_costs_time(tmp_path):
    store = Pretrained(str(tmp_path / "missing"))
    store.put("key", dubnb.backbones.BACKBONES["mf"].new((3, 2), 2, 0, "c"), [{"seconds": 1.0, "va_auc": float("nan")}])
    assert store.get("key") is None and store.trained == 1
    store = Pretrained(str(tmp_path))
    store.put("key", dubnb.backbones.BACKBONES["mf"].new((3, 2), 2, 0, "c"), [{"seconds": 1.0, "va_auc": float("nan")}])
    _, rows = store.get("key")
    assert np.isnan(rows[0]["va_auc"]) and store.saved_seconds == 1.0


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_pretrained_tables_are_maps_of_a_file_that_equals_them(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "WORTH_MAPPING", 0)
    store, given = Pretrained(str(tmp_path)), dubnb.backbones.BACKBONES[backbone].new((31, 7), 5, 0, "t")
    for damage in (lambda path: None, lambda path: path.write_bytes(b"x" * 4096), lambda path: path.write_bytes(b"")):
        for found in (store.put("key", given, []), store.get("key")[0]):
            for name, expected in given.arrays().items():
                np.testing.assert_array_equal(found.arrays()[name], expected)
            for side in ("users", "items"):
                table, own = getattr(found, side), getattr(given, side)
                assert table is not own and table.flags.writeable and table.flags.c_contiguous
                assert table.ctypes.data % 64 == 0 and isinstance(base_of(table), mmap.mmap)
        (path,) = tmp_path.glob("*.rows")
        damage(path)
    path.unlink()
    path.mkdir()  # cannot be written: the weights are this process's own
    assert store.put("key", given, []) is given and not isinstance(base_of(store.get("key")[0].users), mmap.mmap)


def test_every_machine_has_a_file_of_rows_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "WORTH_MAPPING", 0)
    weights = dubnb.backbones.MF.new((31, 7), 5, 0, "t")
    for machine in ("one", "other", "one"):
        monkeypatch.setattr(worker.platform, "node", lambda machine=machine: machine)
        Pretrained(str(tmp_path)).put("key", weights, [])
    assert len(list(tmp_path.glob("*.rows"))) == 2 and len(list(tmp_path.glob("*.npz"))) == 1


def base_of(array):
    """What an array's memory belongs to."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def test_status_reports_the_state_of_a_sweep(finished):
    found, out = finished
    with only_driver(out):
        assert status(out)["running"]
    now = status(out)
    assert (
        now["select"] == ["auc", 0.0, None]
        and not now["running"]
        and now["counts"] == {"done": 8}
        and now["trials"] == 8
    )
    assert now["best"]["metrics"]["va_auc"] == found.trials.va_auc.max()
    document, text = cli.sweep._status(out)
    assert document == now and "8 done" in text


# ---- the command


@pytest.fixture
def command(monkeypatch, capsys):
    """`dubnb sweep` on the tiny log: (exit code, stdout, stderr)."""
    monkeypatch.setattr("dubnb.cli._options.load_data", lambda args: tiny_log())

    def command(*words):
        code = cli.main(["sweep", *words])
        return code, *capsys.readouterr()

    return command


def test_the_command_runs_a_sweep_and_resumes_it(tmp_path, command):
    out = str(tmp_path / "s")
    (tmp_path / "g.toml").write_text("lam = [1e-4, 1e-3]")
    words = f"--method base --grid {tmp_path}/g.toml --seeds 2 --seed 5 --set epochs=2 --set rank=2 --quiet --out {out}"
    words = [*words.split(), "--select", "auc,0.004,ndcg"]
    code, text, _ = command(*words)
    assert code == cli.DONE and "best on S_va: lam=" in text and "va_auc" in text
    code, document, _ = command(*words, "--json")
    assert json.loads(document)["trials"] == {"done": 4} and json.loads(document)["best"]["seeds"] == [5, 6]
    assert command(*words)[1] == text
    assert json.loads(command("--status", out, "--json")[1])["counts"] == {"done": 4}


@pytest.mark.parametrize(
    "words, said",
    [
        ("--out x", "--method"),
        ("--method base", "--out"),
        ("--method base --out x --set rank", "no value"),
        ("--method base --out x --set rank=1 --set rank=2", "twice"),
        ("--method base --out x --select auc,much,ndcg", "tolerance"),
        ("--method base --out x --seeds 0", "--seeds"),
        ("--status x", "not a sweep"),
    ],
)
def test_a_wrong_command_is_one_line(words, said, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*words.split())
    assert (code, out, err.count("\n")) == (cli.WRONG_USE, "", 1) and said in err
    assert not list(tmp_path.iterdir())


# ---- bad input


BAD = [
    ({"grid": {"gama": [1]}}, "gama"),
    ({"grid": {}}, "empty"),
    ({"grid": {"lam": []}}, "no value"),
    ({"grid": {"lam": [float("nan")]}}, "nan"),
    ({"grid": {"lam": [-1]}}, "lam=-1"),
    ({"grid": {"seed": [1]}}, "seeds="),
    ({"grid": {"lam": [10**400]}}, "beyond"),
    ({"seeds": [2**53, 2**53 + 1]}, "at most"),
    ({"seeds": 100_000_000}, "100,000,000 trials, at most 1,000,000"),
    ({"seeds": range(100_000_000)}, "take fewer seeds"),
    ({"grid": {"rank": list(range(1, 2000)), "lam": list(range(2000))}}, "at most"),
    ({"grid": "papre"}, "papre"),
    ({"grid": 3}, "TOML"),
    ({"method": "dubb"}, "did you mean"),
    ({"backbone": "mlp"}, "backbone"),
    ({"n_jobs": 0}, "n_jobs=0"),
    ({"n_jobs": -2}, "n_jobs"),
    ({"seeds": 0}, "seeds=0"),
    ({"seeds": [1, 1]}, "none twice"),
    ({"random": 0}, "random=0"),
    ({"select": "recall"}, "select"),
    ({"select": ("auc", -1, "ndcg")}, "tolerance"),
    ({"protocol": "best"}, "protocol"),
    ({"time_limit": 0}, "time_limit"),
    ({"retries": -1}, "retries"),
    ({"fixed": {"seed": 1}}, "seeds"),
    ({"fixed": {"nonsense": 1}}, "nonsense"),
    ({"halving": True, "grid": {"epochs": [1, 2]}}, "halving"),
    ({"data": "simulated"}, "Partition"),
]


@pytest.mark.parametrize("change, words", BAD, ids=[str(change)[:40] for change, _ in BAD])
def test_bad_input_is_one_line_and_touches_nothing(change, words, tmp_path):
    arguments = {"method": "dub", "data": tiny_log(), "grid": {"gamma": [1.0]}, "out": tmp_path / "s"} | change
    with pytest.raises(dubnb.InputError) as caught:
        dubnb.sweep(**arguments, quiet=True)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["lam = [1e-3", "", "lam = []"])
def test_a_bad_grid_file_is_one_line(content, tmp_path):
    (tmp_path / "g.toml").write_text(content)
    with pytest.raises(dubnb.InputError, match=r"g\.toml"):
        dubnb.sweep("dub", data=tiny_log(), grid=tmp_path / "g.toml", out=tmp_path / "s", quiet=True)
    assert os.listdir(tmp_path) == ["g.toml"]


def test_a_directory_that_is_not_a_sweep_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    for out, words in ((tmp_path, "not a sweep"), (tmp_path / "file", "is a file"), ("", "path")):
        before = snapshot(tmp_path)
        with pytest.raises(dubnb.InputError, match=words):
            dubnb.sweep("base", data=tiny_log(), grid={"lam": [1]}, out=out, quiet=True)
        assert snapshot(tmp_path) == before
    with pytest.raises(dubnb.InputError, match="not a sweep"):
        status(tmp_path)


def test_an_empty_ledger_of_a_killed_driver_can_be_used_for_a_new_sweep(tmp_path):
    (tmp_path / LEDGER).touch()
    with pytest.raises(dubnb.InputError, match="no sweep yet"):
        status(tmp_path)
    assert len(dubnb.sweep("base", data=tiny_log(), grid={"lam": [1]}, out=tmp_path, **QUICK).trials) == 1


def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(dubnb.InputError, match="is a directory"):
        dubnb.sweep("base", data=tiny_log(), grid={"lam": [1]}, out=tmp_path, **QUICK)


def test_a_ledger_of_the_last_format_is_resumed(tmp_path, monkeypatch):
    """Format 3 has no CPU seconds; its trials are kept and not run again."""
    options = {"data": tiny_log(), "out": tmp_path / "s", **TWO_EPOCHS}
    with monkeypatch.context() as patch:
        patch.setattr(ledgers, "FORMAT", 3)
        patch.setattr(ledgers, "COLUMNS", ledgers.FORMATS[3])
        before = dubnb.sweep("base", grid={"lam": [1e-3]}, **options).trials
    after = dubnb.sweep("base", grid={"lam": [1e-3, 1e-2]}, **options).trials
    assert len(after) == 2 and set(before["key"]) < set(after["key"])
    assert before["seconds"].tolist() == after[after["key"].isin(before["key"])]["seconds"].tolist()
    assert status(tmp_path / "s")


def test_a_ledger_of_an_older_definition_of_metrics_is_read_but_not_resumed(tmp_path, monkeypatch):
    options = {"data": tiny_log(), "out": tmp_path / "s", **TWO_EPOCHS}
    with monkeypatch.context() as patch:
        patch.setattr(ledgers, "FORMAT", 2)
        patch.setattr(ledgers, "RESUMED", (2,))
        patch.setattr(ledgers, "COLUMNS", ledgers.FORMATS[2])
        dubnb.sweep("base", grid={"lam": [1e-3]}, **options)
    assert status(tmp_path / "s")
    with pytest.raises(dubnb.InputError, match=r"an older dubnb \(format 2\): choose another --out"):
        dubnb.sweep("base", grid={"lam": [1e-3, 1e-2]}, **options)


def other_tables(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def newer_format(path):
    with contextlib.closing(Ledger(path.parent, {})) as ledger:
        ledger.note("format", 99)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE more (name TEXT)")


def older_format(path):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        connection.execute("INSERT INTO about VALUES ('format', '1')")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: path.write_text("Dear diary," * 1000), "damaged"),
        (other_tables, "other tables"),
        (newer_format, r"newer dubnb \(format 99\): upgrade"),
        (older_format, "older dubnb"),
    ],
)
def test_foreign_ledgers_are_refused_with_the_reason(make, words, tmp_path):
    make(tmp_path / LEDGER)
    for use in (status, lambda out: dubnb.sweep("base", data=tiny_log(), grid={"lam": [1]}, out=out, **QUICK)):
        with pytest.raises(dubnb.InputError, match=words) as caught:
            use(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_ledger_of_something_else_is_refused_with_what_differs(finished):
    _, out = finished
    before = snapshot(out)
    for change, words in (
        ({"method": "bridge"}, "method 'dub', not 'bridge'"),
        ({"backbone": "ncf"}, "backbone 'mf', not 'ncf'"),
        ({"protocol": "test-items"}, "protocol 'full-ranking', not 'test-items'"),
        ({"data": tiny_log(seed=1)}, "with data"),
    ):
        with pytest.raises(dubnb.InputError, match=words):
            dubnb.sweep(**{"method": "dub", "data": tiny_log(), "grid": GRID, "out": out} | change, **TWO_EPOCHS)
    assert snapshot(out) == before
