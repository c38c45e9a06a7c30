"""The parser: argparse with errors of one line that suggest what may have been meant, and help made when asked for."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dubnb._check import InputError, choice
from dubnb._version import VERSION

ALIKE = 0.7  # how alike two options must be for one to be suggested; all start with two hyphens


class Command(Protocol):
    """What the file of a command holds."""

    NAME: str
    SUMMARY: str  # one line, for the list of commands
    SEED_HELP: str  # what --seed means here

    def notes(self) -> str:
        """The text below the options in the help; may import what is heavy."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The command's own options; light, as every start of the program does it for all commands."""

    def run(self, args: argparse.Namespace) -> int | None:
        """Do what the parsed options ask, and print it; returns an exit code if it is not 0."""


class Parser(argparse.ArgumentParser):
    """argparse, but errors are one line, and the text below the options is made when help is asked for."""

    def __init__(self, *, notes: Callable[[], str] = str, **options: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.notes = notes

    def format_help(self) -> str:
        self.epilog = self.notes()
        return super().format_help()

    def error(self, message: str) -> Any:
        raise InputError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but a misspelt option is named before a missing one, which it may have been meant for."""
        self.check_words(sys.argv[1:] if args is None else list(args))
        return super().parse_known_args(args, namespace)

    def check_words(self, words: Sequence[str]) -> None:
        """Refuse words that no option can be, before anything is made of them."""
        known = tuple(self._option_string_actions)
        for word in words[: words.index("--")] if "--" in words else words:
            option = word.partition("=")[0]
            if word.startswith("--") and " " not in option and option not in known:
                near = difflib.get_close_matches(option, known, cutoff=ALIKE)
                self.error(f"unrecognized arguments: {word}" + (f"; did you mean {near[0]!r}?" if near else ""))


class _Programme(Parser):
    """The parser above those of the commands, which check their own words."""

    commands: Sequence[str] = ()

    def check_words(self, words: Sequence[str]) -> None:
        first = next((word for word in words if not word.startswith("-")), None)
        if first is not None:
            choice("command", first, self.commands)


def parser_of(commands: Sequence[Command]) -> Parser:
    """The parser of the whole program; `run` of what it returns is the chosen command's."""
    parser = _Programme(
        prog="dubnb",
        description="Debiased recommenders from a biased log and a sliver of randomized traffic.",
        notes=lambda: (
            "first steps:\n  dubnb demo\n  dubnb fit --help\n\n"
            "exit codes: 0 done, 1 failed, 2 wrong use or bad input, 3 below `evaluate --fail-below`"
        ),
    )
    parser.commands = [command.NAME for command in commands]
    parser.add_argument("-V", "--version", action="version", version=f"dubnb {VERSION}")
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for command in commands:
        about = command.SUMMARY[0].upper() + command.SUMMARY[1:] + "."
        own = below.add_parser(command.NAME, help=command.SUMMARY, description=about, notes=command.notes)
        own.set_defaults(run=command.run)
        _add_common_options(own, command.SEED_HELP)
        command.add_options(own)
    return parser


def _add_common_options(parser: argparse.ArgumentParser, seed_help: str) -> None:
    common = parser.add_argument_group("for every command")
    common.add_argument("--seed", type=int, metavar="N", help=seed_help)
    common.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    common.add_argument("--quiet", action="store_true", help="no progress; warnings and errors stay")
    common.add_argument("--traceback", action="store_true", help="on failure, show where (or set DUBNB_TRACEBACK=1)")
