"""Are probabilities right? Predicted against observed shares on S_te, and on simulated data against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dubnb import calibration, stats
from dubnb.experiments import pages
from dubnb.experiments.study import Case, Study
from dubnb.report import figures
from dubnb.report.page import Cell, Figure, Gallery, Section, Table, Value

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

TITLE = "Are the probabilities right?"
DRAWN = ("base", "dub")  # drawn in addition to the leader
NOTE = (
    "Calibration error: mean difference between predicted and observed shares over {bins} groups of S_te's pairs, of "
    "equal size and by predicted probability; mean over seeds. As trained: what the loss itself makes of scores. "
    "Calibrated: Platt scaling on S_va, which is what predict gives; ranking does not change.{truth}"
)
TRUTH = " Off the truth: the same against the simulation's true probabilities, without the noise of labels."
CAPTION = (
    "The first seed's fit (the table has means over seeds). Groups of {pairs:,} test pairs. Dots: calibrated on S_va, "
    "with 95 % intervals of the observed share; diamonds: as trained{truth}. On the dashed line, predictions are "
    "right. Axes by square roots."
)


def sections(study: Study, cases: Sequence[Case]) -> list[Section]:
    """Diagrams of the leader, base and dub on every backbone, and the errors of all done cases except baselines."""
    able = [case for case in cases if case in study.results and not case.system.is_baseline]
    drawn = []
    for backbone in study.backbones():
        own = [case for case in able if case.system.backbone == backbone]
        leader = study.ranked(own, study.design.select)[:1]
        drawn += [_figure(study, case) for case in own if case.system.name in DRAWN or case in leader]
    return [Section(TITLE, [Gallery(drawn), _table(study, able)])] if drawn else []


def reliability_groups(
    data: Partition, probabilities: np.ndarray, uncalibrated: np.ndarray
) -> figures.ProbabilityGroups:
    """Group S_te's pairs outside the biased log: as calibrated, as trained, and with the truth if it is known."""
    S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
    probabilities, uncalibrated = probabilities[unseen], uncalibrated[unseen]
    weights = data.judging_weights("S_te")
    sizes = calibration.reliability_bins(probabilities, S_te.labels)[:, 2]
    if weights is not None:  # intervals use the effective number of pairs
        sizes *= weights.sum() ** 2 / (weights @ weights) / len(weights)
    predicted, observed = calibration.reliability_bins(probabilities, S_te.labels, weights=weights)[:, :2].T
    rates = [
        stats.binomial_rate(round(share * int(n)), max(int(n), 1)) for share, n in zip(observed, sizes, strict=True)
    ]
    trained = calibration.reliability_bins(uncalibrated, S_te.labels, weights=weights)[:, :2].T
    truth = None
    if data.truth is not None:
        true = data.truth.probability(S_te.users, S_te.items)
        truth = calibration.reliability_bins(probabilities, true, weights=weights)[:, 1]
    intervals = np.array([(rate.low, rate.high) for rate in rates])
    return figures.ProbabilityGroups(np.stack([predicted, observed]), trained, intervals, truth, int(sizes[0]))


def _figure(study: Study, case: Case) -> Figure:
    name = f"reliability-{case.system.on}-{case.system.name.replace(' ', '-')}"
    first = study.results[case][0].output
    groups = reliability_groups(study.design.conditions[case.condition], first.probabilities, first.uncalibrated)
    truth = "" if groups.truth is None else "; bars across: the truth of the dots' pairs"
    drawing = figures.reliability_diagram(name, case.system.name, groups)
    return Figure(f"{case.system.name} ({case.system.on})", drawing, CAPTION.format(pairs=groups.pairs, truth=truth))


def errors(study: Study, case: Case) -> list[float]:
    """Calibration errors as trained and calibrated, then both against the truth if it is known; means over seeds."""
    data = study.design.conditions[case.condition]
    S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
    against = [S_te.labels] + ([] if data.truth is None else [data.truth.probability(S_te.users, S_te.items)])
    outputs, weights = [fit.output for fit in study.results[case]], data.judging_weights("S_te")
    return [
        float(np.mean([calibration.expected_calibration_error(p[unseen], right, weights) for p in by_seed]))
        for right in against
        for by_seed in zip(*((output.uncalibrated, output.probabilities) for output in outputs), strict=True)
    ]


def _table(study: Study, able: Sequence[Case]) -> Table:
    header = ["system", "backbone", "error as trained", "error calibrated"]
    with_truth = study.design.source.truth is not None
    header += ["off the truth as trained", "off the truth calibrated"] if with_truth else []
    rows: list[list[Cell]] = [
        [pages.case_label(study, case), case.system.on, *map(Value, errors(study, case))] for case in able
    ]
    return Table("", header, rows, NOTE.format(bins=calibration.BINS, truth=TRUTH if with_truth else ""))
