"""A command of the command line, and its parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporter.parsing import Parser


@dataclass(frozen=True)
class Command:
    """A command: its function, a line for the list of commands, its description, and examples that run as they stand."""

    run: Callable[[Sequence[str]], int]
    summary: str
    about: str
    example: str


def parser_of(commands: Mapping[str, Command], name: str, prog: str = "python -m exporter") -> Parser:
    """The parser of a command, with its description and its example."""
    command = commands[name]
    return Parser(
        commands=commands, prog=f"{prog} {name}", description=command.about, epilog=f"example:\n{command.example}"
    )


def with_file(parser: Parser) -> Parser:
    """The parser of a command that reads a file and can print JSON."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an .onnx file")
    parser.add_argument("--json", action="store_true", default=False, help="print JSON")
    return parser
