"""The files of a report: the page, the table of results, the figures, and the index that leads to several."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb._files import atomic_write, spreadsheet_safe
from dubnb._version import VERSION
from dubnb.experiments import layout, measures
from dubnb.experiments.budgets import Budget, went_on
from dubnb.report import figures
from dubnb.report import page as pages
from dubnb.report.page import Figure, Gallery, Link, Page, Section

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.partition import Partition
    from dubnb.experiments.experiment import Experiment, Findings
    from dubnb.experiments.study import Study

PROTOCOL = "full-ranking"
PROTOCOL_RULES = f"{PROTOCOL}: all items outside the user's biased log (S_c), nDCG@50, pooled AUC"
REPORT, INDEX = "report.html", "index.html"
AGAIN = "Run the same command again, with the same --out: it goes on where it stopped."
PART_WORDS = {"S_c": "biased log", "S_t": "random log for training", "S_va": "for choosing", "S_te": "for judging"}
COLUMNS = ("experiment", "protocol", "condition", "backbone", "system", "seed", "metric", "value")


def page(experiment: Experiment, study: Study, findings: Findings, command: str) -> Page:
    """The report's Page."""
    data, select = study.design.source, measures.label(study.design.select)
    rules = f"{PROTOCOL_RULES}; selected on S_va {select}"
    return Page(
        f"dubnb · {experiment.NAME.upper()}",
        experiment.TITLE,
        experiment.QUESTION,
        findings.answer if study.finished else [],
        [*_facts(data, study.budget), ("protocol", rules), *study.design.notes],
        [*findings.sections, layout.winners_section(study)],
        command,
        versions(),
        layout.warnings_of(study, data),
        None if study.finished else _unfinished(study),
    )


def _unfinished(study: Study) -> str:
    n_done, total = len(study.judged) + len(study.failures), len(study.design.cases)
    what = "systems" if len(study.design.conditions) == 1 else "systems and conditions"
    return (
        f"{n_done} of {total} {what} are done, so there is no answer yet and every number below is preliminary. {AGAIN}"
    )


def index_page(
    experiments: Sequence[Experiment],
    complete: Mapping[str, Page],
    directory: str,
    data: Partition,
    budget: Budget,
    command: str,
) -> Page:
    """The Page that leads to the reports; `complete`: those of experiments that are done, by name."""
    links = []
    for experiment in experiments:
        name, report = experiment.NAME, complete.get(experiment.NAME)
        written = os.path.exists(os.path.join(directory, name, REPORT))
        drawing = next((figure.drawing for figure in _figures(report.sections)), None) if report else None
        answer = report.answer if report else []
        href = f"{name}/{REPORT}" if written else None
        links.append(Link(f"{name.upper()} · {experiment.TITLE}", href, report is not None, answer, drawing))
    missing = f"Complete: {len(complete)} of {len(experiments)} experiments. {AGAIN}"
    return Page(
        "dubnb",
        "The paper's experiments",
        "Bounding System-Induced Biases in Recommender Systems with A Randomized Dataset (Liu et al., TOIS 2023)",
        [],
        _facts(data, budget),
        [Section("Experiments", links)],
        command,
        versions(),
        layout.data_warnings(data, budget),
        None if len(complete) == len(experiments) else missing,
    )


def _facts(data: Partition, budget: Budget) -> list[tuple[str, str]]:
    sizes = "; ".join(f"{words} ({part}) {_size(data, part)}" for part, words in PART_WORDS.items())
    grades = ", graded" if data.graded else ""
    about = f"{data.name}: {data.n_users:,} users x {data.n_items:,} items{grades}"
    spent = f"{budget.points} candidates for every system{went_on(budget)}, {budget.seeds} seeds for every winner"
    return [
        ("data", f"{about}, fingerprint {data.fingerprint[:12]}"),
        ("feedback (P/N)", sizes),
        (f"budget {budget.name}", f"{spent}; {budget.description}"),
    ]


def _size(data: Partition, part: str) -> str:
    labels = data.triplets(part).labels
    positives = int(labels.sum(dtype=np.float64))
    ratio = f" ({100 * positives / (len(labels) - positives):.1f} %)" if positives < len(labels) else ""
    return f"{len(labels):,}{ratio}"


def versions() -> dict[str, str]:
    """Versions of what computes."""
    import numba
    import scipy

    packages = {"dubnb": VERSION, "numpy": np.__version__, "numba": numba.__version__, "scipy": scipy.__version__}
    return packages | {"python": platform.python_version()}


def tidy(experiment: Experiment, study: Study, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """results.csv as a DataFrame: one number per row."""
    import pandas as pd

    own = [
        {
            "condition": case.condition,
            "backbone": case.system.on,
            "system": case.system.name,
            "seed": fit.seed,
            "metric": metric,
            "value": value,
        }
        for case in study.design.cases
        for fit in study.judged.get(case, ())
        for metric, value in fit.metrics.items()
    ]
    frame = pd.DataFrame([*own, *rows], columns=list(COLUMNS))
    return frame.assign(experiment=experiment.NAME, protocol=PROTOCOL).astype({"seed": "Int64"})


def write(directory: str, document: Page, frame: pd.DataFrame) -> None:
    """results.csv, results.md, report.html, and each figure as an SVG file: each all of it or nothing."""
    os.makedirs(os.path.join(directory, "figures"), exist_ok=True)
    drawings = [figure.drawing for figure in _figures(document.sections)]
    texts = {os.path.join("figures", f"{drawn.name}.svg"): figures.standalone(drawn) for drawn in drawings}
    texts["results.csv"] = frame.map(spreadsheet_safe).to_csv(index=False, lineterminator="\n")
    texts |= {"results.md": pages.markdown(document), REPORT: pages.render(document)}
    for name, text in texts.items():
        _write(os.path.join(directory, name), text)


def write_index(directory: str, document: Page) -> None:
    """index.html: all of it or nothing."""
    _write(os.path.join(directory, INDEX), pages.render(document))


def _write(path: str, text: str) -> None:
    with atomic_write(path, overwrite=True) as file:
        file.write(text.encode())


def _figures(sections: Iterable[Section]) -> Iterator[Figure]:
    """Every figure, in the page's order."""
    for section in sections:
        for part in section.parts:
            if isinstance(part, Gallery):
                yield from part.figures
            elif isinstance(part, Figure):
                yield part
