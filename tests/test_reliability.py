"""Reliability diagrams: groups, intervals and errors recomputed by hand, who is drawn, and what a report says."""

import re

import numpy as np
import pytest

from dubnb import stats
from dubnb.calibration import Calibration, expected_calibration_error, reliability_bins
from dubnb.data.partition import Partition
from dubnb.experiments import compare, pages, rq1
from dubnb.experiments.study import WHOLE, Case, Design
from dubnb.experiments.systems import Choice
from tests.studies import case_of, known_study, tiny_log, written

THREE = Choice(["base", "ips", "dub", "popularity"], ["mf"])


class KnownTruth:
    """R^t of a tiny log."""

    def probability(self, users, items):
        return np.where(users % 2 == items % 2, 0.6, 0.1)

    def label(self, users, items):
        return np.where(users % 2 == items % 2, 1.0, 0.0)

    def label_rows(self, users):
        return np.where(users[:, None] % 2 == np.arange(30)[None, :] % 2, 1.0, 0.0)


@pytest.fixture(scope="module")
def simulated(data):
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    log = Partition(parts, (data.n_users, data.n_items), name="with a truth")
    log.truth = KnownTruth()
    return log


def study_of(data, **skills):
    return known_study(rq1, data, skills, choice=THREE)


def by_hand(p, right, n_groups=15):
    """(predicted, share, size) of groups of equal size by probability, one after the other."""
    order = sorted(range(len(p)), key=lambda k: (p[k], k))
    cuts = np.array_split(order, n_groups)
    return [(np.mean([p[k] for k in cut]), np.mean([right[k] for k in cut]), len(cut)) for cut in cuts]


def test_groups_are_those_of_the_probabilities(data):
    study = study_of(data, base=2.0)
    case, labels = case_of(study, "base"), data.triplets("S_te").labels
    fit = study.results[case][0]
    found = pages.reliability_groups(data, fit.output.probabilities, fit.output.uncalibrated)
    expected = by_hand(fit.output.probabilities.tolist(), labels.tolist())
    trained = by_hand(fit.output.uncalibrated.tolist(), labels.tolist())
    assert np.allclose(found.calibrated.T, np.array(expected)[:, :2]) and found.truth is None
    assert np.allclose(found.trained.T, np.array(trained)[:, :2])
    for (_, share, n), interval in zip(expected, found.intervals, strict=True):
        assert tuple(interval) == stats.binomial_rate(round(share * n), n)[1:3]
        assert interval[0] <= share <= interval[1] and n in (found.pairs, found.pairs - 1)


def test_the_truth_is_that_of_the_same_groups(simulated):
    study = study_of(simulated)
    case, S_te = case_of(study, "dub"), simulated.triplets("S_te")
    right = KnownTruth().probability(S_te.users, S_te.items)
    fit = study.results[case][0]
    expected = by_hand(fit.output.probabilities.tolist(), right.tolist())
    found = pages.reliability_groups(simulated, fit.output.probabilities, fit.output.uncalibrated)
    assert found.truth == pytest.approx([share for _, share, _ in expected])
    errors = pages.calibration_errors(study, case)
    fits = study.results[case]
    assert len(errors) == 4 and len(fits) == 2
    assert errors[0] == np.mean([expected_calibration_error(f.output.uncalibrated, S_te.labels) for f in fits])
    assert errors[1] == np.mean([expected_calibration_error(f.output.probabilities, S_te.labels) for f in fits])
    assert errors[2] == np.mean([expected_calibration_error(f.output.uncalibrated, right) for f in fits])
    assert errors[3] == np.mean([expected_calibration_error(f.output.probabilities, right) for f in fits])


def test_right_probabilities_lie_on_the_line():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=60_000)
    p = Calibration(1.0, -2.0)(scores)
    predicted, observed, sizes = reliability_bins(p, rng.random(len(p)) < p).T
    assert (np.diff(predicted) > 0).all() and (sizes == 4000).all()
    inside = [stats.binomial_rate(round(o * n), int(n)) for o, n in zip(observed, sizes, strict=True)]
    assert sum(rate.low <= x <= rate.high for rate, x in zip(inside, predicted, strict=True)) >= 13


def test_base_dub_and_the_leader_are_drawn_and_all_are_in_the_table(data):
    study = study_of(data, ips=9.0)
    ((_, (gallery, table)),) = pages.calibration_sections(study, study.design.cases)
    assert [figure.title for figure in gallery.figures] == ["base (mf)", "ips (mf)", "dub (mf)"]
    assert [row[0].text for row in table.rows] == ["base", "ips", "dub"]  # baselines promise no probabilities
    assert len(table.header) == 4 and "off the truth" not in " ".join(table.header)
    for row, case in zip(table.rows, study.design.cases, strict=False):
        assert [cell.value for cell in row[2:]] == pages.calibration_errors(study, case)
    led = study_of(data, dub=9.0)
    assert len(pages.calibration_sections(led, led.design.cases)[0].parts[0].figures) == 2


def test_reports_have_the_diagram(simulated):
    study = study_of(simulated)
    _, html, markdown, _ = written(rq1, study)
    assert pages.CALIBRATION_TITLE in html and pages.CALIBRATION_TITLE in markdown
    assert len(re.findall(r'aria-label="observed share of positives by predicted', html)) >= 2
    assert "off the truth calibrated" in html and pages.MEANS in html
    found = compare.findings(study, {})
    assert pages.CALIBRATION_TITLE in [section.title for section in found.sections]


@pytest.mark.parametrize("left", [(), ("popularity",)])
def test_without_a_fitted_model_there_is_no_section(left, data):
    study = study_of(data)
    study.results = {case: fits for case, fits in study.results.items() if case.system.name in left}
    assert len(study.results) == len(left) and pages.calibration_sections(study, study.design.cases) == []
    for found in (rq1.findings(study), compare.findings(study, {})):
        assert pages.CALIBRATION_TITLE not in [section.title for section in found.sections]


def test_fits_on_other_conditions_are_judged_on_their_own_test_pairs(data):
    other = tiny_log(58)
    study = study_of(data)
    case = Case(case_of(study, "base").system, "other")
    fits = study_of(other).results[case._replace(condition=WHOLE)]
    study.design = Design(data, {WHOLE: data, "other": other}, [case])
    study.results = {case: fits}
    labels = other.triplets("S_te").labels
    assert pages.calibration_errors(study, case)[1] == np.mean(
        [expected_calibration_error(fit.output.probabilities, labels) for fit in fits]
    )
    assert len(pages.calibration_sections(study, [case])[0].parts[0].figures) == 1
