"""Small logs, and studies whose fits have known scores, for the tests of experiments."""

import functools

import numpy as np

from dubnb._random import generator
from dubnb.calibration import Calibration
from dubnb.data.partition import Partition, Triplets
from dubnb.evaluation import judge, top_k
from dubnb.experiments import pages
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.study import WHOLE, Case, Design, SeedResult, Study, Winner, report_metrics
from dubnb.experiments.systems import PAPER, Choice, System
from dubnb.report import page
from dubnb.sweeps.worker import TestOutput
from tests.naive import ScoreTable

SMOKE = BUDGETS["smoke"]
BRIEF = SMOKE._replace(bootstraps=50)


def tiny_log(n_users=60, n_items=30, name="tiny", graded=False):
    """A log with feedback in every part; odd users like odd items."""
    rng = generator(0, "test-experiments")
    pairs = rng.permutation(n_users * n_items)[: n_users * n_items // 2]
    users, items = np.divmod(pairs, n_items)
    labels = (rng.random(len(pairs)) < np.where(users % 2 == items % 2, 0.6, 0.1)).astype(float)
    grades = np.where(labels > 0, 1.0, rng.integers(0, 3, len(pairs)) / 4) if graded else None
    cuts = np.split(np.arange(len(pairs)), (len(pairs) * np.array([0.5, 0.65, 0.8])).astype(int))
    every = Triplets(users, items, labels, np.ones(len(pairs)), grades)
    parts = dict(zip(("S_c", "S_t", "S_va", "S_te"), (every.take(cut) for cut in cuts), strict=True))
    return Partition(parts, (n_users, n_items), name=name)


@functools.cache  # a Partition is compared by identity
def known_fit(data, seed, skill):
    """The result of a system whose scores are the taste of `tiny_log` times `skill` plus noise."""
    noise = generator(seed, "run", skill).normal(size=(data.n_users, data.n_items))
    taste = (np.arange(data.n_users)[:, None] % 2) == (np.arange(data.n_items)[None, :] % 2)
    scores = (skill * taste + noise).astype(np.float32)
    judgement = judge(ScoreTable(scores), data)
    result, users = judgement.result, judgement.users
    excluded = np.zeros(scores.shape, dtype=bool)
    excluded[data.triplets("S_c").users, data.triplets("S_c").items] = True
    S_te = data.triplets("S_te")
    own = scores[S_te.users, S_te.items]
    metrics = {name: result[name] for name in (*report_metrics(), "personal") if name in result}
    metrics |= {f"va_{name}": value for name, value in metrics.items()}
    lists = top_k(scores[users], 10, excluded[users])
    probabilities = Calibration(1.0, -1.0)(own), np.clip(own, 0.0, 1.0)
    return SeedResult(
        seed, metrics, TestOutput(users, judgement.values, lists, own, *probabilities, {"S_te": judgement.judged})
    )


def known_study(module, data, skills, seeds=2, choice=None):
    """The module's design as if every system had run: the better, the larger its skill (default 1)."""
    budget = BRIEF._replace(seeds=seeds)
    found = Study(module.design(data, budget, choice or Choice()), budget, "work")
    for case in found.design.cases:
        condition = found.design.conditions[case.condition]
        skill = skills.get(case.system.name, 1.0)
        found.results[case] = [known_fit(condition, seed, skill) for seed in found.seeds]
        axes = {"lam": [1e-4, 1e-3, 1e-2]}
        found.winners[found.searched(case)] = Winner({}, {"lam": 1e-3}, axes, 3, 0.5)
    return found


def system(name, backbone="mf", group=PAPER, **fixed):
    method = name if group == PAPER else "base"
    return System(name, method, backbone, tuple(fixed.items()), group)


def numbered_study(data, numbers, select="auc", conditions=None, budget=BRIEF):
    """A study with given numbers: {case: its fits' metrics, one dict per seed; None: not done}."""
    study = Study(Design(data, conditions or {WHOLE: data}, list(numbers), select), budget, "work")
    for case, seeds in numbers.items():
        if seeds is not None:
            study.results[case] = [SeedResult(seed, own, None) for seed, own in enumerate(seeds)]
    return study


def case_of(study, name, backbone="mf"):
    return next(c for c in study.design.cases if (c.system.name, c.system.backbone) == (name, backbone))


def system_cases(*names):
    return [Case(system(name)) for name in names]


def written(module, study):
    """(Page, HTML, Markdown, frame) of a study's report."""
    findings = module.findings(study)
    report = pages.study_page(module, study, findings, "dubnb reproduce")
    return report, page.render(report), page.render_markdown(report), pages.results_frame(module, study, findings.rows)
