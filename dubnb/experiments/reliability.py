"""Are probabilities right? Predicted against observed, by group of S_te's pairs, and on simulated data the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dubnb import calibration, stats
from dubnb.experiments import layout, measures
from dubnb.experiments.study import Case, Study
from dubnb.report import figures
from dubnb.report.page import Cell, Figure, Gallery, Section, Table, Value

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

TITLE = "Are the probabilities right?"
DRAWN = ("base", "dub")  # beside whoever leads
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
    """A diagram for some of the cases that are done, and the calibration error of all; none if only baselines are."""
    able = [case for case in cases if case in study.judged and not case.system.is_baseline]
    drawn = [_figure(study, case) for case in _drawn(study, able)]
    return [Section(TITLE, [Gallery(drawn), _table(study, able)])] if drawn else []


def _drawn(study: Study, able: Sequence[Case]) -> list[Case]:
    """Those with a diagram, on every backbone: DRAWN and the leader."""
    chosen = []
    for backbone in measures.backbones(study):
        own = [case for case in able if case.system.backbone == backbone]
        leader = measures.ranked(study, own, study.design.select)[:1]
        chosen += [case for case in own if case.system.name in DRAWN or case in leader]
    return chosen


def groups(data: Partition, probabilities: np.ndarray, uncalibrated: np.ndarray) -> figures.Groups:
    """S_te's pairs outside the biased log in groups: as calibrated, as trained, where the truth is known its mean."""
    S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
    probabilities, uncalibrated = probabilities[unseen], uncalibrated[unseen]
    predicted, observed, sizes = calibration.reliability(probabilities, S_te.labels).T
    rates = [stats.binomial_rate(round(share * n), int(n)) for share, n in zip(observed, sizes, strict=True)]
    trained = calibration.reliability(uncalibrated, S_te.labels)[:, :2].T
    truth = None
    if data.truth is not None:
        truth = calibration.reliability(probabilities, data.truth.probability(S_te.users, S_te.items))[:, 1]
    intervals = np.array([(rate.low, rate.high) for rate in rates])
    return figures.Groups(np.stack([predicted, observed]), trained, intervals, truth, int(sizes[0]))


def _figure(study: Study, case: Case) -> Figure:
    name = f"reliability-{case.system.on}-{case.system.name.replace(' ', '-')}"
    fit = study.judged[case][0]
    grouped = groups(study.design.conditions[case.condition], fit.probabilities, fit.uncalibrated)
    truth = "" if grouped.truth is None else "; bars across: the truth of the dots' pairs"
    drawing = figures.reliability(name, case.system.name, grouped)
    return Figure(f"{case.system.name} ({case.system.on})", drawing, CAPTION.format(pairs=grouped.pairs, truth=truth))


def errors(study: Study, case: Case) -> list[float]:
    """Calibration error as trained and calibrated, then where the truth is known both against it; means over seeds."""
    data = study.design.conditions[case.condition]
    S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
    against = [S_te.labels] + ([] if data.truth is None else [data.truth.probability(S_te.users, S_te.items)])
    return [
        float(np.mean([calibration.expected_calibration_error(p[unseen], right) for p in by_seed]))
        for right in against
        for by_seed in zip(*((fit.uncalibrated, fit.probabilities) for fit in study.judged[case]), strict=True)
    ]


def _table(study: Study, able: Sequence[Case]) -> Table:
    header = ["system", "backbone", "error as trained", "error calibrated"]
    with_truth = study.design.source.truth is not None
    header += ["off the truth as trained", "off the truth calibrated"] if with_truth else []
    rows: list[list[Cell]] = [
        [layout.name_of(study, case), case.system.on, *map(Value, errors(study, case))] for case in able
    ]
    note = NOTE.format(bins=calibration.BINS, truth=TRUTH if with_truth else "")
    return Table("", header, rows, note)
