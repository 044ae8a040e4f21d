"""radix against ONNX TopK + mean and numpy.median, by profile and optimization; and how its cost grows with d.

    python tests/benchmarks/bench_radix.py                      ratios at d = 2048 and 16384
    python tests/benchmarks/bench_radix.py --d 9 25 64 --batch 1 64 1024 --all
    python tests/benchmarks/bench_radix.py --growth             exponents over d = 256 ... 65536

Ratios as in bench_constructions: one thread, rotating inputs, contenders take turns, median of the rounds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from bench_constructions import compare, contenders, seconds, session, topk_mean

from exporter.build import build, to_onnx
from exporter.problem import task as tasks
from exporter.problem.spec import Spec

SIZES = [256, 1024, 4096, 16384, 65536]


def ratios(sizes: list[int], batches: list[int], rounds: int, everything: bool) -> None:
    for d in sizes:
        runs = contenders(d, ["depth3", "batcher"] if everything else [])
        if everything:
            dense = {
                name: build(Spec(tasks.median(d), name, profile="dense", dtype="float64"))
                for name in ("depth3", "batcher")
                if d <= 25
            }
            runs |= {f"{name} dense float64": session(to_onnx(model)) for name, model in dense.items()}
        for profile in ("fused", "structured"):
            for optimize_for in ("throughput", "latency"):
                model = build(Spec(tasks.median(d), "radix", profile=profile, optimize_for=optimize_for))
                runs[f"radix {profile} {optimize_for}"] = session(to_onnx(model))
        for batch in batches if d <= 4096 else [1]:
            print(f"d = {d}, batch {batch}\n{'':4}{'':28} {'us/vector':>12} {'x TopK':>9} {'x numpy':>9}")
            compare(d, batch, runs, rounds)


def growth() -> None:
    """Exponents of size, file size, export time and run time over d, fitted on a log-log scale."""
    rng = np.random.default_rng(0)
    rows = []
    print(f"{'d':>8} {'size/d':>8} {'file kB':>8} {'export s':>9} {'run us':>9} {'x TopK':>7}")
    for d in SIZES:
        start = time.perf_counter()
        model = build(Spec(tasks.median(d), "radix", profile="fused"))
        proto = to_onnx(model)
        export = time.perf_counter() - start
        inputs = [(rng.integers(0, 2**24, (1, d), endpoint=True) / 2**24).astype(np.float32) for _ in range(16)]
        ours, rival = session(proto), session(topk_mean(d))
        turns = [(seconds(ours, inputs, 0.05), seconds(rival, inputs, 0.05)) for _ in range(9)]
        run, peer = (float(np.median(t)) for t in zip(*turns, strict=True))
        rows.append((d, model.accounting.size, proto.ByteSize(), export, run))
        size, kib = model.accounting.size / d, proto.ByteSize() / 1024
        print(f"{d:8} {size:8.1f} {kib:8.0f} {export:9.2f} {1e6 * run:9.1f} {run / peer:7.2f}")
    table = np.log(np.array(rows))
    for i, name in enumerate(("size", "file size", "export time", "run time"), 1):
        print(f"{name:12} grows as d^{np.polyfit(table[:, 0], table[:, i], 1)[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", default=[2048, 16384])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--all", action="store_true", help="the other exact constructions too")
    parser.add_argument("--growth", action="store_true")
    args = parser.parse_args()
    if args.growth:
        growth()
    else:
        ratios(args.d, args.batch, args.rounds, args.all)


if __name__ == "__main__":
    main()
