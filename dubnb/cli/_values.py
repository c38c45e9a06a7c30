"""Values from the command line: a method, its parameters, seeds."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError, choice, shown, whole

if TYPE_CHECKING:
    from dubnb.methods._method import Method

RULES = {
    int: "a whole number",
    float: "a number",
    tuple[int, ...]: "whole numbers with commas between, such as 100,50",
    tuple[float, float]: "two numbers with a comma between, such as .5,1",
}


def first_seed(args: argparse.Namespace) -> int:
    """--seed, 0 where it is not given."""
    return whole("--seed", 0 if args.seed is None else args.seed, low=0)


def method_class(name: str) -> type[Method]:
    """The method called `name`."""
    from dubnb.methods import METHODS

    return METHODS[choice("method", name, tuple(METHODS))]


def read_settings(
    settings: Sequence[str], method: type[Method], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """--set name=value ... as parameters of the method, beside those `given` already."""
    params = dict(given or {})
    annotations = typing.get_type_hints(method)
    kinds = {field.name: annotations[field.name] for field in dataclasses.fields(method)}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign:
            raise InputError(f"--set {shown(setting)} has no value: write --set name=value, such as --set rank=50")
        choice("parameter", name, tuple(kinds))
        if name in params:
            raise InputError(f"{name} is given twice: keep one of the two")
        params[name] = parse_value(name, text, kinds[name])
    return params


def parse_value(name: str, text: str, annotation: Any) -> Any:
    """`text` as the first of the annotated types that it can be, such as float | tuple[float, float] | None."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        return choice(name, text.lower(), ("true", "false")) == "true"
    readable = [kind for kind in kinds if kind in RULES or kind is str]
    if not readable:
        raise InputError(f"--set {name} takes an array: set it in Python, or give the log a column")
    for kind in readable:
        try:
            return _read(text, kind)
        except ValueError:
            continue
    rules = " or ".join([RULES[kind] for kind in readable] + ["none"] * (type(None) in kinds))
    raise InputError(f"--set {name}={shown(text)} must be {rules}")


def _read(text: str, kind: Any) -> Any:
    """`text` as one kind of value; ValueError if it is none."""
    if typing.get_origin(kind) is not tuple:
        return kind(text)
    element, *more = typing.get_args(kind)
    values = tuple(element(part) for part in text.split(","))
    if Ellipsis not in more and len(values) != 1 + len(more):
        raise ValueError("another number of values")
    return values


def listed(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text is not None else None
