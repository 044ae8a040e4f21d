"""The command line: `export` (which can be left out) and `filter`; `exporter.cli.commands` has the other commands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from exporter.analysis.promise import TIES
from exporter.cli import theory
from exporter.cli.command import Command
from exporter.cli.commands import COMMANDS
from exporter.constructions import CONSTRUCTIONS, spoken, takers
from exporter.errors import UserError, WriteError, command_line, spelled
from exporter.library import Exported, export
from exporter.options import OLD_NAMES, OPTIONS, nearest, whole_number
from exporter.parsing import Parser, folder, number
from exporter.passes.profiles import IMAGE_PROFILES, PROFILES
from exporter.progress import Progress
from exporter.specs import IMAGES, asks_for_images, checked_all, image_spec, question, requests
from exporter.version import __version__

EXAMPLES = """\
examples:
  python -m exporter export --d 25 --construction radix --out models/
      the median of 25 numbers in [0, 1], as models/median-radix-d25.onnx
  python -m exporter filter --window 5x5 --out models/
      a median filter for images of any size, as models/median-window5x5.onnx
  python -m exporter verify models/median-radix-d25.onnx
      run a file against numpy
"""
MORE_EXAMPLES = """\
examples:
  python -m exporter export --d 25 --out models/
      every construction that can be built at d = 25, as models/median-NAME-d25.onnx
  python -m exporter export --d 25 --domain 0 255 --bits 8 --construction batcher --profile dense --out models/
      25 pixels of 8 bits: one Gemm/Relu chain, models/median-batcher-d25-b8-from0to255-dense.onnx
  python -m exporter export --d 101 --quantile 0.25 --quantile 0.5 --quantile 0.75 --construction radix --out models/
      quartiles: three outputs in one file, models/q0.25-0.5-0.75-radix-d101.onnx
  python -m exporter export --d 25 --construction radix --layout triton --out repository/
      a model repository for Triton: repository/median-radix-d25/1/model.onnx and config.pbtxt
"""
FILTER_EXAMPLES = """\
examples:
  python -m exporter filter --window 5x5 --dtype uint8 --out models/
      a median filter for 8-bit images, as models/median-window5x5-uint8.onnx
  python -m exporter filter --frames 9 --out models/
      the background of a scene in 9 frames, as models/median-frames9.onnx
"""
GROUPS = {
    "what": "what is computed",
    "image": "images",
    "data": "your data",
    "file": "the file",
    "research": "research",
}
COMMON = {
    "export": ("d", "out", "construction", "json", "op", "rank", "quantile", "domain", "bits", "dtype", "profile"),
    "filter": ("out", "json", "op", "rank", "quantile", "window", "frames", "border", "dtype", "profile"),
}
ALL = {
    "export": {"d", "out", "construction", "json", *(o.name for o in OPTIONS.values() if o.group != "image")},
    "filter": {"out", "json", *IMAGES},
}
AUTO = {"export": ("auto", "dense where that is small and as exact, else structured"), "filter": ("auto", "minmax")}
BRACKETS = "Names in brackets are the constructions that take an option; the other options are for all of them."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; options without a command are those of `export`."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with command_line():
            if args and args[0] in VERBS:
                return VERBS[args[0]].run(args[1:])
            if args and not args[0].startswith("-"):
                raise UserError(_no_command(args[0]))
            return _export(args, "python -m exporter")
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
        return f"{word}: a command comes first, as in python -m exporter describe {word}. {known}"
    return f"unknown command {word!r}{nearest(word, VERBS) or '.'} {known}"


def _parser(verb: Literal["export", "filter"], prog: str, everything: bool = False) -> Parser:
    """The parser of `export` or `filter`; its help names the common options, or all of them with `everything`."""
    if verb == "export":
        usage = f"{prog} --d D --out DIR [options]"
        verbs = [(name, command.summary) for name, command in VERBS.items() if name not in theory.COMMANDS]
        listed = [("commands, each with --help of its own", verbs)]
        examples = MORE_EXAMPLES if everything else EXAMPLES
    else:
        usage = f"{prog} (--window HxW | --frames N) --out DIR [options]"
        listed, examples = [], FILTER_EXAMPLES
    about = VERBS[verb].about
    profiles = PROFILES if verb == "export" else IMAGE_PROFILES
    if everything:
        constructions = [(c.name, c.summary) for c in CONSTRUCTIONS.values()]
        listed = [("constructions", constructions)] if verb == "export" else []
        listed += [
            ("profiles", [*((p.name, f"{p.operators}, for {p.purpose}") for p in profiles.values()), AUTO[verb]])
        ]
        about += f"\n{BRACKETS}" if verb == "export" else ""
    tables = "\n\n".join(f"{title}:\n{_table(rows)}" for title, rows in listed)
    parser = Parser(
        commands=VERBS,
        prog=prog,
        usage=usage,
        description="\n".join([about, "", examples, "" if everything else tables]).rstrip(),
        epilog=tables if everything else None,
    )
    shown = ALL[verb] if everything else COMMON[verb]
    unfit = {"profile": {"auto", *PROFILES, *IMAGE_PROFILES} - {"auto", *profiles}}
    unfit |= {"op": {"sort"}} if verb == "filter" else {"dtype": {"float16"}}
    parser.add_argument("--help-all", action=HelpAll, nargs=0, verb=verb, help="list all options, in groups")
    parser.add_argument(
        "--version", action="version", version=f"onnx-median {__version__}",
        help="print the version" if everything else argparse.SUPPRESS,
    )  # fmt: skip

    def add(to: Any, name: str, text: str, **more: Any) -> None:
        to.add_argument(f"--{name.replace('_', '-')}", help=text if name in shown else argparse.SUPPRESS, **more)

    add(parser, "d", "how many numbers go in (required)", type=number, metavar="D")
    add(
        parser,
        "out",
        "the folder for the files and manifest.json (required)",
        type=folder,
        required=True,
        metavar="DIR",
    )
    add(
        parser, "construction", "which network; repeatable (default: all of them)", action="append",
        metavar="NAME",
    )  # fmt: skip
    groups = {name: parser.add_argument_group(title) if everything else parser for name, title in GROUPS.items()}
    for option in OPTIONS.values():
        words = [word for word in option.choices if word not in unfit.get(option.name, ())]
        of = f" [{', '.join(takers(option.name))}]" if everything and verb == "export" and takers(option.name) else ""
        text = option.help if everything or not words else ", ".join(word for word in words if word != "auto")
        takes: dict[str, Any] = {"metavar": option.metavar or option.name.upper()}
        if option.flag:
            takes = {"action": "store_true"}
        elif option.choices and everything:
            takes = {"metavar": f"{{{','.join(words)}}}"}
        elif not (option.choices or option.size):
            takes |= {"type": number}
        if option.pair:
            takes |= {"nargs": 2, "metavar": tuple(option.metavar.split())}
        if option.many:
            takes |= {"action": "append"}
            text = text.replace("; repeatable", "") if verb == "filter" else text
        add(groups[option.group], option.name, f"{text} (default: {option.default}){of}", **takes)
    for old in OLD_NAMES:
        parser.add_argument(f"--{old}", help=argparse.SUPPRESS)
    add(parser, "json", "print what was written as JSON", action="store_true")
    return parser


def _table(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:{width}}  {text}" for name, text in rows)


class HelpAll(argparse.Action):
    """`--help-all`: print every option, in groups, and end."""

    def __init__(self, *args: Any, verb: Literal["export", "filter"], **more: Any) -> None:
        super().__init__(*args, **more)
        self._verb = verb

    def __call__(self, parser: argparse.ArgumentParser, *ignored: Any) -> None:
        _parser(self._verb, parser.prog, everything=True).print_help()
        parser.exit()


def _export(args: Sequence[str], prog: str = "python -m exporter export") -> int:
    parser = _parser("export", prog)
    parsed = vars(parser.parse_args(args))
    given = checked_all(_options(parsed))
    if asks_for_images(given):
        return _write_filter(parsed, given)
    if "d" not in parsed:
        parser.error("the following arguments are required: --d (or --window, or --frames)")
    task = question(whole_number("d", parsed["d"]), given)
    named = parsed.get("construction")
    wanted = requests(task, named, given)
    written: list[Exported] = []
    skipped: dict[str, str] = {}
    for spec in (bar := Progress(wanted, "exporting", "model")):
        name = spec.construction

        def on_stage(stage: str, name: str = name) -> None:
            bar.stage(f"{stage} {name}")

        try:
            written.append(export(spec, parsed["out"], on_stage))
        except UserError as error:
            if named or isinstance(error, WriteError):
                raise
            skipped[name] = str(error)
            for option in given:
                who = [name for name in takers(option) if not CONSTRUCTIONS[name].uniform]
                if who and set(who) <= set(skipped):
                    reasons = "; ".join(skipped[name] for name in who)
                    raise UserError(f"nothing that can be built here takes {spelled(option)} ({reasons})") from None
    if not written:
        raise UserError("; ".join(skipped.values()))
    order = list(CONSTRUCTIONS)
    written.sort(key=lambda w: order.index(w.entry["description"]["construction"]))
    _report(written, [skipped[name] for name in order if name in skipped], "json" in parsed)
    return 0


def _options(parsed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parsed.items() if name in OPTIONS or name in OLD_NAMES}


def _filter(args: Sequence[str]) -> int:
    parser = _parser("filter", "python -m exporter filter")
    parsed = vars(parser.parse_args(args))
    given = _options(parsed)
    if not asks_for_images(given):
        parser.error("the following arguments are required: --window or --frames")
    return _write_filter(parsed, checked_all(given))


def _write_filter(parsed: dict[str, Any], given: dict[str, Any]) -> int:
    spec = image_spec(given, d=parsed.get("d"), construction=parsed.get("construction"))
    for each in (bar := Progress([spec], "exporting", "model")):
        _report([export(each, parsed["out"], bar.stage)], [], "json" in parsed)
    return 0


def _report(written: list[Exported], skipped: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"written": [w.entry for w in written], "skipped": skipped}, indent=1))
        return
    for line in skipped:
        print(f"skipped {line}", file=sys.stderr)
    for w in written:
        # where rounding is not proven, `verify` names the node and the reason
        rounding = f"; rounding: {w.entry['rounding'].partition(' at ')[0]}" if "rounding" in w.entry else ""
        print(f"{w.path} ({w.entry['bytes'] / 1024:.0f} kB): {w.entry['summary']}{rounding}")
        if w.entry["description"]["ties"] == "capacity":
            print(f"note: {w.entry['file']}: {TIES['capacity']}", file=sys.stderr)


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
