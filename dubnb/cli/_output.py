"""What commands print: results on stdout as text or JSON, remarks on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from dubnb import _files
from dubnb._check import InputError
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.partition import Partition


def print_message(message: object) -> None:
    """Print one line to stderr, after the program's name."""
    print("dubnb:", tables.printable(" ".join(str(message).split())), file=sys.stderr, flush=True)


def show_warning(
    message: object,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A replacement for `warnings.showwarning`: one line, without the line of code."""
    print_message(f"warning: {message}")


def remarks(args: argparse.Namespace) -> Callable[[str], None]:
    """A function that prints a command's remarks to stderr, or does nothing with --quiet."""
    if args.quiet:
        return lambda line: None
    return lambda line: print(tables.printable(line), file=sys.stderr, flush=True)


def abandon_stdout() -> None:
    """Redirect stdout to nowhere, so that Python does not report its error again on exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def print_text(text: str) -> None:
    """Print text to stdout; characters that its encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def print_json(document: Any) -> None:
    """Print a JSON document to stdout."""
    print_text(json.dumps(_json_value(document), indent=2, allow_nan=False))


def _json_value(value: Any) -> Any:
    """`value` in JSON's own types; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if hasattr(value, "tolist"):
        return _json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_metrics(result: dict[str, Any], data: Partition) -> None:
    """Print a row per metric, and on simulated data the metrics against the truth."""
    from dubnb import metrics
    from dubnb.evaluation import PROTOCOLS, TRUTH_CUT

    print_text(f"{tables.printable(data.name)}, protocol {result['protocol']}")
    cut = PROTOCOLS[result["protocol"]].cut
    names = [name for name in result if metrics.is_name(name)]
    rows = [(metrics.metric_label(name, cut), result[name], result.get(f"popularity_{name}", "")) for name in names]
    print_text(tables.text(("metric", "S_te", "popularity"), rows, "<>>"))
    _print_liked(result)
    if result.get("left_out_pairs") is not None:
        print_text(f"unknown to the model: {result['unknown_users']:,} users, {result['unknown_items']:,} items")
    truth = {name.removeprefix("truth_"): value for name, value in result.items() if name.startswith("truth_")}
    if truth:
        known = [
            (metrics.metric_label(name, TRUTH_CUT), value) for name, value in truth.items() if metrics.is_name(name)
        ]
        print_text("\nunbiased truth, all pairs outside the biased log and S_t; liked: in the lists of liked@K")
        print_text(tables.text(("metric", "truth"), known, "<>"))


def print_trained(result: dict[str, Any]) -> None:
    """Print a line about test pairs that the model was trained or chosen on, if there are any."""
    n = result.get("trained_pairs_left_out", 0)
    if result.get("refit") == "all":
        print_text(
            f"The model was then refitted on everything, including all {n:,} pairs of S_te: these are its metrics "
            "from before, with the same settings."
        )
    elif n is None:
        print_text("This older model file does not record its training pairs, so no test pair is left out for that.")
    elif n:
        print_text(f"left out: {n:,} pairs of S_te that the model was trained or chosen on (--keep-trained keeps them)")


def _print_liked(result: dict[str, Any]) -> None:
    """Print what liked@K means and its interval, for the longest lists."""
    ks = [int(name.removeprefix("judged@")) for name in result if name.startswith("judged@")]
    if not ks:
        return
    name, sure = f"liked@{max(ks)}", f"{result[f'judged@{max(ks)}']:,} judged"
    if math.isnan(result[name]):
        sure += ": too few"
    else:
        sure = f"95 % interval {result[f'{name}_low']:.4f} to {result[f'{name}_high']:.4f}; {sure}"
    print_text(f"{name}: of the recommended items that the randomized log judged, the share that was liked ({sure})")


class _Probed(Exception):
    """The path can be written."""


def check_writable(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Refuse a path that cannot be written, before any work is done for it."""
    if _files.stat_or_none(path) is not None and not overwrite:
        raise InputError(f"{_files.quote_path(path)} exists already: choose another --out or add --overwrite")
    with contextlib.suppress(_Probed), _files.atomic_write(path, overwrite):
        raise _Probed  # a block that fails writes nothing
