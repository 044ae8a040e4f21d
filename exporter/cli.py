"""The command line: `python -m exporter --d 2048 --out models/`, `describe FILE`, `verify FILE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exporter import task as tasks
from exporter.api import Exported, export
from exporter.atlas import atlas
from exporter.audit import audit, audit_lines
from exporter.build import Options, lookup
from exporter.constructions import CONSTRUCTIONS, fastest
from exporter.constructions.planned import Request
from exporter.describe import TIES, describe, describe_lines
from exporter.errors import UserError, WriteError
from exporter.grid import Grid
from exporter.reductions import reduce_file
from exporter.verify import verify

EPILOG = """\
constructions:
{constructions}

examples:
  python -m exporter --d 2048 --out models/
      every construction that can be built at d = 2048, as models/median-NAME-d2048.onnx
  python -m exporter --d 25 --domain 0 255 --bits 8 --profile dense --out models/
      a 5 x 5 median filter on 8-bit pixels as a bare Gemm/Relu chain
  python -m exporter --d 101 --quantile 0.25 --quantile 0.5 --quantile 0.75 --out models/
      quartiles, three outputs in one file
  python -m exporter describe models/median-depth3-d2048.onnx
      depth, width, contract and operators of a file
  python -m exporter verify models/median-depth3-d2048.onnx
      run it against numpy on ten families of inputs
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(f"{message} (python -m exporter --help explains the options)")


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    commands = {"describe": _describe, "verify": _verify, "audit": _audit, "reduce": _reduce, "atlas": _atlas}
    try:
        if args and args[0] in commands:
            return commands[args[0]](args[1:])
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


def _export_parser() -> argparse.ArgumentParser:
    width = max(map(len, CONSTRUCTIONS))
    listed = "\n".join(f"  {c.name:{width}}  {c.summary}" for c in CONSTRUCTIONS.values())
    parser = _Parser(
        prog="python -m exporter",
        usage="python -m exporter --d D --out DIR [options]\n       python -m exporter describe|verify FILE [--json]",
        description="Write ReLU networks that compute medians and other order statistics as ONNX files.",
        epilog=EPILOG.format(constructions=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--d", type=int, required=True, metavar="D", help="how many numbers go in")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the files and manifest.json go")
    parser.add_argument(
        "--construction", action="append", metavar="NAME",
        help="which network, repeatable (default: every one that can be built at this d); "
        "`fastest`: the exact one that onnxruntime runs fastest at this d",
    )  # fmt: skip
    what = parser.add_argument_group("what is computed")
    what.add_argument("--op", choices=tasks.OPS, default=None, help="default: median")
    what.add_argument("--rank", type=int, action="append", metavar="K", help="the K-th smallest, repeatable")
    what.add_argument(
        "--quantile", type=float, action="append", metavar="Q", help="the quantile Q in [0, 1], repeatable"
    )
    what.add_argument(
        "--method", choices=["linear", "lower", "higher", "midpoint", "nearest"], default="linear",
        help="how a quantile between two ranks is meant, by numpy's names (default: linear)",
    )  # fmt: skip
    what.add_argument(
        "--even", choices=["mean", "lower", "upper"], default="mean",
        help="the median of an even number of values: mean of the middle two as in numpy (default), or one of them",
    )  # fmt: skip
    what.add_argument(
        "--certificate", action="store_true",
        help="two more outputs per rank: the counts of x < m and of x <= m, which prove or refute the answer",
    )  # fmt: skip
    data = parser.add_argument_group("the data")
    data.add_argument(
        "--bits", type=int, default=24, metavar="B", help="values are told apart on a grid of 2^B steps (default: 24)"
    )
    data.add_argument(
        "--domain", type=float, nargs=2, default=(0.0, 1.0), metavar=("LO", "HI"),
        help="the range of the data (default: 0 1); it goes in and comes out as it is",
    )  # fmt: skip
    data.add_argument(
        "--epsilon", type=float, metavar="E",
        help="depth3 as in its theorem, with slopes 12 d^4/E: mean squared error at most E on uniform inputs",
    )  # fmt: skip
    form = parser.add_argument_group("the file")
    form.add_argument(
        "--dtype", choices=["auto", "float32", "float64"], default="auto",
        help="auto: the smallest that is exact at these bits (default)",
    )  # fmt: skip
    form.add_argument(
        "--profile", choices=["auto", "dense", "matmul", "structured", "fused"], default="auto",
        help="dense: one Gemm/Relu chain; matmul: the same with MatMul and Add; structured: Relu and affine nodes, small "
        "at any d; fused: with Clip and ReduceMax, for speed; "
        "auto: dense where it is small and as exact (default)",
    )  # fmt: skip
    form.add_argument(
        "--tune", choices=["throughput", "latency", "depth", "width"], default="throughput",
        help="which radix network: for large batches (default), single vectors, few layers or few neurons a layer",
    )  # fmt: skip
    form.add_argument(
        "--radix",
        type=int,
        metavar="T",
        help="bins per digit of radix, a power of two; more bins: less depth, more width",
    )
    form.add_argument("--batch", type=int, metavar="N", help="exactly N vectors in a run (default: any number)")
    plan = parser.add_argument_group("schedules (depth5, linear46, linear22, compact, linear-max)")
    plan.add_argument(
        "--failure", type=float, default=1e-3, metavar="P",
        help="the failure probability that the planner must prove (default: 1e-3)",
    )  # fmt: skip
    plan.add_argument(
        "--schedule", choices=["tuned", "paper"], default="tuned",
        help="the planner's numbers (default) or the paper's exponents where they fit",
    )  # fmt: skip
    plan.add_argument("--objective", choices=["width", "size"], default="width", help="what the planner keeps small")
    plan.add_argument("--blocks", choices=["paper", "lean"], help="the paper's own building blocks or lean ones")
    plan.add_argument("--gamma", type=float, metavar="G", help="depth5 with the paper's blocks and window d^(1/3 + G)")
    plan.add_argument("--depth", type=int, metavar="H", help="the depth of compact, linear22 or a tree of maxima")
    plan.add_argument("--width", type=int, metavar="W", help="neurons a layer at most; compact takes the shallowest")
    form.add_argument("--seed", type=int, default=0, help="of whatever a construction draws at random (default: 0)")
    form.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser


def _export(args: Sequence[str]) -> int:
    parsed = _export_parser().parse_args(args)
    task = _task(parsed)
    grid = Grid(parsed.domain[0], parsed.domain[1], parsed.bits)
    names = list(dict.fromkeys(parsed.construction or CONSTRUCTIONS))
    profiles = dict.fromkeys(names, parsed.profile)
    if "fastest" in names:
        name, profile = fastest(parsed.d, parsed.tune)
        names = list(dict.fromkeys(name if n == "fastest" else n for n in names))
        profiles[name] = profile if parsed.profile == "auto" else parsed.profile
    for name in names:
        lookup(name)
    written: list[Exported] = []
    skipped: list[str] = []
    with tqdm(names, desc="exporting", unit="model", disable=None, leave=False) as bar:
        for name in bar:
            options = Options(
                name, grid, parsed.dtype, profiles[name], parsed.epsilon, parsed.certificate,
                parsed.radix, parsed.tune, parsed.seed, parsed.batch, _request(parsed),
            )  # fmt: skip

            def on_stage(stage: str, name: str = name) -> None:
                bar.set_postfix_str(f"{stage} {name}")

            try:
                written.append(export(task, options, parsed.out, on_stage))
            except UserError as error:
                if parsed.construction or isinstance(error, WriteError):
                    raise
                skipped.append(str(error))
    if not written:
        raise UserError("; ".join(skipped))
    _report(written, skipped, parsed.json)
    return 0


def _request(parsed: argparse.Namespace) -> Request:
    names = ("failure", "schedule", "objective", "blocks", "gamma", "depth", "width")
    return Request(**{name: getattr(parsed, name) for name in names})


def _task(parsed: argparse.Namespace) -> tasks.Task:
    asked = [name for name in ("op", "rank", "quantile") if getattr(parsed, name)]
    if len(asked) > 1:
        raise UserError(f"--{asked[0]} and --{asked[1]} ask for different things: give one of them")
    if parsed.rank:
        return tasks.rank(parsed.d, parsed.rank)
    if parsed.quantile:
        return tasks.quantile(parsed.d, parsed.quantile, parsed.method)
    match parsed.op:
        case "max" | "min":
            return tasks.extremum(parsed.d, parsed.op)
        case "sort":
            return tasks.sort(parsed.d)
        case _:
            return tasks.median(parsed.d, parsed.even)


def _report(written: list[Exported], skipped: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"written": [w.entry for w in written], "skipped": skipped}, indent=1))
        return
    for line in skipped:
        print(f"skipped {line}", file=sys.stderr)
    for w in written:
        about = w.entry["description"]
        contract = "exact on the grid" if about["exact_on_grid"] else f"failure bound {about['failure_bound']:g}"
        print(
            f"{w.path}  {w.entry['bytes'] / 1024:.0f} kB  depth {about['depth']}  width {about['width']}  "
            f"{about['dtype']}  {about['profile']}  {contract}"
        )
        if about["ties"] == "capacity":
            print(f"note: {w.path.name}: {TIES['capacity']}", file=sys.stderr)


def _file_parser(name: str, about: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"python -m exporter {name}", description=about)
    parser.add_argument("file", type=Path, metavar="FILE", help="an .onnx file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _describe(args: Sequence[str]) -> int:
    parser = _file_parser("describe", "What a file says of itself, what its graph proves, and its operators.")
    parsed = parser.parse_args(args)
    about = describe(parsed.file)
    print(json.dumps(about, indent=1) if parsed.json else "\n".join(describe_lines(about)))
    return 0


def _verify(args: Sequence[str]) -> int:
    parser = _file_parser("verify", "Run a file in onnxruntime against numpy on named families of inputs.")
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="vectors per family (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parsed = parser.parse_args(args)
    result = verify(
        parsed.file, parsed.trials, parsed.seed,
        lambda names: iter(tqdm(list(names), desc="verifying", unit="family", disable=None, leave=False)),
    )  # fmt: skip
    if parsed.json:
        print(json.dumps(result.as_dict(), indent=1))
    else:
        print(f"{result.file}: {result.contract}")
        print(f"{'family':12} {'trials':>7} {'exact':>9} {'max error':>10} {'mse':>10}")
        for f in result.families:
            print(f"{f.family:12} {f.trials:7d} {f.exact:9.2%} {f.max_error:10.3g} {f.mse:10.3g}")
        for breach in result.breaches:
            print(f"broken: {breach}")
        if result.kept and result.contract != "none stated":
            print("the contract is kept")
    return 0 if result.kept else 1


def _audit(args: Sequence[str]) -> int:
    parser = _Parser(prog="python -m exporter audit", description="What the paper's lower bounds prove about a file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--op", choices=["median", "max", "min"], help="what the file claims, when it does not say")
    parser.add_argument("--rank", type=int, metavar="K", help="it claims the K-th smallest")
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args(args)
    found = audit(parsed.file, parsed.op, parsed.rank)
    print(json.dumps(found, indent=1) if parsed.json else "\n".join(audit_lines(found)))
    return 0


def _reduce(args: Sequence[str]) -> int:
    parser = _Parser(prog="python -m exporter reduce", description="A network for a rank as one for the maximum.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--to", choices=["max"], default="max")
    parser.add_argument(
        "--mode", choices=["exact", "l2"], default="exact", help="theorem:exact_median or the L2 reduction"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the fixed entries and the permutation of l2")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parsed = parser.parse_args(args)
    path, entry = reduce_file(parsed.file, parsed.out, parsed.mode, parsed.seed)
    print(f"{path}  {entry['bytes'] / 1024:.0f} kB  the maximum of {entry['description']['d']} numbers")
    return 0


def _atlas(args: Sequence[str]) -> int:
    parser = _Parser(prog="python -m exporter atlas", description="Every construction at every d, measured; resumable.")
    parser.add_argument("--d", type=int, nargs="+", required=True, metavar="D")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--construction", action="append", metavar="NAME", help="repeatable (default: all)")
    parser.add_argument("--trials", type=int, default=200, help="uniform vectors per cell (default: 200)")
    parser.add_argument("--failure", type=float, default=1e-3, metavar="P", help="what the planner must prove")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="a run ends after S seconds, however far it is (default: 30)",
    )
    parsed = parser.parse_args(args)
    print(atlas(parsed.d, parsed.out, parsed.construction, parsed.trials, parsed.failure, parsed.seconds))
    return 0
