"""Eligible items and strata: reading the rules, propensities from them, candidates, and the audit's null draws."""

import warnings

import numpy as np
import pandas as pd
import pytest

import dubnb
from bench import coverage_audit
from dubnb import InputError, Partition
from dubnb._random import key, uniform
from dubnb.cli import main
from dubnb.data.chances import judged_chances
from dubnb.data.eligibility import Eligibility
from dubnb.data.pattern import RANDOMIZED
from dubnb.evaluation import judge
from dubnb.theory import audit as audits
from dubnb.theory import uniformity
from tests.log_tools import refused, same

N_USERS, N_ITEMS = 25, 12


def frames(seed=0, n=150):
    """A biased and a randomized log with times 0 .. 9 and strata a (items 0 to 3) and b."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(N_USERS * N_ITEMS)
    logs = []
    for own in (pairs[:n], pairs[n - 20 : 2 * n - 20]):
        log = pd.DataFrame({"user": own // N_ITEMS, "item": own % N_ITEMS, "label": rng.integers(0, 2, n)})
        logs.append(log.assign(time=rng.integers(0, 10, n), group=np.where(log["item"] < 4, "a", "b")))
    return logs


def windows(late=(9, 10), start=5):
    """Items that can be shown, some of them from a time on; item 11 is not listed."""
    items = np.arange(N_ITEMS - 1)
    return pd.DataFrame({"item": items, "from": np.where(np.isin(items, late), start, np.nan), "to": np.nan})


def eligible_log(seed=0):
    """(logs that keep to the rules, the tables of the rules)."""
    biased, random = frames(seed)
    hidden = pd.DataFrame(
        {"user": [0, 1, 2, 2], "item": [0, 1, 2, 3], "from": [np.nan, 3, 2, 4], "to": [np.nan] * 3 + [6]}
    )
    late = random["item"].isin((9, 10)) & (random["time"] < 5)
    barred = random.merge(hidden.assign(hidden=1), on=["user", "item"], how="left")["hidden"].notna().to_numpy()
    return (biased, random[~late & ~barred & (random["item"] != 11)]), [windows(), hidden]


def open_items(rules, stratum, time):
    """The items of a stratum that are open at a time, one by one."""
    found = []
    for item in np.flatnonzero(rules.strata == stratum):
        own = slice(rules.windows.indptr[item], rules.windows.indptr[item + 1])
        if ((rules.windows.start[own] <= time) & (time < rules.windows.end[own])).any():
            found.append(int(item))
    return found


def is_hidden(rules, user, item, time):
    own = slice(rules.exclusions.indptr[user], rules.exclusions.indptr[user + 1])
    here = rules.exclusions.items[own] == item
    return bool((here & (rules.exclusions.start[own] < time) & (time < rules.exclusions.end[own])).any())


@pytest.fixture(scope="module")
def ruled():
    logs, tables = eligible_log()
    return Partition.from_frames(*logs, timestamp="time", eligible=tables, stratum="group")


# ---- reading -------------------------------------------------------------------------------------------------------


def test_numbers_of_rules_are_on_the_clock_of_the_randomized_log():
    """Dates in the biased log and seconds since 1970 in the other: from and to are seconds too."""
    (biased, random), tables = eligible_log()
    origin, day = pd.Timestamp("2026-01-01"), 86_400
    first = int(origin.timestamp())
    biased = biased.assign(time=origin + pd.to_timedelta(biased["time"], unit="D"))
    own = (
        random.assign(time=first + day * random["time"]),
        [each.assign(**{"from": first + day * each["from"], "to": first + day * each["to"]}) for each in tables],
    )
    dated = (
        random.assign(time=origin + pd.to_timedelta(random["time"], unit="D")),
        [
            each.assign(**{name: origin + pd.to_timedelta(each[name], unit="D") for name in ("from", "to")})
            for each in tables
        ],
    )
    how = {"timestamp": "time", "split": "time", "shares": (0.6, 0.2, 0.2)}
    found = [Partition.from_frames(biased, log, eligible=rules, **how) for log, rules in (own, dated)]
    for part in RANDOMIZED:
        one, other = (each.triplets(part).propensities for each in found)
        np.testing.assert_array_equal(one, other)
    assert len(np.unique(other)) > 1


def test_rules_are_read_from_tables_and_files_and_on_the_command_line(tmp_path, ruled, capsys):
    (biased, random), tables = eligible_log()
    paths = []
    for name, frame in (("b", biased), ("r", random), ("windows", tables[0]), ("hidden", tables[1])):
        paths.append(str(tmp_path / f"{name}.csv"))
        frame.to_csv(paths[-1], index=False)
    options = {"timestamp": "time", "stratum": "group"}
    assert same(Partition.from_frames(*paths[:2], eligible=paths[2:], **options), ruled)
    one = pd.concat([biased.assign(r=0), random.assign(r=1)], ignore_index=True)
    assert same(Partition.from_table(one, is_random="r", eligible=tables, **options), ruled)
    words = ["--biased", paths[0], "--random", paths[1], "--timestamp", "time", "--stratum", "group"]
    words += ["--eligible", paths[2], "--eligible", paths[3]]
    assert main(["audit", *words, "--draws", "99", "--json"]) == 0
    printed = capsys.readouterr().out
    assert f'"fingerprint": "{ruled.fingerprint}"' in printed and '"name": "eligible"' in printed


def test_dates_are_read_and_rules_change_the_fingerprint():
    (biased, random), tables = eligible_log()
    plain = Partition.from_frames(biased, random, timestamp="time")
    ruled = Partition.from_frames(biased, random, timestamp="time", eligible=tables)
    assert plain.fingerprint != ruled.fingerprint
    assert same(plain, Partition.from_frames(biased.drop(columns="time"), random.drop(columns="time")))
    origin = pd.Timestamp("2026-01-01")

    def dated(frame, *columns):
        return frame.assign(**{name: origin + pd.to_timedelta(frame[name], unit="D") for name in columns})

    logs = (dated(each, "time") for each in (biased, random))
    other = Partition.from_frames(*logs, timestamp="time", eligible=[dated(each, "from", "to") for each in tables])
    for part in RANDOMIZED:
        np.testing.assert_array_equal(other.triplets(part).propensities, ruled.triplets(part).propensities)


BAD_RULES = {
    "no times": (lambda: windows(), {"timestamp": None}, "column 'from' holds times: name the logs' column of times"),
    "dates": (
        lambda: windows().assign(**{"from": "2026-01-01"}),
        {},
        "column 'from' holds dates but 'time' holds numbers: write both alike",
    ),
    "text": (
        lambda: windows().assign(**{"from": ["soon", *["3"] * 10]}),
        {},
        "column 'from', row 1: 'soon' is not a time: correct it, or leave it empty",
    ),
    "backwards": (lambda: windows().assign(**{"from": 5, "to": 5}), {}, "row 1: 'from' must be before 'to'"),
    "strange ids": (lambda: windows().assign(item=[f"x{k}" for k in range(11)]), {}, "column 'item' is str but int"),
    "no item": (lambda: windows().drop(columns="item"), {}, "column 'item' is missing"),
    "other items": (lambda: windows().assign(item=np.arange(100, 111)), {}, "lists no item of the logs"),
    "a number": (lambda: 3, {}, "eligible is a int: pass a pandas DataFrame"),
    "two strata": (lambda: None, {"stratum": "mixed"}, r"item 0 is in the strata \w and \w: a stratum is a group"),
    "no stratum": (lambda: None, {"stratum": "nothing"}, "column 'nothing' is missing"),
    "missing stratum": (lambda: None, {"stratum": "holes"}, "column 'holes', row 1: id nan is missing"),
}


@pytest.mark.parametrize("case", BAD_RULES)
@pytest.mark.filterwarnings("ignore")
def test_bad_rules_are_refused_in_one_line(case):
    biased, random = frames()
    random = random.sort_values("item", kind="stable").reset_index(drop=True)
    random["mixed"] = np.where(np.arange(len(random)) % 2, "x", "y")
    random["holes"] = [np.nan, *["x"] * (len(random) - 1)]
    table, more, said = BAD_RULES[case]
    options = {"timestamp": "time", "eligible": table()} | more
    refused(said, Partition.from_frames, biased, random, **options)


def test_what_cannot_be_used_is_said():
    biased, random = frames()
    with pytest.warns(UserWarning, match=r"randomized pairs were shown although they were not eligible, such as pair"):
        Partition.from_frames(biased, random, timestamp="time", eligible=windows())
    more = pd.concat([windows(()), pd.DataFrame({"item": [11, 50]})])
    with pytest.warns(UserWarning, match="eligible: 1 items are in neither log and are left out"):
        Partition.from_frames(biased, random, timestamp="time", eligible=more)
    renamed = windows(()).rename(columns={"from": "start", "to": "end"})
    with pytest.warns(UserWarning, match="eligible: not read: 'start', 'end'; the columns that are read are 'item'"):
        Partition.from_frames(biased, random[random["item"] != 11], timestamp="time", eligible=renamed)
    with pytest.warns(UserWarning, match=r"\d+ of 12 items have no stratum and are taken as not eligible"):
        Partition.from_frames(biased.drop(columns="group"), random[random["item"] < 9], stratum="group")


def test_matrices_take_arrays_of_rules(ruled):
    parts = {part: getattr(ruled, part) for part in ("S_c", "S_t", "S_va", "S_te")}
    strata = np.where(np.arange(N_ITEMS) < 4, "a", "b")
    mask = np.ones((N_USERS, N_ITEMS), bool)
    mask[:, 11] = mask[0, 0] = False
    data = Partition.from_matrices(**parts, eligible=mask, stratum=strata)
    assert data.eligibility.derived and data.not_candidates().mask(np.array([0]), N_ITEMS)[0, [0, 11]].all()
    by_item = Partition.from_matrices(**parts, eligible=mask.any(axis=0), stratum=strata)
    assert not by_item.eligibility.exclusions.items.size and by_item.eligibility.shares[11] == 0
    refused(r"pass a bool array of shape \(12,\) or \(25, 12\)", Partition.from_matrices, **parts, eligible=mask[:, :5])
    refused("pass one stratum per item", Partition.from_matrices, **parts, stratum=strata[:5])


# ---- propensities and candidates -----------------------------------------------------------------------------------


def test_shares_and_propensities_equal_loops(ruled):
    rules, random = ruled.eligibility, ruled.random
    assert rules.derived and rules.names == ("a", "b")
    shares = np.zeros(N_ITEMS)
    for item, time in zip(random.items, random.times, strict=True):
        candidates = open_items(rules, rules.strata[item], time)
        shares[candidates] += 1 / len(candidates) / len(random.items)
    np.testing.assert_allclose(rules.shares, shares, atol=1e-12)
    assert rules.shares.sum() == pytest.approx(1) and rules.shares[11] == 0
    had, shown = ruled.logged.mask(np.arange(N_USERS), N_ITEMS), ruled.random
    pairs = set(zip(shown.users.tolist(), shown.items.tolist(), strict=True))
    for row, (user, item) in enumerate(zip(shown.users, shown.items, strict=True)):
        taken = 0.0
        for other in range(N_ITEMS):
            hidden = np.mean([is_hidden(rules, user, other, time) for time in random.times])
            hidden = 0.0 if (user, other) in pairs else hidden
            taken += shares[other] * (1.0 if had[user, other] else hidden)
        assert shown.propensities[row] == pytest.approx(shares[item] / (1 - taken), rel=1e-5)


def test_uniform_rules_without_limits_change_nothing_but_the_fingerprint():
    """Everything eligible, one stratum: equal shares, and users differ by what they had only."""
    biased, random = frames()
    everything = pd.DataFrame({"item": np.arange(N_ITEMS)})
    data = Partition.from_frames(biased, random, eligible=everything)
    np.testing.assert_allclose(data.eligibility.shares, 1 / N_ITEMS)
    free = N_ITEMS - data.logged.sizes()
    for part in RANDOMIZED:
        own = data.triplets(part)
        np.testing.assert_allclose(own.propensities, 1 / free[own.users], rtol=1e-6)
    plain = Partition.from_frames(biased, random)
    np.testing.assert_allclose(judged_chances(data, "S_te"), judged_chances(plain, "S_te"), rtol=1e-5)


def test_an_exclusion_that_a_shown_pair_caused_does_not_change_propensities():
    """Hidden once liked: the pair itself was eligible when it was shown, and weighs as without the exclusion."""
    biased, random = frames()
    liked = random[random["label"] == 1]
    hidden = pd.DataFrame({"user": liked["user"], "item": liked["item"], "from": liked["time"]})
    everything = pd.DataFrame({"item": np.arange(N_ITEMS)})
    plain = Partition.from_frames(biased, random, timestamp="time", eligible=everything)
    data = Partition.from_frames(biased, random, timestamp="time", eligible=[everything, hidden])
    np.testing.assert_array_equal(data.random.propensities, plain.random.propensities)
    assert data.shown_eligible().all() and len(data.eligibility.exclusions.items) == len(hidden)


def test_logged_propensities_stay_as_they_are():
    (biased, random), tables = eligible_log()
    random = random.assign(p=np.linspace(0.05, 0.5, len(random)))
    data = Partition.from_frames(biased, random, timestamp="time", eligible=tables, random_propensity="p")
    assert not data.eligibility.derived
    assert sorted(data.random.propensities) == pytest.approx(sorted(random["p"]))


@pytest.mark.filterwarnings("ignore")
def test_lists_hold_only_what_could_be_shown(ruled):
    users = np.arange(N_USERS)
    barred = ruled.not_candidates("S_te").mask(users, N_ITEMS)
    assert barred[:, 11].all() and barred[0, 0], "never listed, and always hidden from user 0"
    others = ruled.everything_but("S_te").mask(users, N_ITEMS)
    assert (barred | ~others).all() and (ruled.not_candidates("S_te").sizes() == barred.sum(axis=1)).all()
    extra = barred & ~others
    extra[:, 11] = extra[0, 0] = False
    assert not extra.any(), "an item that could be shown at some time is a candidate"

    class Favourite:
        """Item 11 first."""

        def score_pairs(self, users, items):
            return (items == 11) * 1.0

        def score_rows(self, users):
            return np.tile((np.arange(N_ITEMS) == 11) * 1.0, (len(users), 1))

    found = judge(Favourite(), ruled, ks=(3,))
    assert found.result["auc"] == pytest.approx(0.5)
    value = dubnb.value(Favourite(), ruled, k=N_ITEMS)
    listed = next(each for each in value.estimates if each.policy == "model")
    assert listed.judged == len(ruled.unseen("S_te").users), "lists of all candidates hold every judged pair"


def test_derived_logs_keep_the_rules(ruled):
    smaller = ruled.replace(S_va=ruled.triplets("S_va").take(slice(0)))
    assert smaller.eligibility is not None and smaller.eligibility.derived
    np.testing.assert_array_equal(smaller.triplets("S_te").propensities, ruled.triplets("S_te").propensities)
    moved = ruled.eligibility.moved(np.arange(N_USERS)[::-1], np.arange(N_ITEMS)[::-1], (N_USERS, N_ITEMS))
    moved = moved.with_shares(N_ITEMS - 1 - ruled.random.items, ruled.random.times)
    np.testing.assert_allclose(moved.shares[::-1], ruled.eligibility.shares)


# ---- user buckets --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket():
    biased, random = frames(3)
    biased, random = biased[(biased["user"] < 15) & (biased["item"] > 1)], random[random["user"] >= 15]
    with pytest.warns(UserWarning, match="user bucket"):
        return Partition.from_frames(biased, random, shares=(0.4, 0.3, 0.3))


@pytest.mark.filterwarnings("ignore")
def test_a_bucket_is_judged_over_its_own_users(bucket):
    assert bucket.bucket and bucket.removed == 0
    model = dubnb.DUB(rank=2, epochs=2).fit(bucket)
    found = dubnb.evaluate(model.weights_, bucket, per_user=True)
    S_te = bucket.unseen("S_te")
    liked = np.unique(S_te.users[S_te.labels > 0])
    assert found["per_user"]["user"].tolist() == bucket.user_ids.values[liked].tolist()
    assert np.isfinite(found["ndcg"]) and not model.cold_[np.unique(bucket.triplets("S_t").users)].any()
    assert dubnb.audit(bucket, n_draws=99).uniform is not False


@pytest.mark.filterwarnings("ignore:(?!no user of the randomized)")
def test_dub_i_says_that_a_bucket_gets_one_list(bucket):
    with pytest.warns(UserWarning, match="a user bucket.*users without any all get the same list"):
        model = dubnb.DubI(epochs=2).fit(bucket)
    alike = bucket.user_ids.values[np.unique(bucket.triplets("S_t").users)]
    scores = model.decision_function(alike[:, None], bucket.item_ids.values)
    np.testing.assert_allclose(scores - scores[:, :1], np.tile(scores[0] - scores[0, 0], (len(alike), 1)), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_items_of_a_bucket_fall_back_on_their_random_rows(bucket):
    model = dubnb.Base(rank=2, epochs=2, calibrate=False).fit(bucket)
    S_t, cold = bucket.triplets("S_t"), np.flatnonzero(bucket.item_ids.values < 2)
    assert not np.isin(bucket.triplets("S_c").items, cold).any() and len(cold) == 2
    arrays, rate = model.weights_.arrays(), S_t.labels.mean()
    warm = np.setdiff1d(np.arange(bucket.n_items), cold)
    for item in cold:
        own = S_t.labels[S_t.items == item]
        r = (own.sum() + 5 * rate) / (len(own) + 5)
        shift = np.log(r / (1 - r)) - np.log(rate / (1 - rate))
        assert arrays["item_bias"][item] == pytest.approx(arrays["item_bias"][warm].mean() + shift, abs=1e-5)
        np.testing.assert_allclose(arrays["item_factors"][item], arrays["item_factors"][warm].mean(axis=0), atol=1e-6)


# ---- the audit -----------------------------------------------------------------------------------------------------


def null_policy(data):
    log = uniformity.randomized_log(data)
    outside = uniformity.tested_pairs(data, log)
    log = uniformity.RandomizedLog(*(column[outside] for column in log))
    return log, uniformity.uniform_policy(data, log, None, uniformity.randomized_times(data)[outside])


def test_null_draws_are_those_of_a_plain_loop(ruled):
    log, policy = null_policy(ruled)
    rules, times = ruled.eligibility, policy.rules.times
    had, drawn, counter, stream = ruled.logged.mask(np.arange(N_USERS), N_ITEMS), {}, 0, key(3, "audit", "null", 0)
    items = np.empty(len(log.users), int)
    for j in sorted(range(len(items)), key=lambda j: (log.users[j], times[j])):
        members = np.flatnonzero(rules.strata == rules.strata[log.items[j]])
        while True:
            other = members[int(uniform(stream, counter) * len(members))]
            counter += 2
            user = log.users[j]
            taken = had[user, other] or other in drawn.setdefault(user, set())
            there = other in open_items(rules, rules.strata[other], times[j])
            if there and not taken and not is_hidden(rules, user, other, times[j]):
                break
        drawn[user].add(other)
        items[j] = other
    np.testing.assert_array_equal(policy.draw(3, "null", 0), items)


def drawn_by(policy, seed, **changes):
    """(the items of one draw, how many random numbers it took)."""
    rules, items, taken = policy.rules._replace(**changes), np.empty(len(policy.users), np.int64), []
    kernel = getattr(uniformity._draw_eligible, "py_func", uniformity._draw_eligible)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uniformity, "uniform", lambda stream, k: taken.append(k) or uniform(stream, k))
        below, closed = np.ones(N_ITEMS), np.full(N_ITEMS, -1)
        kernel(key(seed, "listed"), policy.users, rules, policy.excluded, below, closed, items)
    return items, len(taken)


def test_pairs_that_nothing_could_replace_keep_their_item_after_few_draws():
    """Two items can be shown, one of them late: most users have both already, or come too early for either."""
    biased, random = frames()
    rules = pd.DataFrame({"item": [0, 1], "from": [4, 8]})
    with pytest.warns(UserWarning, match="were shown although they were not eligible"):
        data = Partition.from_frames(biased, random, timestamp="time", eligible=rules)
    log, policy = null_policy(data)
    items, n = drawn_by(policy, 0)
    assert n < 700 * len(items)
    early = policy.rules.times < 4
    assert early.any()
    np.testing.assert_array_equal(items[early], log.items[early])
    for user in np.unique(log.users):
        late = (log.users == user) & ~early
        drawn = items[late][items[late] != log.items[late]]
        assert np.isin(drawn, [0, 1]).all() and not data.logged.mask(np.array([user]), N_ITEMS)[0, drawn].any()


def test_listed_items_are_drawn_as_often_as_by_rejection(ruled):
    _, policy = null_policy(ruled)
    never = np.zeros(len(policy.rules.tries), np.int64)
    counts = np.zeros((2, N_ITEMS))
    for seed in range(300):
        counts[0] += np.bincount(drawn_by(policy, seed, tries=never)[0], minlength=N_ITEMS)
        counts[1] += np.bincount(policy.draw(seed, "rejection"), minlength=N_ITEMS)
    assert (counts[:, 11] == 0).all()
    np.testing.assert_allclose(counts[0], counts[1], atol=5 * np.sqrt(2 * counts.max()))


def test_rules_that_allow_no_pair_are_refused():
    biased, random = frames()
    refused(
        r"all 150 randomized pairs were shown although they were not eligible, such as pair \(user \d+, item \d+\): "
        "check eligible and the clocks",
        *(Partition.from_frames, biased, random),
        **{"timestamp": "time", "eligible": pd.DataFrame({"item": range(N_ITEMS), "from": 100})},
    )


def test_expected_overlap_and_eligible_sums_equal_loops(ruled):
    rules, log = ruled.eligibility, uniformity.randomized_log(ruled)
    times, had = uniformity.randomized_times(ruled), uniformity.logged(ruled).mask(np.arange(N_USERS), N_ITEMS)
    expected, groups, sums = 0.0, np.arange(N_ITEMS) % 3, np.zeros((N_USERS, 3))
    for user, item, time in zip(log.users, log.items, times, strict=True):
        possible = [i for i in open_items(rules, rules.strata[item], time) if not is_hidden(rules, user, i, time)]
        expected += sum(had[user, i] for i in possible) / len(possible)
        for stratum in (0, 1):
            for i in open_items(rules, stratum, time):
                sums[user, groups[i]] += not is_hidden(rules, user, i, time) and not had[user, i]
    assert uniformity.expected_overlap(ruled, log) == pytest.approx(expected)
    random = ruled.random._replace(weights=np.ones(len(ruled.random.users), np.float32))
    found = uniformity.eligible_sums(ruled, random, uniformity.logged(ruled), groups)
    np.testing.assert_allclose(found, sums)


@pytest.mark.needs_jit
@pytest.mark.parametrize("design", coverage_audit.RULES)
def test_valid_designs_are_doubted_only_without_their_rules(design):
    without, alarms = 0, 0
    for seed in range(4):
        data, _ = coverage_audit.log_of(design, np.random.default_rng(seed))
        alarms += dubnb.audit(data, n_draws=99).uniform is False
        bare = {part: data.triplets(part)._replace(propensities=None) for part in RANDOMIZED}
        without += dubnb.audit(with_overlap(data, bare), n_draws=99).uniform is False
    assert without >= (1 if design == "hidden once liked" else 4) and alarms <= 1


def with_overlap(data, parts):
    """The log as it was before shared pairs were removed from S_c, without rules."""
    S_c, both = data.triplets("S_c"), data.overlap
    columns = [np.concatenate(pair) for pair in zip(S_c[:3], (both.users, both.items, both.policy_labels), strict=True)]
    return Partition({"S_c": columns, **parts}, (data.n_users, data.n_items))


@pytest.mark.needs_jit
def test_a_shown_item_that_was_not_eligible_is_a_no():
    biased, random = frames()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = Partition.from_frames(biased, random, timestamp="time", eligible=windows())
        found = {answer.name: answer for answer in dubnb.audit(data, n_draws=99).answers}
    n = int((random["item"].eq(11) | (random["item"].isin((9, 10)) & (random["time"] < 5))).sum())
    assert found["eligible"].verdict == audits.NO and found["eligible"].number == n


def test_p_values_of_weighted_counts_by_hand():
    """Equal weights give Garwood's exact Poisson test; a group without a pair has P(no pair)."""
    from scipy.stats import poisson

    p = audits.p_weighted_count(np.full(12, 2.0), np.ones(12), 10.0, 2.0)
    assert p == pytest.approx(2 * poisson.sf(11, 5.0))
    assert audits.p_weighted_count(np.zeros(0), np.zeros(0), 6.0, 2.0) == pytest.approx(2 * np.exp(-3.0))


def test_a_sum_of_weights_that_is_too_small_may_lack_one_heavy_pair():
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    few, many = values - values.mean() - 0.2, values - values.mean() + 0.2
    assert audits._p_of_sum(many, 60.0) == audits._p_mean_zero(many) < 0.001
    assert audits._p_of_sum(few, 80.1) == 1.0, "the sum is -80"
    assert audits._p_of_sum(few, 60.0) == pytest.approx(audits._p_mean_zero(few + 0.15))
    counts = np.ones(12), np.full(12, 2.0)
    alone, missed = (audits.p_weighted_count(counts[1], counts[0], 44.0, largest) for largest in (2.0, 6.0))
    assert alone < 0.05 < missed, "24 of 44"


def test_eligibility_of_nothing_is_everything():
    rules = Eligibility.of((3, 4))
    assert not rules.timed and rules.open_at(np.arange(4), np.zeros(4)).all()
    with pytest.raises(InputError, match="eligibility depends on time: name the column of times"):
        none = ([], [], [])
        limited = Eligibility.of((3, 4), (np.arange(4), np.zeros(4), np.ones(4)))
        Partition(
            {"S_c": ([0], [0], [1]), "S_t": ([1], [1], [0]), "S_va": none, "S_te": none}, (3, 4), eligibility=limited
        )
