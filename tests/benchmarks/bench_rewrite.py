"""What rewriting makes of single nodes and of real exports: the tables of docs/rewrite.md.

    python tests/benchmarks/bench_rewrite.py [--table nodes|models] [--models FOLDER] [--rounds 200] [--match TEXT]
                                             [--repeat] [--also Gather]

Each model is rewritten. Both are run in onnxruntime in one thread on the same random inputs, turn and turn about; times are
medians of processor time. Inputs change from run to run, because the processor soon predicts the branches of a TopK of the
same numbers (`--repeat`). FOLDER holds whole models, as `make corpus` writes them; tests/models has their heads.
An axis of free length is `--batch` long. Exit status 1 when something differs, or is left though its length is known.
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
from onnx import helper
from tqdm import tqdm

from exporter.formats.session import open_session
from exporter.frontends.rewriting.report import Rewritten
from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import model


def timed(protos: list[onnx.ModelProto], rounds: int, batch: int, inputs: int = 64) -> list[float]:
    """Median seconds of processor time of each model."""
    rng = np.random.default_rng(0)

    def feed() -> dict[str, Any]:
        drawn = {}
        for source in protos[0].graph.input:
            kind = source.type.tensor_type
            x = rng.normal(size=[d.dim_value or batch for d in kind.shape.dim]) * 100
            drawn[source.name] = x.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        return drawn

    feeds = [feed() for _ in range(min(rounds, inputs))]
    sessions = [open_session(proto) for proto in protos]
    times: list[list[float]] = [[] for _ in sessions]
    for i in range(rounds):
        for each, its in zip(sessions, times, strict=True):
            start = time.thread_time()
            each.run(None, feeds[i % len(feeds)])
            its.append(time.thread_time() - start)
    return [float(np.median(its)) for its in times]


def nodes(args: argparse.Namespace) -> bool:
    """One TopK with values and indices for one vector."""
    print("| TopK | by | kB | µs before | after | ratio |\n" + "|---" * 6 + "|")
    kept = True
    for k, d in ((300, 24000), (300, 8400), (100, 768), (300, 576), (9, 512), (8, 128)):
        proto = model("TopK", [1, d], k=k)
        found = rewritten(proto)
        before, after = timed([proto, found.model], args.rounds, args.batch, 1 if args.repeat else 64)
        cells = [
            f"{k} of {d}", found.replaced[0].became, f"{found.model.ByteSize() / 1e3:.0f}", f"{1e6 * before:.0f}",
            f"{1e6 * after:.0f}", f"{after / before:.1f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
        kept &= found.ok
    return kept


def models(args: argparse.Namespace) -> bool:
    """Every model of a folder."""
    print("| model | TopK | left | Gathers | outputs | MB before | added | ms before | ratio |\n" + "|---" * 9 + "|")
    kept = True
    for path in tqdm(
        [p for p in sorted(args.models.glob("*.onnx")) if args.match in p.stem], disable=None, leave=False
    ):
        proto = onnx.load(path)
        found = rewrite(path, also=args.also)
        same = "equal" if all(c.equal for c in found.outputs) else "differ"
        same = same if found.checked else "not run"
        size = proto.ByteSize()
        topk = sum(node.op_type == "TopK" for node in proto.graph.node)
        gathers = sum("Gather" in r.was.split()[0] for r in found.replaced), len(found.kept)
        products = f"{gathers[0]} of {sum(gathers)}"
        cells = [path.stem, f"{topk}", f"{len(found.left)}", products, same, f"{size / 1e6:.2f}"]
        cells += [f"{(found.model.ByteSize() - size) / 1e6:.2f}"]
        if found.replaced and not found.unchecked:
            before, after = timed([proto, found.model], args.rounds, args.batch)
            cells += [f"{1e3 * before:.2f}", f"{after / before:.2f}"]
        print(f"| {' | '.join([*cells, '', ''][:9])} |", flush=True)
        kept &= all(c.equal for c in found.outputs) and all("depends on the data" in each.reason for each in found.left)
    return kept


def rewritten(proto: onnx.ModelProto) -> Rewritten:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return rewrite(path)


def main() -> int:
    tables = {"nodes": nodes, "models": models}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=tables, default="nodes")
    parser.add_argument("--models", type=Path, default=Path(__file__).parents[1] / "models")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--match", default="", help="only models whose name holds this text")
    parser.add_argument("--repeat", action="store_true", help="the same input in every run of a node")
    parser.add_argument("--also", action="append", default=[], help="as of `python -m exporter rewrite`")
    args = parser.parse_args()
    return 0 if tables[args.table](args) else 1


if __name__ == "__main__":
    sys.exit(main())
