"""The small reference models: `python -m exporter.reference DIR` writes them all, byte for byte as they are committed.

Every construction at d = 9, 25 and 64 in float32 on a grid of 16 bits (dense radix: 8): structured, and dense where the
chain is small, with VNN-LIB properties beside it; dense at d = 5 too, for verifiers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from exporter.api import file_name
from exporter.build import Options, build, dense_weights
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.grid import Grid
from exporter.onnx_file import to_onnx, write
from exporter.task import Task, median
from exporter.vnnlib import EVERYWHERE, write_properties

BITS = 16
SIZES = (9, 25, 64)
DENSE_SIZES = (5, *SIZES)
DENSE = 40_000  # weights; a larger chain is not kept
DENSE_BITS = {"radix": 8}  # its depth grows with the bits


def reference_models() -> Iterator[tuple[Task, Options]]:
    """What is asked for; a construction that cannot be built at a size is left out."""
    for name in CONSTRUCTIONS:
        for d in SIZES:
            yield median(d), Options(name, Grid(bits=BITS), "float32", "structured")
        for d in DENSE_SIZES:
            yield median(d), Options(name, Grid(bits=DENSE_BITS.get(name, BITS)), "float32", "dense")


def write_reference(out: Path) -> list[str]:
    """Write the models, their manifest and properties; returns why others were left out."""
    skipped = []
    for task, options in tqdm(list(reference_models()), desc="reference models", disable=None, leave=False):
        name = file_name(task, options)
        try:
            model = build(task, options)
        except UserError as error:
            skipped.append(f"{name}: {error}")
            continue
        if model.profile == "dense" and dense_weights(model.network) > DENSE:
            skipped.append(f"{name}: {dense_weights(model.network)} weights")
            continue
        write(to_onnx(model), out / name, model.description())
        if model.profile == "dense" and options.construction in EVERYWHERE:
            write_properties(model, out / name)
    return skipped


if __name__ == "__main__":
    print("\n".join(f"left out {line}" for line in write_reference(Path(sys.argv[1]))))
