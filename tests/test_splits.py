"""Splits of one's own logs: by a hash that does not change from week to week, in shares that only shrink."""

import warnings

import numpy as np
import pandas as pd
import pytest

from dubnb._check import InputError
from dubnb._random import key, mix, mix_arrays
from dubnb.data import rows as splits
from dubnb.data.ids import hash_fraction, hashes_of_both, id_hashes
from dubnb.data.partition import PARTS, RANDOMIZED, Partition
from dubnb.data.rows import LogRows, Shares, shares_by_size, split_rows
from tests import naive
from tests.log_tools import pairs


def log(n, seed=0, rate=0.1, n_users=400, n_items=300):
    """n distinct pairs in random order."""
    rng = np.random.default_rng(seed)
    users, items = np.divmod(rng.permutation(n_users * n_items)[:n], n_items)
    return pd.DataFrame({"user": users, "item": items, "label": (rng.random(n) < rate).astype(int)})


def rows_of(frame, **more):
    users, items = (np.unique(frame[side], return_inverse=True) for side in ("user", "item"))
    return LogRows(users[1], items[1], frame["label"].to_numpy(), users[0], items[0], **more)


# ---- the hash ------------------------------------------------------------------------------------------------------


def test_hashes_of_arrays_are_those_of_the_kernels():
    keys = np.arange(5, dtype=np.uint64) * np.uint64(2**61 + 12345)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # without the JIT a scalar that wraps around warns
        assert mix_arrays(keys, keys[::-1]).tolist() == [int(mix(a, b)) for a, b in zip(keys, keys[::-1], strict=True)]


def test_an_id_has_the_hash_of_its_text():
    of = key(3, "test")
    numbers = np.array([0, 7, -12, 2**63 - 1, -(2**63)])
    texts = np.array([str(number) for number in numbers.tolist()])
    assert (id_hashes(numbers, of) == id_hashes(texts, of)).all()
    assert (id_hashes(texts.astype("U500"), of) == id_hashes(texts, of)).all()  # the array's width does not matter
    big = np.array([2**64 - 1], np.uint64)
    assert id_hashes(big, of)[0] == id_hashes(np.array([str(2**64 - 1)]), of)[0]
    several = np.array(["a", "b", "ab", "ba", "abc", "ab c", "é", "e", "日本", "日"])
    assert len(set(id_hashes(several, of).tolist())) == len(several)
    assert (id_hashes(several, of) != id_hashes(several, key(4, "test"))).all()


def test_many_ids_are_hashed_block_by_block(monkeypatch):
    values = np.arange(1000)
    whole = id_hashes(values, np.uint64(5))
    monkeypatch.setattr("dubnb.data.ids.BLOCK", 7)
    assert (id_hashes(values, np.uint64(5)) == whole).all() and len(set(whole.tolist())) == 1000


def test_pairs_are_spread_evenly_and_independently():
    users, items = np.divmod(np.arange(40_000), 200)
    of_users, of_items = hashes_of_both(np.arange(200), np.arange(200))
    u = hash_fraction(mix_arrays(of_users[users], of_items[items]))
    counts = np.histogram(u, 20, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 45  # chi-squared of 19 degrees of freedom: p .0007
    means = u.reshape(200, 200)
    for side in (0, 1):  # of users and of items: as many as chance gives
        assert abs(means.mean(axis=side).var() / (1 / 12 / 200) - 1) < 0.4
    other = hash_fraction(mix_arrays(of_users[items], of_items[users]))
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.02  # (7, 9) is another pair than (9, 7)
    assert ((u >= 0) & (u < 1)).all() and hash_fraction(np.array([2**64 - 1], np.uint64))[0] < 1


# ---- stable splits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["random", "user"])
def test_a_split_depends_on_neither_order_nor_form_nor_other_rows(rule, tmp_path):
    biased, random = log(5000, 1), log(3000, 2)
    how = {"split": rule, "shares": (0.6, 0.15, 0.25)}
    data = Partition.from_frames(biased, random, **how)
    shuffled = Partition.from_frames(biased, random.sample(frac=1, random_state=0), **how)
    assert shuffled.fingerprint == data.fingerprint
    for name, frame in (("b", biased), ("r", random)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    read = Partition.from_frames(tmp_path / "b.csv", tmp_path / "r.csv", **how)
    assert read.fingerprint == data.fingerprint
    as_text = Partition.from_frames(biased, random, user_type="str", **how)
    fewer = Partition.from_frames(biased.iloc[:1000], random.iloc[::3], **how)
    for part in RANDOMIZED:
        assert {(int(user), item) for user, item in pairs(as_text, part)} == set(pairs(data, part))
        assert set(pairs(fewer, part)) <= set(pairs(data, part))
    other = Partition.from_frames(biased, random, split_seed=1, **how)
    assert pairs(other, "S_te") != pairs(data, "S_te")
    for part, share in zip(RANDOMIZED, how["shares"], strict=True):
        assert abs(len(pairs(data, part)) / len(random) - share) < 0.08


@pytest.mark.parametrize("rule", ["random", "user"])
@pytest.mark.parametrize("rate", [0.002, 0.1, 0.9])
def test_no_trained_pair_ever_enters_S_va_or_S_te_as_a_log_grows(rule, rate):
    """From 20 rows to 12,000, in uneven steps, through every regime of the shares."""
    whole, biased = log(12_000, 3, rate), log(6000, 4)
    before, regimes = None, set()
    for n in (20, 21, 23, 30, 45, 80, 150, 300, 700, 1500, 3000, 5000, 8000, 12_000):
        if rule == "user" and whole["user"].iloc[:n].nunique() < 20:
            continue
        now, facts = split_rows(rows_of(whole.iloc[:n]), rule, seed=5)
        part = np.empty(n, int)
        for number, rows in enumerate(now.values()):  # 0 is S_t, 1 is S_va, 2 is S_te
            part[rows] = number
        if before is not None:
            assert (part[: len(before)] <= before).all()  # towards training, never back
        before = part
        regimes.add(facts.shares)
    assert len(regimes) > 2 or rate == 0.002
    last = Partition.from_frames(biased, whole, split=rule, split_seed=5)
    assert [len(last.triplets(name).users) for name in RANDOMIZED] == [int((before == k).sum()) for k in range(3)]


def test_shares_by_size_never_rise_and_meet_what_is_wanted():
    sizes = np.unique(np.geomspace(1, 10**7, 3000).astype(int))
    found = [shares_by_size(int(n)) for n in [0, *sizes]]
    for name in ("S_va", "S_te"):
        values = np.array([getattr(each, name) for each in found])
        assert (np.diff(values) <= 0).all() and values[-1] == splits.LEAST_SHARE
    totals = np.array([each.S_va + each.S_te for each in found])
    assert (np.diff(totals) <= 1e-12).all() and all(abs(sum(each[:3]) - 1) < 1e-12 for each in found)
    assert found[0] == Shares(0.4, 0.25, 0.35, given=False)
    for n, each in zip([0, *sizes], found, strict=True):
        assert each.S_t >= 0.4 - 1e-12
        if n >= 600:
            assert n * each.S_te >= 200 - 1e-6 and n * each.S_va >= 150 - 1e-6
        if n >= 400:
            assert n * each.S_va >= 100 - 1e-6
    assert shares_by_size(1080)[:3] == (0.65, 0.15, 0.2)


def test_the_rarer_label_decides_the_shares():
    frame = log(2000, 1, 0.8)
    negatives = int((frame["label"] == 0).sum())
    _, facts = split_rows(rows_of(frame))
    assert facts.shares == shares_by_size(negatives)[:3] and f"{negatives:,} negatives among" in facts.why
    _, clicks = split_rows(rows_of(frame.assign(label=1), labelled=False))
    assert clicks.shares == shares_by_size(2000)[:3] and "2,000 positives among 2,000" in clicks.why


def test_small_logs_have_both_labels_in_every_part_where_possible():
    good = 0
    for seed in range(60):
        frame = log(60, seed, 0)
        frame.loc[frame.index[:6], "label"] = 1
        rows, _ = split_rows(rows_of(frame))
        assert all(len(each) for each in rows.values())
        labels = frame["label"].to_numpy()
        good += 0 < labels[rows["S_te"]].sum() < len(rows["S_te"]) and labels[rows["S_va"]].sum() > 0
    plain = [split_rows(rows_of(log(60, seed, 0.1)), shares=(0.4, 0.25, 0.35))[1].shares for seed in range(5)]
    assert good >= 55 and set(plain) == {(0.4, 0.25, 0.35)}


@pytest.mark.parametrize("rule", ["random", "user"])
def test_a_handful_of_rows_leaves_no_part_empty(rule):
    for n in range(3, 20):
        frame = pd.DataFrame({"user": np.arange(n), "item": 1, "label": np.arange(n) % 2})
        rows, _ = split_rows(rows_of(frame), rule)
        assert all(len(each) for each in rows.values())
        assert sorted(np.concatenate(list(rows.values()))) == list(range(n))
        assert len(split_rows(rows_of(frame), rule, (1.0, 0.0, 0.0))[0]["S_t"]) == n
    with pytest.raises(InputError, match=r"has 2 .*at least 3"):
        split_rows(rows_of(frame.iloc[:2]), rule)
    with pytest.raises(InputError, match=r"S_t, with a share of .* has none of 30"):
        split_rows(rows_of(log(30)), rule, (1e-9, 0.5, 0.5 - 1e-9))


# ---- messages -----------------------------------------------------------------------------------------------------


def test_the_split_is_said_in_words():
    data = Partition.from_frames(log(5000, 1), log(3000, 2))
    positives = int(log(3000, 2)["label"].sum())
    line = next(line for line in data.summary().splitlines() if "split by" in line)
    assert (
        line.startswith("  split by a hash of user and item: S_t ") and f"the log has {positives:,} positives" in line
    )
    assert "200 positives are wanted in S_te and 150 in S_va" in line
    given = Partition.from_frames(log(5000, 1), log(3000, 2), shares=(0.5, 0.2, 0.3))
    assert "S_t 50 %, S_va 20 %, S_te 30 % (as given)" in given.summary() and given.split.shares == (0.5, 0.2, 0.3)
    assert naive.small_partition(20, 15).split is None
    assert "S_t keeps 40 %" in Partition.from_frames(log(5000, 1), log(300, 2)).summary()
    _, large = split_rows(rows_of(log(30_000, 1)))
    assert large.shares == (0.8, 0.1, 0.1) and "10 % at least" in large.why


# ---- rows that a split by time holds back ---------------------------------------------------------------------------


def timed(**how):
    biased, random = log(5000, 1).assign(t=np.arange(5000)), log(3000, 2).assign(t=np.arange(3000) * 5 / 3)
    biased["p"] = np.linspace(0.1, 0.9, 5000)
    with pytest.warns(UserWarning, match="left out; refit='all' trains on them in the end"):
        return biased, Partition.from_frames(biased, random, split="time", timestamp="t", duplicates="error", **how)


def test_a_split_by_time_keeps_what_it_leaves_out():
    biased, data = timed(propensity="p")
    late = {(r.user, r.item): (r.label, r.p) for r in biased.itertuples()}
    held = data.held_back
    found = zip(data.user_ids.values[held.users], data.item_ids.values[held.items], strict=True)
    assert all(
        late[pair] == (label, pytest.approx(p))
        for pair, label, p in zip(found, held.labels, data.held_back_propensities, strict=True)
    )
    assert len(held.users) + len(data.triplets("S_c").users) + data.removed == len(biased)
    assert not held.users.flags.writeable and not data.held_back_propensities.flags.writeable
    assert f"held back, no older than S_va: {len(held.users):,} pairs" in data.summary()
    assert data.split.rule == "time" and Partition.from_frames(biased, log(3000, 2)).held_back is None


def test_held_back_rows_count_in_the_fingerprint_and_only_where_there_are_some():
    _, data = timed()
    without = data.replace(held_back=None)
    fewer = data.replace(held_back=data.held_back.take(slice(5)))
    assert len({data.fingerprint, without.fingerprint, fewer.fingerprint}) == 3
    parts = {part: data.triplets(part) for part in PARTS}
    shared = data.overlap.users, data.overlap.items, data.overlap.policy_labels
    whole = [np.concatenate(columns) for columns in zip(parts["S_c"][:3], shared, strict=True)]
    ids = {"user_ids": data.user_ids, "item_ids": data.item_ids}
    bare = Partition(parts | {"S_c": whole}, (data.n_users, data.n_items), **ids)
    assert bare.fingerprint == without.fingerprint
    assert Partition(parts, (400, 300), held_back=([], [], []), **ids).held_back is None
    with pytest.raises(InputError, match="only one of S_c and held_back has propensities"):
        Partition(parts, (400, 300), held_back=data.held_back, held_back_propensities=[0.5], **ids)


# ---- another log of the same users and items ------------------------------------------------------------------------


def test_replace_keeps_what_is_not_given():
    _, data = timed(propensity="p")
    same = data.replace()
    assert same.fingerprint == data.fingerprint and same.split == data.split and same.name == data.name
    half = data.triplets("S_te").take(slice(0, None, 2))
    other = data.replace(S_te=half, name="half", truth=None)
    assert other.name == "half" and len(other.triplets("S_te").users) == len(half.users) and other.split is None
    assert (other.propensities == data.propensities).all() and other.held_back is not None
    S_c = data.triplets("S_c")
    fewer = data.replace(S_c=S_c.take(slice(10)), propensities=data.propensities[:10])
    assert len(fewer.propensities) == 10
    with pytest.raises(InputError, match="parameter='held' is unknown"):
        data.replace(held=None)
