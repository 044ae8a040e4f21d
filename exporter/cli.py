"""The command line: `python -m exporter --d 2048 --out models/`, and the commands of `exporter.commands`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exporter.commands import COMMANDS
from exporter.constructions import CONSTRUCTIONS, spoken, takers
from exporter.errors import UserError, WriteError
from exporter.images.build import asks_for_images
from exporter.library import (
    Exported,
    checked_all,
    export,
    export_filter,
    filter_question,
    no_vector,
    question,
    requests,
)
from exporter.options import OPTIONS, nearest, whole_number
from exporter.parsing import Parser, folder, number
from exporter.readings.promise import TIES, promise
from exporter.version import __version__

EXPORT = """\
commands, each with --help of its own:
{commands}

constructions:
{constructions}

examples:
  python -m exporter --d 25 --domain 0 255 --bits 8 --construction batcher --profile dense --out models/
      a 5 x 5 median filter on 8-bit pixels: one Gemm/Relu chain, models/median-batcher-d25-b8-from0to255-dense.onnx
  python -m exporter --d 101 --quantile 0.25 --quantile 0.5 --quantile 0.75 --construction radix --out models/
      quartiles: three outputs in one file, models/q0.25-0.5-0.75-radix-d101.onnx
  python -m exporter --op median --window 5x5 --dtype uint8 --out models/
      a median filter for 8-bit images of any size, models/median-window5x5-uint8.onnx
  python -m exporter --frames 9 --out models/
      the background of a scene: the median of 9 frames, models/median-frames9.onnx
  python -m exporter --d 25 --out models/
      every construction that can be built at d = 25, as models/median-NAME-d25.onnx
  python -m exporter verify models/median-batcher-d25-b8-from0to255-dense.onnx
      run a file against numpy
  python -m exporter --d 25 --construction radix --layout triton --out repository/
      a model repository for Triton: repository/median-radix-d25/1/model.onnx and config.pbtxt
"""
GROUPS = {
    "what": "what is computed",
    "image": "filters for images",
    "data": "the data",
    "file": "the file",
    "plan": "schedules of the sampled networks",
}


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if args and args[0] in COMMANDS:
            return COMMANDS[args[0]].run(args[1:])
        if args and not args[0].startswith("-"):
            raise UserError(_no_command(args[0]))
        return _export(args)
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
    known = f"The commands are {spoken(list(COMMANDS))}; an export begins with --d D --out DIR"
    if Path(word).suffix == ".onnx":
        return f"{word}: a command comes first, as in python -m exporter describe {word}. {known}"
    return f"unknown command {word!r}{nearest(word, COMMANDS) or '.'} {known}"


def _export_parser() -> argparse.ArgumentParser:
    wide = max(map(len, [*CONSTRUCTIONS, *COMMANDS]))
    parser = Parser(
        commands=COMMANDS,
        prog="python -m exporter",
        usage="python -m exporter --d D --out DIR [options]\n       python -m exporter --window HxW --out DIR [options]\n"
        "       python -m exporter COMMAND ... [options]",
        description="Write ReLU networks that compute medians and other order statistics as ONNX files.\n"
        "Names in brackets are the constructions that take an option; every other option is for all of them.",
        epilog=EXPORT.format(
            commands="\n".join(f"  {name:{wide}}  {command.summary}" for name, command in COMMANDS.items()),
            constructions="\n".join(f"  {c.name:{wide}}  {c.summary}" for c in CONSTRUCTIONS.values()),
        ),
    )
    parser.add_argument("--version", action="version", version=f"onnx-median {__version__}")
    parser.add_argument("--d", type=number, metavar="D", help="how many numbers go in")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR", help="where the files and manifest.json go")
    parser.add_argument(
        "--construction", action="append", metavar="NAME",
        help="which network, repeatable (default: every one that can be built at this d, those for uniform inputs only "
        "excepted); "
        "`fastest`: the exact one that onnxruntime runs fastest at this d, by DIR/fastest.json, which `tune` writes, or by "
        "what we measured",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for option in OPTIONS.values():
        of = f" [{', '.join(takers(option.name))}]" if takers(option.name) else ""
        about: dict[str, Any] = {"help": option.help + of}
        if option.flag:
            about |= {"action": "store_true"}
        elif option.choices:
            about |= {"metavar": f"{{{','.join(option.choices)}}}"}
        elif option.size:
            about |= {"metavar": option.metavar}
        else:
            about |= {"type": number, "metavar": option.metavar}
        if option.pair:
            about |= {"nargs": 2, "metavar": ("LO", "HI")}
        if option.many:
            about |= {"action": "append"}
        groups[option.group].add_argument(f"--{option.name}", **about)
    return parser


def _export(args: Sequence[str]) -> int:
    parser = _export_parser()
    parsed = vars(parser.parse_args(args))
    given = checked_all({name: value for name, value in parsed.items() if name in OPTIONS})
    if asks_for_images(given):
        return _export_filter(parsed, given)
    if "d" not in parsed:
        parser.error("the following arguments are required: --d (or --window, or --frames)")
    task = question(whole_number("d", parsed["d"]), given)
    named = parsed.get("construction")
    wanted = requests(task, named, given, parsed["out"])
    written: list[Exported] = []
    skipped: dict[str, str] = {}
    with tqdm(wanted, desc="exporting", unit="model", disable=None, leave=False) as bar:
        for options in bar:
            name = options.construction

            def on_stage(stage: str, name: str = name) -> None:
                bar.set_postfix_str(f"{stage} {name}")

            try:
                written.append(export(task, options, parsed["out"], on_stage))
            except UserError as error:
                if named or isinstance(error, WriteError):
                    raise
                skipped[name] = str(error)
                for option in given:
                    who = [name for name in takers(option) if not CONSTRUCTIONS[name].uniform]
                    if who and set(who) <= set(skipped):
                        reasons = "; ".join(skipped[name] for name in who)
                        raise UserError(f"nothing that can be built here takes --{option} ({reasons})") from None
    if not written:
        raise UserError("; ".join(skipped.values()))
    order = list(CONSTRUCTIONS)
    written.sort(key=lambda w: order.index(w.model.options.construction))
    _report(written, [skipped[name] for name in order if name in skipped], "json" in parsed)
    return 0


def _export_filter(parsed: dict[str, Any], given: dict[str, Any]) -> int:
    for name in ("d", "construction"):
        if name in parsed:
            raise UserError(no_vector(given, name))
    task, options = filter_question(given)
    with tqdm([options], desc="exporting", unit="model", disable=None, leave=False) as bar:
        for each in bar:
            path, entry = export_filter(task, each, parsed["out"], bar.set_postfix_str)
    if "json" in parsed:
        print(json.dumps({"written": [entry], "skipped": []}, indent=1))
        return 0
    about = entry["description"]
    print(
        f"{path}  {entry['bytes'] / 1024:.0f} kB  {about['comparators']} comparators a pixel  "
        f"{about['dtype']}  {about['profile']}  {promise(about)}{', grid only' * (about['inputs'] == 'grid')}"
    )
    return 0


def _report(written: list[Exported], skipped: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"written": [w.entry for w in written], "skipped": skipped}, indent=1))
        return
    for line in skipped:
        print(f"skipped {line}", file=sys.stderr)
    for w in written:
        about = w.entry["description"]
        print(
            f"{w.path}  {w.entry['bytes'] / 1024:.0f} kB  depth {about['depth']}  width {about['width']}  "
            f"{about['dtype']}  {about['profile']}  {promise(about)}{', grid only' * (about['inputs'] == 'grid')}"
        )
        if about["ties"] == "capacity":
            print(f"note: {w.entry['file']}: {TIES['capacity']}", file=sys.stderr)
