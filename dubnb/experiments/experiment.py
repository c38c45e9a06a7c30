"""What an experiment is: a module (or any object) with these parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget
    from dubnb.experiments.study import Design, Study
    from dubnb.experiments.systems import Choice
    from dubnb.report.page import Section


class Findings(NamedTuple):
    """What an experiment found: sentences, sections of the report, rows for results.csv beside the metrics."""

    answer: Sequence[str]
    sections: Sequence[Section]
    rows: Sequence[Mapping[str, Any]] = ()  # with condition, backbone, system, seed, metric, value


class Experiment(Protocol):
    """One of the paper's experiments."""

    NAME: str
    TITLE: str
    QUESTION: str

    def design(self, data: Partition, budget: Budget, choice: Choice) -> Design:
        """The data by condition, and what is to be fitted on them."""

    def findings(self, study: Study) -> Findings:
        """What the cases that are done show; called also while some are missing."""
