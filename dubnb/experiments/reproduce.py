"""Run experiments and write their reports."""

import os
import shlex
from types import ModuleType

from dubnb import _check
from dubnb._check import InputError
from dubnb._files import shown
from dubnb.experiments import _common as common
from dubnb.experiments import rq1, rq2, rq3, rq4, rq5
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.study import Study
from dubnb.report.plots import require_matplotlib

EXPERIMENTS: dict[str, ModuleType] = {module.NAME: module for module in (rq1, rq2, rq3, rq4, rq5)}
ALL = "all"
WORK = "work"  # the directory of searches, runs and pre-trained models


def names_of(experiment):
    """The experiments that a name stands for."""
    _check.choice("experiment", experiment, (*EXPERIMENTS, ALL))
    return list(EXPERIMENTS) if experiment == ALL else [experiment]


def reproduce(
    experiment, data, out, budget="quick", seed=0, n_jobs=1, data_words=(), quiet=True, say=lambda line: None
):
    """Run an experiment, or all, on `data`; returns [{"experiment", "answer", "report", "finished"}].

    `out` gets results.csv, results.md, report.html and its figures (a directory for each experiment where there are
    several, and an index.html that leads to them), and what has been computed in `work`, so that the same call goes on
    after an interruption and ends in the same files. `data_words`: how the command line names the data, for the line
    that the report prints.
    """
    check(experiment, out, budget, n_jobs)
    names, budget, seed = names_of(experiment), BUDGETS[budget], _check.whole("seed", seed, low=0)
    n_jobs = (os.cpu_count() or 1) if n_jobs == -1 else n_jobs
    if rq4.NAME in names:
        rq4.subset_size(data)  # refuses data without enough of both labels: better before hours of rq1
    os.makedirs(os.path.join(out, WORK), exist_ok=True)
    found = []
    for name in names:
        directory = os.path.join(out, name) if experiment == ALL else os.fspath(out)
        os.makedirs(directory, exist_ok=True)
        module = EXPERIMENTS[name]
        study = Study(module.plan(data, budget), budget, os.path.join(out, WORK), seed, n_jobs, quiet)
        command = _command_line(name, budget, seed, data_words)
        say(f"{name}: {module.TITLE}, {len(study.plan.cells)} systems, budget {budget.name}")
        _write(module, study, data, directory, command)
        if experiment == ALL:
            _write_index(out, found, data, budget, _command_line(ALL, budget, seed, data_words))
        found.append(_run(module, study, data, directory, command, say))
    if experiment == ALL:
        _write_index(out, found, data, budget, _command_line(ALL, budget, seed, data_words))
    return found


def _write_index(out, found, data, budget, command):
    """index.html, as far as things are; written before each experiment, so that an interrupted one is unfinished."""
    answers = {one["experiment"]: one["answer"] for one in found}
    common.write_index(out, common.index_page(EXPERIMENTS.values(), answers, out, data, budget, command))


def _run(module, study, data, directory, command, say):
    """Run to the end, or as far as it comes; either way the report says how far that was."""
    try:
        study.run(say)
    finally:
        answer = _write(module, study, data, directory, command)
    report = os.path.join(directory, common.REPORT)
    return {"experiment": module.NAME, "answer": answer, "report": report, "finished": study.finished}


def _write(module, study, data, directory, command):
    findings = module.findings(study)
    document = common.page(module, study, data, findings, command)
    common.write(directory, document, common.tidy(module, study, findings.rows))
    return document.answer


def check(experiment, out, budget, n_jobs):
    """Refuse what cannot be run, before any data are read."""
    names_of(experiment)
    _check.choice("budget", budget, tuple(BUDGETS))
    if n_jobs != -1:
        _check.whole("n_jobs", n_jobs)
    require_matplotlib()
    _check_directory(out)


def _check_directory(out):
    """Refuse a directory that holds something else than an earlier run."""
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise InputError(f"--out {shown(out)} is a file: give a directory, which need not exist")
    if os.listdir(out) and not os.path.isdir(os.path.join(out, WORK)):
        raise InputError(f"--out {shown(out)} holds other files and no earlier run: give a new or empty directory")


def _command_line(name, budget, seed, data_words):
    words = ["dubnb", "reproduce", name, *data_words, "--budget", budget.name, "--seed", str(seed)]
    return shlex.join([*words, "--out", f"runs/{name}"])
