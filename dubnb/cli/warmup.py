"""`dubnb warmup`: compile the kernels of fitting and evaluating, so that later processes need not wait.

It does not compile those of reading text logs, `bound` and `audit`: the first process that needs one compiles it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dubnb._check import InputError
from dubnb.cli import _options, _output

NAME = "warmup"
SUMMARY = "compile the kernels of fitting and evaluating ahead of time, for example for a container image"
SEED_HELP = "not used: the models are thrown away"
DATASET = "simulated"
TINY = {"rank": 2, "epochs": 1, "batch_size": 4096}


def notes() -> str:
    return (
        "example:\n  DUBNB_CACHE_DIR=/opt/kernels dubnb warmup\n\nFits every method once on a small simulated log, "
        "with every backbone and solver,\nand evaluates. Skips what reading text logs, bound and audit need.\n"
        "Kernels are for one kind of CPU and one set of versions: dubnb's, Numba's, Python's."
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """This command has no options of its own."""


def run(args: argparse.Namespace) -> None:
    """Fit and evaluate every method, and print where the kernels are."""
    import dubnb
    from dubnb import _jit, _kernel_cache

    _options.first_seed(args)
    places = _kernel_cache.directories() if _jit.JIT_ENABLED else ()
    if not places:
        why = "no directory is safe" if _jit.JIT_ENABLED else "NUMBA_DISABLE_JIT is set"
        raise InputError(f"compiled kernels cannot be kept ({why}): set DUBNB_CACHE_DIR to a directory of your own")
    say, start, data, fits = _output.remarks(args), time.perf_counter(), dubnb.load_dataset(DATASET), list(_fits())
    for number, (method, params) in enumerate(fits, 1):
        say(f"{number}/{len(fits)} {method}, {', '.join(map(str, params.values()))}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one epoch does not make a good model
            dubnb.make(method, **TINY, **params).fit(data).evaluate(data)
    directory = places[-1]
    kernels = [path.stat().st_size for path in Path(directory).glob("*.kernel")]
    about = {"directory": directory, "kernels": len(kernels), "bytes": sum(kernels)}
    if args.json:
        _output.print_json(about | {"seconds": time.perf_counter() - start})
        return
    _output.print_text(f"{len(kernels)} kernels, {sum(kernels) / 1e6:.1f} MB: {directory}")


def _fits() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method with each of its backbones and solvers."""
    from dubnb.methods import METHODS

    for name, method in METHODS.items():
        for backbone, solver in method.SETTINGS:
            yield name, {"backbone": backbone} | ({"solver": solver} if hasattr(method, "solver") else {})
