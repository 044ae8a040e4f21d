"""The commands `export` and `filter`, with the options of the table in exporter.options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

from exporter.analysis.promise import TIES
from exporter.cli.command import Command, Parser, folder, number
from exporter.constructions import CONSTRUCTIONS, takers
from exporter.errors import UserError, WriteError, spelled
from exporter.library import Exported, export
from exporter.options import OLD_NAMES, OPTIONS, Option, whole_number
from exporter.passes.profiles import IMAGE_PROFILES, PROFILES
from exporter.progress import Progress
from exporter.specs import IMAGES, asks_for_images, checked_all, image_spec, question, requests
from exporter.version import __version__

Rows = Sequence[tuple[str, str]]
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
GROUPS = {
    "what": "what is computed",
    "image": "images",
    "data": "your data",
    "file": "the file",
    "research": "research",
}
COMMON = {
    "export": {"d", "out", "construction", "json", "op", "rank", "quantile", "domain", "bits", "dtype", "profile"},
    "filter": {"out", "json", "op", "rank", "quantile", "window", "frames", "border", "dtype", "profile"},
}
ALL = {
    "export": {"d", "out", "construction", "json", *(o.name for o in OPTIONS.values() if o.group != "image")},
    "filter": {"out", "json", *IMAGES},
}
UNFIT = {
    "export": {"float16", *(set(IMAGE_PROFILES) - set(PROFILES))},
    "filter": {"sort", *(set(PROFILES) - set(IMAGE_PROFILES))},
}  # words that an option has for the other command alone
AUTO = {"export": "dense where that is small and as exact, else structured", "filter": "minmax"}
BRACKETS = "Names in brackets are the constructions that take an option; the other options are for all of them."


def export_command(parser: Parser, args: Sequence[str], verb: Command, commands: Rows) -> int:
    everything = "--help-all" in args
    parser.usage = f"{parser.prog} --d D --out DIR [options]"
    if everything:
        constructions = [(c.name, c.summary) for c in CONSTRUCTIONS.values()]
        parser.description = f"{verb.about}\n{BRACKETS}\n\n{MORE_EXAMPLES}"
        parser.epilog = f"{_table('constructions', constructions)}\n\n{_table('profiles', _profiles('export'))}"
    else:
        table = _table("commands, each with --help of its own", commands)
        parser.description, parser.epilog = f"{verb.about}\n\n{verb.example}\n{table}", None
    _add_options("export", parser, everything)
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


def filter_command(parser: Parser, args: Sequence[str], verb: Command) -> int:
    everything = "--help-all" in args
    parser.usage = f"{parser.prog} (--window HxW | --frames N) --out DIR [options]"
    parser.description = f"{verb.about}\n\n{verb.example}".rstrip()
    parser.epilog = _table("profiles", _profiles("filter")) if everything else None
    _add_options("filter", parser, everything)
    parsed = vars(parser.parse_args(args))
    given = _options(parsed)
    if not asks_for_images(given):
        parser.error("the following arguments are required: --window or --frames")
    return _write_filter(parsed, checked_all(given))


def _add_options(verb: Literal["export", "filter"], parser: Parser, everything: bool) -> None:
    """Add the options of a command. The help has the common ones, or all of them with `everything`."""
    shown = ALL[verb] if everything else COMMON[verb]
    parser.add_argument("--help-all", action="help", help="list all options, in groups")
    parser.add_argument(
        "--version", action="version", version=f"onnx-median {__version__}",
        help="print the version" if everything else argparse.SUPPRESS,
    )  # fmt: skip

    def add(to: Any, name: str, text: str, **more: Any) -> None:
        to.add_argument(f"--{name.replace('_', '-')}", help=text if name in shown else argparse.SUPPRESS, **more)

    add(parser, "d", "how many numbers go in (required)", type=number, metavar="D")
    out = "the folder for the files and manifest.json (required)"
    add(parser, "out", out, type=folder, required=True, metavar="DIR")
    networks = "which network; repeatable (default: all of them)"
    add(parser, "construction", networks, action="append", metavar="NAME")
    groups = {name: parser.add_argument_group(title) if everything else parser for name, title in GROUPS.items()}
    for option in OPTIONS.values():
        words = [word for word in option.choices if word not in UNFIT[verb]]
        of = f" [{', '.join(takers(option.name))}]" if everything and verb == "export" and takers(option.name) else ""
        text = option.help if everything or not words else ", ".join(word for word in words if word != "auto")
        if option.many and verb == "filter":
            text = text.replace("; repeatable", "")
        text = f"{text} (default: {option.default}){of}"
        add(groups[option.group], option.name, text, **_values(option, words if everything else []))
    for old in OLD_NAMES:
        parser.add_argument(f"--{old}", help=argparse.SUPPRESS)
    add(parser, "json", "print what was written as JSON", action="store_true")


def _values(option: Option, words: Sequence[str]) -> dict[str, Any]:
    """How argparse reads the values of an option. `words` are listed in the help, if there are any."""
    if option.kind == "switch":
        return {"action": "store_true"}
    if option.kind == "pair":
        return {"type": number, "nargs": 2, "metavar": tuple(option.metavar.split())}
    if option.kind in ("words", "size"):
        return {"metavar": f"{{{','.join(words)}}}" if words else option.metavar or option.name.upper()}
    more = {"action": "append"} if option.many else {}
    return {"type": number, "metavar": option.metavar, **more}


def _profiles(verb: Literal["export", "filter"]) -> Rows:
    profiles = PROFILES if verb == "export" else IMAGE_PROFILES
    return [*((p.name, f"{p.operators}, for {p.purpose}") for p in profiles.values()), ("auto", AUTO[verb])]


def _table(title: str, rows: Rows) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join([f"{title}:", *(f"  {name:{width}}  {text}" for name, text in rows)])


def _options(parsed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parsed.items() if name in OPTIONS or name in OLD_NAMES}


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
