"""Median filters over whole images, as ratios in one run to Slice/Concat + TopK in onnxruntime.

    python tests/benchmarks/bench_images.py [--size 1920x1080] [--window 3 5 7] [--rounds 3]
    python tests/benchmarks/bench_images.py --exact

One thread, one float32 image. Contenders take turns within every round, and the smallest time of each counts, of the
processor, so that other work on the machine changes little; of TopK it is the faster of two layouts. Exit status 1 when a
file of ours takes more than 0.2 (3 x 3), 0.25 (5 x 5), 0.3 (7 x 7) of TopK's time, or a run of 5 x 5 more than 40 images of
memory. scipy, numpy, OpenCV (on uint8) and, where installed, torch and kornia are printed beside. `--exact` compares uint8
files of all profiles with OpenCV and scipy instead, in every pixel of images of three channels from 1 x 1 to 1920 x 1080.
Peak memory is read from Linux's /proc.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper
from scipy import ndimage
from tqdm import tqdm

from exporter.formats.session import open_session
from exporter.frontends.images.running import windows
from exporter.ir.graph import Graph
from exporter.library import export_model
from exporter.passes.profiles import IMAGE_PROFILES

ROOT = Path(__file__).parents[2]
LIMITS = {3: 0.2, 5: 0.25, 7: 0.3}
MEMORY = 40  # images, for a run of 5 x 5
Array = np.ndarray[Any, Any]

PEAK = """
import re, sys
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
h, w = map(int, sys.argv[2:])
x = np.random.default_rng(0).random((1, 1, h, w), dtype=np.float32)
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
session.run(None, {"x": x[:, :, :9, :9]})
before = peak()
session.run(None, {"x": x})
print((peak() - before) * 1024 / x.nbytes)
"""


def topk(k: int, last: bool) -> onnx.ModelProto:
    """The k^2 shifts of the image along a last axis of their own, or along the channels', and TopK along them."""
    graph, r, middle = Graph(np.dtype("float32"), once=True), k // 2, k * k // 2 + 1
    padded = graph.add("Pad", ["x", graph.shape([0, 0, r, r, 0, 0, r, r])], mode="edge")
    axis, parts = 4 if last else 1, []
    for i in range(k):
        for j in range(k):
            ends = [-(k - 1 - i) or 1 << 62, -(k - 1 - j) or 1 << 62]
            part = graph.add("Slice", [padded, *map(graph.shape, ([i, j], ends, [2, 3]))])
            parts.append(graph.add("Unsqueeze", [part, graph.shape([4])]) if last else part)
    graph.nodes.append(
        helper.make_node(
            "TopK", [graph.add("Concat", parts, axis=axis), graph.shape([middle])], ["top", "where"], axis=axis
        )
    )
    graph.add("Slice", ["top", *map(graph.shape, ([middle - 1], [middle], [axis]))])
    graph.nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph(graph.nodes, "topk", [x], [y], list(graph.initializers.values()))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(source: Path | onnx.ModelProto) -> Callable[[Array], Array]:
    run = open_session(source)
    return lambda x: run.run(None, {"x": x})[0]


def others(k: int) -> dict[str, Callable[[Array], Array]]:
    """What else computes the filter here; OpenCV has float32 up to 5 x 5, so that it is given the 8-bit image."""
    cv2.setNumThreads(1)
    found: dict[str, Callable[[Array], Array]] = {
        "scipy median_filter": lambda x: ndimage.median_filter(x[0, 0], size=k, mode="nearest"),
        "numpy median of windows": lambda x: np.median(windows(x, (k, k), "edge"), axis=-1),
        "OpenCV medianBlur, uint8": lambda x: cv2.medianBlur(x[0, 0].astype(np.uint8), k),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)

    def unfold(x: Array) -> Array:
        padded = torch.nn.functional.pad(torch.from_numpy(x), [k // 2] * 4, mode="replicate")
        return padded.unfold(2, k, 1).unfold(3, k, 1).flatten(4).median(dim=-1).values.numpy()

    found["torch median of windows"] = unfold
    try:
        median_blur = import_module("kornia.filters").median_blur
    except ImportError:
        return found
    found["kornia median_blur, zero border"] = lambda x: median_blur(torch.from_numpy(x), (k, k)).numpy()
    return found


def timed(k: int, x: Array, rounds: int, folder: Path) -> bool:
    """One window: the table, and whether the limits are kept."""
    calls: dict[str, Callable[[Array], Array]] = {}
    for profile in IMAGE_PROFILES:
        calls[f"ours, {profile}"] = session(export_model(window=(k, k), profile=profile, out=folder))
    calls["TopK, last axis"] = session(topk(k, last=True))
    calls["TopK, channel axis"] = session(topk(k, last=False))
    calls |= others(k)
    truth = ndimage.median_filter(x[0, 0], size=k, mode="nearest")
    best: dict[str, float] = {}
    for turn in range(rounds):
        for name, call in tqdm(calls.items(), desc=f"{k} x {k}, round {turn + 1}", disable=None, leave=False):
            if turn and best[name] > 2:
                continue  # once is enough of what takes seconds
            start = time.process_time()
            y = call(x)
            best[name] = min(best.get(name, np.inf), time.process_time() - start)
            assert "kornia" in name or (y.reshape(truth.shape) == truth).all(), name
    peer = min(seconds for name, seconds in best.items() if name.startswith("TopK"))
    kept = all(seconds <= LIMITS.get(k, np.inf) * peer for name, seconds in best.items() if name.startswith("ours"))
    print(f"{k} x {k}, {x.shape[3]} x {x.shape[2]} float32" + (f", limit {LIMITS[k]} x TopK" if k in LIMITS else ""))
    for name, seconds in best.items():
        print(f"  {name:34} {seconds * 1e3:9.1f} ms {seconds / peer:8.3f} x TopK")
    return kept


def peak(k: int, profile: str, x: Array, folder: Path) -> float:
    """The memory of a run beyond that of a small one, in images, in a process of its own."""
    path = export_model(window=(k, k), profile=profile, out=folder)
    command = [sys.executable, "-c", PEAK, str(path), str(x.shape[2]), str(x.shape[3])]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def exact(folder: Path) -> bool:
    """Every pixel of uint8 images against OpenCV and scipy."""
    wrong, rng = 0, np.random.default_rng(0)
    for k in (3, 5, 7):
        for profile in IMAGE_PROFILES:
            run = session(export_model(window=(k, k), profile=profile, dtype="uint8", out=folder))
            for w, h in ((1, 1), (7, 1), (640, 480), (1920, 1080)):
                x = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
                y = np.moveaxis(run(np.moveaxis(x, -1, 0)[None])[0], 0, -1)
                by_cv = int((y != cv2.medianBlur(x, k).reshape(x.shape)).sum())
                by_scipy = int((y != ndimage.median_filter(x, size=(k, k, 1), mode="nearest")).sum())
                wrong += by_cv + by_scipy
                print(f"{k} x {k} {profile:10} {w:4} x {h:4}: {by_cv} pixels differ from OpenCV, {by_scipy} from scipy")
    return wrong == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1920x1080", help="width x height")
    parser.add_argument("--window", type=int, nargs="+", default=[3, 5, 7])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exact", action="store_true", help="compare pixels instead of times")
    args = parser.parse_args()
    w, h = map(int, args.size.split("x"))
    x = np.random.default_rng(0).integers(0, 256, (1, 1, h, w)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.exact:
            return 0 if exact(folder) else 1
        kept = True
        for k in args.window:
            kept &= timed(k, x, args.rounds, folder)
        for profile in ("minmax", "structured"):
            used = peak(5, profile, x, folder)
            kept &= used <= MEMORY
            print(f"peak memory of a run, 5 x 5, {profile:10} {used:5.1f} images (limit {MEMORY})")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
