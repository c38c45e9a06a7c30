"""What commands share: the parser, the options for data, budgets and methods, and reading their values."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dubnb._check import InputError, choice, option, short_repr, whole
from dubnb._version import VERSION
from dubnb.cli import _output

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.systems import Choice
    from dubnb.methods._method import Method

MANY_OPTIONS = 20  # the usage of a command with more options names only the required ones
SIMILAR = 0.7  # how similar a known option must be to be suggested; all begin with two hyphens
COLUMNS = ("user", "item", "label", "weight", "propensity", "random_propensity", "grade", "timestamp", "stratum")
FILES = ("biased", "random", "log", "is_random")
# options that go with files
OWN = (*COLUMNS, "eligible", "user_type", "item_type", "threshold", "duplicates", "drop_bad", "split", "shares", "sep")
ALL = ("data", "data_dir", "data_seed", *FILES, *OWN)
SPELLINGS = {"split_seed": "--data-seed"}  # parameters whose option has another name
RULES = {
    int: "a whole number",
    float: "a number",
    tuple[int, ...]: "whole numbers with commas between, such as 100,50",
    tuple[float, float]: "two numbers with a comma between, such as .5,1",
}


# ---- the parser ----------------------------------------------------------------------------------------------------


class Command(Protocol):
    """The parts of a command's file."""

    NAME: str
    SUMMARY: str  # one line, for the list of commands
    SEED_HELP: str  # what --seed means for this command

    def notes(self) -> str:
        """The text below the options in the help; may import heavy packages."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options; imports nothing heavy, because every start of the program calls it."""

    def run(self, args: argparse.Namespace) -> int | None:
        """Run the command and print the result; returns an exit code if it is not 0."""


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line; the notes below the options are made only when help is printed."""

    def __init__(self, *, notes: Callable[[], str] = str, **options: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.notes = notes

    def format_help(self) -> str:
        self.epilog = self.notes()
        return super().format_help()

    def error(self, message: str) -> Any:
        raise InputError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report a misspelt option before a missing one, which may be the same."""
        self.check_words(sys.argv[1:] if args is None else list(args))
        return super().parse_known_args(args, namespace)

    def check_words(self, words: Sequence[str]) -> None:
        """Refuse options that do not exist, and suggest a similar one."""
        known = tuple(self._option_string_actions)
        for word in words[: words.index("--")] if "--" in words else words:
            option = word.partition("=")[0]
            if word.startswith("--") and " " not in option and option not in known:
                near = difflib.get_close_matches(option, known, cutoff=SIMILAR)
                self.error(f"unrecognized arguments: {word}" + (f"; did you mean {near[0]!r}?" if near else ""))


class _TopParser(Parser):
    """The parser of the program; it checks the command's name, and the command's parser checks the rest."""

    commands: Sequence[str] = ()

    def check_words(self, words: Sequence[str]) -> None:
        first = next((word for word in words if not word.startswith("-")), None)
        if first is not None:
            choice("command", first, self.commands)


class _PrintText(argparse.Action):
    """An option that prints a text and ends the program, like --help."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, text: Callable[[], str], help: str):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self.text = text

    def __call__(self, parser: Any, *_: Any) -> None:
        _output.print_text(self.text())
        parser.exit()


def parser_of(commands: Sequence[Command]) -> Parser:
    """The parser of the whole program; `run` of the parsed arguments is that of the chosen command."""
    parser = _TopParser(
        prog="dubnb",
        description="Debiased recommenders from a biased log and a little randomized traffic.",
        notes=lambda: (
            "first steps:\n  dubnb demo\n  dubnb compare --help     for your own log\n\n"
            "exit codes: 0 done, 1 failed, 2 wrong use or bad input, 3 below `evaluate --fail-below`,\n"
            "130 stopped by Ctrl-C, 143 stopped by SIGTERM"
        ),
    )
    parser.commands = [command.NAME for command in commands]
    parser.add_argument("-V", "--version", action="version", version=f"dubnb {VERSION}")
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for command in commands:
        about = command.SUMMARY[0].upper() + command.SUMMARY[1:] + "."
        own = below.add_parser(command.NAME, help=command.SUMMARY, description=about, notes=command.notes)
        own.set_defaults(run=command.run)
        command.add_options(own)
        common = own.add_argument_group("for every command")
        common.add_argument("--seed", type=int, metavar="N", help=command.SEED_HELP)
        common.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        common.add_argument("--quiet", action="store_true", help="print no progress; warnings and errors stay")
        common.add_argument(
            "--traceback", action="store_true", help="on failure, show where (or set DUBNB_TRACEBACK=1)"
        )
        if len(own._actions) > MANY_OPTIONS:
            needed = [action for action in own._actions if action.required]
            words = (" ".join([*action.option_strings[:1], str(action.metavar)]) for action in needed)
            own.usage = " ".join([own.prog, *words, "[options]"])
    return parser


# ---- data ----------------------------------------------------------------------------------------------------------


def add_data_options(parser: argparse.ArgumentParser, everything: bool = False) -> None:
    """Add --data, or --biased and --random, and the options of their columns.

    Help shows the most used ones only; --help-data shows `everything`.
    """
    if not everything:
        text = "list the datasets, and all options for your own files"
        parser.add_argument("--help-data", action=_PrintText, text=data_help, help=text)
    named = parser.add_argument_group("a dataset by name" if everything else "data (--help-data lists all)")
    title = "or your own files (CSV or TSV with a header, also .gz, or Parquet; FILE may be a directory or a pattern)"
    own = parser.add_argument_group(title) if everything else named

    def add(name: str, help: str, is_main: bool = False, **options: Any) -> None:
        group = named if name in ("data", "data-dir", "data-seed") else own
        group.add_argument(f"--{name}", help=help if everything or is_main else argparse.SUPPRESS, **options)

    add("data", "a dataset, such as simulated", True, metavar="NAME")
    add("data-dir", "the directory of its files, for a dataset that has some", metavar="DIR")
    add("data-seed", "seed of a simulated log, or of the split (default 0)", type=int, default=0, metavar="N")
    add("biased", "your own ordinary log (S_c): CSV, TSV or Parquet", True, metavar="FILE")
    add("random", "and the randomized log, split into S_t, S_va, S_te", True, metavar="FILE")
    add("log", "or both logs in one file, with --is-random", True, metavar="FILE")
    add("is-random", "column of --log: 1 for randomized traffic, else 0", True, metavar="COLUMN")
    add("user", "column of the users (default user)", metavar="COLUMN")
    add("item", "column of the items (default item)", metavar="COLUMN")
    add("label", "column of the labels (default label; none: all positives)", True, metavar="COLUMN")
    add("weight", "column of sample weights (default: all weights are 1)", metavar="COLUMN")
    add("propensity", "column of P(observed) in the biased log, for ips", metavar="COLUMN")
    shown = "column of P(item shown | user, context) in the randomized log (default: uniform traffic)"
    add("random-propensity", shown, metavar="COLUMN")
    add("grade", "column of grades, 0 to 1 (default: from the labels, with --threshold)", metavar="COLUMN")
    add("timestamp", "column of times: numbers or dates", metavar="COLUMN")
    allowed = "items that the randomized policy could show (item, from, to), or pairs it hides (user, item, from, to)"
    add("eligible", f"{allowed}; may be given twice", action="append", metavar="FILE")
    add("stratum", "column of the group of items that a random item was drawn from", metavar="COLUMN")
    add("threshold", "labels above X are positive (default: labels are 0/1)", True, type=float, metavar="X")
    for side in ("user", "item"):
        add(f"{side}-type", f"read {side} ids as str or int (default: as found)", metavar="TYPE")
    rule = (
        "how to merge rows of a repeated pair: impressions (default; one row's label, the mean as grade, n rows weigh "
        "2n / (n + 1)), first, last, max or mean (weights are added), or error"
    )
    add("duplicates", rule, metavar="RULE")
    bad = "drop rows with a missing or unreadable id, label, grade, time or weight, and count them"
    add("drop-bad", bad, action="store_const", const=True)
    add("split", "how to split the randomized log: random (default), time or user", metavar="RULE")
    add("shares", "shares of S_t, S_va and S_te (default: by the log's size)", metavar="A,B,C")
    add("sep", "the separator of cells, or tab (default: tab, comma, ; or |, as found)", metavar="CHAR")


def data_help() -> str:
    """The text of --help-data."""
    from dubnb.data.datasets import DATASETS

    parser = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    add_data_options(parser, everything=True)
    lines = [f"  {name:<15} {dataset.description}" for name, dataset in DATASETS.items()]
    worlds = [name for name, dataset in DATASETS.items() if dataset.labels]
    kinds = f"  labels of a world: {', '.join(DATASETS[worlds[0]].labels)}; for example {worlds[0]}:stars"
    return "\n".join([parser.format_help().strip(), "", "datasets:", *lines, kinds])


def add_reading_options(parser: argparse.ArgumentParser, scheduler: str, parts_dir: str) -> None:
    """Add --scheduler and --parts-dir, with their help."""
    parser.add_argument("--scheduler", metavar="ADDRESS", help=scheduler)
    parser.add_argument("--parts-dir", metavar="DIR", help=parts_dir)


def stays_on_disk(args: argparse.Namespace) -> bool:
    """Whether the biased log stays in files below --parts-dir: if it is a directory or a pattern of files."""
    if getattr(args, "parts_dir", None) is None or args.biased is None:
        return False
    return os.path.isdir(args.biased) or not os.path.exists(args.biased)


def check_reading(args: argparse.Namespace, names: Sequence[str] = ("parts_dir", "scheduler")) -> None:
    """Refuse --parts-dir and --scheduler where the log is read into memory."""
    given = [name for name in names if getattr(args, name) is not None]
    if given and not stays_on_disk(args):
        missing = "give --parts-dir too" if args.parts_dir is None else "give --biased a directory or a pattern"
        raise InputError(f"{option(given[0], '')} is for a directory of log files that stays on disk: {missing}")


def load_data(args: argparse.Namespace) -> Partition:
    """The Partition that --data, or --biased and --random, or --log name; prints a remark on how a log was split.

    With --parts-dir, the biased log stays in files below it, see `stays_on_disk`; the workers of --scheduler read it.
    """
    from dubnb import Partition, load_dataset

    own = {name: getattr(args, name) for name in OWN if getattr(args, name) is not None}
    files = [name for name in FILES if getattr(args, name) is not None]
    if args.data is not None:
        if files or own:
            wrong = option([*files, *own][0])
            raise InputError(f"{wrong} is for your own files: leave it or --data {short_repr(args.data)} out")
        return load_dataset(args.data, seed=args.data_seed, data_dir=args.data_dir, quiet=args.quiet)
    if files not in (["biased", "random"], ["log", "is_random"]):
        raise InputError(
            "no data: give --data NAME, or both --biased FILE and --random FILE, or --log FILE and --is-random COLUMN"
        )
    if args.data_dir is not None:
        raise InputError("--data-dir goes with --data: the other options are paths themselves")
    own |= {"split_seed": args.data_seed, "quiet": args.quiet}
    if args.shares is not None:
        try:
            own["shares"] = tuple(float(part) for part in args.shares.split(","))
        except ValueError:
            rule = "must be three numbers with commas between, such as .65,.15,.2"
            raise InputError(f"--shares {short_repr(args.shares)} {rule}") from None
    if args.sep in ("tab", r"\t"):
        own["sep"] = "\t"
    if args.log is not None:
        data = Partition.from_table(args.log, is_random=args.is_random, **own)
    else:
        if stays_on_disk(args):
            own |= {"parts_dir": args.parts_dir, "scheduler": args.scheduler}
        data = Partition.from_frames(args.biased, args.random, **own)
    if data.split is not None:
        _output.remarks(args)(data.split.text())
    return data


def data_document(data: Partition) -> dict[str, Any]:
    """The facts about the data in JSON documents."""
    sizes = {part: data.size(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    about = {"name": data.name, "fingerprint": data.fingerprint, "users": data.n_users, "items": data.n_items}
    about |= {"pairs": sizes, "removed_from_S_c": data.removed}
    about["held_back"] = 0 if data.held_back is None else len(data.held_back.users)
    return about | {"split": None if data.split is None else data.split._asdict()}


def data_words(args: argparse.Namespace) -> list[str]:
    """The options that name the data, as they were given."""
    given = {name: getattr(args, name) for name in ALL if getattr(args, name) is not None}
    words = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
    return words


# ---- budgets and systems -------------------------------------------------------------------------------------------


def add_budget_options(parser: argparse.ArgumentParser, backbones: str) -> None:
    """Add --out, --budget, --systems, --backbone and --n-jobs. `backbones`: the default, in words."""
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="where reports go; run again with the same DIR to resume")
    add("--budget", default="quick", metavar="NAME", help="smoke, quick (default) or full, see below")
    add("--systems", metavar="NAMES", help="systems or groups with commas between (default: all groups)")
    add("--backbone", metavar="NAME", help=f"mf, ncf or mf,ncf (default: {backbones})")
    add("--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1, -1: all cores)")


def budget_notes(per_system: str, example: str, extends: bool = True) -> str:
    """The budgets, the systems and an example, for the help; `extends`: whether searches may continue."""
    from dubnb.experiments.budgets import BUDGETS
    from dubnb.experiments.systems import GROUPS

    lines = ["budgets:"]
    for each in BUDGETS.values():
        more = each.extensions_text() if extends else ""
        sizes = f"{each.points} candidates per {per_system}{more}, {each.seeds} seeds"
        lines.append(hanging_row(each.name, 6, f"{sizes}; {each.description}"))
    lines += ["", "systems:", *(hanging_row(group, 9, ", ".join(names) or "-") for group, names in GROUPS.items())]
    return "\n".join([*lines, "", "example:", f"  {example}"])


def hanging_row(name: str, width: int, text: str) -> str:
    """A row of a list in the help: a name of at most `width` characters, and a text that is wrapped beside it."""
    indent = " " * (width + 4)
    return textwrap.fill(
        text, 79, initial_indent=f"  {name:<{width}}  ", subsequent_indent=indent, break_on_hyphens=False
    )


def chosen_systems(args: argparse.Namespace, default: Choice | None = None) -> Choice:
    """The systems and backbones that --systems and --backbone name."""
    from dubnb.experiments.systems import Choice

    names = split_names(args.systems)
    return Choice((default or Choice()).names if names is None else names, split_names(args.backbone))


# ---- methods and values --------------------------------------------------------------------------------------------


def add_methods_help(parser: argparse.ArgumentParser) -> None:
    """Add --help-methods."""
    text = "list the methods and their parameters"
    parser.add_argument("--help-methods", action=_PrintText, text=methods_help, help=text)


def methods_help() -> str:
    """The text of --help-methods: the methods and the parameters that --set can set."""
    from dubnb.methods import METHODS

    params = {name: list(method().get_params()) for name, method in METHODS.items()}
    shared = [name for name in next(iter(params.values())) if all(name in own for own in params.values())]
    width = max(map(len, METHODS))
    lines = ["methods:", *(hanging_row(name, width, method.summary()) for name, method in METHODS.items()), ""]
    lines += ["parameters for --set (VALUE none: the method's own default):"]
    lines += [hanging_row("all", width, ", ".join(shared))]
    for name, own in params.items():
        added = [parameter for parameter in own if parameter not in shared]
        lines += [hanging_row(name, width, "also " + ", ".join(added))] if added else []
    return "\n".join(lines)


def first_seed(args: argparse.Namespace) -> int:
    """--seed, or 0 if it is not given."""
    return whole("--seed", 0 if args.seed is None else args.seed, low=0)


def named_method(name: str) -> type[Method]:
    """The class of a method."""
    from dubnb.methods import METHODS

    return METHODS[choice("method", name, tuple(METHODS))]


def read_settings(
    settings: Sequence[str], method: type[Method], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The parameters of --set name=value ..., together with those `given` by other options."""
    params = dict(given or {})
    annotations = typing.get_type_hints(method)
    kinds = {field.name: annotations[field.name] for field in dataclasses.fields(method)}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign:
            raise InputError(f"--set {short_repr(setting)} has no value: write --set name=value, such as --set rank=50")
        choice("parameter", name, tuple(kinds))
        if name in params:
            raise InputError(f"{name} is given twice: keep one of the two")
        params[name] = parse_value(name, text, kinds[name])
    return params


def parse_value(name: str, text: str, annotation: Any) -> Any:
    """`text` as the first of the annotated types that fits, such as float | tuple[float, float] | None."""
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
        element, *more = typing.get_args(kind) or (kind,)
        try:
            if typing.get_origin(kind) is not tuple:
                return kind(text)
            values = tuple(element(part) for part in text.split(","))
        except ValueError:
            continue
        if Ellipsis in more or len(values) == 1 + len(more):
            return values
    rules = " or ".join([RULES[kind] for kind in readable] + ["none"] * (type(None) in kinds))
    raise InputError(f"--set {name}={short_repr(text)} must be {rules}")


def split_names(text: str | None) -> tuple[str, ...] | None:
    """The names in a text with commas between."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text is not None else None
