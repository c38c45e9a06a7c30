"""How long experiments will take, told before they start: one timed fit of each system, and the number of its fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dubnb.experiments.study import Case, Say, Study
from dubnb.experiments.words import in_words

if TYPE_CHECKING:
    from dubnb.experiments.systems import System
    from dubnb.sweeps.fits import Trial


class Ahead(NamedTuple):
    """What experiments will fit of one system."""

    sample: Trial  # a candidate from the middle of its grid, on its largest log
    n_fits: int  # each fit that experiments share counted once


def ahead(studies: Iterable[Study]) -> dict[System, Ahead]:
    """What some studies will fit, system by system: all candidates, and every winner over its seeds."""
    fits: dict[System, set[object]] = {}
    largest: dict[System, tuple[int, Trial]] = {}
    for study in studies:
        for case in dict.fromkeys(map(study.searched, study.design.cases)):
            trials = study.candidates(case)
            fits.setdefault(case.system, set()).update(trial.key for trial in trials)
            size, middle = _size(study, case), trials[len(trials) // 2]
            if case.system not in largest or size > largest[case.system][0]:
                largest[case.system] = size, middle
        for case in study.design.cases:
            log = study.design.conditions[case.condition].fingerprint
            fits[case.system] |= {(log, study.design.select, seed) for seed in study.seeds}
    return {system: Ahead(largest[system][1], len(own)) for system, own in fits.items()}


def _size(study: Study, case: Case) -> int:
    """Pairs that a case's models learn from."""
    log = study.design.conditions[case.condition]
    return sum(len(log.triplets(part).users) for part in ("S_c", "S_t"))


def total(seconds: Mapping[System, float], fits: Mapping[System, Ahead], n_jobs: int) -> float:
    """All fits one after the other, over the workers."""
    return sum(seconds[system] * own.n_fits for system, own in fits.items()) / n_jobs


def say_how_long(studies: Sequence[Study], say: Say) -> None:
    """Run one candidate of each system, which its search needs anyhow, and count on from its time."""
    fits = ahead(studies)
    n_fits = sum(own.n_fits for own in fits.values())
    say(f"{n_fits:,} fits of {len(fits)} systems; one of each first, to tell how long all will take")
    ran = studies[0].run_fits([own.sample for own in fits.values()], [log for s in studies for log in s.logs])
    seconds = {system: ran[own.sample].seconds or 0.0 for system, own in fits.items()}
    n_jobs = studies[0].n_jobs
    workers = "1 worker" if n_jobs == 1 else f"{n_jobs} workers"
    length = in_words(total(seconds, fits, n_jobs))
    more = "; more where a search goes on" if any(study.budget.extensions for study in studies) else ""
    say(f"about {length} in all with {workers} on this machine, less what is done already{more}")
