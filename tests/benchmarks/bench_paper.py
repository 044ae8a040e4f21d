"""The networks of docs/planner.md and docs/frontier.md against their promises: counts, failures, certificates, exponents.

    python tests/benchmarks/bench_paper.py --out DIR [--only WORD ...] [--quick]

Every cell exports files, runs them in onnxruntime (one thread; 24 bits, mean convention) and writes DIR/CELL.json when it
is done; cells that are there are not measured again. Names of cells begin with `network` and `rate` (the paper's networks,
one file each), `frontier` (three or four files each), `certificate` or `width`. The wrong answers are held to the binomial
law of the bound. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

from exporter.constructions import lookup
from exporter.formats.manifest import replace_file
from exporter.formats.session import Session
from exporter.formula import trace
from exporter.library import export
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.spec import Spec

BITS = 24
SIZES = [256 << i for i in range(9)]  # 256 ... 65536
WORKING_SET = 1 << 23  # bytes of the largest layer in one run: more leaves the cache and is slower
CHANCE = 1e-3  # of calling a true bound missed by bad luck
SEEDS = (1, 2, 3, 4)
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One measurement: a name for its file, and what makes its result."""

    name: str
    measure: Callable[[int], Row]


def check(what: str, measured: float, relation: str, target: float) -> Row:
    held = {"<=": measured <= target, ">=": measured >= target, "=": measured == target}[relation]
    return {"what": what, "measured": measured, "relation": relation, "target": target, "held": bool(held)}


@dataclass(frozen=True)
class Answers:
    """What a file returned on n vectors: how many are wrong, how many of those its certificate proves right, ..."""

    trials: int = 0
    wrong: int = 0
    wrong_unflagged: int = 0
    right_flagged: int = 0
    outside: int = 0

    def __add__(self, other: Answers) -> Answers:
        return Answers(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def answers(session: Session, task: tasks.Task, family: str, n: int, seed: int) -> Answers:
    """Fresh vectors of a family through a file, compared with numpy and with the file's own certificate."""
    rng, found = np.random.default_rng([seed, len(family)]), Answers()
    batch = max(session.chunk, 16)
    for start in range(0, n, batch):
        x = UNITS[family](rng, min(batch, n - start), session.d, 1 << BITS) / 2.0**BITS
        got = session.run(x)
        truth = task.answers(x)[:, 0].astype(session.description["dtype"])  # a mean may have one bit more than the grid
        wrong = got[:, 0] != truth
        outside = (got[:, 0] < 0) | (got[:, 0] > 1)
        flagged = np.zeros(len(x), dtype=bool)
        if session.description["certificate"]:
            below, not_above = got[:, 1::2], got[:, 2::2]
            ranks = np.asarray(task.ranks)
            flagged = np.logical_not(np.logical_and(below < ranks, ranks <= not_above).all(axis=1))
        counts = (wrong, wrong & ~flagged, flagged & ~wrong, outside)
        found += Answers(len(x), *(int(c.sum()) for c in counts))
    return found


def opened(spec: Spec, scratch: str, certificate: bool = False) -> tuple[Session, Row]:
    """Export and load a file; batches are cut by the memory that its largest layer takes."""
    made = export(replace(spec, certificate=certificate, inputs="grid"), Path(scratch))
    session = Session(made.path)
    about = session.description
    session.chunk = max(1, min(4, WORKING_SET // (8 * about["width"])))
    return session, dict(about)


def files(spec: Spec) -> list[Spec]:
    """Several files of a promise: other seeds, or other ranks where nothing is drawn."""
    d = spec.task.d
    if lookup(spec.construction).uniform:
        return [spec, *(replace(spec, task=tasks.rank(d, [rank])) for rank in (d // 2, d // 2 + 1))]
    return [replace(spec, seed=seed) for seed in range(4)]


def several(session: Session, task: tasks.Task, family: str, trials: int, seeds: Sequence[int]) -> Answers:
    """As many vectors from each seed."""
    each = max(25, trials // len(seeds))
    return sum((answers(session, task, family, each, seed) for seed in seeds), Answers())


def promised(
    kind: str,
    made: Sequence[Spec],
    *,
    depth: int | None = None,
    width: float = np.inf,
    exact: float = 0.0,
    families: Sequence[str] = ("uniform",),
    trials: int = 10_000,
    seeds: Sequence[int],
) -> Cell:
    """Depth, width in units of d, failure bound, share of exact answers, and the chance of so many wrong ones.

    The wrong answers are those of every file, or of all together where the bound is one over the seeds.
    """
    spec, d = made[0], made[0].task.d

    def measure(divisor: int) -> Row:
        seconds, abouts = 0.0, []
        rates: list[tuple[str, Answers, float]] = []
        for asked in made:
            with tempfile.TemporaryDirectory() as scratch:
                started = time.process_time()
                session, about = opened(asked, scratch)
                seconds = max(seconds, time.process_time() - started)
                for family in families:
                    got = several(session, asked.task, family, trials // divisor, seeds)
                    rates.append((f"{asked.task.label}, {family}", got, about["failure_bound"]))
            abouts.append(about)
        if len(made) > 1 and abouts[0]["failure_law"] == "seeds":
            rates = [(f"{len(made)} seeds", sum((got for _, got, _ in rates), Answers()), rates[0][2])]
        checks = [
            check("width / d", max(about["width"] for about in abouts) / d, "<=", width),
            check("failure bound", max(about["failure_bound"] for about in abouts), "<=", spec.failure),
            check("outside [0, 1]", sum(got.outside for _, got, _ in rates), "=", 0),
        ]
        if depth is not None:
            checks.append(check("depth", max(about["depth"] for about in abouts), "=", depth))
        if len(made) > 1:
            checks.append(check("processor seconds to export", seconds, "<=", 15))
        for label, got, bound in rates:
            told = f"{label}: {got.wrong} of {got.trials} wrong, bound {bound:g}"
            checks.append(check(f"{told}: exact", 1 - got.wrong / got.trials, ">=", exact))
            checks.append(check(f"{told}: chance", float(binom.sf(got.wrong - 1, got.trials, bound)), ">=", CHANCE))
        return {"checks": checks, "max_weight": abouts[0]["max_weight"], "size": abouts[0]["size"] / d}

    return Cell(f"{kind}-{spec.construction}-d{d}-p{spec.failure:g}", measure)


def certified(made: Sequence[Spec], trials: int, seeds: Sequence[int]) -> Cell:
    """Loose files with certificates: a wrong answer is never proven, and one rank that is right always is.

    A mean may be right by luck, where errors cancel or its rounding swallows them: how often is told, not judged.
    """
    spec = made[0]

    def measure(divisor: int) -> Row:
        checks: list[Row] = []
        for number, asked in enumerate(made):
            with tempfile.TemporaryDirectory() as scratch:
                session, _ = opened(asked, scratch, certificate=True)
                usual = several(session, asked.task, "uniform", trials // divisor, seeds)
                others = [answers(session, asked.task, name, 100, 7) for name in UNITS if name != "uniform"]
                got = sum(others, usual)
            label, single = f"{asked.task.label}, file {number}", len(asked.task.ranks) == 1
            checks += [
                check(f"{label}: wrong of {usual.trials} uniform", usual.wrong, ">=", 1),
                check(f"{label}: wrong of {got.trials}, all families", got.wrong, ">=", 1),
                check(f"{label}: wrong but proven", got.wrong_unflagged, "=", 0),
                check(f"{label}: right, not proven", got.right_flagged, "<=", 0 if single else got.trials),
                check(f"{label}: outside [0, 1]", got.outside, "=", 0),
            ]
        return {"checks": checks}

    return Cell(f"certificate-{spec.construction}-d{spec.task.d}-p{spec.failure:g}", measure)


def counted(spec: Spec) -> Cell:
    """The width of the layered network; nothing is run, so any d will do."""
    d = spec.task.d

    def measure(divisor: int) -> Row:
        net, _ = trace(spec)
        return {"checks": [], "d": d, "width": net.width, "depth": net.depth}

    return Cell(f"width-{spec.construction}-d{d}", measure)


EXPONENTS = {"depth5": 1.75, "linear46": 1.1, "compact": 1.2, "window5": 1.1, "window6": 1.0, "linear18": 1.1}
PAPER = ("depth5", "linear46", "compact")


def asked(name: str, d: int, failure: float = 1e-3, profile: str = "auto") -> Spec:
    """compact at its claimed depth; left free it may turn deeper as d grows."""
    return Spec(tasks.median(d), name, failure=failure, profile=profile, depth=9 if name == "compact" else None)


def networks(name: str, failure: float, d: int, depth: int, width: float) -> Cell:
    """One of docs/frontier.md."""
    made = files(asked(name, d, failure, "fused"))
    return promised("frontier", made, depth=depth, width=width, seeds=SEEDS)


def cells() -> Iterator[Cell]:
    at = partial(promised, "network", exact=0.999, seeds=(2048,))
    yield at([asked("depth5", 2048)], depth=5, width=0.2 * 2 * 2048)
    yield at([asked("linear46", 2048)], depth=46, width=40, families=("uniform", "sorted"))
    yield at([asked("compact", 2048)], depth=9, width=28)
    yield at([asked("compact", 2048, 1e-6)], depth=9, width=40)
    yield at([asked("linear46", 65536)], depth=46, width=48, exact=0.99, trials=100, seeds=(65536,))
    for name in PAPER:
        spec = asked(name, 2048, 0.2)
        yield certified([spec, replace(spec, task=tasks.rank(2048, [1024]))], 1600, (7,))
    for d in (256, 1024, 2048):
        for name in PAPER:
            yield promised("rate", [asked(name, d, 1e-1)], trials=2000, seeds=(11,))
            yield promised("rate", [asked(name, d, 1e-2)], trials=5000, seeds=(11,))
    for d in (256, 2048):
        for failure in (1e-3, 1e-2, 0.1):
            yield networks("window6", failure, d, 6, 25)
            yield networks("linear18", failure, d, 18, 16)
        yield networks("window5", 1e-3, d, 5, 42)
        yield networks("window5", 0.05, d, 5, 42)
        yield networks("window4", 0.1, d, 4, 110)
        yield networks("linear18", 1e-6, d, 18, 30)
        for name in ("window4", "window5", "window6", "linear18"):
            yield certified(files(asked(name, d, 0.2, "fused")), 10_000, SEEDS)
    yield networks("window6", 1e-6, 2048, 6, 53)
    for name in EXPONENTS:
        for d in SIZES:
            yield counted(asked(name, d))


def exponents(rows: dict[str, Row]) -> Row:
    """The slopes of log width over log d, where all widths have been counted."""
    checks = []
    for name, limit in EXPONENTS.items():
        mine = [rows[key] for d in SIZES if (key := f"width-{name}-d{d}") in rows]
        if len(mine) == len(SIZES):
            slope = np.polyfit(np.log([r["d"] for r in mine]), np.log([r["width"] for r in mine]), 1)[0]
            checks.append(check(f"{name}: width exponent", float(slope), "<=", limit))
    return {"checks": checks}


def show(name: str, row: Row) -> None:
    if "width" in row:
        print(f"{name:36} width / d {row['width'] / row['d']:10.2f}   depth {row['depth']}")
    for c in row["checks"]:
        mark = "" if c["held"] else "   MISSED"
        print(f"{name:36} {c['what']:34} {c['measured']:12.6g} (target {c['relation']} {c['target']:g}){mark}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="one JSON file per finished cell")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose name holds one of the words")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the vectors: a check of the script itself")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [c for c in cells() if not args.only or any(word in c.name for word in args.only)]
    rows: dict[str, Row] = {}
    try:
        for cell in tqdm(chosen, desc="paper", unit="cell", disable=None):
            path = args.out / f"{cell.name}.json"
            if not path.exists():
                row = cell.measure(20 if args.quick else 1)
                replace_file(path, (json.dumps(row, indent=1) + "\n").encode())
            rows[cell.name] = json.loads(path.read_text())
    except KeyboardInterrupt:
        print(f"interrupted: {len(rows)} of {len(chosen)} cells are done and kept in {args.out}", file=sys.stderr)
        return 130
    rows["exponents"] = exponents(rows)
    for each, row in rows.items():
        show(each, row)
    missed = [c for row in rows.values() for c in row["checks"] if not c["held"]]
    print(f"{len(missed)} targets missed" if missed else "all targets are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
