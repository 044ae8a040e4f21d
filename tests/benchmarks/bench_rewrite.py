"""What rewriting makes of the operator patterns of the tests: the table of docs/rewrite.md.

    python tests/benchmarks/bench_rewrite.py [--rounds 200] [--batch 64] [--match TEXT]

Each model is rewritten, both are run in onnxruntime in one thread on the same random input, turn and turn about, and the
smallest time of each counts. An axis of free length is `--batch` long. Exit status 1 when something is left or differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from tqdm import tqdm

from exporter.frontends.rewriting import OPERATORS
from exporter.frontends.rewriting.report import Rewritten
from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import patterns


def session(proto: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def timed(protos: list[onnx.ModelProto], rounds: int, batch: int) -> list[float]:
    """Seconds of each model, the smallest of all rounds."""
    source = protos[0].graph.input[0].type.tensor_type
    shape = [d.dim_value or batch for d in source.shape.dim]
    x = np.random.default_rng(0).normal(size=shape) * 100
    feed = {protos[0].graph.input[0].name: x.astype(helper.tensor_dtype_to_np_dtype(source.elem_type))}
    sessions = [session(proto) for proto in protos]
    best = [np.inf] * len(sessions)
    for _ in range(rounds):
        for i, each in enumerate(sessions):
            start = time.perf_counter()
            each.run(None, feed)
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def equal(found: Rewritten) -> str:
    """Of the values and indices that were replaced; what is not sorted may come in any order."""
    off = max((c.difference for r in found.replaced for c in r.outputs), default=0.0)
    return "yes" if off == 0 and found.ok else f"off by {off:.2g}"


def shape_of(proto: onnx.ModelProto) -> str:
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    return "[" + ", ".join(str(d.dim_value or d.dim_param) for d in dims) + "]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--match", default="", help="only patterns whose name holds this text")
    args = parser.parse_args()
    print("| pattern | input | was | became | equal | nodes | µs before | after |\n" + "|---" * 8 + "|")
    kept = True
    chosen = {name: proto for name, proto in patterns().items() if args.match in name}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for name, proto in tqdm(chosen.items(), disable=None, leave=False):
            path.write_bytes(proto.SerializeToString())
            found = rewrite(path, also=OPERATORS)
            before, after = timed([proto, found.model], args.rounds, args.batch)
            was = "; ".join(r.was.replace(f" {r.node}:", ":") for r in found.replaced)
            became = "; ".join(r.became for r in found.replaced)
            nodes, times = (
                f"{found.nodes[0]} to {found.nodes[1]}",
                [f"{1e6 * seconds:.0f}" for seconds in (before, after)],
            )
            cells = [name, shape_of(proto), was, became, equal(found), nodes, *times]
            print(f"| {' | '.join(cells)} |", flush=True)
            kept &= found.ok and not {n.op_type for n in found.model.graph.node} & set(OPERATORS)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
