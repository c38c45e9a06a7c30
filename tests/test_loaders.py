"""Frames and files -> Partition: ids, labels, the paper's split, and every bad input as one clear line."""

import sys

import numpy as np
import pandas as pd
import pytest

from dubnb.data import delimited
from dubnb.data.datasets import DATASETS, load_dataset
from dubnb.data.partition import PARTS, RANDOMIZED, Partition
from dubnb.data.public_logs import COAT_MATRICES, YAHOO_FILES, load_coat, load_yahoo_r3
from dubnb.data.read import read_log
from dubnb.data.rows import LogRows, checked_split, split_rows
from tests.log_tools import pairs, refused

from_frames = Partition.from_frames


def frame(users, items, labels, **more):
    return pd.DataFrame({"user": users, "item": items, "label": labels, **more})


def biased(users=(1, 2, 3), items=(1, 1, 2), labels=(1, 0, 1), **more):
    return frame(list(users), list(items), list(labels), **more)


def randomized(users=(1, 2, 3, 3), items=(3, 3, 3, 1), labels=(0, 1, 0, 0), **more):
    return frame(list(users), list(items), list(labels), **more)


# ---- from_frames ----------------------------------------------------------------------------------------------------


def test_frames_keep_every_pair_under_its_original_id():
    data = from_frames(biased(), randomized(), name="mine")
    assert pairs(data, "S_c") == {(1, 1): 1, (2, 1): 0, (3, 2): 1}
    union = pairs(data, "S_t") | pairs(data, "S_va") | pairs(data, "S_te")
    assert union == {(1, 3): 0, (2, 3): 1, (3, 3): 0, (3, 1): 0}
    assert data.name == "mine" and (data.n_users, data.n_items) == (3, 3)
    assert from_frames(biased(), randomized()).fingerprint == data.fingerprint


def test_ids_map_over_the_union_of_both_logs():
    data = from_frames(biased(users=[-5, 900, 3]), randomized(users=[7, 3, 3, -(2**62)], items=[3, 4, 5, 6]))
    assert data.user_ids.values.tolist() == [-(2**62), -5, 3, 7, 900]
    assert data.item_ids.values.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dtype", ["object", "string", "category", "str"])
def test_text_ids(dtype):
    names = pd.Series(["=cmd", "<script>alert(1)</script>", "007"]).astype(dtype)
    data = from_frames(biased(users=names), {"S_t": biased(users=names, items=[9, 9, 9])})
    assert data.user_ids.values.tolist() == ["007", "<script>alert(1)</script>", "=cmd"]
    assert data.user_ids.values.dtype.kind == "U"
    assert pairs(data, "S_c")[("=cmd", 1)] == 1


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "float64", "Int64", "Float64", "category", "object"])
def test_whole_number_ids_of_any_dtype_become_int(dtype):
    users = pd.Series([1, 2, 3]).astype(dtype)
    data = from_frames(biased(users=users), randomized())
    assert data.user_ids.values.tolist() == [1, 2, 3] and data.user_ids.values.dtype == np.int64
    assert data.fingerprint == from_frames(biased(), randomized()).fingerprint


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([1, np.nan, 3], "column 'user', row 2: id nan is missing: drop"),
        (["a", None, "c"], "row 2: id .* is missing"),
        (["a", "", "c"], "row 2: id '' is missing"),
        (["a", "b", "nan"], "row 3: id 'nan' is missing"),
        (pd.Series([1, 2, pd.NA], dtype="Int64"), "row 3: id .* is missing"),
        ([1, 2**64, 3], "row 2: id 18446744073709551616 has more than 64 bits: make the ids str"),
        ([1, -(2**63) - 1, 3], "row 2: id -9223372036854775809 has more than 64 bits"),
        ([2**64, 2**70, 3], "row 1: id 18446744073709551616 has more than 64 bits"),  # the first of two
        ([1, 2**70, 3], "row 2: id 1180591620717411303424 has more than 64 bits"),
        ([-1, 2**63, 3], "row 2: id 9223372036854775808 needs uint64, id -1 int64: make the ids str"),
        ([1.0, 2.5, 3.0], "row 2: id 2.5 is not a whole number"),
        ([1.0, 2.0**53, 3.0], "row 2: id 9007199254740992.0 is a float of"),
        ([1.0, np.inf, 3.0], "row 2: id inf is not a whole number"),
        ([1, "a", 3], "row 2: id 'a' and id 1 mix int and str"),
        (["a", 2, "c"], "row 2: id 2 and id 'a' mix int and str"),
        ([True, False, True], "id True is of type bool: make ids int or str"),
        ([3, True, 4], "row 2: id True is a bool: make ids int or str"),
        ([(1,), (2,), (3,)], "is a tuple: make ids int or str"),
        ([1j, 2j, 3j], "is of type complex128"),
        (pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]), "is of type datetime64"),
        (["a", "b\0", "c"], "row 2: id 'b.x00' holds a NUL character"),
        (["a", "b" * 513, "c"], "row 2: id 'bbb.* is longer than 512 characters"),
    ],
)
def test_bad_ids(users, message):
    refused("^biased: .*" + message, from_frames, biased(users=users), randomized())


def test_ids_must_be_of_one_kind_in_both_logs():
    text = randomized(users=["1", "2", "3", "3"])
    refused("column 'user' is int in biased but str in random", from_frames, biased(), text)


def test_columns_by_name_and_missing_ones_are_listed():
    renamed = {"user": "u", "item": "i", "label": "rating"}
    logs = [log.rename(columns=renamed) for log in (biased(), randomized())]
    data = from_frames(*logs, user="u", item="i", label="rating")
    assert data.fingerprint == from_frames(biased(), randomized()).fingerprint
    refused("biased: column 'user' is missing: .*user=; there are 'u', 'i', 'rating'", from_frames, *logs)
    refused("random: column 'weight' is missing", from_frames, biased(weight=1.0), randomized(), weight="weight")
    refused("must be distinct", from_frames, biased(), randomized(), item="user")
    twice = pd.concat([biased(), biased()[["label"]]], axis=1)
    refused("column 'label' occurs 2 times", from_frames, twice, randomized())


def test_frames_must_be_frames_with_rows():
    refused(
        "biased is a list: pass a pandas DataFrame, a polars or Arrow table, or a file", from_frames, [1], randomized()
    )
    refused("b.csv: cannot be read .No such file", from_frames, biased(), "b.csv")
    refused("biased: no rows", from_frames, biased().iloc[:0], randomized())
    refused("random: no rows", from_frames, biased(), randomized().iloc[:0])


def test_threshold():
    ratings = biased(labels=[5, 3, 4])
    data = from_frames(ratings, randomized(labels=[1, 2, 3, 3.5]), threshold=3)
    assert data.triplets("S_c").labels.tolist() == [1, 0, 1]
    assert sum(pairs(data, part)[(3, 1)] for part in RANDOMIZED if (3, 1) in pairs(data, part)) == 1
    refused("label 5 is neither 0 nor 1: pass threshold=", from_frames, ratings, randomized())
    refused("threshold='3' must be a finite number", from_frames, ratings, randomized(), threshold="3")


@pytest.mark.parametrize("labels", [[True, False, True], ["1", "0", "1.0"], ["True", "False", "True"], [1.0, 0.0, 1.0]])
def test_labels_of_any_writing(labels):
    assert from_frames(biased(labels=labels), randomized()).triplets("S_c").labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("bad", [np.nan, None, np.inf, "good", ()])
def test_bad_labels_are_not_taken_for_negative(bad):
    labels = pd.Series([1, bad, 0], dtype=object)
    message = "biased: column 'label', row 2: .* is not a finite number"
    refused(message, from_frames, biased(labels=labels), randomized(), threshold=0.5)


def test_one_class_of_labels_is_legal():
    data = from_frames(biased(labels=[1, 1, 1]), randomized(labels=[0, 0, 0, 0]))
    assert data.S_c.sum() == 3 and data.S_t.sum() == 0 and "P/N -" in data.summary()


def test_weights():
    data = from_frames(biased(w=[0.5, 2, 3]), randomized(w=["4"] * 4), weight="w")
    assert data.triplets("S_c").weights.tolist() == [0.5, 2, 3]
    assert set(data.triplets("S_te").weights.tolist()) == {4}


def test_duplicates_in_the_randomized_log_are_judged_before_the_split():
    n = 20
    log = frame([*range(n), *range(n)], [5] * (2 * n), [0, 1] * n)
    with pytest.warns(UserWarning, match="random: 20 of 40 rows repeat a pair"):
        data = from_frames(biased(), log, duplicates="max")
    once = from_frames(biased(w=1.0), log.iloc[:n].assign(w=2.0), weight="w")
    for part in RANDOMIZED:
        for one, other in zip(data.triplets(part), once.triplets(part), strict=True):
            assert np.array_equal(one, other), "at the places of the first occurrences, in log order, weights added"
    refused(r"random: pair \(user 0, item 5\) occurs twice", from_frames, biased(), log, duplicates="error")


def test_ready_made_splits():
    parts = {"S_t": frame([8], [9], [1]), "S_te": frame([1, 2], [9, 9], [0, 1])}
    data = from_frames(biased(), parts)
    assert [data.S_t.nnz, data.S_va.nnz, data.S_te.nnz] == [1, 0, 2]
    assert pairs(data, "S_t") == {(8, 9): 1}, "a user and an item unknown to S_c"
    refused("part of random='test' is unknown", from_frames, biased(), {"S_t": parts["S_t"], "test": parts["S_te"]})
    refused("no S_t", from_frames, biased(), {"S_te": parts["S_te"]})
    refused("S_va: no rows", from_frames, biased(), {"S_t": parts["S_t"], "S_va": parts["S_t"].iloc[:0]})
    refused("S_te: column 'label', row 1", from_frames, biased(), {**parts, "S_te": frame([1], [9], ["x"])})
    refused("both S_t and S_va", from_frames, biased(), {"S_t": parts["S_t"], "S_va": parts["S_t"]})


# ---- the split ------------------------------------------------------------------------------------------------------


def numbered(n):
    rows, label = np.arange(n), np.zeros(n)
    return LogRows(rows, np.zeros(n, int), label, rows, np.arange(1))


def test_the_papers_split_of_54_000_rows():
    parts, _ = split_rows(numbered(54_000), "permutation")
    order = np.random.RandomState(0).permutation(54_000)
    assert (parts["S_t"] == order[:5_400]).all()
    assert (parts["S_va"] == order[5_400:10_800]).all()
    assert (parts["S_te"] == order[10_800:]).all()
    assert [len(parts[part]) for part in RANDOMIZED] == [5_400, 5_400, 43_200]


@pytest.mark.parametrize(
    ("n", "split", "sizes"),
    [
        (3, (0.1, 0.1, 0.8), [1, 1, 1]),
        (4, (0.1, 0.1, 0.8), [1, 1, 2]),
        (15, (0.1, 0.1, 0.8), [2, 2, 11]),
        (4_640, (0.1, 0.1, 0.8), [464, 464, 3_712]),
        (5, (0.5, 0.5, 0), [2, 3, 0]),
        (5, (1, 0, 0), [5, 0, 0]),
        (5, (0.2, 0, 0.8), [1, 0, 4]),
        (3, (0.98, 0.01, 0.01), [1, 1, 1]),
        (10, (0.98, 0.01, 0.01), [8, 1, 1]),
        (7, (0.5, 0.5, 0.0), [4, 3, 0]),
    ],
)
def test_split_sizes(n, split, sizes):
    parts, _ = split_rows(numbered(n), *checked_split("permutation", split, 0))
    assert [len(parts[part]) for part in RANDOMIZED] == sizes
    assert sorted(np.concatenate([parts[part] for part in RANDOMIZED])) == list(range(n))


def test_split_refuses():
    for shares in ((0.5, 0.5), (0.1, 0.1, 0.7), (0, 0.2, 0.8), (0.5, -0.1, 0.6), 0.1, "abc"):
        refused("shares=", from_frames, biased(), randomized(), shares=shares)
    refused(
        r"split=\(0.1, 0.1, 0.8\) must be one of .*shares=", from_frames, biased(), randomized(), split=(0.1, 0.1, 0.8)
    )
    refused("split='tim' is unknown: .* mean 'time'", from_frames, biased(), randomized(), split="tim")
    refused("split_seed=-1", from_frames, biased(), randomized(), split_seed=-1)
    refused("split_seed=4294967296 must be at most", from_frames, biased(), randomized(), split_seed=2**32)
    refused("has 2 distinct pair.*at least 3", from_frames, biased(), randomized().iloc[:2])


# ---- read_log and read_log ----------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(content, name="log.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [
        "user,item,label\n1,a,1\n-2,b,0\n",
        "user\titem\tlabel\n1\ta\t1\n-2\tb\t0\n",
        "\ufeffuser,item,label\r\n1,a,1\r\n-2,b,0\r\n",
        "user, item, label\n1, a, 1\n-2, b, 0",
        '"user","item","label"\n1,"a",1\n\n-2,"b",0\n\n',
        "user,item,label\r1,a,1\r-2,b,0\r",
    ],
)
def test_csv_dialects(write, content):
    log = read_log(write(content))
    assert list(log.columns) == ["user", "item", "label"]
    assert log["user"].tolist() == [1, -2] and log["user"].dtype == np.int64
    assert log["item"].tolist() == ["a", "b"] and log["label"].tolist() == [1, 0]


def test_a_column_is_int_only_if_every_cell_is_written_as_one(write):
    text = "user,item,c,d,e,f,g\n007,1.0,1.0,-0,0,9223372036854775807,1e3\n8,2.0,2.0,3,-1,-9223372036854775808,-2.5\n"
    log = read_log(write(text))
    assert log["user"].tolist() == ["007", "8"] and log["item"].tolist() == [1, 2], "padding stays; 1.0 is whole"
    assert log["c"].tolist() == [1.0, 2.0] and log["d"].tolist() == ["-0", "3"] and log["g"].tolist() == [1000, -2.5]
    assert log["e"].tolist() == [0, -1] and log["e"].dtype == np.int64
    assert log["f"].tolist() == [2**63 - 1, -(2**63)] and log["f"].dtype == np.int64


def test_more_rows_than_one_batch(write, monkeypatch):
    n = 2 * 100 + 7
    monkeypatch.setattr(delimited, "ROWS_AT_ONCE", 100)
    lines = [f"{i},{i % 7},{i % 2}" for i in range(n)]
    log = read_log(write("user,item,label\n" + "\n".join(lines)))
    assert (log["user"] == np.arange(n)).all() and (log["item"] == np.arange(n) % 7).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty: the first line must name the columns"),
        ("\n\n", "empty: the first line must name the columns"),
        ("user,item,label\n", "no rows below the header"),
        ("user,item,label\r\n\r\n", "no rows below the header"),
        ("user,item,user\n1,2,3\n", "line 1: column 'user' occurs twice"),
        ("user,item,label" + 2 * ("," + "x" * 100_000) + "\n1,2,1,0,0\n", r"line 1: column 'x{56}\.\.\. occurs twice"),
        ("user,item,label\n1,2,1\n1,3\n", r"line 3: 2 cell\(s\) instead of 3"),
        ("user,item,label\n1,2,1,9\n", r"line 2: 4 cell\(s\) instead of 3"),
        ("user,item,label\n1,2,1\n\n1,3,0,\n", r"line 4: 4 cell\(s\) instead of 3"),
        ("user,item,label\n1,\0,1\n", "line 2: a NUL byte"),
        ('user,item,label\n1,"2,1\n1,3,0\n', "line 3: .*check the quotes"),
        (b"user,item,label\n1,2,1\n1,\xff,1\n", "line 3: not UTF-8 text: save the file as UTF-8"),
        ("user,item,label\n1,2,1\n".encode("utf-16"), "line 1: not UTF-8"),
    ],
)
def test_bad_files(write, content, message):
    path = write(content)
    refused(f"^{path}.*{message}", read_log, path)


def test_missing_file_and_directory(tmp_path):
    refused("none.csv: cannot be read .No such file", read_log, tmp_path / "none.csv")
    refused("cannot be read .Is a directory", read_log, tmp_path)


def test_read_log(write):
    b = write("user,item,label\n007,=cmd,5\n8,<script>,1\n", "b.csv")
    r = write("label\tuser\titem\n4\t007\tx\n1\t8\ty\n2\t9\t=cmd\n", "r.tsv")
    data = from_frames(b, str(r), threshold=3)
    assert data.name == "b.csv + r.tsv"
    assert pairs(data, "S_c") == {("007", "=cmd"): 1, ("8", "<script>"): 0}
    assert data.user_ids.values.tolist() == ["007", "8", "9"]
    assert [data.triplets(part).labels.sum() for part in PARTS[1:]].count(1) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,item,label\n1,2,1\n,3,0\n", "column 'user', row 2: id '' is missing"),
        ("user,item,label\n1,2,1\nnan,3,0\n", "column 'user', row 2: id 'nan' is missing"),
        ("user,item,label\n1,2,1\n2,3,\n", "column 'label', row 2: '' is not a finite number"),
        ("u,i,l\n1,2,1\n", "column 'user' is missing: name the column with user=; there are 'u', 'i', 'l'"),
        ("user," + "x" * 100_000 + ",label\n1,2,1\n", r"there are 'user', 'x{56}\.\.\., 'label'$"),
        ("user:item:label\n1:2:1\n", "there are 'user:item:label'"),
        (",".join(f"c{k:02}" for k in range(20)) + "\n", "there are 'c00', .*, 'c18', 'c19'$"),
        (",".join(f"c{k:02}" for k in range(21)) + "\n", "there are 'c00', .*, 'c18', 'c19', ...$"),
    ],
)
def test_read_log_names_the_file(write, content, message):
    fine = write("user,item,label\n1,5,1\n2,5,0\n3,5,0\n", "r.csv")
    path = write(content, "bad.csv")
    refused(f"^{path}: .*{message}", from_frames, path, fine)


def test_parquet_round_trip(tmp_path):
    pytest.importorskip("pyarrow")
    log = biased(users=["a", "b", "c"])
    log.to_parquet(tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(read_log(tmp_path / "b.parquet").astype({"user": "str"}), log, check_dtype=False)
    refused("none.parquet: cannot be read as Parquet", read_log, tmp_path / "none.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    refused("bad.parquet: cannot be read as Parquet", read_log, tmp_path / "bad.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(r"Parquet needs pyarrow: pip install 'dubnb\[parquet\]'", read_log, tmp_path / "b.parquet")


# ---- Yahoo! R3 and Coat ---------------------------------------------------------------------------------------------


def write_triplets(path, rows, delimiter, first_id):
    lines = [delimiter.join(map(str, (u + first_id, i + first_id, r))) for u, i, r in rows]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def ratings():
    """(biased, random) rows of user, item, rating; the last user occurs in the biased log only."""
    rng = np.random.RandomState(0)
    keys = rng.permutation(29 * 20)
    rows = [(int(k // 20), int(k % 20), int(r)) for k, r in zip(keys, rng.randint(1, 6, len(keys)), strict=True)]
    return [*rows[50:], (29, 19, 5)], rows[:60]


@pytest.mark.parametrize("layout", YAHOO_FILES)
def test_yahoo_r3_files(tmp_path, ratings, layout):
    for name, rows in zip(layout.names, ratings, strict=True):
        write_triplets(tmp_path / name, rows, layout.delimiter, layout.first_id)
    data = load_dataset("yahoo-r3", data_dir=tmp_path)
    random = ratings[1]
    order, tenth = np.random.RandomState(0).permutation(len(random)), round(0.1 * len(random))
    cuts = np.split(order, [tenth, 2 * tenth])
    for part, rows in zip(RANDOMIZED, cuts, strict=True):
        wanted = {(random[k][0] + layout.first_id, random[k][1] + layout.first_id): random[k][2] > 3 for k in rows}
        assert pairs(data, part) == wanted
    assert data.S_c.nnz == len(ratings[0]) - 10 and data.removed == 10
    assert data.S_c.shape == (30, 20) and data.name == "yahoo-r3"
    assert data.user_ids.values[0] == layout.first_id
    other = load_dataset("yahoo-r3", data_dir=tmp_path, seed=1)
    assert other.name == "yahoo-r3, split 1"  # so that the paper's numbers do not stand beside it
    assert pairs(other, "S_te") != pairs(data, "S_te")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,1", r"line 2: 2 cell\(s\) instead of 3"),
        ("-1,1,3", "line 2: user -1 must be a whole number from 0"),
        ("a,1,3", "line 2: user 'a' must be a whole number"),
        ("99999999999,1,3", "line 2: user 99999999999 must be a whole number from 0 and below 10,000,000"),
        ("0,1,x", "row 2: 'x' is not a finite number"),
        ("0,1,", "row 2: '' is not a finite number"),
    ],
)
def test_bad_triplets(tmp_path, line, message):
    (tmp_path / "random.txt").write_text("0,0,1\n")
    (tmp_path / "user.txt").write_text(f"0,0,5\n{line}\n")
    refused(f"user.txt.*{message}", load_yahoo_r3, tmp_path)


def test_empty_triplets_and_ids_from_0_in_the_original_files(tmp_path):
    for files, text, said in ((0, "", "user.txt: empty"), (1, "0\t1\t5\n", "user 0 must be a whole number from 1")):
        for name in YAHOO_FILES[files].names:
            (tmp_path / name).write_text(text)
        refused(said, load_yahoo_r3, tmp_path)
        for name in YAHOO_FILES[files].names:
            (tmp_path / name).unlink()


def test_missing_dataset_files_are_named(tmp_path):
    message = (
        "yahoo-r3: .* holds neither: expected user.txt and random.txt, or ydata-ymusic-rating-study-v1_0-train.txt and "
        "ydata-ymusic-rating-study-v1_0-test.txt there; .*Webscope on request"
    )
    refused(message, load_yahoo_r3, tmp_path)
    (tmp_path / "user.txt").write_text("0,0,1\n")
    refused("coat: .* holds neither: expected user.txt and random.txt, or train.ascii and", load_coat, tmp_path)
    refused("is not a directory", load_coat, tmp_path / "nowhere")


def test_malformed_coat_matrices_are_refused(tmp_path):
    (tmp_path / "train.ascii").write_text("0 1 2\r\n3 0 0\r\n")
    for text, message in (
        ("", "not a matrix"),
        ("0 0 0\n0 0 0\n", "not a matrix"),
        ("1 2\n3\n", "not a matrix"),
        ("1 x 2\n", "not a matrix"),
        ("1 nan 2\n", "not a matrix"),
        ("1 2\n", "must agree"),
        ("0 1 2\n#3 0 0\n", "not a matrix"),
        ("0 1 2\n3 0 6\n", "rating 4 is 6: ratings go from 1 to 5"),
        ("0 1 2\n-3 0 0\n", "rating 3 is -3"),
    ):
        (tmp_path / "test.ascii").write_text(text)
        refused(f"test.ascii.*{message}", load_coat, tmp_path)


def test_coat_matrices_are_read_row_by_row(tmp_path):
    (tmp_path / "train.ascii").write_text("0 1 5\n4 0 2\n")
    (tmp_path / "test.ascii").write_text("4 0 0\n0 5 1\n")
    data = load_coat(tmp_path)
    assert data.S_c.shape == (2, 3)
    S_c, random = data.triplets("S_c"), [data.triplets(part) for part in ("S_t", "S_va", "S_te")]
    pairs = list(zip(S_c.users.tolist(), S_c.items.tolist(), S_c.labels.tolist(), strict=True))
    assert pairs == [(0, 1, 0.0), (0, 2, 1.0), (1, 0, 1.0)]  # (1, 2) is in the randomized log
    found = {(u, i): y for log in random for u, i, y in zip(log.users, log.items, log.labels, strict=True)}
    assert found == {(0, 0): 1.0, (1, 1): 1.0, (1, 2): 0.0}


def test_ratings_keep_their_grades(tmp_path, ratings):
    for name, rows in zip(YAHOO_FILES[0].names, ratings, strict=True):
        write_triplets(tmp_path / name, rows, ",", 0)
    data = load_dataset("yahoo-r3", data_dir=tmp_path)
    rating = {(u, i): r for log in ratings for u, i, r in log}
    for part in PARTS:
        users, items, labels, _, grades, *_ = data.triplets(part)
        found = np.array([rating[u, i] for u, i in zip(users.tolist(), items.tolist(), strict=True)])
        assert (grades == (found - 1) / 4).all() and (labels == (found > 3)).all()


def test_coat(coat_dir):
    data = load_dataset("coat", data_dir=coat_dir)
    assert [data.triplets(part).users.size for part in PARTS] == [6_960 - 366, 464, 464, 3_712]
    assert data.removed == 366 and data.S_c.shape == (290, 300)
    positives = [int(data.triplets(part).labels.sum()) for part in PARTS]
    assert positives == [1_814, 104, 88, 668]
    ratios = [line.split("P/N ")[1] for line in data.summary().splitlines()[1:5]]
    assert ratios == ["37.95 %", "28.89 %", "23.40 %", "21.94 %"]


def test_both_kinds_of_coat_files_are_one_dataset(coat_dir, tmp_path):
    for name in COAT_MATRICES:
        (tmp_path / name).symlink_to(coat_dir / name)
    assert load_coat(tmp_path).fingerprint == load_coat(coat_dir).fingerprint


# ---- datasets by name -----------------------------------------------------------------------------------------------


def test_registry_has_one_line_each():
    assert {"simulated", "yahoo-like", "product-like", "coat", "yahoo-r3"} <= set(DATASETS)
    for dataset in DATASETS.values():
        assert isinstance(dataset.needs_files, bool)
        assert dataset.description and "\n" not in dataset.description


@pytest.mark.parametrize("name", ["../x", "Coat", "", None, 3, ["coat"]])
def test_unknown_names(name):
    refused("dataset=.* is unknown: choose one of simulated", load_dataset, name)


def test_data_dir_where_it_is_needed_and_only_there(tmp_path):
    refused("'coat' is read from files: say where they are with data_dir=", load_dataset, "coat")
    refused("'simulated' is simulated and reads no files: leave it out", load_dataset, "simulated", data_dir=tmp_path)
    refused("seed=-1", load_dataset, "simulated", seed=-1)
