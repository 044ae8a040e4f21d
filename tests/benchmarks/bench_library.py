"""How long a network takes to build and to answer first, and a later call against numpy.

python -m tests.benchmarks.bench_library [D ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt

import exporter


def main(lengths: list[int]) -> None:
    print(f"{'d':>6} {'build':>8} {'first':>8} {'batch of 64':>12} {'x np.median':>12}")
    for d in lengths:
        start = perf_counter()
        net = exporter.median(d)
        built = perf_counter()
        x = np.random.default_rng(0).standard_normal((64, d), dtype=np.float32)
        net(x[0])
        first = perf_counter()
        mine = _seconds(net, x)
        numpys = _seconds(partial(np.median, axis=1), x)
        print(f"{d:>6} {built - start:>6.2f} s {first - built:>6.2f} s {mine * 1e3:>9.2f} ms {mine / numpys:>12.2f}")


def _seconds(run: Callable[[npt.NDArray[np.float32]], object], x: npt.NDArray[np.float32]) -> float:
    """The best of five runs."""
    times = []
    for _ in range(5):
        start = perf_counter()
        run(x)
        times.append(perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main([int(d) for d in sys.argv[1:]] or [25, 256, 4096, 65536])
