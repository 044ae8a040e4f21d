"""A command, and its parser: an error is one line; a whole number becomes an int, any other number a float.

The functions of the commands import what they run, so that a command loads no more than it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.errors import UserError, nearest

PROG = "python -m exporter"
NEGATIVE = re.compile(r"^-(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?$|^-(inf|infinity|nan)$", re.IGNORECASE)


class Once(argparse.Action):
    """An option with one value; a second value is an error, not a silent replacement of the first."""

    given = False

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if self.given:
            parser.error(f"{option or self.metavar} is given twice: it has one value")
        self.given = True
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `UserError` and reads -1e6 as a number. Options that were not given are absent."""

    def __init__(self, *args: Any, commands: Collection[str] = (), **more: Any) -> None:
        more |= {"argument_default": argparse.SUPPRESS, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(*args, **more)
        self._negative_number_matcher = NEGATIVE
        self._commands = commands
        self.register("action", None, Once)

    def error(self, message: str) -> Any:
        raise UserError(f"{message} ({self.prog} --help explains the options)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hint = nearest(unknown[0].partition("=")[0], self._option_string_actions)
            if unknown[0] in self._commands:
                hint = f": a command comes first, as in {PROG} {unknown[0]} FILE"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed

    def add_file(self, about: str = "an .onnx file", **more: Any) -> None:
        self.add_argument("file", type=Path, metavar="FILE", help=about, **more)

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", default=False, help="print JSON")

    def add_out(self, about: str) -> None:
        self.add_argument("--out", type=folder, required=True, metavar="DIR", help=about)

    def add_whole(self, name: str, least: int, metavar: str, about: str, **more: Any) -> None:
        """An option with a whole number from `least` on."""
        self.add_argument(name, type=at_least(least), metavar=metavar, help=about, **more)


@dataclass(frozen=True)
class Command:
    """A command: its function, a line for the list of commands, its description, and examples that run as they stand."""

    run: Callable[[Parser, Sequence[str]], int]
    summary: str
    about: str
    example: str


def run(commands: Mapping[str, Command], args: Sequence[str], prog: str = PROG) -> int:
    """Run the command that the first argument names, and return its exit status."""
    command = commands[args[0]]
    parser = Parser(
        commands=commands,
        prog=f"{prog} {args[0]}",
        description=command.about,
        epilog=f"example:\n{command.example}",
    )
    return command.run(parser, args[1:])


def show(found: Any, lines: Sequence[str], as_json: bool) -> None:
    """Print the result as JSON, or as lines of text."""
    print(json.dumps(found, indent=1) if as_json else "\n".join(lines))


def number(text: str) -> int | float | str:
    """The int or float in the text. Other text is returned unchanged, and the check of the option refuses it."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def folder(text: str) -> Path:
    """A path. An empty name, as from an unset shell variable, is refused; it does not mean the current folder."""
    if not text:
        raise UserError(f"--out must be a directory, not {text!r}")
    return Path(text)


def restricted(read: Callable[[str], Any], holds: Callable[[Any], bool], rule: str) -> Callable[[str], Any]:
    """A reader of the texts whose value obeys a rule."""

    def parse(text: str) -> Any:
        with contextlib.suppress(ValueError, ArithmeticError):
            if holds(found := read(text)):
                return found
        raise argparse.ArgumentTypeError(f"must be {rule}, not {text!r}")

    return parse


def at_least(least: int) -> Callable[[str], Any]:
    """A reader of whole numbers from `least` on."""
    return restricted(int, lambda found: found >= least, f"a whole number, {least} or more")
