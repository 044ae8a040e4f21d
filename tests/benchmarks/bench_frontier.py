"""The networks of docs/frontier.md against their promises: counts, proven and measured failures, export times.

    python tests/benchmarks/bench_frontier.py --out DIR [--only WORD ...] [--quick]

Every cell exports several files, runs them in onnxruntime on 10,000 fresh uniform vectors in all, as many from each of four
seeds for each file, and holds the wrong answers to the binomial law of the bound. The files of linear18 have different
seeds; a window has no seed, and its files find the mean of the middle entries, the lower and the upper one. Cells that are
there are not measured again. Exit status 1 when a target is missed.
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
from exporter.options import Options
from exporter.question import task as tasks
from tests.benchmarks.bench_paper import Answers, Cell, Row, answers, certificates, check, counted, opened, run_cells

CHANCE = 1e-3  # of calling a true bound missed by bad luck
SEEDS = (1, 2, 3, 4)
SIZES = [256 << i for i in range(9)]


def files(options: Options, d: int) -> list[tuple[tasks.Task, Options]]:
    """What a cell exports: other seeds, or other ranks where nothing is drawn."""
    if lookup(options.construction).uniform:
        return [(tasks.median(d), options), *((tasks.rank(d, [rank]), options) for rank in (d // 2, d // 2 + 1))]
    return [(tasks.median(d), replace(options, seed=seed)) for seed in range(4)]


def promised(options: Options, d: int, depth: int, width: float, trials: int = 10_000) -> Cell:
    """Depth, width in units of d, failure bound, export time, and the wrong answers of uniform vectors."""
    options = replace(options, profile="fused")

    def measure(divisor: int) -> Row:
        made = files(options, d)
        each = max(25, -(-trials // (divisor * len(made) * len(SEEDS))))
        got, seconds, expected, abouts = Answers(), 0.0, 0.0, []
        for task, asked in made:
            with tempfile.TemporaryDirectory() as scratch:
                started = time.process_time()
                session, about = opened(task, asked, scratch)
                seconds = max(seconds, time.process_time() - started)
                got += sum((answers(session, task, "uniform", each, seed) for seed in SEEDS), Answers())
            expected = max(expected, about["failure_bound"])
            abouts.append(about)
        likely = float(binom.sf(got.wrong - 1, got.trials, expected))
        checks = [
            check("depth", max(about["depth"] for about in abouts), "=", depth),
            check("width / d", max(about["width"] for about in abouts) / d, "<=", width),
            check("failure bound", expected, "<=", options.failure),
            check("processor seconds to export", seconds, "<=", 15),
            check(f"{got.wrong} of {got.trials} wrong, {len(made)} files: chance", likely, ">=", CHANCE),
            check("outside [0, 1]", got.outside, "=", 0),
        ]
        return {"checks": checks, "max_weight": abouts[0]["max_weight"], "size": abouts[0]["size"] / d}

    return Cell(f"{options.construction}-d{d}-p{options.failure:g}", measure)


def cells() -> Iterator[Cell]:
    for d in (256, 2048):
        yield promised(Options("window6", failure=1e-3), d, 6, 25)
        yield promised(Options("window6", failure=1e-2), d, 6, 25)
        yield promised(Options("window6", failure=0.1), d, 6, 25)
        yield promised(Options("window5", failure=1e-3), d, 5, 42)
        yield promised(Options("window5", failure=0.05), d, 5, 42)
        yield promised(Options("window4", failure=0.1), d, 4, 110)
        yield promised(Options("linear18", failure=1e-3), d, 18, 16)
        yield promised(Options("linear18", failure=1e-2), d, 18, 16)
        yield promised(Options("linear18", failure=0.1), d, 18, 16)
        yield promised(Options("linear18", failure=1e-6), d, 18, 30)
    yield promised(Options("window6", failure=1e-6), 2048, 6, 53)
    for name in ("window4", "window5", "window6", "linear18"):
        yield certificates(Options(name, failure=0.2, profile="fused", dtype="float64"), 2048, 400)
    for name in ("window5", "window6", "linear18"):
        for d in SIZES:
            yield counted(Options(name), d)


if __name__ == "__main__":
    sys.exit(run_cells("frontier", __doc__, cells, {"window5": 1.1, "window6": 1.0, "linear18": 1.1}))
