"""The command line: `python -m exporter COMMAND ...`; without a command the options are those of `export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from exporter.cli import command, theory
from exporter.cli.command import PROG, Command, Parser
from exporter.cli.commands import COMMANDS
from exporter.errors import UserError, command_line, nearest, spoken

EXAMPLES = """\
examples:
  python -m exporter export --d 25 --construction radix --out models/
      the median of 25 numbers in [0, 1], as models/median-radix-d25.onnx
  python -m exporter filter --window 5x5 --out models/
      a median filter for images of any size, as models/median-window5x5.onnx
  python -m exporter verify models/median-radix-d25.onnx
      run a file against numpy
"""
FILTER_EXAMPLES = """\
examples:
  python -m exporter filter --window 5x5 --dtype uint8 --out models/
      a median filter for 8-bit images, as models/median-window5x5-uint8.onnx
  python -m exporter filter --frames 9 --out models/
      the background of a scene in 9 frames, as models/median-frames9.onnx
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with command_line():
            if not args or args[0].startswith("-"):
                return _export(Parser(prog=PROG, commands=VERBS), args)
            if args[0] not in VERBS:
                raise UserError(_no_command(args[0]))
            return command.run(VERBS, ["theory", *args] if args[0] in theory.COMMANDS else args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("interrupted: files already written are whole and stay", file=sys.stderr)
        return 130
    except MemoryError:
        print("error: out of memory: choose a smaller --d or --profile structured", file=sys.stderr)
        return 2


def _no_command(word: str) -> str:
    known = f"The commands are {spoken(list(VERBS))}"
    if Path(word).suffix == ".onnx":
        return f"{word}: a command comes first, as in {PROG} describe {word}. {known}"
    return f"unknown command {word!r}{nearest(word, VERBS) or '.'} {known}"


def _export(parser: Parser, args: Sequence[str]) -> int:
    from exporter.cli.export import export_command

    listed = [(name, verb.summary) for name, verb in VERBS.items() if name not in theory.COMMANDS]
    return export_command(parser, args, VERBS["export"], listed)


def _filter(parser: Parser, args: Sequence[str]) -> int:
    from exporter.cli.export import filter_command

    return filter_command(parser, args, VERBS["filter"])


VERBS = {
    "export": Command(
        _export,
        "write networks for D numbers; `export` itself can be left out",
        "Write medians and other order statistics as ONNX files: plain neural networks.",
        EXAMPLES,
    ),
    "filter": Command(
        _filter,
        "write a filter for images, or for frames of a film",
        "Write a median filter, or one of another rank, as an ONNX file for images\n"
        "[n, c, h, w] of any size. --frames N takes [N, c, h, w] to [1, c, h, w].",
        FILTER_EXAMPLES,
    ),
    **COMMANDS,
}
