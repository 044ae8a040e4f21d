"""What int8 quantisation does to files of ours and to a model with a median inside: the tables of docs/quantisation.md.

    python tests/benchmarks/bench_quantisation.py

A batcher of nine 8-bit numbers, and Conv, a median of nine channels, Conv; quantised by onnxruntime as it likes, with our
nodes excluded, and with a scale on the grid. Exit status 1 when a median that should be exact is not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnx

from exporter.formats.quantisation import nodes_to_exclude
from exporter.frontends.rewriting.rewrite import rewrite
from exporter.library import export_model
from tests.exporter.passes.quantised import SCALE, convolutions, median_inside, quantised, run

RULE = "\n" + "|---" * 5 + "|"
PROFILES = ("dense", "structured", "fused", "minmax")


def files(folder: Path) -> bool:
    rng, kept = np.random.default_rng(0), True
    x = rng.integers(0, 256, (10_000, 9)).astype(np.float32)
    truth = np.median(x, axis=1)
    print("| a batcher of nine pixels | right before | right after | largest error | our nodes excluded |" + RULE)
    for profile in PROFILES:
        about: dict[str, Any] = {} if profile == "minmax" else {"domain": (0, 255), "bits": 8}
        path = export_model(d=9, construction="batcher", profile=profile, out=folder, **about)
        before = run(onnx.load(path), x)[0][:, 0]
        after, excluded = (
            run(quantised(path, [row[None] for row in x[:100]], names), x)[0][:, 0]
            for names in ([], nodes_to_exclude(path))
        )
        rates = [f"{(y == truth).mean():.1%}" for y in (before, after, excluded)]
        print(f"| `{profile}` | {rates[0]} | {rates[1]} | {np.abs(after - truth).max():.3g} | {rates[2]} |")
        kept &= bool((before == truth).all() and (excluded == truth).all())
    return kept


def inside(folder: Path) -> bool:
    x, kept = np.random.default_rng(1).normal(size=(8, 1, 16, 16)).astype(np.float32), True
    path, new = folder / "model.onnx", folder / "new.onnx"
    path.write_bytes(convolutions().SerializeToString())
    print("\n| Conv, median, Conv | excluded | scale of its input | medians equal to numpy's | largest error |" + RULE)
    grid: dict[str, Any] = {"domain": (-128 * SCALE, 127 * SCALE), "bits": 8}
    for profile, about in (("minmax", {}), ("structured", grid)):
        rewrite(path, new, profile=profile, check=False, **about)
        ours = nodes_to_exclude(new)
        for names in ([], ours):
            for scale in (None, SCALE):
                q = quantised(new, [image[None] for image in x], names, scale=scale)
                found, truth = median_inside(q, ours, x)
                rate, error = (found == truth).mean(), np.abs(found - truth).max()
                chosen = "calibrated" if scale is None else f"{scale:g}"
                print(f"| `{profile}` | {'yes' if names else 'no'} | {chosen} | {rate:.1%} | {error:.3g} |")
                kept &= not names or (profile == "structured" and scale is None) or error == 0
    return kept


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        return 0 if files(Path(name)) & inside(Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
