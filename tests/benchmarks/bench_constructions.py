"""How fast each construction is, as ratios in one run: against ONNX TopK + mean, and against numpy.median.

    python tests/benchmarks/bench_constructions.py [--d 2048] [--rounds 15] [--construction NAME ...]

One onnxruntime thread. Inputs rotate (on one repeated vector, selection algorithms learn its branches), contenders take
turns within every round, and the median of the rounds counts. Below 1 a construction is faster than its rival.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[2]))

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.options import Options
from exporter.question import task as tasks

MEMORY = 4 << 30  # bytes that the largest tensors of one run may take


def topk_mean(d: int) -> onnx.ModelProto:
    """numpy's median by TopK: the mean of the last one or two of the upper half."""
    k, middle = d // 2 + 1, 1 if d % 2 else 2
    ints = {"k": [k], "start": [k - middle], "end": [k], "axis": [1]}
    graph = helper.make_graph(
        [
            helper.make_node("TopK", ["x", "k"], ["top", "where"], axis=1),
            helper.make_node("Slice", ["top", "start", "end", "axis"], ["mid"]),
            helper.make_node("ReduceMean", ["mid"], ["y"], axes=[1]),
        ],
        "topk",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", d])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(np.array(v, dtype=np.int64), name) for name, v in ints.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(proto: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    run = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    dtype = np.float32 if proto.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT else np.float64
    return lambda x: run.run(None, {"x": x.astype(dtype, copy=False)})[0]


def seconds(call: Callable[[np.ndarray], np.ndarray], inputs: list[np.ndarray], least: float) -> float:
    """Seconds per call, over all inputs, for at least `least` seconds."""
    calls, start = 0, time.perf_counter()
    while True:
        for x in inputs:
            call(x)
        calls += len(inputs)
        spent = time.perf_counter() - start
        if spent >= least:
            return spent / calls


def contenders(d: int, names: list[str]) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    found: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "TopK + mean": session(topk_mean(d)),
        "numpy.median": lambda x: np.median(x, axis=1, keepdims=True),
    }
    for name in names:
        for profile in ("structured", "fused"):
            try:
                model = build(tasks.median(d), Options(construction=name, profile=profile))
            except UserError as error:
                print(f"skipped {name} {profile}: {error}")
                continue
            found[f"{name} {profile} {model.dtype}"] = session(to_onnx(model))
    return found


def too_large(name: str, d: int, batch: int) -> str | None:
    """depth3 holds tensors of all pairs: four of them at a time in float64."""
    need = 4 * 8 * batch * d * d
    if name.startswith("depth3") and need > MEMORY:
        return f"a batch of {batch} needs about {need / 2**30:.0f} GiB for its pairs"
    return None


def compare(d: int, batch: int, runs: dict[str, Callable[[np.ndarray], np.ndarray]], rounds: int) -> None:
    rng = np.random.default_rng(0)
    cells = 2**24
    inputs = [(rng.integers(0, cells, (batch, d), endpoint=True) / cells).astype(np.float32) for _ in range(16)]
    truth = np.median(inputs[0].astype(np.float64), axis=1, keepdims=True)
    here = {}
    for name, call in runs.items():
        if reason := too_large(name, d, batch):
            print(f"{'':4}{name:28} skipped: {reason}")
            continue
        if not np.allclose(call(inputs[0]), truth, rtol=0, atol=2**-23):
            print(f"{'':4}{name:28} wrong: not timed")
            continue
        here[name] = call
    times: dict[str, list[float]] = {name: [] for name in here}
    for _ in range(rounds):
        for name, call in here.items():
            slow = bool(times[name]) and times[name][0] > 0.2
            times[name].append(seconds(call, inputs[:1] if slow else inputs, 0.0 if slow else 0.02))
    middle = {name: statistics.median(t) for name, t in times.items()}
    for name, t in middle.items():
        against = f"{t / middle['TopK + mean']:9.2f} {t / middle['numpy.median']:9.2f}"
        print(f"{'':4}{name:28} {1e6 * t / batch:12.1f} {against}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--construction", nargs="+", default=list(CONSTRUCTIONS))
    args = parser.parse_args()
    runs = contenders(args.d, args.construction)
    for batch in args.batch:
        print(f"d = {args.d}, batch {batch}")
        print(f"{'':4}{'':28} {'us/vector':>12} {'x TopK':>9} {'x numpy':>9}")
        compare(args.d, batch, runs, args.rounds)


if __name__ == "__main__":
    main()
