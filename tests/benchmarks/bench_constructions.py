"""How fast each construction is, as ratios in one run: against ONNX TopK + mean and every peer that a user would name.

    python tests/benchmarks/bench_constructions.py [--d 2048 ...] [--batch 1 16 64] [--rounds 15] [--construction NAME ...]
    python tests/benchmarks/bench_constructions.py --profile compact --batch 64       where the time of one file goes
    python tests/benchmarks/bench_constructions.py --growth --batch 64                sizes and times over d = 512 ... 4096

One onnxruntime thread, and the time that the processor gave it. Inputs rotate (on one repeated vector, selection algorithms
learn its branches), contenders take turns within every round, and the median of the rounds counts. Below 1 a construction is
faster than its rival. ns/neuron is the time of one vector over the size of the network. bottleneck and torch take part where
they are installed. `no median` is what a network of each kind takes at least (tests/benchmarks/least.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parents[2]))

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.passes.profiles import PROFILES
from exporter.problem import task as tasks
from exporter.problem.spec import OptimizeFor, Spec
from tests.benchmarks.least import least
from tests.benchmarks.timing import CHAIN, grid_inputs, seconds, session, topk_mean

MEMORY = 4 << 30  # bytes that the largest tensors of one run may take
FILES: tuple[tuple[str, OptimizeFor, int | None], ...] = (  # profile, optimize_for, exact batch
    ("dense", "throughput", None), ("fused", "throughput", None), ("fused", "latency", None), ("fused", "latency", 1),
    ("minmax", "throughput", None),
)  # fmt: skip
STRUCTURED: tuple[tuple[str, OptimizeFor, int | None], ...] = (
    ("structured", "throughput", None),
    ("structured", "latency", None),
)
ONE = " --batch 1"
LENGTHS = [512, 1024, 2048, 4096]  # for growth
SIZE: dict[str, int] = {}  # neurons of the contenders


def peers() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """The medians of a batch as users compute them."""

    def middle(ordered: np.ndarray) -> np.ndarray:
        d = ordered.shape[1]
        return (ordered[:, (d - 1) // 2, None] + ordered[:, d // 2, None]) / 2

    found: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "numpy.median": lambda x: np.median(x, axis=1, keepdims=True),
        "np.sort": lambda x: middle(np.sort(x, axis=1)),
        "np.partition": lambda x: middle(np.partition(x, [(x.shape[1] - 1) // 2, x.shape[1] // 2], axis=1)),
    }
    if importlib.util.find_spec("bottleneck"):
        bottleneck = importlib.import_module("bottleneck")
        found["bottleneck.median"] = lambda x: bottleneck.median(x, axis=1)[:, None]
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        found["torch.median"] = lambda x: torch.median(torch.from_numpy(x), dim=1, keepdim=True).values.numpy()
        found["torch.quantile"] = lambda x: torch.quantile(torch.from_numpy(x), 0.5, dim=1, keepdim=True).numpy()
    return found


def where_time_goes(name: str, d: int, batch: int, optimize_for: OptimizeFor) -> None:
    """Microseconds a vector by operator, from onnxruntime's own profiler; the best of ten runs of every node."""
    proto = to_onnx(build(Spec(tasks.median(d), name, profile="fused", optimize_for=optimize_for)))
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = 1, True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        run = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        x = (
            np.random.default_rng(0)
            .random((batch, d))
            .astype(np.float32 if "float)" in run.get_inputs()[0].type else float)
        )
        for _ in range(10):
            run.run(None, {"x": x})
        events = json.loads(Path(run.end_profiling()).read_text())
    nodes: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            nodes.setdefault((event["args"]["op_name"], event["name"]), []).append(event["dur"])
    by_operator: dict[str, list[int]] = {}
    for (op, _), spent in nodes.items():
        by_operator.setdefault(op, []).append(min(spent))
    print(f"{name} {optimize_for}, d = {d}, batch {batch}\n{'':4}{'':12} {'nodes':>6} {'us/vector':>10}")
    for op, spent in sorted(by_operator.items(), key=lambda item: -sum(item[1])):
        print(f"{'':4}{op:12} {len(spent):6} {sum(spent) / batch:10.1f}")


def contenders(
    d: int, names: list[str], files: Sequence[tuple[str, OptimizeFor, int | None]]
) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    found: dict[str, Callable[[np.ndarray], np.ndarray]] = {"TopK + mean": session(topk_mean(d)), **peers()}
    for name in names:
        for profile, optimize_for, batch in files:
            written = PROFILES[profile]
            if (written.floats and not CONSTRUCTIONS[name].comparators) or (written.merged and d > CHAIN):
                continue
            try:
                model = build(Spec(tasks.median(d), name, profile=profile, optimize_for=optimize_for, batch=batch))
                label = f"{name} {profile} {optimize_for} {model.dtype}{ONE if batch == 1 else ''}"
                found[label] = session(to_onnx(model))
            except UserError as error:
                print(f"skipped {name} {profile}: {error}")
                continue
            SIZE[label] = model.accounting.size
    return found


def too_large(name: str, d: int, batch: int) -> str | None:
    """A structured file of depth3 holds tensors of all pairs: four of them at a time in float64."""
    need = 4 * 8 * batch * d * d
    if name.startswith("depth3 structured") and need > MEMORY:
        return f"a batch of {batch} needs about {need / 2**30:.0f} GiB for its pairs"
    return None


def compare(d: int, batch: int, runs: dict[str, Callable[[np.ndarray], np.ndarray]], rounds: int) -> None:
    inputs = grid_inputs(d, batch)
    truth = np.median(inputs[0].astype(np.float64), axis=1, keepdims=True)
    lower = np.sort(inputs[0], axis=1)[:, [(d - 1) // 2]]  # what torch.median means, of an even number too
    here = {}
    for name, call in runs.items():
        if name.endswith(ONE) and batch != 1:
            continue
        if reason := too_large(name, d, batch):
            print(f"{'':4}{name:48} skipped: {reason}")
            continue
        if not np.allclose(call(inputs[0]), lower if name == "torch.median" else truth, rtol=0, atol=2**-23):
            print(f"{'':4}{name:48} wrong: not timed")
            continue
        here[name] = call
    here |= dict(least(d))
    times: dict[str, list[float]] = {name: [] for name in here}
    for _ in range(rounds):
        for name, call in here.items():
            slow = bool(times[name]) and times[name][0] > 0.2
            times[name].append(seconds(call, inputs[:1] if slow else inputs, 0.0 if slow else 0.02))
    middle = {name: statistics.median(t) for name, t in times.items()}
    for name, t in middle.items():
        against = f"{t / middle['TopK + mean']:9.2f} {t / middle['numpy.median']:9.2f}"
        each = f"{1e9 * t / batch / SIZE[name]:12.2f}" if name in SIZE else ""
        print(f"{'':4}{name:48} {1e6 * t / batch:12.1f} {against} {each}", flush=True)


def growth(names: list[str], lengths: list[int], batch: int, rounds: int) -> None:
    """Exponents of size, bytes, export time and time of one vector over d, fitted on a log-log scale, and time over size."""
    heads = " ".join(f"{word:>8}" for word in ("size", "bytes", "export", "time"))
    print(f"batch {batch}\n{'':4}{'':12} {heads}   ns/neuron at d = {', '.join(map(str, lengths))}")
    for name in names:
        optimize_for: OptimizeFor = "latency" if batch == 1 else "throughput"
        counts, runs = [], []
        for d in lengths:
            start = time.perf_counter()
            model = build(Spec(tasks.median(d), name, profile="fused", optimize_for=optimize_for))
            proto = to_onnx(model)
            counts.append((model.accounting.size, proto.ByteSize(), time.perf_counter() - start))
            runs.append(session(proto))
        inputs = [grid_inputs(d, batch)[:4] for d in lengths]
        turns = [[seconds(run, x, 0.02) for run, x in zip(runs, inputs, strict=True)] for _ in range(rounds)]
        spent = np.median(turns, axis=0) / batch
        sizes, *others = np.array(counts).T
        fitted = (np.polyfit(np.log(lengths), np.log(y), 1)[0] for y in (sizes, *others, spent))
        each = "  ".join(f"{ns:.2f}" for ns in 1e9 * spent / sizes)
        print(f"{'':4}{name:12} {' '.join(f'{e:8.2f}' for e in fitted)}   {each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", help="[2048; for --growth 512 1024 2048 4096]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    medians = [c.name for c in CONSTRUCTIONS.values() if c.op == "median"]
    parser.add_argument("--construction", nargs="+", default=medians, choices=medians)
    parser.add_argument("--profile", metavar="NAME", choices=medians, help="profile one fused file by operator instead")
    parser.add_argument("--growth", action="store_true", help="how time and size grow with d instead")
    parser.add_argument("--structured", action="store_true", help="structured files too")
    args = parser.parse_args()
    if args.growth:
        for batch in args.batch:
            growth(args.construction, args.d or LENGTHS, batch, args.rounds)
        return
    for d in args.d or [2048]:
        if args.profile:
            for batch in args.batch:
                where_time_goes(args.profile, d, batch, "latency" if batch == 1 else "throughput")
            continue
        runs = contenders(d, args.construction, (*FILES, *STRUCTURED * args.structured))
        for batch in args.batch:
            print(f"d = {d}, batch {batch}")
            print(f"{'':4}{'':48} {'us/vector':>12} {'x TopK':>9} {'x numpy':>9} {'ns/neuron':>12}")
            compare(d, batch, runs, args.rounds)


if __name__ == "__main__":
    main()
