"""Time and memory of the export, of depth3's weight list and of its widest run, each in a process of its own.

    python tests/benchmarks/bench_memory.py [--d 2048]

Exit status 1 when a limit is exceeded: export within 60 s and 2 GB, every file under 5 MB, weight list within 6 GB, run
within 2 GB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measuring import measured, peer

WEIGHTS = """
from exporter.problem import task
from exporter.formula import trace
from exporter.problem.spec import Spec
from exporter.ir.network import weights
net, _ = trace(Spec(task.median({d}), "depth3"))
layers = weights(net)
print(sum(layer.matrix.shape[0] for layer in layers[:-1]), sum(layer.matrix.nnz for layer in layers))
"""
RUN = """
import numpy as np, onnxruntime as ort
from exporter.problem import task
from exporter.build import build, to_onnx
from exporter.problem.spec import Spec
proto = to_onnx(build(Spec(task.median({d}), "depth3", profile="fused")))
run = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
x = (np.random.default_rng(0).integers(0, 2**24, (64, {d})) / 2**24).astype(np.float32)
assert np.array_equal(run.run(None, {{"x": x}})[0][:, 0], np.median(x, axis=1))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=2048)
    args = parser.parse_args()
    kept = True

    def report(what: str, value: float, limit: float, unit: str) -> None:
        nonlocal kept
        kept &= value <= limit
        print(f"  {what:40} {value:8.2f} {unit:3} (limit {limit:g}){'' if value <= limit else '  EXCEEDED'}")

    with tempfile.TemporaryDirectory() as out:
        export = measured([sys.executable, "-m", "exporter", "--d", str(args.d), "--out", out])
        print(f"export at d = {args.d}")
        report("time", export.seconds, 60, "s")
        report("peak memory", export.memory, 2, "GB")
        for path in sorted(Path(out).glob("*.onnx")):
            report(path.name, path.stat().st_size / 1e6, 5, "MB")
    listed = peer(WEIGHTS.format(d=args.d))
    neurons, nnz = listed.printed.split()[-2:]
    print(f"weight list of depth3 at d = {args.d}: {neurons} neurons, {nnz} weights, {listed.seconds:.1f} s")
    report("peak memory", listed.memory, 6, "GB")
    run = peer(RUN.format(d=args.d))
    print(f"depth3 fused, a batch of 64 at d = {args.d}, built and run in {run.seconds:.1f} s")
    report("peak memory", run.memory, 2, "GB")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
