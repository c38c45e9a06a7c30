"""What an audit says beside its answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A number that describes the logs, with an interval where it is an estimate."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    meaning: str = ""
