"""The networks of docs/frontier.md against their promises: counts, proven and measured failures, export times.

    python tests/benchmarks/bench_frontier.py --out DIR [--only WORD ...] [--quick]

Every cell exports several files, runs each in onnxruntime on 10,000 fresh uniform vectors, as many from each of four seeds,
and holds the wrong answers to the binomial law of the bound: those of every file of a window, those of all files together
of linear18, whose bound is one over the seeds. The files of linear18 have different seeds; a window has no seed, and its
files find the mean of the middle entries, the lower and the upper one. Cells `certificate-...` are of files with
certificates that fail often. Cells that are there are not measured again. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parents[2]))

from exporter.constructions import lookup
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.spec import Spec
from tests.benchmarks.bench_paper import Answers, Cell, Row, answers, check, counted, opened, run_cells

CHANCE = 1e-3  # of calling a true bound missed by bad luck
SEEDS = (1, 2, 3, 4)
SIZES = [256 << i for i in range(9)]


def files(spec: Spec) -> list[Spec]:
    """What a cell exports: other seeds, or other ranks where nothing is drawn."""
    d = spec.task.d
    if lookup(spec.construction).uniform:
        return [spec, *(replace(spec, task=tasks.rank(d, [rank])) for rank in (d // 2, d // 2 + 1))]
    return [replace(spec, seed=seed) for seed in range(4)]


def promised(name: str, failure: float, d: int, depth: int, width: float, trials: int = 10_000) -> Cell:
    """Depth, width in units of d, failure bound, export time, and the wrong answers of uniform vectors."""
    spec = Spec(tasks.median(d), name, failure=failure, profile="fused")

    def measure(divisor: int) -> Row:
        made = files(spec)
        each = max(25, trials // (divisor * len(SEEDS)))
        seconds, abouts, rates = 0.0, [], []
        for asked in made:
            with tempfile.TemporaryDirectory() as scratch:
                started = time.process_time()
                session, about = opened(asked, scratch)
                seconds = max(seconds, time.process_time() - started)
                got = sum((answers(session, asked.task, "uniform", each, seed) for seed in SEEDS), Answers())
            rates.append((asked.task.label, got, about["failure_bound"]))
            abouts.append(about)
        if abouts[0]["failure_law"] == "seeds":
            rates = [(f"{len(rates)} seeds", sum((got for _, got, _ in rates), Answers()), rates[0][2])]
        checks = [
            check("depth", max(about["depth"] for about in abouts), "=", depth),
            check("width / d", max(about["width"] for about in abouts) / d, "<=", width),
            check("failure bound", max(about["failure_bound"] for about in abouts), "<=", spec.failure),
            check("processor seconds to export", seconds, "<=", 15),
            *(
                check(
                    f"{label}: {got.wrong} of {got.trials} wrong, bound {bound:g}: chance",
                    float(binom.sf(got.wrong - 1, got.trials, bound)), ">=", CHANCE,
                )
                for label, got, bound in rates
            ),
            check("outside [0, 1]", sum(got.outside for _, got, _ in rates), "=", 0),
        ]  # fmt: skip
        return {"checks": checks, "max_weight": abouts[0]["max_weight"], "size": abouts[0]["size"] / d}

    return Cell(f"{spec.construction}-d{d}-p{spec.failure:g}", measure)


def certified(name: str, failure: float, d: int, trials: int = 10_000) -> Cell:
    """Loose files with certificates: a wrong answer is never proven, and one rank that is right always is.

    A mean may be right by luck, where errors cancel or its rounding swallows them: how often is told, not judged.
    """
    spec = Spec(tasks.median(d), name, failure=failure, profile="fused")

    def measure(divisor: int) -> Row:
        checks: list[Row] = []
        for number, asked in enumerate(files(spec)):
            with tempfile.TemporaryDirectory() as scratch:
                session, _ = opened(asked, scratch, certificate=True)
                each = max(25, trials // (divisor * len(SEEDS)))
                usual = sum((answers(session, asked.task, "uniform", each, seed) for seed in SEEDS), Answers())
                others = [answers(session, asked.task, name, 100, 7) for name in UNITS if name != "uniform"]
                got = sum(others, usual)
            label, single = f"{asked.task.label}, file {number}", len(asked.task.ranks) == 1
            checks += [
                check(f"{label}: wrong of {usual.trials} uniform", usual.wrong, ">=", 1),
                check(f"{label}: wrong of {got.trials}, all families", got.wrong, ">=", 1),
                check(f"{label}: wrong but proven", got.wrong_unflagged, "=", 0),
                check(f"{label}: right, not proven", got.right_flagged, "<=", 0 if single else got.trials),
            ]
        return {"checks": checks}

    return Cell(f"certificate-{spec.construction}-d{d}-p{spec.failure:g}", measure)


def cells() -> Iterator[Cell]:
    for d in (256, 2048):
        yield promised("window6", 1e-3, d, 6, 25)
        yield promised("window6", 1e-2, d, 6, 25)
        yield promised("window6", 0.1, d, 6, 25)
        yield promised("window5", 1e-3, d, 5, 42)
        yield promised("window5", 0.05, d, 5, 42)
        yield promised("window4", 0.1, d, 4, 110)
        yield promised("linear18", 1e-3, d, 18, 16)
        yield promised("linear18", 1e-2, d, 18, 16)
        yield promised("linear18", 0.1, d, 18, 16)
        yield promised("linear18", 1e-6, d, 18, 30)
    yield promised("window6", 1e-6, 2048, 6, 53)
    for name in ("window4", "window5", "window6", "linear18"):
        yield certified(name, 0.2, 256)
        yield certified(name, 0.2, 2048)
    for name in ("window5", "window6", "linear18"):
        for d in SIZES:
            yield counted(Spec(tasks.median(d), name))


if __name__ == "__main__":
    sys.exit(run_cells("frontier", __doc__, cells, {"window5": 1.1, "window6": 1.0, "linear18": 1.1}))
