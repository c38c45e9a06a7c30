"""What methods with a second model M_t share: how it is trained on S_t."""

from __future__ import annotations

from typing import Any, Protocol

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._method import Method
from dubnb.methods._settings import batch_of_S_t, lam_of_S_t
from dubnb.train import Stage

TEACHER = {"teacher_batch_size": batch_of_S_t, "teacher_lam": lam_of_S_t(1e-2)}  # in this order
TEACHER_CHECKS = {"teacher_lam": _check.reals(), "teacher_batch_size": _check.wholes()}


class WithTeacher(Protocol):
    """A method with the parameters of a teacher."""

    teacher_lam: float | None
    teacher_batch_size: int | None

    def stage(self, name: str, **other: Any) -> Stage: ...


def teacher_stage(method: WithTeacher, **other: Any) -> Stage:
    """M_t's training on S_t; `other` replaces some of the method's parameters."""
    return method.stage("M_t", lam=method.teacher_lam, batch_size=method.teacher_batch_size, **other)


def check_joint(method: Method) -> None:
    """Refuse what two models in training cannot do."""
    if not any(map(method.keeps, "acd")):
        raise InputError(f"terms={method.terms!r} leaves nothing to train M_c on: keep one of a, c, d")
    if method.weighting == "theory":
        raise InputError("weighting='theory' goes with one model in training (Eq. 2): use weighting='sample' here")
