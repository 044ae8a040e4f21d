"""The paper's networks against their promises: widths, depths, proven and measured failures, certificates, exponents.

    python tests/benchmarks/bench_paper.py --out DIR [--only WORD ...] [--quick]

Every cell exports a file, runs it in onnxruntime (one thread; 24 bits, mean convention) and writes DIR/CELL.json when it
is done; cells that are there are not measured again. Prints target and measured; exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))

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
CONFIDENCE = 0.999  # a measured rate may be above a true bound by chance, but its lower confidence limit should not be
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
    return session, about


def network(
    spec: Spec,
    depth: int,
    width: float,
    *,
    least: float = 0.999,
    families: tuple[str, ...] = ("uniform",),
    trials: int = 10_000,
) -> Cell:
    """Depth, width in units of d, failure bound, and the share of exact answers."""

    d = spec.task.d

    def measure(divisor: int) -> Row:
        with tempfile.TemporaryDirectory() as scratch:
            session, about = opened(spec, scratch)
            checks = [
                check("depth", about["depth"], "=", depth),
                check("width / d", about["width"] / d, "<=", width),
                check("failure bound", about["failure_bound"], "<=", spec.failure),
            ]
            for family in families:
                n = max(20, trials // divisor)
                got = answers(session, tasks.median(d), family, n, d)
                checks.append(check(f"exact of {n} {family}", 1 - got.wrong / got.trials, ">=", least))
                checks.append(check(f"outside [0, 1] of {n} {family}", got.outside, "=", 0))
        return {"checks": checks}

    return Cell(f"network-{spec.construction}-d{d}-p{spec.failure:g}", measure)


def certificates(spec: Spec, trials: int) -> Cell:
    """Loose files that really fail, on all families: a wrong answer is always flagged, an unflagged one always right."""
    d = spec.task.d

    def measure(divisor: int) -> Row:
        by_family = {}
        with tempfile.TemporaryDirectory() as scratch:
            session, _ = opened(spec, scratch, certificate=True)
            for family in UNITS:
                n = max(20, trials // divisor * (4 if family == "uniform" else 1))
                by_family[family] = answers(session, tasks.median(d), family, n, 7)
        total = sum(by_family.values(), Answers())
        checks = [
            check(f"wrong of {total.trials}, all families", total.wrong, ">=", 1),
            check("wrong but not flagged", total.wrong_unflagged, "=", 0),
            check("right but flagged", total.right_flagged, "=", 0),
            check("outside [0, 1]", total.outside, "=", 0),
        ]
        return {"checks": checks, "families": {k: vars(v) for k, v in by_family.items()}}

    return Cell(f"certificate-{spec.construction}-d{d}-p{spec.failure:g}", measure)


def rate(spec: Spec, trials: int) -> Cell:
    """Monte Carlo: the failure rate of a file on uniform vectors against its bound, with a binomial confidence limit."""
    d = spec.task.d

    def measure(divisor: int) -> Row:
        with tempfile.TemporaryDirectory() as scratch:
            session, about = opened(spec, scratch)
            got = answers(session, tasks.median(d), "uniform", max(100, trials // divisor), 11)
        k, n = got.wrong, got.trials
        lower = float(beta.ppf(1 - CONFIDENCE, k, n - k + 1)) if k else 0.0
        upper = float(beta.ppf(CONFIDENCE, k + 1, n - k))
        checks = [check(f"rate >= ({CONFIDENCE:.1%} sure), bound", lower, "<=", about["failure_bound"])]
        return {
            "checks": checks,
            "rate": k / n,
            "trials": n,
            "interval": [lower, upper],
            "bound": about["failure_bound"],
        }

    return Cell(f"rate-{spec.construction}-d{d}-p{spec.failure:g}", measure)


def counted(spec: Spec) -> Cell:
    """The width of the layered network; nothing is run, so any d will do."""
    d = spec.task.d

    def measure(divisor: int) -> Row:
        net, _ = trace(spec)
        return {"checks": [], "d": d, "width": net.width, "depth": net.depth}

    return Cell(f"width-{spec.construction}-d{d}", measure)


EXPONENTS = {"depth5": 1.75, "linear46": 1.1, "compact": 1.2}
ASKED = {"compact": 9}  # compact at its claimed depth; left free it may turn deeper as d grows


def asked(name: str, d: int, failure: float = 1e-3) -> Spec:
    return Spec(tasks.median(d), name, failure=failure, depth=ASKED.get(name))


def cells() -> Iterator[Cell]:
    both = ("uniform", "sorted")
    yield network(Spec(tasks.median(2048), "depth5"), 5, 0.2 * 2 * 2048)
    yield network(Spec(tasks.median(2048), "linear46"), 46, 40, families=both)
    yield network(asked("compact", 2048), 9, 28)
    yield network(asked("compact", 2048, 1e-6), 9, 40)
    yield network(Spec(tasks.median(65536), "linear46"), 46, 48, least=0.99, trials=100)
    for name in EXPONENTS:
        yield certificates(asked(name, 2048, 0.2), 400)
    for d in (256, 1024, 2048):
        for name in EXPONENTS:
            yield rate(asked(name, d, 1e-1), 2000)
            yield rate(asked(name, d, 1e-2), 5000)
    for name in EXPONENTS:
        for d in SIZES:
            yield counted(asked(name, d))


def exponents(rows: dict[str, Row], limits: dict[str, float]) -> Row:
    """The slopes of log width over log d, where all widths have been counted."""
    checks = []
    for name, limit in limits.items():
        mine = [rows[key] for d in SIZES if (key := f"width-{name}-d{d}") in rows]
        if len(mine) == len(SIZES):
            slope = np.polyfit(np.log([r["d"] for r in mine]), np.log([r["width"] for r in mine]), 1)[0]
            checks.append(check(f"{name}: width exponent", float(slope), "<=", limit))
    return {"checks": checks}


def show(name: str, row: Row) -> None:
    if "width" in row:
        print(f"{name:36} width / d {row['width'] / row['d']:10.2f}   depth {row['depth']}")
    if "rate" in row:
        low, high = row["interval"]
        print(
            f"{name:36} rate {row['rate']:.2e} in [{low:.1e}, {high:.1e}], bound {row['bound']:.2e}, n = {row['trials']}"
        )
        return
    for c in row["checks"]:
        mark = "" if c["held"] else "   MISSED"
        print(f"{name:36} {c['what']:34} {c['measured']:12.6g} (target {c['relation']} {c['target']:g}){mark}")


def run_cells(name: str, about: str | None, cells: Callable[[], Iterator[Cell]], limits: dict[str, float]) -> int:
    """The command line of a benchmark: measure what is missing, print all; exit status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="one JSON file per finished cell")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose name holds one of the words")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the vectors: a check of the script itself")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [c for c in cells() if not args.only or any(word in c.name for word in args.only)]
    rows: dict[str, Row] = {}
    try:
        for cell in tqdm(chosen, desc=name, unit="cell", disable=None):
            path = args.out / f"{cell.name}.json"
            if not path.exists():
                row = cell.measure(20 if args.quick else 1)
                replace_file(path, (json.dumps(row, indent=1) + "\n").encode())
            rows[cell.name] = json.loads(path.read_text())
    except KeyboardInterrupt:
        print(f"interrupted: {len(rows)} of {len(chosen)} cells are done and kept in {args.out}", file=sys.stderr)
        return 130
    rows["exponents"] = exponents(rows, limits)
    for each, row in rows.items():
        show(each, row)
    missed = [c for row in rows.values() for c in row["checks"] if not c["held"]]
    print(f"{len(missed)} targets missed" if missed else "all targets are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(run_cells("paper", __doc__, cells, EXPONENTS))
