"""The networks for uniform inputs against their promises: counts, proven and measured failures, export times.

    python tests/benchmarks/bench_frontier.py --out DIR [--only WORD ...] [--quick]

Every cell exports a file, runs it in onnxruntime on 10,000 fresh uniform vectors, a quarter of them from each of four
seeds, and holds the wrong answers to the binomial law of its bound; cells that are there are not measured again. Exit
status 1 when a target is missed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parents[2]))

from exporter.options import Options
from exporter.question import task as tasks
from tests.benchmarks.bench_paper import Answers, Cell, Row, answers, check, counted, opened, run_cells

CHANCE = 1e-3  # of calling a true bound missed by bad luck
SEEDS = (1, 2, 3, 4)
SIZES = [256 << i for i in range(9)]


def promised(options: Options, d: int, depth: int, width: float, trials: int = 10_000) -> Cell:
    """Depth, width in units of d, failure bound, export time, and the wrong answers of uniform vectors."""

    def measure(divisor: int) -> Row:
        with tempfile.TemporaryDirectory() as scratch:
            started = time.monotonic()
            session, about = opened(d, options, scratch)
            seconds = time.monotonic() - started
            each = max(25, trials // divisor // len(SEEDS))
            got = sum((answers(session, tasks.median(d), "uniform", each, seed) for seed in SEEDS), Answers())
        likely = float(binom.sf(got.wrong - 1, got.trials, about["failure_bound"]))
        checks = [
            check("depth", about["depth"], "=", depth),
            check("width / d", about["width"] / d, "<=", width),
            check("failure bound", about["failure_bound"], "<=", options.failure),
            check("seconds to export", seconds, "<=", 15),
            check(f"{got.wrong} of {got.trials} wrong: chance", likely, ">=", CHANCE),
            check("outside [0, 1]", got.outside, "=", 0),
        ]
        return {"checks": checks, "max_weight": about["max_weight"], "size": about["size"] / d}

    return Cell(f"{options.construction}-d{d}-p{options.failure:g}", measure)


def cells() -> Iterator[Cell]:
    for d in (256, 2048):
        yield promised(Options("window6", failure=1e-3), d, 6, 25)
        yield promised(Options("window6", failure=1e-2), d, 6, 25)
        yield promised(Options("window6", failure=0.1), d, 6, 25)
        yield promised(Options("window5", failure=1e-3), d, 5, 43)
        yield promised(Options("window5", failure=0.05), d, 5, 43)
        yield promised(Options("window4", failure=0.1), d, 4, 110, 4000)
    yield promised(Options("window6", failure=1e-6), 2048, 6, 53)
    for name in ("window5", "window6"):
        for d in SIZES:
            yield counted(Options(name), d)


if __name__ == "__main__":
    sys.exit(run_cells("frontier", __doc__, cells, {"window5": 1.1, "window6": 1.0}))
