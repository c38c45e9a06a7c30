"""How far a reader of one fit has to jump: `python -m bench.trace [METHOD ...]`.

Counts the functions of dubnb that a fit on `simulated` calls, in the order of their first calls: how many there are, in
how many files, and how often the next one stands in another file. Frames are those of dubnb from `fit` to the first
compiled kernel that takes the samples or rows. Each method is fitted once before, so that lazy imports do not count.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import dubnb
from dubnb.backbones import mf
from dubnb.objective import als

PACKAGE = str(Path(dubnb.__file__).parent)
# What calls the kernel that takes the samples or rows of a fit.
CALLERS = {"base": (mf, "MFTrainer.epoch"), "dub": (mf, "MFTrainer.epoch"), "dub-x": (als, "sweep_rows")}


class Trace(NamedTuple):
    """What one fit called."""

    functions: int
    files: int
    switches: int
    frames: int


def trace(method: str) -> Trace:
    """Fit a method with its defaults, and note each function of dubnb at its first call."""
    data = dubnb.load_dataset("simulated", seed=0)
    dubnb.make(method).fit(data)
    module, caller = CALLERS[method]
    seen, order, depths = set[tuple[str, str]](), list[tuple[str, str]](), [0]

    def note(frame: Any, event: str, arg: Any) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event != "call" or not path.startswith(PACKAGE):
            return
        if (path, name) not in seen:
            seen.add((path, name))
            order.append((path, name))
        if (path, name) == (module.__file__, caller):
            depths.append(_depth(frame))

    model = dubnb.make(method)
    sys.setprofile(note)
    try:
        model.fit(data)
    finally:
        sys.setprofile(None)
    files = [path for path, _ in order]
    switches = sum(one != other for one, other in itertools.pairwise(files))
    return Trace(len(order), len(set(files)), switches, 1 + max(depths))


def _depth(frame: Any) -> int:
    """The frames of dubnb in a stack, with this one."""
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename.startswith(PACKAGE)
        frame = frame.f_back
    return depth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=[*CALLERS], metavar="METHOD", help=", ".join(CALLERS))
    print("| method | functions | files | file switches | frames from fit to kernel |\n|---|---:|---:|---:|---:|")
    for method in parser.parse_args().methods:
        print(f"| {method} | {' | '.join(map(str, trace(method)))} |", flush=True)


if __name__ == "__main__":
    main()
