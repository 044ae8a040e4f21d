"""The parser of all commands. An error is one line. A whole number becomes an int, any other number a float."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from exporter.errors import UserError
from exporter.options import nearest

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
                hint = f": a command comes first, as in python -m exporter {unknown[0]} FILE"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed


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


def at_least(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` on."""

    def parse(text: str) -> int:
        found = number(text)
        if not isinstance(found, int) or found < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more, not {text!r}")
        return found

    return parse
