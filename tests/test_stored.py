"""A log larger than memory: S_c is read into files by ranges of users, and a fit gives the bytes of one in memory."""

import contextlib
import gc
import json
import os
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import cli
from dubnb.data import stored
from dubnb.data.log import LogOptions
from dubnb.data.partition import StoredPartition
from dubnb.data.pattern import Pattern
from dubnb.methods import dub_x
from dubnb.theory import audit, uniformity

FILES = 4
FIT = {"rank": 4, "gamma": 0.03, "epochs": 2}


@pytest.fixture(scope="module")
def frames():
    """(biased, random): text ids, repeated pairs, and pairs that both logs have."""
    data = dubnb.load_dataset("simulated", seed=0)

    def frame(part):
        pairs = data.triplets(part)
        users, items = data.user_ids.values[pairs.users], data.item_ids.values[pairs.items]
        return pd.DataFrame({"user": users, "item": items, "label": pairs.labels.astype(int)})

    biased, random = frame("S_c"), pd.concat(map(frame, ("S_t", "S_va", "S_te")))
    rng = np.random.default_rng(0)
    again = biased.sample(300, random_state=1).assign(label=lambda each: rng.integers(0, 2, len(each)))
    both = random.sample(200, random_state=2).assign(label=1)
    biased = pd.concat([biased, again, both]).sample(frac=1, random_state=3)
    biased["stars"] = 1 + 2 * biased["label"] + rng.integers(0, 3, len(biased))
    random["stars"] = 1 + 2 * random["label"] + rng.integers(0, 3, len(random))
    for each in (biased, random):
        each["when"] = rng.integers(0, 1000, len(each))
        each["w"] = rng.choice([0.5, 1.0, 2.0], len(each))
    return biased, random


@pytest.fixture(scope="module")
def logs(frames, tmp_path_factory):
    """{kind: (directory of the biased log, file of the randomized log)}."""
    biased, random = frames
    found = {}
    for kind in ("parquet", "csv"):
        root = tmp_path_factory.mktemp(kind)
        (root / "log").mkdir()
        for number, rows in enumerate(np.array_split(np.arange(len(biased)), FILES)):
            _write(biased.iloc[rows], root / "log" / f"{number}.{kind}")
        _write(random, root / f"random.{kind}")
        found[kind] = root / "log", root / f"random.{kind}"
    return found


def _write(frame, path):
    frame.to_parquet(path, index=False) if path.suffix == ".parquet" else frame.to_csv(path, index=False)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", 1500)


def both_ways(logs, tmp_path, **options):
    """(the Partition in memory, the one on disk), each with its warnings."""
    found = []
    for where in ({}, {"parts_dir": tmp_path / "parts"}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = dubnb.Partition.from_frames(*logs, **options, **where)
        found.append((data, sorted(str(each.message) for each in caught)))
    return found


def same(here, there):
    """Whether two fitted models save the same bytes."""
    one, other = here.weights_.arrays(), there.weights_.arrays()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    for own, others in zip(here.seen_, there.seen_, strict=True):
        np.testing.assert_array_equal(own, others)
    np.testing.assert_array_equal(here.cold_, there.cold_)
    assert here.data_ == there.data_ and here.params_ == there.params_ and here.calibration_ == there.calibration_


OPTIONS = [
    {},
    {"duplicates": "first", "timestamp": "when"},
    {"duplicates": "last"},
    {"duplicates": "mean", "weight": "w", "threshold": 0.5},
    {"label": "stars", "threshold": 2.5},
    {"label": "stars", "threshold": 2.5, "duplicates": "max", "user_type": "str"},
    {"timestamp": "when", "weight": "w", "split": "user"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_log_on_disk_has_the_pairs_and_the_warnings_of_one_in_memory(logs, tmp_path, kind, options):
    (here, said), (there, also_said) = both_ways(logs[kind], tmp_path, **options)
    assert isinstance(there, StoredPartition) and not isinstance(here, StoredPartition)
    assert said == also_said and here.summary() == there.summary() and here.removed
    assert len(list(there.ranges())) > 5
    ranges = [there.files.read(*each) for each in there.ranges()]
    for name, column in here.triplets("S_c")._asdict().items():
        if column is None:
            assert getattr(ranges[0], name) is None
        else:
            np.testing.assert_array_equal(np.concatenate([getattr(each, name) for each in ranges]), column)
    for name in ("seen", "logged"):
        for own, other in zip(getattr(here, name), getattr(there, name), strict=True):
            np.testing.assert_array_equal(own, other)
    for own, other in zip(here.overlap, there.overlap, strict=True):
        np.testing.assert_array_equal(own, other)
    for own, other in zip(here.biased_counts, there.biased_counts, strict=True):
        np.testing.assert_array_equal(own, other)
    for part in ("S_va", "S_te"):
        one, other = here.not_candidates(part), there.not_candidates(part)
        np.testing.assert_array_equal(one.sizes(), other.sizes())
        some = np.arange(0, here.n_users, 7)
        np.testing.assert_array_equal(one.mask(some, here.n_items), other.mask(some, here.n_items))
    assert here.fingerprint == there.fingerprint


def test_read_log_distributed_gives_the_partition_of_a_log_on_disk(logs, tmp_path):
    biased, random = logs["csv"]
    options = {"label": "stars", "threshold": 2.5, "user_type": "str", "timestamp": "when"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = dubnb.Partition.from_frames(biased, random, **options)
        data = dubnb.read_log(biased, distributed=True, random=random, parts_dir=tmp_path / "parts", **options)
    assert isinstance(data, StoredPartition) and data.fingerprint == expected.fingerprint
    for wrong, said in (
        ({"distributed": True, "random": random}, "keeps the log's pairs on disk: say where with parts_dir="),
        ({"distributed": True, "parts_dir": tmp_path}, "give the randomized one as random="),
        ({"distributed": True, "parts_dir": tmp_path, "random": random, "columns": ["user"]}, "columns= is for a Data"),
        ({"parts_dir": tmp_path}, "parts_dir= goes with distributed=True"),
        ({"threshold": 2.5}, "threshold= goes with distributed=True"),
        ({"thresold": 2.5}, "parameter='thresold' is unknown.*did you mean 'threshold'"),
    ):
        with pytest.raises(dubnb.InputError, match=said):
            dubnb.read_log(biased, **wrong)


@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        ("dub-x", FIT, {}),
        ("dub-x", FIT | {"negative": "unobserved", "teacher": "item"}, {"label": "stars", "threshold": 2.5}),
        ("ials", {"rank": 4, "epochs": 2}, {}),
        ("ials", {"rank": 4, "epochs": 2, "terms": "acd"}, {}),
        ("dub", {"rank": 4, "epochs": 2, "loss": "squared", "solver": "exact"}, {}),
    ],
)
def test_a_fit_on_disk_gives_the_bytes_of_the_same_parts_in_memory(logs, tmp_path, name, settings, options):
    (here, _), (there, _) = both_ways(logs["parquet"], tmp_path, **options)
    one = dubnb.make(name, **settings).fit(here, parts=3)
    other = dubnb.make(name, **settings).fit(there, parts=3)
    same(one, other)
    assert one.evaluate(here) == other.evaluate(there)


def test_unread_columns_are_named_as_in_memory_also_by_the_threads_of_a_worker(frames, tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    for number in range(4):
        _write(frames[0][number::4].assign(position=1), tmp_path / "log" / f"{number}.csv")
    (_, said), (_, also_said) = both_ways((tmp_path / "log", frames[1].assign(slot=1)), tmp_path)
    named = [each for each in said if "position is not modelled" in each]
    assert said == also_said and len(named) == 2

    together, open_files = threading.Barrier(4), stored.open_files

    def slow(*args):
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)
        return open_files(*args)

    monkeypatch.setattr(stored, "open_files", slow)
    files, paths = stored.Files(str(tmp_path)), [str(tmp_path / "log" / f"{number}.csv") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        spilled = pool.map(lambda k: stored.spill_file(files, k, paths[k], (), False, LogOptions()), range(4))
        for path, file in zip(paths, spilled, strict=True):
            assert [message.split(":")[0] for message, _ in file.said] == [path]


def test_popularity_needs_the_counts_alone(logs, tmp_path):
    (here, _), (there, _) = both_ways(logs["parquet"], tmp_path)
    for name in ("popularity", "popularity-t"):
        one, other = (dubnb.make(name).fit(data) for data in (here, there))
        same(one, other)
        assert one.evaluate(here) == other.evaluate(there)


@pytest.mark.parametrize("scheduler", [[], ["--scheduler", "tcp://127.0.0.1:9"]])
def test_the_command_refuses_what_a_method_cannot_use_before_it_reads(logs, tmp_path, monkeypatch, capsys, scheduler):
    """popularity takes a directory of files, whose workers read it; other methods without row solves do not."""
    biased, random = map(str, logs["parquet"])
    words = ["fit", "--biased", biased, "--random", random, "--out", str(tmp_path / "m.npz"), "--quiet", *scheduler]
    read, asked = dubnb.Partition.from_frames, []

    def watched(*tables, scheduler, **options):
        asked.append(scheduler)
        return read(*tables, **options)

    monkeypatch.setattr(dubnb.Partition, "from_frames", watched)
    on_disk = ["--parts-dir", str(tmp_path / "parts")]
    assert not cli.main([*words, "--method", "popularity", *on_disk])
    assert asked == [scheduler[1] if scheduler else None]
    given = "--scheduler" if scheduler else "--parts-dir"
    for name, more in (("base", on_disk), ("popularity", [*on_disk, "--parts", "2"])):
        capsys.readouterr()
        assert cli.main([*words, "--method", name, *more, "--overwrite"]) == 2
        said = capsys.readouterr().err
        given = "--parts 2" if "--parts" in more else given
        assert f"{given} is for methods with row solves" in said and len(asked) == 1
    assert cli.main([*words, "--method", "popularity", "--scheduler", "tcp://127.0.0.1:9", "--overwrite"]) == 2
    said = capsys.readouterr().err
    assert "--scheduler is for a directory of log files that stays on disk: give --parts-dir too" in said


def test_settings_are_chosen_on_disk_as_in_memory(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(dub_x, "GAMMAS", (0.03, 0.01))
    settings = {"rank": 3, "epochs": 1, "exposure_power": 1.0, "randomized_weight": 5.0, "teacher": "constant"}
    settings |= {"negative": 0.2, "head": None}
    (here, _), (there, _) = both_ways(logs["parquet"], tmp_path)
    same(*(dubnb.make("dub-x", **settings).fit(data, parts=2, refit=True) for data in (here, there)))


def test_a_sample_of_users_chooses_on_disk_as_in_memory(logs, tmp_path, monkeypatch):
    for name, value in (("LARGE", 1000), ("SAMPLED", 5000), ("ENOUGH_OF_LARGE", 1)):
        monkeypatch.setattr(dub_x, name, value)
    settings = {"rank": 3, "epochs": 1, "exposure_power": 1.0, "negative": 0.2, "teacher": "constant"}
    (here, _), (there, _) = both_ways(logs["parquet"], tmp_path)
    one, other = (dubnb.make("dub-x", **settings).fit(data, parts=2) for data in (here, there))
    same(one, other)
    assert any("all users" in stage for stage in one.history_["stage"])


def test_the_command_never_holds_all_of_S_c(logs, tmp_path, monkeypatch, capsys):
    """`dubnb fit --parts-dir` with a directory of files saves the bytes of the fit in memory, range by range."""
    biased, random = map(str, logs["parquet"])
    settings = [word for name, value in FIT.items() for word in ("--set", f"{name}={value}")]
    words = ["fit", "--random", random, "--method", "dub-x", "--parts", "3", "--quiet", "--json", *settings]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = dubnb.Partition.from_frames(biased, random)
    most = []
    read = stored.PairFiles.read

    def watched(self, first, last):
        pairs = read(self, first, last)
        most.append(len(pairs.users))
        return pairs

    monkeypatch.setattr(stored.PairFiles, "read", watched)
    out = tmp_path / "m.npz"
    cli.main([*words, "--biased", biased, "--parts-dir", str(tmp_path / "parts"), "--out", str(out)])
    assert max(most) < data.size("S_c") / 2
    document = json.loads(capsys.readouterr().out)
    assert document["data"]["pairs"]["S_c"] == data.size("S_c")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dubnb.make("dub-x", **FIT).fit(data, parts=3, parts_dir=tmp_path / "here")
    model.save(tmp_path / "here.npz")
    assert out.read_bytes() == (tmp_path / "here.npz").read_bytes()
    del document
    gc.collect()
    assert not list((tmp_path / "parts").glob(f"{stored.FOLDER}*"))  # the files end with the Partition


# The audit


@pytest.mark.parametrize("propensities", [False, True])
def test_the_audit_of_a_log_on_disk_is_the_one_in_memory_without_taste(
    logs, frames, tmp_path, monkeypatch, propensities
):
    options = {"timestamp": "when"}
    biased, random = logs["parquet"][0], frames[1]
    if propensities:
        chances = np.random.default_rng(0).choice([0.003, 0.004], len(random))
        random, options["random_propensity"] = random.assign(chance=chances), "chance"
    (here, _), (there, _) = both_ways((biased, random), tmp_path, **options)
    groups = np.arange(here.n_items) % 3
    one, one_by_day = dubnb.audit(here, n_draws=99, item_groups=groups), dubnb.audit(here, by="day")
    monkeypatch.setattr(uniformity, "PAIRS_AT_ONCE", 1000)
    other = dubnb.audit(there, n_draws=99, item_groups=groups)
    answers = {answer.name: answer for answer in other.answers}
    assert [answer.name for answer in one.answers] == list(answers) and one.exposures == other.exposures
    for answer in one.answers:
        if answer.name == "taste":
            assert answers["taste"].reason.endswith("S_c is on disk, and a model of taste needs it in memory")
        else:
            found = answers[answer.name]
            assert (found.p, found.number, found.reason) == (answer.p, answer.number, answer.reason)
    kept = tuple(fact for fact in one.facts if not fact.name.startswith("selection explained"))
    assert kept == other.facts and len(kept) == 9 and len(one.facts) == 13
    assert other.text().endswith(audit.ON_DISK) and not one.warnings
    assert one_by_day.days == dubnb.audit(there, by="day").days


def test_the_audit_command_never_holds_all_of_S_c(logs, tmp_path, monkeypatch, capsys):
    biased, random = map(str, logs["parquet"])
    words = ["audit", "--biased", biased, "--random", random, "--draws", "99", "--quiet", "--json"]
    most, of = [], Pattern.users

    def watched(self):
        most.append(len(self.items))
        return of(self)

    monkeypatch.setattr(Pattern, "users", watched)
    monkeypatch.setattr(uniformity, "PAIRS_AT_ONCE", 1000)
    page = tmp_path / "audit.html"
    cli.main([*words, "--parts-dir", str(tmp_path / "parts"), "--out", str(page)])
    document = json.loads(capsys.readouterr().out)
    assert document["warnings"] == [audit.ON_DISK] and audit.ON_DISK in page.read_text()
    assert max(most) < document["facts_of_data"]["pairs"]["S_c"] / 3
    for wrong, said in (
        (["--scheduler", "tcp://127.0.0.1:9"], "--scheduler is for a directory of log files.*: give --parts-dir too"),
        (["--parts-dir", str(tmp_path), "--biased", random], "--parts-dir is for a directory.*: give --biased a dir"),
    ):
        assert cli.main([*words, *wrong]) == 2
        assert re.search(said, capsys.readouterr().err)


# What is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"propensity": "w"}, "propensity needs S_c in memory: leave it or parts_dir out"),
        ({"split": "time", "timestamp": "when"}, "a split by time needs S_c in memory: leave it or parts_dir out"),
        ({"label": "when", "threshold": 500}, "more than 21 levels become ranks, which needs S_c in memory"),
        ({"duplicates": "error"}, r"log: pair \(user .*, item .*\) occurs twice \([0-9]+ such rows\): keep one row"),
        ({"user": "nobody"}, "column 'nobody' is missing"),
        ({"label": "stars"}, "is neither 0 nor 1: pass threshold="),
    ],
)
def test_bad_options_are_refused_in_one_line_and_leave_no_files(logs, tmp_path, options, said):
    with pytest.raises(dubnb.InputError, match=said) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dubnb.Partition.from_frames(*logs["parquet"], parts_dir=tmp_path, **options)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_repeated_pairs_are_refused_in_the_words_of_a_log_in_memory(logs, tmp_path):
    said = []
    for where in ({}, {"parts_dir": tmp_path}):
        with pytest.raises(dubnb.InputError) as caught:
            dubnb.Partition.from_frames(*logs["csv"], duplicates="error", **where)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_needs_all_of_S_c_is_refused(logs, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = dubnb.Partition.from_frames(*logs["parquet"], parts_dir=tmp_path / "parts")
    for wrong in (lambda: data.S_c, lambda: data.triplets("S_c"), lambda: data.pattern("S_c")):
        with pytest.raises(dubnb.InputError, match="is on disk, and this needs all of it in memory"):
            wrong()
    with pytest.raises(dubnb.InputError, match="is on disk"):
        dubnb.make("base", rank=2).fit(data)
    S_va = data.triplets("S_va")
    strange = S_va._replace(items=(S_va.items + 1) % data.n_items)
    with pytest.raises(dubnb.InputError, match="is on disk"):
        data.replace(S_va=strange)
    model = dubnb.make("ials", rank=2, epochs=1).fit(data)
    with pytest.raises(dubnb.InputError, match="is on disk"):
        model.refitted(data)


def test_files_that_differ_are_refused_and_bad_rows_are_counted_once(frames, tmp_path):
    biased, random = frames
    (tmp_path / "log").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(400), 2)):
        some = biased.iloc[rows].astype({"label": object})
        some.iloc[:3, some.columns.get_loc("label")] = "bad"
        _write(some, tmp_path / "log" / f"{number}.csv")
    _write(random, tmp_path / "random.csv")
    logs = tmp_path / "log", tmp_path / "random.csv"
    (here, said), (there, also_said) = both_ways(logs, tmp_path, drop_bad=True)
    assert said == also_said and any("6 of 400 rows hold a missing or unreadable cell" in each for each in said)
    assert here.fingerprint == there.fingerprint
    with pytest.raises(dubnb.InputError, match=r"0\.csv: column 'label', row 1: "):
        dubnb.Partition.from_frames(*logs, parts_dir=tmp_path / "parts")
    _write(biased.iloc[:9].drop(columns="label"), tmp_path / "log" / "2.csv")
    with pytest.raises(dubnb.InputError, match=r"2\.csv: column 'label' is not in all of the files: make them alike"):
        dubnb.Partition.from_frames(*logs, parts_dir=tmp_path / "parts", drop_bad=True)
    _write(biased.iloc[:9].assign(user="u"), tmp_path / "log" / "2.csv")
    with pytest.raises(dubnb.InputError, match=r"2\.csv: column 'user' is of another type than in the files before"):
        dubnb.Partition.from_frames(*logs, parts_dir=tmp_path / "parts", drop_bad=True)


def test_files_of_a_killed_process_are_removed_and_those_in_use_are_not(logs, tmp_path):
    left = tmp_path / f"{stored.FOLDER}dead"
    left.mkdir()
    (left / stored.LOCK).write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = dubnb.Partition.from_frames(*logs["parquet"], parts_dir=tmp_path)
        assert not left.exists()
        dubnb.Partition.from_frames(*logs["csv"], parts_dir=tmp_path)
    assert len(data.files.read(0, 5).users)


def test_a_folder_is_never_seen_without_its_lock(tmp_path, monkeypatch):
    """Two processes that begin with one parts_dir do not remove each other's files."""
    lock, others = stored._lock, []

    def locked_late(file):
        if not others:
            others.append(None)
            others.append(stored.LogFolder(tmp_path))
        return lock(file)

    monkeypatch.setattr(stored, "_lock", locked_late)
    folder = stored.LogFolder(tmp_path)
    folder.append("items", np.zeros(3))
    assert os.path.isdir(folder.path) and os.path.isdir(others[1].path)
    folder.close()
    others[1].close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_worker_still_writes_to_is_removed_whole(tmp_path):
    for _ in range(100):
        folder = stored.LogFolder(tmp_path)
        started, writer = threading.Event(), stored.Files(folder.path)
        thread = threading.Thread(target=_write_until_removed, args=(writer, started))
        thread.start()
        started.wait()
        folder.close()
        thread.join()
        assert list(tmp_path.iterdir()) == []


def _write_until_removed(files, started):
    with contextlib.suppress(dubnb.InputError, OSError):
        for number in range(2000):
            files.write(f"{number}-users", np.zeros(1))
            started.set()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("without", [(0,), (1,), (0, 1)])
def test_a_column_that_files_lack_has_the_same_words_in_memory_and_from_files(tmp_path, kind, without):
    (tmp_path / "log").mkdir()
    frame = pd.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3], "label": [1, 0, 1]})
    for number in range(2):
        some = frame.rename(columns={"item": "sku"}) if number in without else frame
        getattr(some, f"to_{kind}")(tmp_path / "log" / f"{number}.{kind}", index=False)
    said = []
    for where in ({}, {"parts_dir": tmp_path / "parts"}):
        with pytest.raises(dubnb.InputError) as caught:
            dubnb.Partition.from_frames(tmp_path / "log", frame, **where)
        said.append(str(caught.value))
    assert said[0] == said[1]
    lacking = "log: column 'item' is missing: name the column with item=; there are 'user', 'sku', 'label'"
    assert (lacking if len(without) == 2 else f"1.{kind}: column 'item' is not in all of the files") in said[0]
