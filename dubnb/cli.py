"""The command line: parse, call, print.

Results go to stdout (with --json as one JSON document), everything said on the way to stderr. Exit codes: 0 done,
2 wrong use or bad input, 1 anything else, 130 stopped by Ctrl-C; every failure is one line on stderr.
"""

import argparse
import contextlib
import json
import math
import os
import re
import sys
import textwrap
import traceback
import typing
import warnings
from pathlib import Path

from dubnb import _files
from dubnb._check import DivergenceError, InputError, choice, whole
from dubnb._version import VERSION
from dubnb.report import tables
from dubnb.sweeps import command as sweep_command
from dubnb.sweeps.errors import SweepError

DONE, FAILED, WRONG_USE, STOPPED = 0, 1, 2, 130
LONGEST_SHOWN = 60  # characters of a bad value that a message repeats
NAMED_AT_MOST = 10  # unknown users that a warning names
INT64 = range(-(2**63), 2**63)
PLOT_NAME = "dubnb-demo"


def main(argv=None):
    """Run one command; returns its exit code."""
    wants_traceback = bool(os.environ.get("DUBNB_TRACEBACK"))
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.simplefilter("always", UserWarning)
            args = _parser().parse_args(argv)
            wants_traceback |= args.traceback
            args.command(args)
            sys.stdout.flush()
        return DONE
    except BrokenPipeError:  # the reader has seen enough, as in `dubnb recommend ... | head`; results come last
        _abandon_stdout()
        return DONE
    except KeyboardInterrupt:
        return _fail(STOPPED, "stopped by Ctrl-C", wants_traceback)
    except InputError as error:
        return _fail(WRONG_USE, error, wants_traceback)
    except (DivergenceError, SweepError) as error:
        return _fail(FAILED, error, wants_traceback)
    except MemoryError as error:
        return _fail(FAILED, f"out of memory: {error}", wants_traceback)
    except OSError as error:
        _abandon_stdout()
        return _fail(FAILED, f"the system refused: {error}", wants_traceback)
    except Exception as error:
        reason = f"unexpected {type(error).__name__}: {error} (--traceback shows where)"
        return _fail(FAILED, reason, wants_traceback)


def _fail(code, reason, with_traceback):
    if with_traceback:
        traceback.print_exc()
    _say(reason)
    return code


def _say(message):
    """One line on stderr."""
    print("dubnb:", tables.printable(" ".join(str(message).split())), file=sys.stderr, flush=True)


def _show_warning(message, category, filename, lineno, file=None, line=None):
    _say(f"warning: {message}")


def _abandon_stdout():
    """Point stdout nowhere, or Python would complain about it once more while it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print(text):
    """Text on stdout; what its encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _print_json(document):
    _print(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value):
    """`value` in JSON's own types; what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- parsers -------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse, but errors are one line, and the text below the options is made when help is asked for."""

    def __init__(self, *args, notes=str, **options):
        super().__init__(*args, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.notes = notes

    def format_help(self):
        self.epilog = self.notes()
        return super().format_help()

    def error(self, message):
        raise InputError(f"{message}; see '{self.prog} --help'")


def _parser():
    parser = Parser(
        "dubnb",
        description="Debiased recommenders from a biased log and a sliver of randomized traffic.",
        notes=lambda: "first steps:\n  dubnb demo\n  dubnb fit --help",
    )
    parser.add_argument("-V", "--version", action="version", version=f"dubnb {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_demo, _add_fit, _add_evaluate, _add_recommend, _add_sweep, _add_reproduce):
        add(commands)
    return parser


def _add_command(commands, name, function, summary, notes, seed_help):
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".", notes=notes)
    parser.set_defaults(command=function)
    common = parser.add_argument_group("for every command")
    common.add_argument("--seed", type=int, metavar="N", help=seed_help)
    common.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    common.add_argument("--quiet", action="store_true", help="no progress; warnings and errors stay")
    common.add_argument("--traceback", action="store_true", help="on failure, show where (or set DUBNB_TRACEBACK=1)")
    return parser


def _add_demo(commands):
    summary = "compare five methods on small simulated logs whose truth is known"
    parser = _add_command(commands, "demo", _demo, summary, _demo_notes, "seed of the models (default 0)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many logs (default %(default)s)")
    parser.add_argument("--data-seed", type=int, default=0, metavar="N", help="seed of the first log (default 0)")
    parser.add_argument("--out", default=".", metavar="DIR", help="where the plot goes (default: current directory)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier plot instead of numbering")


def _demo_notes():
    return "example:\n  dubnb demo --seeds 5\n\nThe plot needs matplotlib: pip install 'dubnb[report]'"


def _add_fit(commands):
    summary = "train a method, save it, and report it on the validation and test sets"
    parser = _add_command(
        commands, "fit", _fit, summary, _fit_notes, "seed of the model, never of the data (default 0)"
    )
    _add_data_options(parser)
    parser.add_argument("--method", required=True, help="what to train, see below")
    parser.add_argument("--backbone", metavar="NAME", help="mf (default) or ncf")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the method; repeatable"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="for mf of large rank or batch_size: same result, sooner"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="where to save the model, such as m.npz")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def _fit_notes():
    from dubnb.methods import METHODS

    params = {name: list(method().get_params()) for name, method in METHODS.items()}
    shared = [parameter for parameter in params["base"] if all(parameter in own for own in params.values())]
    lines = ["methods:"]
    for name, method in METHODS.items():
        summary = (sys.modules[method.__module__].__doc__ or "").split("\n")[0].partition(": ")[2]
        lines.append(f"  {name:<10} {summary}")
    lines.append("\nparameters for --set (VALUE none: the method's own default):")
    lines.append(textwrap.fill(", ".join(shared), 79, initial_indent=f"  {'all':<10} ", subsequent_indent=" " * 13))
    lines += [f"  {name:<10} also {', '.join(own[len(shared) :])}" for name, own in params.items() if own != shared]
    return "\n".join(lines) + (
        "\n\nexamples:"
        "\n  dubnb fit --data simulated --method dub --set rank=20 --set gamma=1 --out m.npz"
        "\n  dubnb fit --biased log.csv --random random.csv --threshold 3 --method base --out m.npz"
        f"\n\n{_dataset_notes()}"
    )


def _add_evaluate(commands):
    summary = "judge a saved model on the test set"
    notes = lambda: f"example:\n  dubnb evaluate --data simulated --model m.npz --json\n\n{_dataset_notes()}"  # noqa: E731
    parser = _add_command(commands, "evaluate", _evaluate, summary, notes, "unused: nothing here is random")
    _add_data_options(parser)
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument(
        "--protocol", default="full-ranking", help="full-ranking (default) or test-items (rank the user's test items)"
    )


def _add_recommend(commands):
    summary = "list the best items for some users, without those they have in S_c"
    notes = lambda: "example:\n  dubnb recommend --model m.npz --users 1,2,3 -k 10"  # noqa: E731
    parser = _add_command(commands, "recommend", _recommend, summary, notes, "unused: nothing here is random")
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    users = parser.add_mutually_exclusive_group(required=True)
    users.add_argument("--users", metavar="IDS", help="ids with commas between (--users=-1,2 if the first is negative)")
    users.add_argument("--users-file", metavar="FILE", help="a file with one id per line")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="items per user (default %(default)s)")


def _add_sweep(commands):
    parser = _add_command(
        commands, "sweep", _sweep, sweep_command.SUMMARY, sweep_command.notes, "the first seed (default 0)"
    )
    _add_data_options(parser)
    sweep_command.add_options(parser)


def _add_reproduce(commands):
    summary = "repeat the paper's experiments and write a report"
    seed_help = "seed of the searches and of the first fit (default 0)"
    parser = _add_command(commands, "reproduce", _reproduce, summary, _reproduce_notes, seed_help)
    parser.add_argument("experiment", metavar="EXPERIMENT", help="rq1, rq2, rq3, rq4, rq5 or all")
    _add_data_options(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="where reports go; run again, it resumes")
    parser.add_argument("--budget", default="quick", metavar="NAME", help="smoke, quick (default) or full, see below")
    parser.add_argument(
        "--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1, -1: all cores)"
    )


def _reproduce_notes():
    from dubnb.experiments import command

    return f"{command.notes()}\n\n{_dataset_notes()}"


def _add_data_options(parser):
    named = parser.add_argument_group("a dataset by name")
    named.add_argument("--data", metavar="NAME", help="see below")
    named.add_argument("--data-dir", metavar="DIR", help="where its files are, if it has some")
    named.add_argument(
        "--data-seed", type=int, default=0, metavar="N", help="seed of a simulated log, or of the split (default 0)"
    )
    own = parser.add_argument_group("or your own files (CSV with a header, or Parquet)")
    own.add_argument("--biased", metavar="FILE", help="the ordinary log: S_c")
    own.add_argument("--random", metavar="FILE", help="the randomized log: 10 %% S_t, 10 %% S_va, 80 %% S_te")
    for column in ("user", "item", "label"):
        own.add_argument(f"--{column}", metavar="COLUMN", help=f"column of the {column}s (default {column})")
    own.add_argument("--weight", metavar="COLUMN", help="column of sample weights (default: all weigh 1)")
    own.add_argument("--propensity", metavar="COLUMN", help="column of P(observed) in the biased log, for ips")
    own.add_argument(
        "--threshold", type=float, metavar="X", help="labels above X are positive (default: labels are 0/1)"
    )


def _dataset_notes():
    from dubnb.data.datasets import DATASETS

    return "\n".join(["datasets:", *(f"  {name:<14} {dataset.description}" for name, dataset in DATASETS.items())])


# ---- commands ------------------------------------------------------------------------------------------------------


def _demo(args):
    from dubnb import demo

    directory = Path(args.out)
    n_seeds, data_seed, seed = whole("--seeds", args.seeds), whole("--data-seed", args.data_seed, low=0), _seed(args)
    _check_writable(_free_plot_name(directory, args.overwrite), args.overwrite)
    plots = _plots_or_none()
    result = demo.run(n_seeds, data_seed, seed, say=_talk(args))
    plot = None
    if plots is not None:
        plot = _free_plot_name(directory, args.overwrite)
        with _files.atomic_write(plot, args.overwrite) as file:
            file.write(plots.demo_png(result))
    if args.json:
        document = {"protocol": result.protocol, "data_seeds": result.data_seeds, "methods": demo.means(result)}
        document |= {"per_seed": result.values, "probability_by_popularity": result.curves}
        _print_json(document | {"verdict": demo.verdict(result), "plot": plot and str(plot)})
        return
    _print("\n".join([demo.table(result), "", demo.how(result), demo.verdict(result), demo.CAVEAT]))
    if plot:
        _print(f"Plot: {tables.printable(plot)}")


def _fit(args):
    whole("threads", args.threads)
    _check_writable(args.out, args.overwrite)
    model = _new_model(args)
    data = _load_data(args)
    say = _talk(args)
    for line in data.summary().splitlines():
        say(line)
    model.fit(data, quiet=args.quiet, threads=args.threads)
    model.save(args.out, args.overwrite)
    test = model.evaluate(data)
    stages = model.history_.groupby("stage", sort=False)["epoch"].count().to_dict()
    monitor = model.params_["monitor"]
    last = model.history_[model.history_["stage"] == list(stages)[-1]]
    validation = {"metric": monitor, "value": float(last[f"va_{monitor}"].max())}
    seconds = float(model.history_["seconds"].sum())
    if args.json:
        document = {"method": model.name, "params": model.params_, "data": _data_facts(data), "epochs": stages}
        _print_json(document | {"seconds": seconds, "validation": validation, "test": test, "model": args.out})
        return
    epochs = ", ".join(f"{stage} {n}" for stage, n in stages.items())
    _print(f"{model.name} ({model.backbone}), epochs: {epochs}; {seconds:.1f} s of training")
    _print(f"validation {monitor} {tables.cell(validation['value'])} (S_va)\n")
    _print_metrics(test, data)
    _print(f"\nsaved as {tables.printable(args.out)}")


def _evaluate(args):
    model = _load_model(args.model)
    _check_protocol(args.protocol)
    _seed(args)
    data = _load_data(args)
    result = model.evaluate(data, protocol=args.protocol)
    if args.json:
        _print_json({**result, "method": model.name, "data": _data_facts(data), "model": args.model})
        return
    _print(f"{model.name} ({model.backbone})\n")
    _print_metrics(result, data)


def _recommend(args):
    whole("-k", args.k)
    _seed(args)
    model = _load_model(args.model)
    texts = _split_ids(args.users) if args.users is not None else _read_ids(args.users_file)
    known, unknown = _known_users(model.user_ids_, texts)
    if unknown:
        named = ", ".join(map(_short, unknown[:NAMED_AT_MOST])) + (", ..." if len(unknown) > NAMED_AT_MOST else "")
        message = f"{len(unknown)} of {len(texts)} users are not in the model's data: {named}"
        if not known:
            raise InputError(f"{message}; give ids of users it was trained on ({model.user_ids_.kind})")
        _say(f"warning: {message}")
    items, scores = model.recommend(known, k=min(args.k, len(model.item_ids_)))
    lists = [_listed(user, *row) for user, *row in zip(known, items.tolist(), scores.tolist(), strict=True)]
    if args.json:
        _print_json({"model": args.model, "k": args.k, "users": lists, "unknown": unknown})
        return
    rows = [
        (entry["user"], rank, item, score)
        for entry in lists
        for rank, (item, score) in enumerate(zip(entry["items"], entry["scores"], strict=True), 1)
    ]
    _print(tables.text(("user", "rank", "item", "score"), rows, "<><>"))


def _sweep(args):
    document, text = sweep_command.run(args, _load_data, read_settings)
    _print_json(document) if args.json else _print(text)


def _reproduce(args):
    from dubnb.experiments import command

    command.check(args.experiment, args.out, args.budget, args.n_jobs)
    seed, data = _seed(args), _load_data(args)
    found = command.reproduce(
        args.experiment,
        data,
        args.out,
        args.budget,
        seed,
        args.n_jobs,
        data_words=_data_words(args),
        quiet=args.quiet,
        say=_talk(args),
    )
    if args.json:
        _print_json({"data": _data_facts(data), "experiments": found})
        return
    for one in found:
        _print(
            "\n".join([f"{one['experiment']}: {' '.join(one['answer'])}", f"Report: {tables.printable(one['report'])}"])
        )


def _data_words(args):
    """The options that name the data, as they were given."""
    names = ("data", "data_dir", "data_seed", "biased", "random")
    names += ("user", "item", "label", "weight", "propensity", "threshold")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


# ---- what the commands share ---------------------------------------------------------------------------------------


def _talk(args):
    """Where a command's remarks go: stderr, or nowhere if quiet."""
    return (
        (lambda line: None) if args.quiet else (lambda line: print(tables.printable(line), file=sys.stderr, flush=True))
    )


def _seed(args):
    return whole("--seed", 0 if args.seed is None else args.seed, low=0)


class _Probed(Exception):
    """The path may be written."""


def _check_writable(path, overwrite):
    """Refuse a path that cannot be written, before any work is done for it."""
    if _files.status(path) is not None and not overwrite:
        raise InputError(f"{_files.shown(path)} exists already: choose another --out or add --overwrite")
    with contextlib.suppress(_Probed), _files.atomic_write(path, overwrite):
        raise _Probed  # a failing block leaves nothing behind


def _plots_or_none():
    from dubnb.report import plots

    try:
        plots.require_matplotlib()
    except InputError as error:
        _say(f"no plot: {error}")
        return None
    return plots


def _free_plot_name(directory, overwrite):
    """dubnb-demo.png, or with the next free number if that is taken and must stay."""
    path, number = directory / f"{PLOT_NAME}.png", 2
    while not overwrite and os.path.lexists(path):
        path, number = directory / f"{PLOT_NAME}-{number}.png", number + 1
    return path


def _load_data(args):
    """The Partition that --data, or --biased and --random, ask for."""
    own = {name: getattr(args, name) for name in ("user", "item", "label", "weight", "propensity", "threshold")}
    own = {name: value for name, value in own.items() if value is not None}
    if args.data is not None:
        given = [name for name in ("biased", "random") if getattr(args, name) is not None] + list(own)
        if given:
            raise InputError(f"--{given[0]} is for your own files: leave it or --data {_short(args.data)} out")
        from dubnb import load_dataset

        return load_dataset(args.data, seed=args.data_seed, data_dir=args.data_dir, quiet=args.quiet)
    if args.biased is None or args.random is None:
        raise InputError("no data: give --data NAME, or both --biased FILE and --random FILE")
    if args.data_dir is not None:
        raise InputError("--data-dir goes with --data: --biased and --random are paths themselves")
    from dubnb.data.table import read_log

    return read_log(args.biased, args.random, split_seed=args.data_seed, **own)


def _data_facts(data):
    sizes = {part: len(data.triplets(part).users) for part in ("S_c", "S_t", "S_va", "S_te")}
    facts = {"name": data.name, "fingerprint": data.fingerprint, "users": data.n_users, "items": data.n_items}
    return facts | {"pairs": sizes, "removed_from_S_c": data.removed}


def _load_model(path):
    from dubnb import load

    return load(path)


def _check_protocol(protocol):
    from dubnb.evaluation import PROTOCOLS

    choice("protocol", protocol, tuple(PROTOCOLS))


def _print_metrics(result, data):
    """One row per metric; on simulated data the unbiased truth beside it."""
    from dubnb.evaluation import PROTOCOLS, TRUTH_CUT

    _print(f"{tables.printable(data.name)}, protocol {result['protocol']}")
    names = {"auc": "AUC", "ndcg": f"nDCG@{PROTOCOLS[result['protocol']].cut}"}
    rows = [(names.get(name, name.upper()), result[name]) for name in result if name in names or "@" in name]
    _print(tables.text(("metric", "S_te"), rows, "<>"))
    if "truth_auc" in result:
        truth = [("AUC", result["truth_auc"]), (f"nDCG@{TRUTH_CUT}", result["truth_ndcg"])]
        _print("\nunbiased truth, all pairs outside S_c and S_t")
        _print(tables.text(("metric", "truth"), truth, "<>"))


# ---- values from the command line ----------------------------------------------------------------------------------


def _new_model(args):
    """The method with all its parameters, checked before any data are read."""
    from dubnb.methods import METHODS, make

    cls = METHODS[choice("method", args.method, tuple(METHODS))]
    params = {name: value for name, value in (("seed", args.seed), ("backbone", args.backbone)) if value is not None}
    model = make(args.method, **read_settings(args.set, cls, params))
    model.resolved_params()
    return model


def read_settings(settings, cls, given=None):
    """--set name=value ... as parameters of the method `cls`, beside those `given` already."""
    params = dict(given or {})
    kinds = {name: kind for name, kind in typing.get_type_hints(cls).items() if name in cls.__dataclass_fields__}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign:
            raise InputError(f"--set {_short(setting)} has no value: write --set name=value, such as --set rank=50")
        choice("parameter", name, tuple(kinds))
        if name in params:
            raise InputError(f"{name} is given twice: keep one of the two")
        params[name] = parse_value(name, text, kinds[name])
    return params


def parse_value(name, text, kind):
    """`text` as a value of the annotated type `kind`, such as float | None or tuple (whole numbers with commas)."""
    kinds = typing.get_args(kind) or (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    wanted = kinds[0]
    if wanted is object:
        raise InputError(f"--set {name} takes an array: set it in Python, or give the log a column")
    if wanted is bool:
        return choice(name, text.lower(), ("true", "false")) == "true"
    try:
        return tuple(int(part) for part in text.split(",")) if wanted is tuple else wanted(text)
    except ValueError:
        rules = {int: "a whole number", float: "a number", tuple: "whole numbers with commas between, such as 100,50"}
        none = " or none" if type(None) in kinds else ""
        raise InputError(f"--set {name}={_short(text)} must be {rules[wanted]}{none}") from None


def _split_ids(text):
    ids = [part.strip() for part in text.split(",") if part.strip()]
    if not ids:
        raise InputError(f"--users {_short(text)} names nobody: give ids with commas between, such as --users 1,2,3")
    return ids


def _read_ids(path):
    """One id per line; blank lines do not count."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"--users-file {_files.shown(path)} cannot be read ({error.strerror}): check it") from None
    except ValueError:  # not UTF-8, or a path that cannot exist
        raise InputError(f"--users-file {_files.shown(path)} is no UTF-8 text: write one id per line") from None
    ids = [line for line in lines if line.strip()]
    if not ids:
        raise InputError(f"--users-file {_files.shown(path)} names nobody: write one id per line")
    return ids


def _known_users(user_ids, texts):
    """(ids of the model's kind that it knows, texts of all others), each in the order given."""
    known, unknown = [], []
    for text in texts:
        user = _parsed_id(text, user_ids.kind)
        found = user is not None and user_ids.find([user])[0] >= 0
        known.append(user) if found else unknown.append(text)
    return known, unknown


def _parsed_id(text, kind):
    if kind == "str":
        return text
    text = text.strip()
    fits = re.fullmatch(r"[+-]?[0-9]{1,19}", text) and int(text) in INT64
    return int(text) if fits else None


def _listed(user, items, scores):
    """A user's list without the padding that stands where items have run out."""
    kept = [(item, score) for item, score in zip(items, scores, strict=True) if not math.isnan(score)]
    return {"user": user, "items": [item for item, _ in kept], "scores": [score for _, score in kept]}


def _short(text):
    return repr(text) if len(text) <= LONGEST_SHOWN else repr(text[:LONGEST_SHOWN]) + "..."
