"""Mean squared error of window5 and window6 on uniform inputs, against two simple predictors of the median.

    python -m tests.benchmarks.bench_window_error --d 256 2048 --failure 1e-3 --trials 20000

`constant` answers 1/2. `one count` answers 1/2 + (d/2 - N)/d with N = #{x < 1/2}: depth 2 and 2 d neurons.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from exporter.build import build, to_onnx
from exporter.formats.session import Session
from exporter.problem import task as tasks
from exporter.problem.spec import Spec


def errors(d: int, failure: float, trials: int) -> dict[str, tuple[float, float]]:
    """(mean squared error, share of answers more than a grid step off) of every predictor on the same vectors."""
    rng = np.random.default_rng(1)
    task = tasks.median(d)
    sessions = {
        name: Session(to_onnx(build(Spec(task, name, failure=failure, inputs="grid"))))
        for name in ("window5", "window6")
    }
    found: dict[str, list[Any]] = {name: [] for name in ("constant", "one count", *sessions)}
    for start in range(0, trials, 200):
        x = (np.rint(rng.random((min(200, trials - start), d)) * 2.0**24) / 2.0**24).astype(np.float32)
        truth = task.answers(x)[:, 0]
        found["constant"].append(0.5 - truth)
        found["one count"].append(1 - (x < 0.5).sum(axis=1) / d - truth)
        for name, session in sessions.items():
            found[name].append(session.run(x)[:, 0].astype(np.float64) - truth)
    off = {name: np.concatenate(parts) for name, parts in found.items()}
    return {name: (float(np.mean(e**2)), float(np.mean(np.abs(e) > 2.0**-24))) for name, e in off.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--failure", type=float, default=1e-3)
    parser.add_argument("--trials", type=int, default=20_000)
    args = parser.parse_args()
    for d in args.d:
        for name, (mse, wrong) in errors(d, args.failure, args.trials).items():
            print(f"d = {d:5}  {name:10} mean squared error {mse:.2e}, wrong {wrong:.2e}")


if __name__ == "__main__":
    main()
