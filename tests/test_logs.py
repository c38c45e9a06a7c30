"""Reading logs: the same Partition from every form; repeated pairs, splits, unknown ids; hostile files."""

import gzip
import inspect
import os
import re

import numpy as np
import pandas as pd
import pytest

import dubnb
from bench import public_sizes
from dubnb import Partition, read_log
from dubnb._check import InputError, cli_option_names, option, setting
from dubnb._jit import JIT_ENABLED
from dubnb.cli import COMMANDS, main
from dubnb.cli._options import data_words as words_of
from dubnb.cli._options import load_data as load
from dubnb.cli._options import parser_of
from dubnb.data import delimited, public_logs
from dubnb.data.datasets import load_dataset
from dubnb.data.partition import PARTS, RANDOMIZED
from dubnb.data.rows import LogRows, merged
from tests.log_tools import pairs, refused, same


@pytest.fixture(scope="module")
def logs():
    """(biased, randomized) of 40 users x 25 items with padded ids, ratings, times and weights."""
    rng = np.random.default_rng(0)
    keys = rng.permutation(40 * 25)[:500]
    log = pd.DataFrame({"user": [f"{k // 25:05d}" for k in keys], "item": [f"i{k % 25}" for k in keys]})
    log["label"], log["time"] = rng.integers(1, 6, 500), rng.permutation(500) * 10
    log["w"] = rng.choice([0.5, 1.0, 2.25], 500)
    return log[:400], log[400:].reset_index(drop=True)


OPTIONS = {"threshold": 3, "weight": "w", "timestamp": "time"}


def test_every_form_of_a_log_gives_the_same_partition(logs, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = Partition.from_frames(*logs, **OPTIONS)
    assert data.user_ids.values[0] == "00000" and data.graded
    for name, sep in (("csv", ","), ("tsv", "\t"), ("csv.gz", ","), ("tsv.gz", "\t")):
        for which, log in zip("br", logs, strict=True):
            log.to_csv(tmp_path / f"{which}.{name}", sep=sep, index=False)
        assert same(Partition.from_frames(tmp_path / f"b.{name}", str(tmp_path / f"r.{name}"), **OPTIONS), data), name
    semicolon = [tmp_path / "b.txt", tmp_path / "r.txt"]
    for log, path in zip(logs, semicolon, strict=True):
        log.to_csv(path, sep=";", index=False)
    assert same(Partition.from_frames(*semicolon, sep=";", **OPTIONS), data)
    refused("sep=';;' must be one character", Partition.from_frames, *semicolon, sep=";;")
    for log, which in zip(logs, "br", strict=True):
        (tmp_path / which).mkdir()
        parquet.write_table(pa.Table.from_pandas(log[:40]), tmp_path / which / "0.parquet", row_group_size=7)
        parquet.write_table(pa.Table.from_pandas(log[40:]), tmp_path / which / "1.parquet")
    assert same(Partition.from_frames(tmp_path / "b", tmp_path / "r", **OPTIONS), data)
    assert same(Partition.from_frames(f"{tmp_path}/b/*.parquet", f"{tmp_path}/r/?.parquet", **OPTIONS), data)
    tables = [pa.Table.from_pandas(log) for log in logs]
    assert same(Partition.from_frames(*tables, **OPTIONS), data)
    coded = [t.set_column(0, "user", t["user"].dictionary_encode()) for t in tables]
    assert same(Partition.from_frames(*coded, **OPTIONS), data)
    frames = [read_log(tmp_path / "b"), read_log(tmp_path / "r.csv.gz")]
    assert same(Partition.from_frames(*frames, **OPTIONS), data)
    assert frames[0]["user"].dtype == "category" and frames[0]["time"].tolist() == logs[0]["time"].tolist()


@pytest.mark.parametrize("sep", ['"', "\r", "\n", "\0", " ", "é", "", ";;", 3])
def test_a_separator_is_one_plain_character(tmp_path, sep):
    (tmp_path / "log.csv").write_text("user;item\n1;2\n")
    refused("sep=.* must be one character", read_log, tmp_path / "log.csv", sep=sep)
    assert read_log(tmp_path / "log.csv", sep=";")["item"].tolist() == [2]


def test_files_of_a_directory_in_the_order_of_their_names(tmp_path):
    for name, user in (("b.csv", 2), ("a.TSV", 1), ("notes.md", 9), ("c.txt", 3)):
        (tmp_path / name).write_text(
            f"user{chr(9) if name == 'a.TSV' else ','}item\n{user}{chr(9) if name == 'a.TSV' else ','}5\n"
        )
    (tmp_path / "d.csv").mkdir()
    assert read_log(tmp_path)["user"].tolist() == [1, 2, 3]
    assert read_log(f"{tmp_path}/[bc].*")["user"].tolist() == [2, 3]
    (tmp_path / "[x].csv").write_text("user,item\n7,5\n")
    assert read_log(tmp_path / "[x].csv")["user"].tolist() == [7]  # a file of that very name is no pattern
    (tmp_path / "e.parquet").write_text("")
    refused("Parquet and text files together", read_log, tmp_path)


def test_a_frame_of_a_log(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,label,when,word\n7,x,1,300,a\n8,y,0,200,b\n")
    frame = read_log(tmp_path / "log.csv")
    assert list(frame) == ["user", "item", "label", "when", "word"] and frame.attrs["source"] == str(
        tmp_path / "log.csv"
    )
    assert [str(kind) for kind in frame.dtypes] == ["int64", "category", "int64", "int64", "category"]
    assert frame["item"].tolist() == ["x", "y"] and frame["label"].tolist() == [1, 0]
    text = read_log(tmp_path / "log.csv", user="when", user_type="str", columns=["when", "user"])
    assert (
        list(text) == ["user", "when"] and text["when"].tolist() == ["300", "200"] and text["user"].tolist() == [7, 8]
    )
    refused("column 'stars' is missing", read_log, tmp_path / "log.csv", columns=["user", "stars"])
    assert inspect.signature(read_log).parameters["quiet"].default is True


def test_polars(logs):
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    tables = [polars.from_dict({name: log[name].tolist() for name in log}) for log in logs]
    assert same(Partition.from_frames(*tables, **OPTIONS), Partition.from_frames(*logs, **OPTIONS))
    coded = [table.with_columns(polars.col("user").cast(polars.Categorical)) for table in tables]
    assert same(Partition.from_frames(*coded, **OPTIONS), Partition.from_frames(*logs, **OPTIONS))


@pytest.mark.parametrize("marks", [(0, 1), (False, True), ("False", "True"), ("0", "1"), ("false", "true")])
def test_one_table_with_both_kinds_of_traffic(logs, tmp_path, marks):
    both = pd.concat([log.assign(rand=mark) for log, mark in zip(logs, marks, strict=True)])
    mixed = both.sample(frac=1, random_state=0).sort_values("rand", kind="stable")
    data = Partition.from_table(both, is_random="rand", **OPTIONS)
    assert same(data, Partition.from_frames(*logs, **OPTIONS))
    assert same(Partition.from_table(mixed, is_random="rand", **OPTIONS), data), "the order of rows does not matter"
    both.to_csv(tmp_path / "one.csv", index=False)
    assert same(Partition.from_table(tmp_path / "one.csv", is_random="rand", **OPTIONS), data)


def test_a_table_that_does_not_tell_its_traffic_apart(logs):
    both = pd.concat([logs[0].assign(rand=0), logs[1].assign(rand=1)])
    for bad, said in ((0, "marks no randomized row"), (1, "marks no biased row"), (2, "row 1: 2 is neither 1 nor 0")):
        refused(said, Partition.from_table, both.assign(rand=bad), is_random="rand", **OPTIONS)
    refused("'x' is missing: name the column with is_random=", Partition.from_table, both, is_random="x")
    refused("cannot be is_random= and something else", Partition.from_table, both, is_random="label")


# ---- ids -----------------------------------------------------------------------------------------------------------


def renamed(logs, users, items=lambda item: item):
    """The randomized log with other ids."""
    return logs[1].assign(user=[users(u) for u in logs[1]["user"]], item=[items(i) for i in logs[1]["item"]])


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (lambda u: u + " ", r"no user of random is in biased: ids such as '00\d+ ' and '00\d+' \(likely cause: stray"),
        (lambda u: u.lstrip("0") or "0", "likely cause: padding zeros"),
        (int, "column 'user' is str in biased but int in random, such as '00.*' and .*or pass user_type='str'"),
    ],
)
def test_logs_that_share_no_user_are_refused_with_the_likely_cause(logs, users, said):
    refused(said, Partition.from_frames, logs[0], renamed(logs, users), **OPTIONS)


def test_users_of_a_bucket_are_told_from_ids_that_differ(logs, tmp_path, capsys, monkeypatch):
    bucket = renamed(logs, lambda user: "b" + user)
    unlike = renamed(logs, lambda user: "b" + user, lambda item: "x" + item)
    refused(
        r"no user .*are these the same ids\?\); write them alike", Partition.from_frames, logs[0], unlike, **OPTIONS
    )
    said = (
        r"no user of random is in biased, while \d+ of its \d+ items are: .* user bucket .* Results hold for its users"
    )
    with pytest.warns(UserWarning, match=said):
        data = Partition.from_frames(logs[0], bucket, **OPTIONS)
    assert data.bucket and "user bucket" in data.summary() and not Partition.from_frames(*logs, **OPTIONS).bucket


def test_ids_that_a_table_with_missing_cells_wrote_as_floats(logs, tmp_path):
    whole = [log.assign(user=log["user"].astype(int)) for log in logs]
    data = Partition.from_frames(*whole, **OPTIONS)
    for log, name in zip(whole, ("b.csv", "r.csv"), strict=True):
        log.assign(user=log["user"].astype(float) if name == "r.csv" else log["user"]).to_csv(
            tmp_path / name, index=False
        )
    assert "\n31.0," in (tmp_path / "r.csv").read_text()
    assert same(Partition.from_frames(tmp_path / "b.csv", tmp_path / "r.csv", **OPTIONS), data)
    (tmp_path / "half.csv").write_text("user,item,label\n509.0,1,1\n1.5,2,0\n")
    assert read_log(tmp_path / "half.csv")["user"].tolist() == ["509.0", "1.5"], "one that is not whole: all as written"
    large = f"{2**53}.0"
    (tmp_path / "large.csv").write_text(f"user,item,label\n{large},1,1\n1.0,2,0\n")
    assert read_log(tmp_path / "large.csv")["user"].tolist() == [large, "1.0"], "it may have lost digits"
    assert read_log(tmp_path / "half.csv", item_type="str")["item"].tolist() == ["1", "2"]
    words = [log.assign(user=log["user"].astype(float).astype(str)) for log in whole]
    assert same(Partition.from_frames(*words, user_type="int", **OPTIONS), data)


@pytest.mark.parametrize("sep", [";", "|"])
def test_other_separators_are_found_in_the_header(logs, tmp_path, sep):
    paths = [tmp_path / "b.csv", tmp_path / "r.csv"]
    for log, path in zip(logs, paths, strict=True):
        log.to_csv(path, sep=sep, index=False)
    assert same(Partition.from_frames(*paths, **OPTIONS), Partition.from_frames(*logs, **OPTIONS))
    words = ["audit", "--biased", str(paths[0]), "--random", str(paths[1]), "--threshold", "3", "--quiet"]
    assert load(parser_of(COMMANDS).parse_args(words)).graded
    (tmp_path / "comma.csv").write_text("user,item,a;b|c\n1,2,3\n")
    assert read_log(tmp_path / "comma.csv").columns.tolist() == ["user", "item", "a;b|c"]


def write_nested(folder, log, write):
    for day in range(3):
        below = folder / f"day={day}" / "part"
        below.mkdir(parents=True)
        write(log[day::3], below)
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "rest.csv").write_text("nonsense")
    (folder / "_SUCCESS").write_text("")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_directories_within_directories(logs, tmp_path, form, capsys):
    def write(log, below):
        log.to_csv(below / "0.csv", index=False) if form == "csv" else log.to_parquet(below / "0.parquet", index=False)

    if form == "parquet":
        pytest.importorskip("pyarrow")
    for name, log in zip(("b", "r"), logs, strict=True):
        write_nested(tmp_path / name, log, write)
    plain = Partition.from_frames(*(pd.concat([log[day::3] for day in range(3)]) for log in logs), **OPTIONS)
    said = r"3 files are read; what their directories are named after \(day\) is not read as a column"
    with pytest.warns(UserWarning, match=said):
        assert same(Partition.from_frames(tmp_path / "b", tmp_path / "r", **OPTIONS), plain)
    with pytest.warns(UserWarning, match=said):
        assert same(Partition.from_frames(f"{tmp_path}/b/day=*", f"{tmp_path}/r/day=*", **OPTIONS), plain)
    words = ["audit", "--biased", str(tmp_path / "b"), "--random", str(tmp_path / "r"), "--threshold", "3"]
    assert main([*words, "--timestamp", "day", "--quiet"]) == 2
    assert (
        "column 'day' is only in the names of directories, which are not read: write it into" in capsys.readouterr().err
    )
    with pytest.warns(UserWarning, match=said):
        assert load(parser_of(COMMANDS).parse_args([*words, "--quiet"])).graded


# ---- rows that cannot be read --------------------------------------------------------------------------------------


@pytest.fixture
def broken(logs, tmp_path):
    """Paths of the logs with whole-number users and seven rows more that cannot be read, and the sound logs."""
    sound = [log.assign(user=log["user"].astype(int)) for log in logs]
    cells = [("", "i1", 3, 5, 1), ("nan", "i1", 3, 5, 1), (1, "", 3, 5, 1), (1, "i1", "", 5, 1), (1, "i1", "x", 5, 1)]
    cells += [(1, "i1", 3, "", 1), (1, "i1", 3, 5, "")]
    more = "".join(",".join(map(str, row)) + "\n" for row in cells)
    paths = [tmp_path / "b.csv", tmp_path / "r.csv"]
    for path, log in zip(paths, sound, strict=True):
        text = log.to_csv(index=False)
        path.write_text(text[:200].rpartition("\n")[0] + "\n" + more + text[text[:200].rindex("\n") + 1 :])
    return paths, sound


def test_rows_that_cannot_be_read_are_dropped_and_counted(broken):
    paths, sound = broken
    refused("row .*: id '' is missing.* .drop_bad=True drops all such rows", Partition.from_frames, *paths, **OPTIONS)
    said = r"7 of 407 rows hold a missing or unreadable cell \(2 by 'user', 1 by 'item', 2 by 'label', 1 by 'w', 1"
    with pytest.warns(UserWarning, match=said):
        data = Partition.from_frames(*paths, drop_bad=True, **OPTIONS)
    assert same(data, Partition.from_frames(*sound, **OPTIONS)) and data.user_ids.values.dtype == np.int64
    assert same(Partition.from_frames(*sound, drop_bad=True, **OPTIONS), data), "nothing to drop"
    frames = [pd.read_csv(path) for path in paths]
    with pytest.warns(UserWarning, match="7 of 407"):
        assert same(Partition.from_frames(*frames, drop_bad=True, **OPTIONS), data)
    one = pd.concat([log.assign(rand=str(k)) for k, log in enumerate(sound)] + [sound[0][:1].assign(rand="?")])
    with pytest.warns(UserWarning, match="1 of 501 rows .*1 by 'rand'"):
        assert same(Partition.from_table(one, is_random="rand", drop_bad=True, **OPTIONS), data)
    refused("row .*: '.*'.*drop_bad=True drops all such rows", Partition.from_table, one, is_random="rand", **OPTIONS)
    nothing = sound[0].assign(label=np.nan)
    refused("400 of 400 rows .*: no row is left", Partition.from_frames, nothing, sound[1], drop_bad=True, **OPTIONS)
    refused("drop_bad='yes' must be True or False", Partition.from_frames, *sound, drop_bad="yes")
    for path in paths:
        path.write_text(re.sub(r",i(?=\d)", ",", path.read_text()))  # items are whole numbers too
    with pytest.warns(UserWarning, match=said):
        data = Partition.from_frames(*paths, drop_bad=True, **OPTIONS)
    assert data.item_ids.values.tolist() == list(range(25))


def test_dates_that_cannot_be_read_are_dropped(logs):
    when = pd.date_range("2020-01-01", periods=len(logs[0])).strftime("%Y-%m-%d").to_numpy(dtype=object)
    dated = logs[0].assign(time=when).assign(time=lambda log: log["time"].where(log.index != 3, "someday"))
    random = logs[1].assign(time="2020-01-05")
    refused(
        "row 4: 'someday' is not a time: correct or drop it .drop_bad", Partition.from_frames, dated, random, **OPTIONS
    )
    with pytest.warns(UserWarning, match="1 of 400 rows .*1 by 'time'"):
        data = Partition.from_frames(dated, random, drop_bad=True, **OPTIONS)
    assert same(data, Partition.from_frames(dated.drop(index=3), random, **OPTIONS))


def test_the_command_line_drops_rows_that_cannot_be_read(broken, capsys):
    paths, _ = broken
    words = [
        "audit",
        "--biased",
        str(paths[0]),
        "--random",
        str(paths[1]),
        "--threshold",
        "3",
        "--weight",
        "w",
        "--quiet",
    ]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "(--drop-bad drops all such rows)" in said
    args = parser_of(COMMANDS).parse_args([*words, "--drop-bad"])
    with pytest.warns(UserWarning, match="6 of 407 rows"):
        assert load(args).graded
    assert "--drop-bad" in words_of(args) and "True" not in words_of(args)


def test_some_strangers_are_counted_in_the_summary(logs):
    other = logs[1].copy()
    strange = other["user"] < "00010"
    other.loc[strange, "user"] = "new-" + other.loc[strange, "user"]
    text = Partition.from_frames(logs[0], other, **OPTIONS).summary()
    n = other["user"].nunique()
    assert (
        f"users of the randomized sets without a pair in S_c: {other.loc[strange, 'user'].nunique()} of {n} (" in text
    )
    assert "items of the randomized sets" not in text


def test_types_of_ids(logs, tmp_path):
    biased, random = tmp_path / "b.csv", tmp_path / "r.csv"
    biased.write_text("user,item,label\n007,1,1\n12,2,0\n")
    random.write_text("user,item,label\n12,1,1\n13,2,0\n14,2,0\n")
    refused("column 'user' is str in .*b.csv but int in .*r.csv", Partition.from_frames, biased, random)
    text = Partition.from_frames(biased, random, user_type="str")
    assert text.user_ids.values.tolist() == ["007", "12", "13", "14"] and text.item_ids.kind == "int"
    whole = Partition.from_frames(biased, random, user_type="int", item_type="str")
    assert whole.user_ids.values.tolist() == [7, 12, 13, 14] and whole.item_ids.values.tolist() == ["1", "2"]
    frames = [pd.read_csv(path) for path in (biased, random)]
    assert Partition.from_frames(*frames, user_type="str").user_ids.values.tolist() == ["12", "13", "14", "7"]
    refused("user_type='float' is unknown", Partition.from_frames, biased, random, user_type="float")
    refused("row 1: id 'i.*' is not a whole number", Partition.from_frames, *logs, item_type="int", **OPTIONS)
    assert read_log(biased, user_type="int")["user"].tolist() == [7, 12]
    assert read_log(random, user_type="str")["user"].tolist() == ["12", "13", "14"]


def test_odd_ids_are_read_alike_in_every_form(tmp_path):
    """NA and null are ids, 007 is not 7, 1_0 and Arabic digits are text; nan is missing."""
    odd = ["NA", "null", "None", "007", "1_0", "\u0663", "7", "True", "1e3"]
    frame = pd.DataFrame({"user": odd * 2, "item": ["x"] * 9 + ["y"] * 9, "label": [0, 1] * 9})
    biased, random = frame[:12], frame[12:].reset_index(drop=True)
    data = Partition.from_frames(biased, random)
    assert data.user_ids.values.tolist() == sorted(odd)
    for name in ("csv", "tsv.gz"):
        paths = [tmp_path / f"{which}.{name}" for which in "br"]
        for path, log in zip(paths, (biased, random), strict=True):
            log.to_csv(path, sep="\t" if "tsv" in name else ",", index=False)
        assert same(Partition.from_frames(*paths), data) and read_log(paths[0])["user"].tolist()[:9] == odd, name
        assert same(Partition.from_frames(*map(read_log, paths)), data), name
    assert same(Partition.from_frames(biased.astype({"user": "category"}), random.astype({"user": object})), data)
    for wrong in ("1_0", "\u0663", "NA"):
        bad = biased.assign(user=[wrong, *["7"] * 11])
        refused("is not a whole number: leave the ids as str", Partition.from_frames, bad, random, user_type="int")
    missing = biased.assign(user=["nan", *odd[1:], *odd[:3]])
    missing.to_csv(tmp_path / "m.csv", index=False)
    for log in (missing, tmp_path / "m.csv"):
        refused("row 1: id 'nan' is missing", Partition.from_frames, log, random)
    pa = pytest.importorskip("pyarrow")
    biased.to_parquet(tmp_path / "b.parquet")
    assert same(Partition.from_frames(tmp_path / "b.parquet", pa.Table.from_pandas(random)), data)
    refused("row 1: id 'nan' is missing", Partition.from_frames, pa.Table.from_pandas(missing), random)


def test_hashes_of_64_bits(tmp_path):
    hashes = [2**64 - 1, 2**63, 5, 2**63 - 1]
    frame = pd.DataFrame({"user": np.array(hashes, np.uint64), "item": [1, 1, 2, 2], "label": [0, 1, 0, 1]})
    data = Partition.from_frames(frame, {"S_t": frame.assign(item=[2, 2, 1, 1])})
    assert data.user_ids.values.tolist() == sorted(hashes) and data.user_ids.kind == "int"
    assert data.user_ids.find([2**64 - 1, 5, 6, 2**63 - 1]).tolist() == [3, 0, -1, 1]
    assert data.user_ids.find(np.array([-1])).tolist() == [-1], "not the bits of 2**64 - 1"
    frame.to_csv(tmp_path / "h.csv", index=False)
    assert same(Partition.from_frames(tmp_path / "h.csv", {"S_t": frame.assign(item=[2, 2, 1, 1])}), data)
    if pytest.importorskip("pyarrow"):
        frame.to_parquet(tmp_path / "h.parquet")
        assert same(Partition.from_frames(tmp_path / "h.parquet", {"S_t": frame.assign(item=[2, 2, 1, 1])}), data)
    small = frame.assign(user=np.array([1, 2, 3, 4], np.int64))
    mixed = Partition.from_frames(frame, {"S_t": small.assign(user=[5, 2, 3, 4])})
    assert mixed.user_ids.values.tolist() == [2, 3, 4, 5, 2**63 - 1, 2**63, 2**64 - 1], "not by way of float64"
    refused("too far apart for 64 bits", Partition.from_frames, frame, {"S_t": small.assign(user=[-5, 5, 3, 4])})
    model = dubnb.Base(rank=2, epochs=2).fit(data)
    model.save(tmp_path / "m.npz")
    items, scores = dubnb.load(tmp_path / "m.npz").recommend([2**64 - 1], k=2)
    assert items[0, 0] == 2 and np.isnan(scores[0, 1])


# ---- labels and grades ----------------------------------------------------------------------------------------------


def test_a_threshold_keeps_grades(logs):
    data = Partition.from_frames(*logs, threshold=3)
    label = {(u, i): r for log in logs for u, i, r in zip(log["user"], log["item"], log["label"], strict=True)}
    for part in PARTS:
        users, items, labels, _, grades, *_ = data.triplets(part)
        ratings = np.array(
            [label[u, i] for u, i in zip(data.user_ids.values[users], data.item_ids.values[items], strict=True)]
        )
        assert (labels == (ratings > 3)).all() and (grades == (ratings - 1) / 4).all()
    two = [log.assign(label=np.where(log["label"] > 3, 7, 2)) for log in logs]
    assert not Partition.from_frames(*two, threshold=3).graded, "two levels carry no more information than the labels"


def test_a_column_of_grades(logs):
    graded = [log.assign(label=log["label"] > 3, g=log["label"] / 5) for log in logs]
    data = Partition.from_frames(*graded, grade="g")
    assert set(np.unique(data.triplets("S_c").grades)) == set(np.float32([0.2, 0.4, 0.6, 0.8, 1.0]))
    assert same(Partition.from_frames(*graded), Partition.from_frames(*(log.drop(columns="g") for log in graded)))
    wrong = [log.assign(g=0.5) for log in graded]
    refused("a negative pair has the grade 0.5", Partition.from_frames, *wrong, grade="g")
    refused(
        "grade 2 must be a number from 0 to 1", Partition.from_frames, *(log.assign(g=2) for log in graded), grade="g"
    )


def test_logs_without_labels_are_click_only(logs):
    clicks = [log[["user", "item", "time"]] for log in logs]
    with pytest.warns(UserWarning, match="biased: no column 'label' .if it is one of time.*: click-only, every row is"):
        data = Partition.from_frames(clicks[0], logs[1].assign(label=logs[1]["label"] > 3))
    assert data.click_only and (data.triplets("S_c").labels == 1).all() and 0 < data.triplets("S_te").labels.mean() < 1
    assert not Partition.from_frames(*logs, threshold=3).click_only
    refused("column 'stars' is missing: name the column with label=", Partition.from_frames, *clicks, label="stars")
    with pytest.warns(UserWarning, match="click-only"):
        graded = Partition.from_frames(clicks[0], logs[1], threshold=3)
    assert graded.graded and (graded.triplets("S_c").grades == 1).all()
    assert set(np.unique(graded.triplets("S_te").grades)) == {0, 0.25, 0.5, 0.75, 1}


def starred(logs, name="rating"):
    return [log.rename(columns={"label": name}) for log in logs]


@pytest.mark.parametrize("name", ["rating", "n_stars", "watchSeconds", "dwell_ms", "xyz"])
def test_a_threshold_without_labels_names_the_likely_column(logs, name):
    said = f"biased: threshold=3 needs a label column, and there is no 'label': did you mean label='{name}'"
    refused(
        re.escape(said), Partition.from_frames, *starred([log.drop(columns="time") for log in logs], name), threshold=3
    )


def test_a_threshold_without_labels_prefers_names_then_levels_around_it(logs):
    busy = [log.assign(other=np.arange(len(log)), score="low", value=9) for log in starred(logs)]
    refused("did you mean label='rating'", Partition.from_frames, *busy, threshold=3)
    refused(
        "did you mean label='value'",
        Partition.from_frames,
        *(log.rename(columns={"rating": "x"}) for log in busy),
        threshold=10,
    )
    nothing = [log[["user", "item"]].assign(flag=1, word="a") for log in logs]
    refused(
        "name the column with label=; there are 'user', 'item', 'flag'", Partition.from_frames, *nothing, threshold=3
    )
    one = pd.concat([log.assign(random=k) for k, log in enumerate(starred(logs))])
    refused(
        "table: threshold=3 needs .* mean label='rating'", Partition.from_table, one, is_random="random", threshold=3
    )
    with pytest.warns(UserWarning, match="click-only"):
        assert Partition.from_frames(*nothing).click_only, "without a threshold it is a log of clicks"


def test_the_command_line_names_the_likely_column(logs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, log in zip(("log.csv", "random.csv"), starred(logs), strict=True):
        log.to_csv(name, index=False)
    assert main(["audit", "--biased", "log.csv", "--random", "random.csv", "--threshold", "3"]) == 2
    said = "log.csv: --threshold 3 needs a label column, and there is no 'label': did you mean --label rating?"
    assert capsys.readouterr().err == f"dubnb: {said}\n"


# ---- repeated pairs ------------------------------------------------------------------------------------------------

REPEATS = LogRows(
    user_ids=np.arange(2),
    item_ids=np.arange(2),
    where="mine",
    users=np.array([0, 1, 0, 0, 1]),
    items=np.array([1, 0, 1, 1, 0]),
    labels=np.array([0.0, 1, 1, 0, 1]),
    weights=np.array([1.0, 2, 3, 4, 0.5]),
    grades=np.array([0.1, 0.9, 0.7, 0.2, 0.8]),
    times=np.array([30, 5, 10, 20, 4]),
    propensities=np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
)


@pytest.mark.parametrize(
    ("rule", "timed", "labels", "grades", "propensities"),
    [
        ("first", True, [1, 1], [0.7, 0.8], [0.3, 0.5]),
        ("last", True, [0, 1], [0.1, 0.9], [0.1, 0.2]),
        ("first", False, [0, 1], [0.1, 0.9], [0.1, 0.2]),
        ("last", False, [0, 1], [0.2, 0.8], [0.4, 0.5]),
        ("max", True, [1, 1], [0.7, 0.9], [0.3, 0.2]),
        ("mean", True, [3 / 8, 1], [(0.1 + 2.1 + 0.8) / 8, (1.8 + 0.4) / 2.5], [0.1, 0.2]),
    ],
)
def test_repeated_pairs_by_hand(rule, timed, labels, grades, propensities):
    log = REPEATS if timed else REPEATS._replace(times=None)
    with pytest.warns(UserWarning, match="mine: 3 of 5 rows repeat a pair and were merged: .*, weights are added"):
        one = merged(log, rule)
    assert one.users.tolist() == [0, 1] and one.items.tolist() == [1, 0], "at the place of the first row"
    assert one.weights.tolist() == [8, 2.5]
    for found, wanted in ((one.labels, labels), (one.grades, grades), (one.propensities, propensities)):
        assert found.tolist() == pytest.approx(wanted)


def test_rules_for_repeated_pairs(logs):
    seen = pd.concat([logs[0], logs[0].head(30).assign(label=1, time=-1, w=1.0)])
    with pytest.warns(
        UserWarning, match="biased: 30 of 430 rows repeat a pair and were merged: the last.*, weights are"
    ):
        by_time = Partition.from_frames(seen, logs[1], duplicates="last", **OPTIONS)
    with pytest.warns(UserWarning, match="the largest label"):
        largest = Partition.from_frames(seen, logs[1], threshold=3, weight="w", duplicates="max")
    plain = Partition.from_frames(*logs, **OPTIONS)
    for data in (by_time, largest):
        assert np.array_equal(data.triplets("S_c").labels, plain.triplets("S_c").labels)
    assert by_time.triplets("S_c").weights.sum() == pytest.approx(plain.triplets("S_c").weights.sum() + 30)
    with pytest.warns(UserWarning, match="the first"):
        assert pairs(Partition.from_frames(seen, logs[1], duplicates="first", **OPTIONS), "S_c") != pairs(plain, "S_c")
    refused("occurs twice .30 such", Partition.from_frames, seen, logs[1], duplicates="error", **OPTIONS)
    refused("duplicates='lst' is unknown: .* mean 'last'", Partition.from_frames, seen, logs[1], duplicates="lst")
    with pytest.warns(UserWarning), pytest.raises(InputError, match=r"label 0\.5 is neither 0 nor 1: pass threshold="):
        twice = pd.concat([logs[0].assign(label=0), logs[0].assign(label=1)])
        Partition.from_frames(twice, logs[1].assign(label=0), duplicates="mean")


# ---- splits --------------------------------------------------------------------------------------------------------


def test_a_split_by_time_trains_on_the_past(logs):
    with pytest.warns(UserWarning, match="rows of the biased log are no older than S_va and left out"):
        data = Partition.from_frames(*logs, split="time", shares=(0.6, 0.2, 0.2), **OPTIONS)
    times = {(u, i): t for log in logs for u, i, t in zip(log["user"], log["item"], log["time"], strict=True)}
    found = {part: [times[pair] for pair in pairs(data, part)] for part in PARTS}
    assert [len(found[part]) for part in RANDOMIZED] == [60, 20, 20]
    assert max(found["S_t"]) < min(found["S_va"]) <= max(found["S_va"]) < min(found["S_te"])
    assert max(found["S_c"]) < min(found["S_va"]) and 100 < len(found["S_c"]) < 400
    refused("needs times: name their column with timestamp=", Partition.from_frames, *logs, split="time", threshold=3)
    late = logs[0].assign(time=10**6)
    refused("no row of the biased log is older", Partition.from_frames, late, logs[1], split="time", **OPTIONS)


def timed(times, users=None):
    """A log of one item per row at these times."""
    users = np.arange(len(times)) % 3 if users is None else users
    return pd.DataFrame({"user": users, "item": np.arange(len(times)), "label": np.arange(len(times)) % 2, "t": times})


@pytest.mark.parametrize(
    ("shares", "kept"), [((0.5, 0.25, 0.25), 2), ((0.5, 0.0, 0.5), 2), ((0.75, 0.25, 0.0), 3), ((1.0, 0.0, 0.0), 4)]
)
def test_S_c_ends_before_the_first_moment_that_is_judged(shares, kept):
    """At time 3, at time 4, or nowhere; rows of that very moment are left out."""
    biased, random = timed([1, 2, 3, 4]), timed([1, 2, 3, 4]).assign(item=[1, 2, 0, 2])
    how = {"timestamp": "t", "split": "time", "shares": shares}
    if kept < 4:
        with pytest.warns(UserWarning, match=f"{4 - kept} rows of the biased log are no older than S_va"):
            data = Partition.from_frames(biased, random, **how)
    else:
        data = Partition.from_frames(biased, random, **how)
    assert sorted(item for _, item in pairs(data, "S_c")) == list(range(kept))


def test_a_log_is_named_after_its_files_or_by_name(tmp_path):
    biased, random = timed([1, 2, 3, 4]), timed([1, 2, 3, 4]).assign(item=[1, 2, 0, 2])
    biased.to_csv(tmp_path / "b.csv", index=False)
    random.to_csv(tmp_path / "r.csv", index=False)
    assert Partition.from_frames(tmp_path / "b.csv", str(tmp_path / "r.csv")).name == "b.csv + r.csv"
    assert Partition.from_frames(tmp_path / "b.csv", random).name == "own data"
    assert Partition.from_frames(biased, random, name="mine").name == "mine"
    pd.concat([biased.assign(r=0), random.assign(r=1)]).to_csv(tmp_path / "both.csv", index=False)
    assert Partition.from_table(tmp_path / "both.csv", is_random="r").name == "both.csv"


def test_propensities_are_those_of_the_biased_log():
    biased, random = timed([1, 2, 3, 4]).assign(p=[0.5, 0.25, 1.0, 0.125]), timed([1, 2, 3]).assign(item=[3, 2, 1])
    data = Partition.from_frames(biased, random, propensity="p")
    by_pair = dict(zip(zip(biased["user"], biased["item"], strict=True), biased["p"], strict=True))
    users, items, *_ = data.triplets("S_c")
    found = zip(data.user_ids.values[users].tolist(), data.item_ids.values[items].tolist(), strict=True)
    assert data.propensities.tolist() == [by_pair[pair] for pair in found]


def test_logs_without_shared_users_are_warned_of_or_refused_by_size():
    biased, random = timed([1, 2, 3], [0, 1, 2]), timed([1, 2, 3], [7, 8, 9])
    with pytest.warns(UserWarning, match="no user of random is in biased, while 3 of its 3 items are"):
        Partition.from_frames(biased, random)
    n = np.arange(6)
    far = timed(n, n + 6).assign(item=n + 6)
    refused("no user of random is in biased: ids such as 6 and 0 .are these", Partition.from_frames, timed(n, n), far)
    with pytest.warns(UserWarning):  # five on one side are too few for a verdict
        Partition.from_frames(timed(n, n), timed(n[:4], n[:4] + 6))
    words = timed(n, [f"u{k}" for k in n])
    spaced = timed(n[:3], ["x", "u3 ", "y"])
    refused("ids such as 'u3 ' and 'u3' .likely cause: stray spaces", Partition.from_frames, words, spaced)


EPOCH = 1_735_689_600


@pytest.mark.parametrize(
    "form",
    [
        lambda t: t,
        lambda t: 1_000 * t,
        lambda t: 10**9 * t,
        lambda t: t.astype(float) / 1e-6,
        lambda t: pd.to_datetime(t, unit="s"),
        lambda t: pd.to_datetime(t, unit="s").dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_both_logs_are_put_on_one_clock(logs, form, which):
    """Epoch seconds in one log; milliseconds, nanoseconds, microseconds, dates or ISO text in the other."""
    how = {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}
    seconds = [log.assign(time=EPOCH + 60 * log["time"]) for log in logs]
    other = [log.assign(time=form(log["time"])) if k == which else log for k, log in enumerate(seconds)]
    with pytest.warns(UserWarning, match="left out"):
        data, plain = Partition.from_frames(*other, **how), Partition.from_frames(*seconds, **how)
    assert same(data, plain) and len(data.triplets("S_c").users) < 300


def test_a_time_far_in_the_future_does_not_overflow(logs):
    """Year 2920 in nanoseconds is above 64 bits."""
    how = {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}
    biased, random = (log.assign(time=EPOCH + 60 * log["time"]) for log in logs)
    biased.loc[biased.index[5], "time"] = 30_000_000_000
    with pytest.warns(UserWarning, match="left out"):
        plain = Partition.from_frames(biased, random, **how)
        data = Partition.from_frames(biased, random.assign(time=10**9 * random["time"]), **how)
    assert same(data, plain)


@pytest.mark.parametrize("rule", ["first", "last", "max", "mean"])
def test_a_merged_pair_stands_where_its_first_row_stood(rule):
    """Rows are not in the order of users; merging keeps the order of the log."""
    users, items = np.array([2, 0, 2, 1, 0]), np.array([1, 1, 1, 0, 0])
    log = LogRows(users.astype(np.int32), items.astype(np.int32), np.ones(5), np.arange(3), np.arange(2))
    with pytest.warns(UserWarning, match="1 of 5 rows repeat a pair"):
        one = merged(log, rule)
    assert one.users.tolist() == [2, 0, 1, 0] and one.items.tolist() == [1, 1, 0, 0]


def test_a_few_wrong_times_do_not_hide_another_unit(logs):
    """A zero in each log makes the ranges of seconds and milliseconds overlap; leakage is removed all the same."""
    how = {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}
    biased, random = (log.assign(time=EPOCH + 60 * log["time"]) for log in logs)
    for log in (biased, random):
        log.loc[log.index[0], "time"] = 0
    with pytest.warns(UserWarning, match="left out"):
        plain = Partition.from_frames(biased, random, **how)
        data = Partition.from_frames(biased, random.assign(time=1000 * random["time"]), **how)
    assert same(data, plain) and len(data.triplets("S_c").users) < 300


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("times", [1_000, 10**9])
def test_two_units_in_one_column_are_refused(logs, which, times):
    own = [log.assign(time=EPOCH + 60 * log["time"]) for log in logs]
    own[which].loc[own[which].index[::3], "time"] *= times
    where = ("biased", "random")[which]
    message = f"{where}: column 'time' holds 1735[0-9]* and 1735[0-9]*, which look like times in two units: write all"
    for how in (OPTIONS, {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}):
        refused(message, Partition.from_frames, *own, **how)
    counter = [log.assign(time=10.0 ** (8 + 6 * np.arange(len(log)) / len(log))) for log in logs]
    Partition.from_frames(*counter, **OPTIONS)  # a clock that runs through all sizes has no gap


@pytest.mark.parametrize(
    "form",
    [
        lambda t: t.dt.strftime("%Y%m%d%H%M%S").astype(np.int64),
        lambda t: t.dt.strftime("%Y%m%d%H%M").astype(np.int64),
        lambda t: (t.astype(np.int64) // 10**9 + 11_644_473_600) * 10**7,  # Windows: .1 microseconds since 1601
        lambda t: (t.astype(np.int64) // 10**9 + 62_135_596_800) * 10**7,  # .NET: the same since year 1
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_clocks_that_do_not_begin_in_1970_are_refused_beside_one_that_does(logs, form, which):
    """Each of these numbers has the size of some unit since 1970, but in a year that has no logs."""
    how = {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}
    own = [log.assign(time=EPOCH + 60 * log["time"]) for log in logs]
    own[which]["time"] = form(pd.to_datetime(own[which]["time"], unit="s").astype("datetime64[ns]"))
    where = ("biased", "random")[which]
    refused(f"{where}: column 'time' holds numbers .*which do not fit", Partition.from_frames, *own, **how)


@pytest.mark.parametrize("which, unit", [(0, 1000), (1, 60), (1, 1 / 60)])
def test_two_clocks_that_begin_with_the_log_must_have_one_unit(logs, which, unit):
    """Seconds and milliseconds, or minutes, since the log began overlap: nothing else tells that they differ."""
    how = {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}
    own = [log.assign(time=60.0 * log["time"] * (unit if k == which else 1)) for k, log in enumerate(logs)]
    refused(
        "biased and random: column 'time' ends at .*perhaps in two units: write both as",
        Partition.from_frames,
        *own,
        **how,
    )
    with pytest.warns(UserWarning, match="left out"):
        Partition.from_frames(*(log.assign(time=60.0 * log["time"]) for log in logs), **how)


def test_times_without_a_common_clock_are_refused_or_warned_of(logs):
    how = {**OPTIONS, "split": "time", "shares": (0.6, 0.2, 0.2)}
    dated = logs[1].assign(time=pd.to_datetime(EPOCH + logs[1]["time"], unit="s"))
    refused("biased: column 'time' holds numbers .*which do not fit", Partition.from_frames, logs[0], dated, **how)
    epoch = logs[1].assign(time=EPOCH + logs[1]["time"])
    refused("biased: column 'time' holds numbers .*which do not fit", Partition.from_frames, logs[0], epoch, **how)
    with pytest.warns(UserWarning, match="biased and random share no moment of column 'time'"):
        Partition.from_frames(logs[0], logs[1].assign(time=10**5 + logs[1]["time"]), **how)
    assert Partition.from_frames(logs[0], epoch, **OPTIONS).graded, "without a split by time the logs are not compared"


def test_a_split_by_user_keeps_users_whole(logs):
    data = Partition.from_frames(*logs, split="user", shares=(0.5, 0.25, 0.25), threshold=3)
    users = [{user for user, _ in pairs(data, part)} for part in RANDOMIZED]
    n = logs[1]["user"].nunique()
    assert sum(map(len, users)) == n and n / 3 < len(users[0]) < 2 * n / 3
    assert not users[0] & users[1] and not users[0] & users[2] and not users[1] & users[2]
    other = Partition.from_frames(*logs, split="user", shares=(0.5, 0.25, 0.25), threshold=3, split_seed=1)
    assert {user for user, _ in pairs(other, "S_t")} != users[0]
    one = logs[1].assign(user="00001", item=[f"i{k}" for k in range(len(logs[1]))])
    refused(
        r"has 1 user\(s\): a split needs at least 3", Partition.from_frames, logs[0], one, split="user", threshold=3
    )


# ---- what the shell hears ------------------------------------------------------------------------------------------


def test_messages_name_options_in_python_or_cli_style(logs):
    assert option("user_type") == "user_type=" and setting("split", "time") == "split='time'"
    with cli_option_names({"split_seed": "--data-seed"}):
        assert option("user_type") == "--user-type" and setting("split", "time") == "--split time"
        refused("neither 0 nor 1: pass --threshold .labels above", Partition.from_frames, *logs)
        refused("name their column with --timestamp$", Partition.from_frames, *logs, split="time", threshold=3)
        refused("--data-seed=-1", Partition.from_frames, *logs, split_seed=-1)
        refused("--duplicates='lst' is unknown", Partition.from_frames, *logs, duplicates="lst")
    refused("neither 0 nor 1: pass threshold= .labels above", Partition.from_frames, *logs)


# ---- hostile files -------------------------------------------------------------------------------------------------


def test_a_header_of_a_hundred_thousand_columns_or_letters(tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    path.write_text(",".join(f"c{k}" for k in range(100_000)) + "\n1\n")
    refused("line 1: 100,000 columns are more than 10,000", read_log, path)
    path.write_text("user," + "x" * 131_073 + "\n1,2\n")
    refused("line 1: field larger than field limit .131072.: the first line must name", read_log, path)
    path.write_text("x" * 2_000_000)
    refused("line 1: longer than 1,048,576 bytes", read_log, path)
    if not JIT_ENABLED:  # plain Python would read a million letters for a minute
        monkeypatch.setattr(delimited, "LONGEST_LINE", 5_000)
    longest = delimited.LONGEST_LINE
    path.write_text("user,item\n" + "1" * (2 * longest) + ",1\n")
    refused("id .111.* is longer than 512", Partition.from_frames, path, path)
    path.write_text('user,item\n1,"' + "1\n" * longest)
    refused(f"line 2: longer than {longest:,} bytes: check the quotes", read_log, path)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero here")
def test_devices_and_files_of_nul_bytes_are_refused(tmp_path):
    for path in ("/dev/zero", "/dev/null"):
        refused("cannot be read .not a regular file", read_log, path)
    with open(tmp_path / "sparse.csv", "wb") as file:
        file.truncate(10**12)
    refused("line 1: a NUL byte", read_log, tmp_path / "sparse.csv")
    with gzip.open(tmp_path / "bomb.csv.gz", "wb") as file:
        file.write(b"\0" * 10_000_000)
    refused("line 1: a NUL byte", read_log, tmp_path / "bomb.csv.gz")
    (tmp_path / "no.csv.gz").write_text("user,item\n1,2\n")
    refused("no.csv.gz: cannot be read .*gzip", read_log, tmp_path / "no.csv.gz")
    os.mkfifo(tmp_path / "pipe.csv")
    refused("not a regular file", read_log, tmp_path / "pipe.csv")
    refused("no file matches", read_log, tmp_path / "*.tsv")
    (tmp_path / "empty").mkdir()
    refused("Is a directory without logs", read_log, tmp_path / "empty")


def parquet_file(path, columns, **options):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table(columns), path, **options)
    return path


def test_a_parquet_file_of_sixty_million_equal_rows(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    once = pa.array(np.zeros(1_000_000, np.int64))
    many = pa.chunked_array([once] * 60)
    path = parquet_file(tmp_path / "bomb.parquet", {"user": many, "item": many, "label": many})
    monkeypatch.setattr("dubnb.data.log._TableColumns.add", lambda *_: pytest.fail("a row was read"))
    refused("60,000,000 rows in .* bytes: nearly all must be equal", read_log, path)
    monkeypatch.setattr(delimited, "MOST_ROWS_PER_BYTE", 10**9)
    monkeypatch.setattr(delimited, "BYTES_PER_ROW", 10**9)
    refused("60,000,000 rows need 60000000 GB of the .* GB here", read_log, path)


def test_a_small_gz_file_of_many_equal_rows_is_refused_before_all_are_read(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("user,item,label\n" + "1,1,1\n" * 400_000)
    refused(
        r"bomb.csv.gz: \d\d?\d?,\d+ rows in .* bytes: nearly all must be equal; write each pair once", read_log, path
    )


def test_odd_columns_of_parquet(tmp_path, logs):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "log.parquet"
    fine = {"user": ["a", "b"], "item": [1, 2], "label": [0, 1]}
    for name, bad, said in (
        ("user", [[1], [2]], "column 'user' is of type list<"),
        ("label", [{"x": 1}, {"x": 2}], "column 'label' is of type struct<"),
        ("item", [True, False], "column 'item' is of type bool"),
        ("user", [None, "b"], "column 'user', row 1: id nan is missing"),
        ("item", [None, 2], "column 'item', row 1: id nan is missing"),
        ("label", [None, 1], "column 'label', row 1: nan is not a finite number"),
        ("user", [b"a", b"b"], "column 'user' is of type binary"),
    ):
        refused(said, Partition.from_frames, parquet_file(path, {**fine, name: bad}), logs[1])
    parquet_file(path, {**fine, "tags": [[1], [2]]})
    assert read_log(path, columns=["user", "label"])["label"].tolist() == [0, 1], "what is not asked for does no harm"
    broken = pa.table(fine).replace_schema_metadata({"pandas": "{broken"})
    pytest.importorskip("pyarrow.parquet").write_table(broken, path)
    assert read_log(path)["user"].tolist() == ["a", "b"]
    pytest.importorskip("pyarrow.parquet").write_table(broken.replace_schema_metadata({"ARROW:schema": "x"}), path)
    refused("cannot be read as Parquet", read_log, path)
    (tmp_path / "d").mkdir()
    parquet_file(tmp_path / "d" / "0.parquet", fine)
    parquet_file(tmp_path / "d" / "1.parquet", {**fine, "user": [1, 2]})
    refused("column 'user' is of another type than in the files before", read_log, tmp_path / "d")
    parquet_file(tmp_path / "d" / "1.parquet", {"user": ["x"], "item": [1]})
    refused("1.parquet: column 'label' is not in all of the files: make them alike", read_log, tmp_path / "d")
    decimals = pa.array([1, 0]).cast(pa.decimal128(21, 2))
    assert read_log(parquet_file(path, {**fine, "label": decimals}))["label"].tolist() == [1, 0]


@pytest.mark.parametrize("text", ["1_0", "1__0", "0x1", "\uff11"])
def test_labels_are_written_as_numbers_are(logs, text):
    bad = logs[0].astype({"label": object})
    bad.loc[3, "label"] = text
    refused(f"column 'label', row 4: '{text}' is not a finite number", Partition.from_frames, bad, logs[1], threshold=3)


# ---- public logs with randomized traffic ---------------------------------------------------------------------------


def write_kuairand(folder):
    header = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    header += "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"

    def lines(rows, rand):
        return "\n".join(
            [
                header,
                *(
                    f"{u},{v},20220421,400,{t},{c},0,0,0,0,0,{lv},{p},{d},0,0,0,{rand},1"
                    for u, v, t, c, lv, p, d in rows
                ),
            ]
        )

    folder.mkdir(parents=True)
    (folder / "log_standard_4_08_to_4_21_pure.csv").write_text(lines([(0, 5, 1, 1, 0, 5_000, 10_000)], 0))
    later = [(0, 5, 9, 0, 1, 30_000, 20_000), (1, 6, 2, 0, 0, 0, 0), (2, 5, 3, 1, 1, 9_000, 36_000)]
    (folder / "log_standard_4_22_to_5_08_pure.csv").write_text(lines(later, 0))
    random = [(0, 6, 4, 0, 0, 500, 1_000), (1, 5, 5, 1, 1, 1, 1), (2, 6, 6, 0, 0, 0, 7), (2, 7, 7, 0, 0, 3, 4)]
    (folder / "log_random_4_22_to_5_08_pure.csv").write_text(lines(random, 1))


def test_kuairand(tmp_path):
    write_kuairand(tmp_path / "data")
    with pytest.warns(UserWarning, match="1 of 4 rows repeat a pair and were merged: the last"):
        data = load_dataset("kuairand", data_dir=tmp_path)
    assert data.name == "kuairand" and pairs(data, "S_c") == {(0, 5): 1, (1, 6): 0, (2, 5): 1}
    assert pairs(data, "S_c", column="grades") == {(0, 5): 1.0, (1, 6): 0.0, (2, 5): 0.8125}
    assert pairs(data, *RANDOMIZED, column="grades") == {(0, 6): 0.25, (1, 5): 1.0, (2, 6): 0.0, (2, 7): 0.375}
    with pytest.warns(UserWarning):
        clicks = public_logs.load_kuairand(tmp_path / "data", label="is_click")
    assert pairs(clicks, "S_c") == {(0, 5): 0, (1, 6): 0, (2, 5): 1}
    refused("kuairand: .* holds no log_standard_.*KuaiRand project", load_dataset, "kuairand", data_dir=tmp_path / "x")


def test_kuairec(tmp_path):
    header = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
    row = "{},{},1,1,2020-07-05 00:08:23.438,20200705,{},{}\n"
    big = [(0, 1, 1.5, "1.25"), (0, 1, 2.5, "2.5"), (1, 1, 1.0, "0.5"), (2, 2, 3.0, "573.4571428571429")]
    small = [(0, 2, "", "1"), (1, 2, 1.0, "3"), (2, 1, 1.0, "2.0"), (2, 3, 1.0, "0")]
    for name, rows in (("big_matrix.csv", big), ("small_matrix.csv", small)):
        (tmp_path / name).write_text(header + "".join(row.format(*each) for each in rows))
    with pytest.warns(UserWarning, match="1 of 4 rows repeat a pair and were merged: the row with the largest"):
        data = load_dataset("kuairec", data_dir=tmp_path)
    assert pairs(data, "S_c") == {(0, 1): 1, (1, 1): 0, (2, 2): 1}
    assert pairs(data, "S_c", column="grades") == {(0, 1): 0.625, (1, 1): 0.125, (2, 2): 1.0}
    assert pairs(data, *RANDOMIZED, column="grades") == {(0, 2): 0.25, (1, 2): 0.75, (2, 1): 0.5, (2, 3): 0.0}
    os.remove(tmp_path / "big_matrix.csv")
    refused("kuairec: .*expected big_matrix.csv and small_matrix.csv", load_dataset, "kuairec", data_dir=tmp_path)


def test_open_bandit_keeps_a_biased_log_where_both_policies_have_every_pair(tmp_path):
    """With all pairs in both logs S_c would be empty; a random half of the pairs keeps its randomized rows."""
    sizes = (30, 12, 6_000, 4_000)
    public_sizes.write_open_bandit(tmp_path, sizes, affinities=1)
    everything = public_logs.read_open_bandit(tmp_path, "random").groupby(["user", "item_id"], observed=True).size()
    found = {}
    for seed in (0, 1):
        with pytest.warns(UserWarning, match="only a random half"):
            data = load_dataset("open-bandit", data_dir=tmp_path, seed=seed)
        random = data.random
        users, items = data.user_ids.values[random.users], data.item_ids.values[random.items]
        found[seed] = set(zip(users.tolist(), items.tolist(), strict=True))
        assert found[seed] < set(everything.index) and 0.4 < len(found[seed]) / len(everything) < 0.6
        assert data.size("S_c") > 0.4 * len(everything) and data.size("S_te") > 0.7 * len(random.users)
    assert found[0] != found[1]
    with pytest.warns(UserWarning, match="only a random half"):
        assert load_dataset("open-bandit", data_dir=tmp_path, seed=1).fingerprint == data.fingerprint


def test_open_bandit(tmp_path):
    header = (
        ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user_feature_2,user_feature_3"
    )
    logs = {
        "bts": [(3, 1, 0, "a"), (3, 2, 1, "a"), (4, 1, 0, "b"), (5, 3, 0, "b")],
        "random": [(3, 3, 0, "b"), (4, 1, 1, "a"), (5, 2, 0, "a")],
    }
    for policy, rows in logs.items():
        (tmp_path / policy / "all").mkdir(parents=True)
        lines = [
            f"{k},2019-11-24 00:00:2{k}.1+00:00,{i},{p},{c},0.0125,{u},x,y,z" for k, (i, p, c, u) in enumerate(rows)
        ]
        (tmp_path / policy / "all" / "all.csv").write_text(
            "\n".join([header + ",user-item_affinity_0", *(f"{each},0.0" for each in lines)])
        )
    with pytest.warns(UserWarning, match="1 of 4 rows repeat a pair") as said:
        data = load_dataset("open-bandit", data_dir=tmp_path)
    assert sum("propensity_score of the policy bts is not read" in str(each.message) for each in said) == 1
    assert not any("rows of the biased log" in str(each.message) for each in said)
    assert pairs(data, "S_c") == {("a|x|y|z", 3): 0, ("b|x|y|z", 4): 0, ("b|x|y|z", 5): 0}, "the first impression's"
    assert (
        data.triplets("S_c").weights.tolist() == pytest.approx([4 / 3, 1, 1])
        and pairs(data, "S_c", column="grades")["a|x|y|z", 3] == 0.5
    )
    assert set(data.triplets("S_t").propensities.tolist()) == {np.float32(0.0125)} and data.propensities is None
    log = public_logs.read_open_bandit(tmp_path, "bts")
    assert log["user"].cat.categories.tolist() == ["a|x|y|z", "b|x|y|z"], "one string a user, not one a row"
    assert log["position"].tolist() == [1, 2, 1, 3] and log["user"].tolist() == ["a|x|y|z"] * 2 + ["b|x|y|z"] * 2
    refused("campaign='kids' is unknown", public_logs.load_open_bandit, tmp_path, campaign="kids")
    refused(
        "holds no bts/men/men.csv: expected bts/men/men.csv and random/men/men.csv",
        public_logs.load_open_bandit,
        tmp_path,
        campaign="men",
    )
