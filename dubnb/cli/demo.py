"""`dubnb demo`: some methods on small simulated logs, as a table and a plot."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dubnb import _files
from dubnb._check import InputError, whole
from dubnb.cli import _options, _output
from dubnb.report import tables

NAME = "demo"
SUMMARY = "compare methods on small simulated logs whose truth is known"
SEED_HELP = "seed of the models (default 0)"
PLOT_NAME = "dubnb-demo"


def notes() -> str:
    return "example:\n  dubnb demo --seeds 5\n\nThe plot needs matplotlib: pip install 'dubnb[report]'"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The number of logs, and where the plot goes."""
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="number of simulated logs (default %(default)s)"
    )
    parser.add_argument("--data-seed", type=int, default=0, metavar="N", help="seed of the first log (default 0)")
    parser.add_argument("--out", default=".", metavar="DIR", help="where the plot goes (default: current directory)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an earlier plot instead of numbering the new one"
    )


def run(args: argparse.Namespace) -> None:
    """Train the methods, draw the plot, print the table."""
    from dubnb import demo
    from dubnb.report import plots

    n_logs, data_seed = whole("--seeds", args.seeds), whole("--data-seed", args.data_seed, low=0)
    seed = _options.first_seed(args)
    directory = Path(args.out)
    _output.check_writable(_free_name(directory, args.overwrite), args.overwrite)
    try:
        plots.require_matplotlib()
        can_plot = True
    except InputError as error:
        _output.print_message(f"no plot: {error}")
        can_plot = False
    result = demo.run(n_logs, data_seed, seed, say=_output.remarks(args))
    plot = None
    if can_plot:
        plot = _free_name(directory, args.overwrite)
        with _files.atomic_write(plot, args.overwrite) as file:
            file.write(plots.demo_png(result))
    if args.json:
        document = {"protocol": result.protocol, "data_seeds": result.data_seeds, "methods": demo.mean_values(result)}
        document |= {"per_seed": result.values, "probability_by_popularity": result.curves}
        document |= {"popularity": result.popularity, "graded": result.graded}
        _output.print_json(document | {"verdict": demo.differences_sentence(result), "plot": plot and str(plot)})
        return
    sentences = (
        demo.protocol_sentence(result),
        demo.inputs_sentence(result),
        demo.differences_sentence(result),
        demo.popularity_sentence(result),
        demo.CAVEAT,
    )
    _output.print_text("\n".join([demo.result_table(result), "", *sentences]))
    if plot:
        _output.print_text(f"Plot: {tables.printable(plot)}")


def _free_name(directory: Path, overwrite: bool) -> Path:
    """dubnb-demo.png, or the next free numbered name if that exists and must stay."""
    path, number = directory / f"{PLOT_NAME}.png", 2
    while not overwrite and os.path.lexists(path):
        path, number = directory / f"{PLOT_NAME}-{number}.png", number + 1
    return path
