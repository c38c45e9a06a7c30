"""`dubnb bound`: the paper's bound on the ideal loss, term by term."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from dubnb import _files
from dubnb._check import InputError, option
from dubnb.cli import _options, _output

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.theory.bound import Bound, Trace

NAME = "bound"
SUMMARY = "evaluate the paper's bound: every term, the slack and, on simulated data, the true values"
SEED_HELP = "seed of the models that --plot trains (default 0)"
PLOTS = (".html", ".svg")
OF_BOUND = ("hypotheses", "eta", "slack", "largest_weight")  # options that --plot alone does not read


def notes() -> str:
    return (
        "examples:"
        "\n  dubnb bound --data simulated --model m.npz --loss mae"
        "\n  dubnb bound --data simulated --plot bound.html"
        "\n\ndocs/theory.md explains every symbol."
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model, the theorem, and the figure."""
    _options.add_data_options(parser)
    parser.add_argument("--model", metavar="FILE", help="a model that `dubnb fit` saved (optional with --plot)")
    parser.add_argument(
        "--loss", metavar="NAME", help="bce, mae, zero_one, mse or squared (default: the model's, or bce)"
    )
    parser.add_argument("--hypotheses", type=int, metavar="N", help="number of hypotheses |H| (default 1)")
    parser.add_argument("--eta", type=float, metavar="X", help="probability that the bound fails (default 0.05)")
    kinds = "paper, hoeffding, design, bernstein or freedman (default: paper; hoeffding with propensities)"
    parser.add_argument("--slack", metavar="NAME", help=kinds)
    limit = "limit of 1 / (propensity x items) (default: the largest in S_t)"
    parser.add_argument("--largest-weight", type=float, metavar="W", help=limit)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="train base, unif, cause, bridge and dub, and draw every term by epoch: a page (.html) or a figure (.svg)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> None:
    """Evaluate the bound of a model, print it, and draw the terms."""
    import dubnb

    seed = _options.first_seed(args)
    if args.model is None and args.plot is None:
        raise InputError("no model: give --model FILE, or --plot FILE to train five methods and draw their terms")
    options = {name: getattr(args, name) for name in OF_BOUND if getattr(args, name) is not None}
    if args.model is None and options:
        raise InputError(f"{option(next(iter(options)))} is about the bound of a model: give --model FILE too")
    if args.plot is not None:
        if not args.plot.endswith(PLOTS):
            raise InputError(f"--plot {args.plot} must end in {' or '.join(PLOTS)}")
        _output.check_writable(args.plot, args.overwrite)
    model = None if args.model is None else dubnb.load(args.model)
    data = _options.load_data(args)
    judged = None
    if model is not None:
        judged = dubnb.bound(model, data, loss=args.loss, quiet=args.quiet, **options)
    traced = _write_plot(args, data, judged, seed) if args.plot else None
    if args.json:
        document = ({} if judged is None else judged.to_dict()) | {
            "data": _options.data_document(data),
            "plot": args.plot,
        }
        if traced is not None:
            document["trace"] = traced.rows.to_dict("records")
        _output.print_json(document)
        return
    if judged is not None:
        _output.print_text(judged.text())
    if traced is not None:
        _output.print_text(traced.text())
        _output.print_text(f"\nwritten to {args.plot}")


def _write_plot(args: argparse.Namespace, data: Partition, judged: Bound | None, seed: int) -> Trace:
    """Train the five methods, and write the figure or the page."""
    from dubnb.report import page, theory
    from dubnb.theory.bound import trace

    traced = trace(data, loss=args.loss or "bce", seed=seed, quiet=args.quiet)
    if args.plot.endswith(".svg"):
        text = theory.trace_svg(traced)
    else:
        command = shlex.join(["dubnb", NAME, *_options.data_words(args), "--plot", args.plot])
        sections = [theory.trace_section(traced)]
        if judged is not None:
            command += f" --model {shlex.quote(args.model)}"
            sections.insert(0, theory.bound_section(judged))
        text = page.render(theory.bound_page(traced, sections, data, command))
    with _files.atomic_write(args.plot, args.overwrite) as file:
        file.write(text.encode())
    return traced
