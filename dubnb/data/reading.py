"""How logs are read: the options that `Partition.from_frames` and `from_table` share, which the first describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

from dubnb import _check
from dubnb._check import InputError, option

LABEL = "label"  # the column that is looked for where none is named
Reader = TypeVar("Reader", bound=Callable[..., Any])


class ReadOptions(TypedDict, total=False):
    """The options by name, for type checkers; `Reading` has their defaults."""

    user: str
    item: str
    label: str | None
    weight: str | None
    propensity: str | None
    grade: str | None
    timestamp: str | None
    user_type: str | None
    item_type: str | None
    threshold: float | None
    duplicates: str | None
    drop_bad: bool
    split: str
    shares: Sequence[float] | None
    split_seed: int
    sep: str | None
    name: str | None
    quiet: bool


@dataclass(frozen=True)
class Reading:
    """All options, with their defaults."""

    user: str = "user"
    item: str = "item"
    label: str | None = None
    weight: str | None = None
    propensity: str | None = None
    grade: str | None = None
    timestamp: str | None = None
    user_type: str | None = None
    item_type: str | None = None
    threshold: float | None = None
    duplicates: str | None = None
    drop_bad: bool = False
    split: str = "random"
    shares: Sequence[float] | None = None
    split_seed: int = 0
    sep: str | None = None
    name: str | None = None
    quiet: bool = True

    @classmethod
    def of(cls, options: ReadOptions) -> Reading:
        """From options as given; one that does not exist is refused with the name that is meant."""
        known = tuple(field.name for field in fields(cls))
        for name in options:
            _check.choice("parameter", name, known)
        return cls(**options)

    def roles(self) -> dict[str, str]:
        """{role: column} of the columns that are read, which must be distinct."""
        roles = {"user": self.user, "item": self.item, "label": self.label or LABEL}
        others = ("weight", "propensity", "grade", "timestamp")
        roles |= {role: getattr(self, role) for role in others if getattr(self, role) is not None}
        if len(set(roles.values())) < len(roles):
            raise InputError(f"columns {roles} must be distinct: name each with {', '.join(map(option, roles))}")
        return roles


def with_options(function: Reader) -> Reader:
    """Let help(), notebooks and docs/api.md show the options of a function that takes **options: ReadOptions."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Reading)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function
