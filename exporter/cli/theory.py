"""The research tools: `python -m exporter theory audit FILE` and others, around the theorems of the paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from exporter.cli import command
from exporter.cli.command import Command, Parser, at_least, number, restricted, show
from exporter.errors import UserError, install, nearest, spoken

WHOLE = restricted(Decimal, lambda d: 2 <= d < Decimal("1e1000") and d == int(d), "a whole number from 2 to 1e1000")
SHARE = restricted(float, lambda share: 0 < share < 1, "a number between 0 and 1")
EXPONENT = restricted(
    Fraction, lambda e: 0 < e < 1 and e.denominator <= 10_000, "a number between 0 and 1, as 1/100 or 0.01"
)
LONG = 1024  # from this d on, all networks together take minutes


def _audit(parser: Parser, args: Sequence[str]) -> int:
    from exporter.theory.audit import audit, audit_lines

    parser.add_file()
    parser.add_json()
    parser.add_argument(
        "--op", choices=["median", "max", "min"], default=None, help="what the file claims, when it does not say"
    )
    parser.add_whole("--rank", 1, "K", "it claims the K-th smallest", default=None)
    parsed = parser.parse_args(args)
    found = audit(parsed.file, parsed.op, parsed.rank)
    show(found, audit_lines(found), parsed.json)
    return 0


def _reduce(parser: Parser, args: Sequence[str]) -> int:
    from exporter.analysis.promise import promise
    from exporter.theory.reduce import reduce_file

    parser.add_file("an .onnx file of ours for one rank")
    parser.add_argument("--to", choices=["max"], default="max", help="what it becomes (default: max)")
    parser.add_argument(
        "--mode", choices=["exact", "l2"], default="exact",
        help="fixed entries (Theorem 4.2; default), or drawn at random, permuted and scaled (Theorem 4.3)",
    )  # fmt: skip
    parser.add_whole("--seed", 0, "S", "of what l2 draws (default: 0)")
    parser.add_out("where the file and manifest.json go")
    parsed = parser.parse_args(args)
    if "seed" in parsed and parsed.mode != "l2":
        raise UserError(f"--seed is of what --mode l2 draws: with --mode {parsed.mode} it changes nothing")
    path, entry = reduce_file(parsed.file, parsed.out, parsed.mode, getattr(parsed, "seed", 0))
    about = entry["description"]
    contract = "exact on the grid" if about["exact_on_grid"] else promise(about)
    print(f"{path}  {entry['bytes'] / 1024:.0f} kB  the maximum of {about['d']} numbers  {contract}")
    return 0


def _atlas(parser: Parser, args: Sequence[str]) -> int:
    from exporter.constructions import takers
    from exporter.theory.atlas import TABLE, atlas, redraw

    parser.add_argument("--d", type=at_least(1), nargs="+", metavar="D", help="how many numbers go in")
    parser.add_out("where the table and the pictures go")
    parser.add_argument("--construction", action="append", metavar="NAME", help="repeatable (default: all)")
    parser.add_whole("--trials", 1, "N", "uniform vectors per cell (default: 200)")
    parser.add_argument(
        "--failure", type=number, metavar="P",
        help=f"what the planner must prove (default: 1e-3) [{', '.join(takers('failure'))}]",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=number, metavar="S", help="a run ends after S seconds, however far it is (default: 30)"
    )
    parser.add_argument("--plots-only", action="store_true", help="draw the pictures of DIR/atlas.csv again")
    parsed = vars(parser.parse_args(args))
    out = parsed.pop("out")
    if parsed.pop("plots_only", False):
        if parsed:
            raise UserError(f"--plots-only measures nothing, so --{next(iter(parsed))} changes nothing: leave it out")
        redraw(out)
    elif "d" not in parsed:
        parser.error("the following arguments are required: --d (or --plots-only)")
    else:
        if max(parsed["d"]) >= LONG:
            print("note: building and running the networks takes minutes for each d", file=sys.stderr)
        atlas(parsed.pop("d"), out, parsed.pop("construction", None), **parsed)
    print(out / TABLE)
    return 0


def _frontier(parser: Parser, args: Sequence[str]) -> int:
    from exporter.formats.manifest import replace_file, writable
    from exporter.options import checked
    from exporter.progress import Progress
    from exporter.theory.atlas_plots import PlottedNetwork, can_plot, frontier_picture
    from exporter.theory.frontier import Point, frontier, frontier_lines, points

    parser.add_whole("--d", 1, "D", "how many numbers go in", required=True)
    parser.add_argument("--failure", type=number, default=1e-3, metavar="P", help="at most (default: 1e-3)")
    parser.add_argument(
        "--inputs", choices=["any", "uniform"], default="any",
        help="uniform: also the networks for independent entries, uniform in the domain (default: any)",
    )  # fmt: skip
    parser.add_argument("--construction", action="append", default=[], metavar="NAME", help="repeatable (default: all)")
    parser.add_argument("--json", action="store_true", default=False, help="print JSON, all points")
    parser.add_argument(
        "--picture", type=Path, default=None, metavar="FILE",
        help="draw it with the lower bounds, as PNG (extra: plot)",
    )  # fmt: skip
    parsed = parser.parse_args(args)
    failure, picture = checked("failure", parsed.failure), parsed.picture
    if picture and not can_plot():
        raise UserError(f"--picture needs matplotlib: {install('plot')}")
    if parsed.d >= LONG and not parsed.construction:
        print(f"note: building all networks of d = {parsed.d} takes minutes", file=sys.stderr)
    found: list[Point] = []
    for each in points(
        parsed.d, failure, parsed.inputs, parsed.construction, lambda all_: Progress(all_, "building", "network")
    ):
        if isinstance(each, Point):
            found.append(each)
        else:
            print(f"skipped {each[0]}: {each[1]}", file=sys.stderr)
    show([asdict(p) for p in found], frontier_lines(parsed.d, frontier(found)), parsed.json)
    if picture and found:
        laws = ("uniform", "uniform-seeds")
        networks = [PlottedNetwork(p.construction, p.depth, p.width, p.failure_law in laws) for p in found]
        with writable(picture.parent):
            replace_file(picture, frontier_picture(parsed.d, failure, networks))
    return 0


def _theorem(parser: Parser, args: Sequence[str]) -> int:
    from exporter.theory.asymptotic_plan import THEOREMS
    from exporter.theory.theorem import report

    parser.add_argument("theorem", type=int, choices=sorted(THEOREMS), help="its depth")
    parser.add_argument(
        "--d",
        type=lambda text: int(WHOLE(text)),
        nargs="+",
        required=True,
        metavar="D",
        help="whole numbers, as 2048 or 1e200",
    )
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--failure", type=SHARE, default=1e-3, metavar="P", help="at most (default: 1e-3)")
    given.add_argument("--exponent", type=EXPONENT, default=None, metavar="E", help="failure exp(-d^E), as 1/100")
    given.add_argument(
        "--run", type=at_least(1), default=None, metavar="N", help="build it and run it on N random inputs"
    )
    parser.add_whole("--seed", 0, "S", "of what is run (default: 0)", default=0)
    print("\n".join(report(**vars(parser.parse_args(args)))))
    return 0


def theory(parser: Parser, args: Sequence[str]) -> int:
    """Run a research tool: `theory audit FILE`, or `audit FILE` as it was called before."""
    if args and args[0] in COMMANDS:
        return command.run(COMMANDS, args, f"{command.PROG} theory")
    if args and not args[0].startswith("-"):
        near = nearest(args[0], COMMANDS) or "."
        raise UserError(f"unknown command theory {args[0]!r}{near} The commands are {spoken(list(COMMANDS))}")
    parser.usage = f"{parser.prog} COMMAND ..."
    parser.parse_args(args)
    parser.print_help()
    return 0


COMMANDS = {
    "audit": Command(
        _audit,
        "FILE: what the lower bounds of the paper prove about it",
        "Print which lower bounds of the paper rule out that a Gemm/Relu chain is right, with a witness.",
        "  python -m exporter --d 9 --construction depth3 --profile dense --out models/\n"
        "  python -m exporter theory audit models/median-depth3-d9-dense.onnx",
    ),
    "reduce": Command(
        _reduce,
        "FILE: turn a network for a rank into one for the maximum",
        "Turn a network for rank k of d numbers into one for the maximum of k numbers, by fixed other inputs (Section 4).",
        "  python -m exporter --d 9 --rank 5 --construction batcher --out models/\n"
        "  python -m exporter theory reduce models/rank5-batcher-d9.onnx --to max --out models/",
    ),
    "frontier": Command(
        _frontier,
        "list the narrowest and the smallest network of every depth",
        "For every depth the narrowest and the smallest network known for the median, counted as built. * marks a depth\n"
        "that is narrower or smaller than every shallower one. Networks for uniform inputs only with --inputs uniform.\n"
        "From d = 1024 on this takes minutes.",
        "  python -m exporter theory frontier --d 32 --failure 0.1 --inputs uniform",
    ),
    "theorem": Command(
        _theorem,
        "DEPTH: count the networks of the asymptotic theorems, or run them",
        "Width O(d) and failure exp(-d^Omega(1)) at depth 6 (uniform inputs) and 10 (any order): neurons of every layer\n"
        "at any d, or the network at a small d, run on random inputs. docs/proofs.md has the proofs.",
        "  python -m exporter theory theorem 10 --d 1e100 1e150 1e200 --failure 1e-6\n"
        "  python -m exporter theory theorem 6 --d 256 --run 100",
    ),
    "atlas": Command(
        _atlas,
        "build, count, measure and plot every construction",
        "Every construction at every d, built, counted, run and plotted. An interrupted atlas keeps its rows.",
        "  python -m exporter theory atlas --d 16 32 --construction depth3 --construction compact --trials 20 --out atlas/\n"
        "  python -m exporter theory atlas --plots-only --out atlas/",
    ),
}

THEORY = Command(
    theory,
    f"{', '.join(COMMANDS)}: lower bounds and theorems",
    "Research tools around the paper's theorems. Each command has --help of its own.\n\n"
    + "\n".join(f"  {name:9} {each.summary}" for name, each in COMMANDS.items()),
    "  python -m exporter theory frontier --d 32 --failure 0.1 --inputs uniform",
)
