"""Networks and properties for verifiers, in the form of VNN-COMP: `python -m exporter benchmark --out DIR --seed S`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.manifest import replace_files, writable
from exporter.library import file_name
from exporter.options import Options
from exporter.problem.grid import Grid
from exporter.problem.task import median
from exporter.progress import Progress
from exporter.tools.properties import checked, counterexample, network, properties, serialized, source, vnnlib

LADDER = range(2, 10)  # d, on d - 1 bits
TIMEOUT = 60  # seconds for an instance
FOLDERS = ("onnx", "vnnlib", "vnnlib2", "counterexamples")
GENERATE = '''"""python generate_properties.py SEED: write this folder again (needs the package onnx-median)."""

import sys
from pathlib import Path

from exporter.tools.benchmark import write_benchmark

write_benchmark(Path(__file__).resolve().parent, int(sys.argv[1]))
'''
PAGE = Path(__file__).with_suffix(".md")


def write_benchmark(out: Path, seed: int = 0) -> int:
    """Write the set; returns the number of instances. A folder with other files is refused."""
    instances: list[tuple[str, str, str]] = []
    files: dict[Path, bytes] = {}
    script = out / "generate_properties.py"
    if out.is_dir() and any(out.iterdir()) and not (script.is_file() and script.read_bytes() == GENERATE.encode()):
        raise UserError(f"{out} has other files: a benchmark needs a folder of its own, choose another --out")
    with writable(out):
        for folder in FOLDERS:
            (out / folder).mkdir(exist_ok=True)
        replace_files({script: GENERATE.encode()})  # an interrupted run may be repeated
        steps = [(d, name) for d in LADDER for name in CONSTRUCTIONS if CONSTRUCTIONS[name].dense_bits]
        for d, name in Progress(steps, "writing the benchmark", "network"):
            options = Options(name, grid=Grid(bits=d - 1), dtype="float32", profile="dense", inputs="grid")
            path = out / "onnx" / file_name(median(d), options)
            replace_files({path: serialized(to_onnx(build(median(d), options)))})
            of = source(path)
            for p in properties(of, seed * 1000 + d + 1, LADDER[-1]):
                y = checked(of, p)
                net = path.with_name(f"{path.stem}-{p.chain[0]}.onnx") if p.chain else path
                if p.chain:
                    files[net] = serialized(network(of, p))
                stem = f"{path.stem}-{p.name}"
                files[out / "vnnlib" / f"{stem}.vnnlib"] = vnnlib(of, p).encode()
                files[out / "vnnlib2" / f"{stem}.vnnlib"] = vnnlib(of, p, 2).encode()
                if y is not None:
                    files[out / "counterexamples" / f"{stem}.txt"] = counterexample(p, y.tolist()).encode()
                instances.append((f"onnx/{net.name}", f"{stem}.vnnlib", "unsat" if y is None else "sat"))
        files[out / "instances.csv"] = _csv(f"{net},vnnlib/{p},{TIMEOUT}" for net, p, _ in instances)
        files[out / "instances2.csv"] = _csv(f"{net},vnnlib2/{p},{TIMEOUT}" for net, p, _ in instances)
        files[out / "expected.csv"] = _csv(f"{p},{answer}" for _, p, answer in instances)
        files[out / "README.md"] = PAGE.read_text().format(seed=seed, instances=len(instances)).encode()
        replace_files(files)
    return len(instances)


def _csv(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
