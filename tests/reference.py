"""The small reference models: `python -m tests.reference DIR` writes them all, byte for byte as they are committed.

Every construction for any data at d = 9, 25 and 64 on a grid of 16 bits, structured, in float32 where that is exact; those
made of comparators at d = 9 and 25 as Max and Min, which need no grid. For verifiers the exact ones as bare dense chains
too, without the layers that round and clamp data (radix on 8 bits), also at d = 3, with VNN-LIB properties beside them:
these speak of real numbers inside the domain, where such layers do nothing. What would be larger than LARGEST is left out,
and so are networks for uniform inputs only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.manifest import replace_file, write
from exporter.problem.spec import Spec
from exporter.problem.task import extremum, median
from exporter.progress import Progress
from exporter.prove.certificate import certify
from exporter.prove.exhaustive import MOST
from exporter.specs import file_name
from exporter.tools.properties import network, properties, serialized, source, vnnlib

BITS = 16
SIZES = (9, 25, 64)
DENSE_SIZES = (3, 9, 25)
COMPARED_SIZES = (9, 25)
LARGEST = 80_000  # bytes


def reference_models() -> Iterator[Spec]:
    """What is asked for; a construction that cannot be built at a size is left out."""
    for name, construction in CONSTRUCTIONS.items():
        if construction.uniform:
            continue
        bits = construction.dense_bits
        for d in SIZES:
            task = extremum(d, "max") if construction.op == "max" else median(d)
            yield Spec(task, name, bits=BITS, dtype="float32" if bits else "auto", profile="structured")
        for d in COMPARED_SIZES if construction.comparators else ():
            yield Spec(extremum(d, "max") if construction.op == "max" else median(d), name, profile="minmax")
        for d in DENSE_SIZES if bits else ():
            yield Spec(median(d), name, bits=bits, dtype="float32", profile="dense", inputs="grid")


def write_reference(out: Path) -> list[str]:
    """Write the models, their manifest, certificates and properties; returns why others were left out.

    Files so small that `prove` would run all their inputs have no certificate: it would speak of one machine.
    """
    skipped = []
    for spec in Progress(reference_models(), "writing reference models", "model"):
        name = file_name(spec)
        try:
            model = build(spec)
        except UserError as error:
            skipped.append(f"{name}: {error}")
            continue
        proto = to_onnx(model)
        if proto.ByteSize() > LARGEST:
            skipped.append(f"{name}: {proto.ByteSize()} bytes")
            continue
        write(proto, out / name, model.description())
        if (spec.grid.cells + 1) ** spec.task.d > MOST:
            certify(
                out / name, (out / name).with_suffix(".proof.json")
            )  # nothing is written for a file that is not proved
        if model.profile == "dense" and CONSTRUCTIONS[spec.construction].everywhere:
            _write_properties(out / name)
    return skipped


def _write_properties(path: Path) -> None:
    """The properties that hold for the whole domain, in VNN-LIB 1.0."""
    of = source(path)
    for p in properties(of):
        if p.name in ("range", "swap", "error"):
            replace_file(path.with_name(f"{path.stem}-{p.name}.vnnlib"), vnnlib(of, p).encode())
            if p.chain:
                replace_file(path.with_name(f"{path.stem}-{p.chain[0]}.onnx"), serialized(network(of, p)))


if __name__ == "__main__":
    print("\n".join(f"left out {line}" for line in write_reference(Path(sys.argv[1]))))
