"""`python -m exporter tune`: which exact file is fastest on this machine, at which length and batch.

One onnxruntime thread, the caller's, and the time that the processor gave it. Inputs rotate (on one repeated vector,
selection algorithms learn its branches), contenders take turns within every round, and what counts is the median over the
rounds of a time as a multiple of ONNX TopK + mean's.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.manifest import replace_file, writable
from exporter.formats.model_file import assemble
from exporter.formats.session import open_session
from exporter.formats.speed_table import SPEED_TABLE, SpeedRow, SpeedTable, Timed
from exporter.ir.graph import Graph
from exporter.passes.profiles import PROFILES
from exporter.problem.spec import Spec, Tune
from exporter.problem.task import median
from exporter.specs import file_name

Array = npt.NDArray[Any]
Run = Callable[[Array], Array]
LENGTHS = (9, 16, 25, 32, 49, 64, 81, 121, 256, 1024, 2048)
BATCHES = (1, 64, 1024)
INPUTS = 16
CHAIN = 32  # up to this length a dense chain takes part
LARGEST_RUN = 1 << 17  # numbers: what is larger is better cut into several runs, and not measured
HOPELESS = 12  # times the fastest: what takes longer at first is not run again
TUNES: tuple[Tune, ...] = tuple(tune for tune in get_args(Tune) if tune in ("throughput", "latency"))


def topk_mean(d: int) -> onnx.ModelProto:
    """numpy's median by TopK: the mean of the last one or two of the upper half."""
    k, middle = d // 2 + 1, 1 if d % 2 else 2
    graph = Graph(np.dtype(np.float32))
    graph.nodes.append(helper.make_node("TopK", ["x", graph.shape([k])], ["top", "where"], axis=1))
    ends = (graph.shape([end]) for end in (k - middle, k, 1))
    graph.finish(graph.add("ReduceMean", [graph.add("Slice", ["top", *ends])], axes=[1]))
    return assemble(graph, "topk", {"x": ("float32", ["N", d])}, {"y": ("float32", ["N", 1])})


def session(proto: onnx.ModelProto) -> Run:
    """A model in onnxruntime on one thread."""
    run = open_session(proto)
    dtype = np.float32 if proto.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT else np.float64

    def answer(x: Array) -> Array:
        return np.asarray(run.run(None, {"x": x.astype(dtype, copy=False)})[0])

    return answer


def grid_inputs(d: int, batch: int, bits: int = 24) -> list[Array]:
    """Batches that rotate, on the grid."""
    rng, cells = np.random.default_rng(0), 2**bits
    return [(rng.integers(0, cells, (batch, d), endpoint=True) / cells).astype(np.float32) for _ in range(INPUTS)]


def seconds(call: Run, inputs: Sequence[Array], least: float) -> float:
    """Seconds of the processor per call, over all inputs, for at least `least` of them: what else runs counts little."""
    calls, start = 0, time.thread_time()
    while True:
        for x in inputs:
            call(x)
        calls += len(inputs)
        spent = time.thread_time() - start
        if spent >= least:
            return spent / calls


def contenders(d: int) -> Iterator[tuple[str, Spec, onnx.ModelProto]]:
    """Every exact file for the median of d numbers, those that are the same graph once."""
    seen: set[bytes] = set()
    for c in CONSTRUCTIONS.values():
        if c.op != "median" or c.uniform or "failure" in c.takes:
            continue
        for profile in PROFILES.values():
            if profile.name not in ("dense", "fused", "minmax") or (profile.merged and d > CHAIN):
                continue
            for tune in TUNES if profile.batches or "tune" in c.takes else TUNES[:1]:
                spec = Spec(median(d), c.name, profile=profile.name, tune=tune)
                try:
                    proto = to_onnx(build(spec))
                except UserError:  # it cannot be built so
                    continue
                graph = proto.graph.SerializeToString()
                if graph not in seen:
                    seen.add(graph)
                    yield Path(file_name(spec)).stem, spec, proto


def measured_row(d: int, batch: int, runs: dict[str, tuple[Spec, Run]], limit: float) -> SpeedRow:
    """The medians of as many rounds as the limit of seconds allows, three at least."""
    inputs, topk, started = grid_inputs(d, batch), session(topk_mean(d)), time.thread_time()
    truth = np.median(inputs[0].astype(np.float64), axis=1, keepdims=True)
    for name, (_, run) in runs.items():
        if np.abs(run(inputs[0]) - truth).max() > 2.0**-24:
            raise UserError(f"{name} is wrong on this machine: python -m exporter verify says more")
    first = {name: min(seconds(run, inputs[:2], 0.0) for _ in range(3)) for name, (_, run) in runs.items()}
    calls = {"": topk, **{n: run for n, (_, run) in runs.items() if first[n] <= HOPELESS * min(first.values())}}
    times: dict[str, list[float]] = {name: [] for name in calls}
    while len(times[""]) < 3 or time.thread_time() - started < limit:
        for name, call in calls.items():
            slow = first.get(name, 0.0) > 0.1
            times[name].append(seconds(call, inputs[:1] if slow else inputs, 0.0 if slow else 0.004))
    ratios = {name: statistics.median(np.divide(all_, times[""]).tolist()) for name, all_ in times.items()}
    files = {
        name: Timed(o.construction, o.profile, o.tune, float(f"{ratios[name]:.3g}"))
        for name, (o, _) in runs.items()
        if name in ratios
    }
    return SpeedRow(d, batch, float(f"{1e6 * statistics.median(times['']):.4g}"), files)


def tune(
    lengths: Sequence[int],
    batches: Sequence[int],
    out: Path,
    limit: float,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> SpeedTable:
    """Measure all lengths and batches in about `limit` seconds, after building the files, and write OUT/fastest.json."""
    pairs = [(d, batch) for d in lengths for batch in batches if d * batch <= LARGEST_RUN or batch == min(batches)]
    rows = []
    with writable(out):
        for d in progress(lengths):
            runs = {name: (spec, session(proto)) for name, spec, proto in contenders(d)}
            rows += [measured_row(d, batch, runs, limit / len(pairs)) for same, batch in pairs if same == d]
        table = SpeedTable(tuple(rows))
        about = {"onnxruntime": ort.__version__, "machine": platform.machine(), "threads": 1, "seconds": limit}
        replace_file(out / SPEED_TABLE, table.as_json(about))
    return table


def tune_lines(table: SpeedTable) -> list[str]:
    """The table for people: the fastest three of every row."""
    lines = [f"{'d':>6} {'batch':>6} {'TopK us':>9}   multiples of TopK + mean"]
    for row in table.rows:
        best = sorted(row.files.values(), key=lambda f: f.times_topk)[:3]
        told = "   ".join(f"{f.times_topk:.2f} {f.construction} {f.profile} {f.tune}" for f in best)
        lines.append(f"{row.d:6} {row.batch:6} {row.topk_us:9.1f}   {told}")
    return lines
