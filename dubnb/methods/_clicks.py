"""Logs of clicks alone: S_c holds positives and nothing else."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from dubnb._check import InputError

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method


def check_clicks(method: Method, data: Partition) -> None:
    """Say what such a log means for the (resolved) method, and refuse one that would learn to say yes to everything."""
    terms = set(method.terms or "")
    if method.is_baseline or "c" not in terms or not data.click_only:
        return
    of_d = method.keeps("d") and not method.pretraining()  # no stage without term d: nothing else is drawn
    if method.chosen_solver() == "exact" or of_d:
        warnings.warn("S_c holds positives alone (a log of clicks): unobserved pairs are weighted zeros", stacklevel=4)
        return
    if not method.negatives and terms <= {"c"}:
        raise InputError(
            f"S_c holds positives alone, and negatives=0 leaves {method.name} nothing to tell them from: it would say "
            "yes to every pair; set negatives= (4 by default), or take dub-x"
        )
    warnings.warn(
        f"S_c holds positives alone (a log of clicks): {method.negatives} unobserved pairs for each are drawn as "
        "negatives; randomized pairs that were not clicked stay the true ones",
        stacklevel=4,
    )
