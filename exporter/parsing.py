"""What every command's parser shares: errors of one line, and numbers as they are written."""

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
    """An option that has one value: the second would silently take the place of the first."""

    given = False

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if self.given:
            parser.error(f"{option or self.metavar} is given twice: it has one value")
        self.given = True
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Errors are ours, one line each; -1e6 is a number and not an option; what was not given is not there."""

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
    """A number as it is written; what is none is left for the check of its option to name."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def folder(text: str) -> Path:
    """A directory; an empty name, as an unset variable leaves it, would be the present one."""
    if not text:
        raise UserError(f"--out must be a directory, not {text!r}")
    return Path(text)


def at_least(least: int) -> Callable[[str], int]:
    """A whole number, so large or larger."""

    def parse(text: str) -> int:
        found = number(text)
        if not isinstance(found, int) or found < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more, not {text!r}")
        return found

    return parse
