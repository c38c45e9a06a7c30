"""The bound while methods train: rows of every epoch, terms that the truth or an estimate tells, and sentences."""

import inspect
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dubnb import metrics
from dubnb._check import InputError
from dubnb.data.partition import PARTS, Partition
from dubnb.objective import bounds
from dubnb.theory import trace as traces
from dubnb.theory.estimates import estimate
from dubnb.theory.trace import Trace, trace
from tests.naive import small_partition
from tests.test_bounds import Dense, random_log


def test_terms_are_those_measured_where_the_truth_is_known():
    data, _, _, s_c, s_t = random_log(1)
    measured = bounds.measure(Dense(s_c), Dense(s_t), data, "mae")
    terms = traces.terms_of(measured, data)
    assert list(terms) == ["a", "b", "c", "d", "e", "bias"]
    assert terms == {name: pytest.approx(getattr(measured, name)) for name in terms}
    assert traces.ideal_of(measured, data) == measured.ideal


def test_terms_of_a_real_log_are_estimates_or_nan():
    data, _, _, s_c, s_t = random_log(1, overlapping=True, truth=False)
    measured = bounds.measure(Dense(s_c), Dense(s_t), data, "mae")
    terms = traces.terms_of(measured, data)
    for name in ("b", "bias"):
        found = estimate(measured.unknown[name], measured, data)
        assert terms[name] == found.value and found.low <= found.value <= found.high
    assert terms["a"] == measured.a
    assert traces.ideal_of(measured, data) == estimate(measured.unknown["ideal"], measured, data).value
    apart = random_log(1, truth=False)[0]
    measured = bounds.measure(Dense(s_c), Dense(s_t), apart, "mae")
    assert np.isnan(traces.terms_of(measured, apart)["b"])  # no pair under both policies
    found = estimate(measured.unknown["ideal"], measured, apart)
    assert found.value is None and traces.ideal_of(measured, apart) == pytest.approx((found.low + found.high) / 2)


def test_a_row_for_every_epoch_of_the_stages_that_are_watched():
    data, _, _, s_c, s_t = random_log(1)
    rows = []
    watch = traces._Watch("dub", data, "squared", Dense(s_t), rows)
    for stage, epoch in (("M_t", 1), ("M_c", 1), ("refine", 1)):
        watch(stage, epoch, Dense(s_c))
    assert [(row["method"], row["stage"], row["epoch"]) for row in rows] == [("dub", "M_c", 1), ("dub", "refine", 2)]
    p = Dense(1 / (1 + np.exp(-s_c)))  # a model of bce, as a loss without a link reads it
    measured = bounds.measure(p, Dense(s_t), data, "squared")
    terms = traces.terms_of(measured, data)
    S_te = data.triplets("S_te")
    assert {name: rows[0][name] for name in terms} == {name: pytest.approx(value) for name, value in terms.items()}
    assert rows[0]["sum"] == pytest.approx(sum(terms.values())) and rows[0]["ideal"] == pytest.approx(measured.ideal)
    assert rows[0]["auc"] == pytest.approx(metrics.auc(s_c[S_te.users, S_te.items], S_te.labels))
    alone = []
    unif = traces._Watch("unif", data, "bce", Dense(s_t), alone)
    unif("M_t", 1, Dense(s_c))
    unif("M_c", 1, Dense(s_c))
    assert [row["stage"] for row in alone] == ["M_t"]
    assert alone[0]["a"] == pytest.approx(bounds.measure(Dense(s_c), Dense(s_t), data, "bce").a)


def rows_of(**last):
    """Two epochs of some methods; the last one's numbers are {method: (every term, sum, auc)}."""
    rows = []
    for method, (term, total, auc) in last.items():
        for epoch in (1, 2):
            terms = dict.fromkeys(("a", "b", "c", "d", "e", "bias"), term + (2 - epoch))
            rows.append(
                {"method": method, "stage": "M_c", "epoch": epoch, **terms, "sum": total, "ideal": 0.5, "auc": auc}
            )
    return pd.DataFrame(rows)


def test_the_answer_names_who_ends_lowest_and_highest():
    found = Trace("bce", "mine", rows_of(dub=(0.1, 0.6, 0.8), base=(0.3, 0.9, 0.7), unif=(0.2, 0.7, 0.6)))
    assert found.last()["epoch"].tolist() == [2, 2, 2] and found.last()["method"].tolist() == ["dub", "base", "unif"]
    sentences = found.answer()
    assert sentences[:4] == [
        f"Term {term} ends lowest with dub (0.1000) and highest with base (0.3000)." for term in "acde"
    ]
    assert sentences[4] == "dub ends with the lowest sum (0.6000), which also has the best AUC (0.8000)."
    other = Trace("bce", "mine", rows_of(dub=(0.1, 0.6, 0.7), base=(0.3, 0.9, 0.8))).answer()
    assert other[4] == "dub ends with the lowest sum (0.6000), but base has the best AUC (0.8000)."


def test_a_trace_as_text():
    lines = Trace("mae", "mine", rows_of(dub=(0.1, 0.6, 0.8), base=(0.3, 0.9, 0.7))).text().splitlines()
    assert lines[0] == "after the last epoch (loss mae, mine)" and lines[1] == lines[5] == ""
    assert lines[2].split() == ["method", "epoch", "a", "b", "c", "d", "e", "bias", "sum", "ideal", "auc"]
    assert lines[3].split() == ["dub", "2", *["0.1000"] * 6, "0.6000", "0.5000", "0.8000"]
    assert lines[4].split()[0] == "base" and lines[6].startswith("Term a ends lowest with dub") and len(lines) == 11


def test_methods_are_fitted_and_watched_against_one_M_t(monkeypatch):
    data, asked = small_partition(), []

    class Fitted:
        weights_ = SimpleNamespace(score_pairs=lambda users, items: users - items * 0.5, score_rows=None)

        def __init__(self, name, seed):
            self.told = [name, seed]

        def fit(self, own, quiet, watch=None):
            asked.append((*self.told, own is data, quiet, watch))
            return self

    monkeypatch.setattr("dubnb.methods.make", Fitted)
    monkeypatch.setattr(traces, "_Watch", lambda *told: told)
    trace(data, ("base", "dub"), loss="squared", seed=4)
    assert [each[:4] for each in asked] == [("unif", 4, True, True), ("base", 4, True, True), ("dub", 4, True, True)]
    name, own, loss, M_t, rows = asked[2][4]
    assert (name, own is data, loss, rows) == ("dub", True, "squared", []) and asked[1][4][3] is M_t
    assert (M_t.scorer, M_t.has_link, M_t.wants_link) == (Fitted.weights_, True, False)
    asked.clear()
    trace(data, (), quiet=False)
    assert asked[0][3] is False and inspect.signature(trace).parameters["loss"].default == "bce"


def test_bad_input_is_one_line():
    data = small_partition()
    parts = {part: data.triplets(part) for part in PARTS} | {"S_te": data.triplets("S_te").take(slice(0))}
    with pytest.raises(InputError, match="S_te is empty"):
        trace(Partition(parts, (data.n_users, data.n_items)))
    with pytest.raises(InputError, match="method='dob' is unknown"):
        trace(data, ("dob",))
    with pytest.raises(InputError, match="loss='mea' is unknown"):
        trace(data, loss="mea")
