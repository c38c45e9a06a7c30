"""Sentences and cells made from numbers."""

from __future__ import annotations

from collections.abc import Sequence

from dubnb.experiments import measures
from dubnb.experiments.measures import SEEDS_NEEDED, SIGNIFICANT, Comparison
from dubnb.experiments.study import Case, Study
from dubnb.report.page import Value


def listed(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def p_text(p: float | None) -> str:
    """A p-value for a sentence or a cell."""
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def p_value(p: float | None) -> Value:
    """A p-value for a table."""
    return Value(p, p_text(p))


def difference(comparison: Comparison) -> Value:
    """A Comparison's difference with its interval over users below."""
    c = comparison
    return Value(c.difference, f"{c.difference:+z.4f}", f"{c.low:+z.4f} to {c.high:+z.4f}")


def lead(study: Study, among: Sequence[Case], comparison: Comparison, users_p: float, corrected: str = "") -> str:
    """Who has the best of a metric, and whether more than chance stands behind it; `corrected`: how users_p was."""
    c, name = comparison, measures.label(comparison.metric)
    first, best = measures.leaders(study, among, c.metric), measures.mean(study, c.first, c.metric)
    if len(first) > 1:
        return f"{listed(first)} share the best {name} ({best:.4f})"
    ahead = f"{c.first.system.name} has the best {name} ({best:.4f}), {abs(c.difference):.4f} ahead of"
    return f"{ahead} {c.second.system.name}: {verdict(users_p, c.seeds_p, study.budget.seeds, corrected)}"


def verdict(users_p: float, seeds_p: float | None, n_seeds: int, corrected: str = "") -> str:
    """What two p-values say about a difference, in words."""
    by_users, by_seeds = f"over users (p {p_text(users_p)}{corrected})", f"over seeds (p {p_text(seeds_p)})"
    if seeds_p is None:
        said = "significant" if users_p <= SIGNIFICANT else "not significant"
        few = "there is only one" if n_seeds == 1 else f"there are only {n_seeds}"
        return f"{said} {by_users}, not tested over seeds, as {few} ({SEEDS_NEEDED} are needed)"
    sure = users_p <= SIGNIFICANT, seeds_p <= SIGNIFICANT
    if sure[0] == sure[1]:
        return f"significant {by_users} and {by_seeds}" if sure[0] else f"significant neither {by_users} nor {by_seeds}"
    return f"significant {by_users} but not {by_seeds}" if sure[0] else f"significant {by_seeds} but not {by_users}"


def in_words(seconds: float) -> str:
    """A length of time with one unit."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
