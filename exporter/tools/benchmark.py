"""Networks and properties for verifiers, in the form of VNN-COMP: `python -m exporter benchmark --out DIR --seed S`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.manifest import replace_files, writable
from exporter.problem.spec import Spec
from exporter.problem.task import Task, median, rank
from exporter.progress import Progress
from exporter.specs import file_name
from exporter.tools.properties import (
    DenseFile,
    Property,
    checked,
    counterexample,
    dense_file,
    equal,
    network,
    properties,
    serialized,
    vnnlib,
)
from exporter.tools.trained import ensemble
from exporter.tools.trained import properties as trained_properties

LADDER = range(2, 10)  # d, on d - 1 bits
MEMBERS = (3, 5, 7, 9)  # of trained ensembles
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
    instances: list[tuple[str, str, str, str]] = []
    files: dict[Path, bytes] = {}
    script = out / "generate_properties.py"
    if out.is_dir() and any(out.iterdir()) and not (script.is_file() and script.read_bytes() == GENERATE.encode()):
        raise UserError(f"{out} has other files: a benchmark needs a folder of its own, choose another --out")
    with writable(out):
        for folder in FOLDERS:
            (out / folder).mkdir(exist_ok=True)
        replace_files({script: GENERATE.encode()})  # an interrupted run may be repeated
        for of, p in Progress(_properties(seed), "writing the benchmark", "instance"):
            y = checked(of, p)
            net = f"onnx/{of.stem}-{p.chain[0]}.onnx" if p.chain else f"onnx/{of.stem}.onnx"
            files[out / f"onnx/{of.stem}.onnx"] = serialized(of.proto)
            files[out / net] = serialized(network(of, p))
            both = net
            if p.other:
                one, two = (f"onnx/{file.stem}.onnx" for file in (of, p.other))
                files[out / two] = serialized(p.other.proto)
                both = f"\"[('f', '{one}'), ('g', '{two}')]\""
            name = f"{of.stem}-{p.name}"
            files[out / "vnnlib" / f"{name}.vnnlib"] = vnnlib(of, p).encode()
            files[out / "vnnlib2" / f"{name}.vnnlib"] = vnnlib(of, p, 2).encode()
            if y is not None:
                files[out / "counterexamples" / f"{name}.txt"] = counterexample(p, y.tolist()).encode()
            instances.append((net, both, f"{name}.vnnlib", "unsat" if y is None else "sat"))
        files[out / "instances.csv"] = _csv(f"{net},vnnlib/{p},{TIMEOUT}" for net, _, p, _ in instances)
        files[out / "instances2.csv"] = _csv(f"{both},vnnlib2/{p},{TIMEOUT}" for _, both, p, _ in instances)
        files[out / "expected.csv"] = _csv(f"{p},{answer}" for *_, p, answer in instances)
        files[out / "README.md"] = PAGE.read_text().format(seed=seed, instances=len(instances)).encode()
        replace_files(files)
    return len(instances)


def _properties(seed: int) -> Iterator[tuple[DenseFile, Property]]:
    for d in LADDER:
        files = {name: _exported(median(d), name) for name, c in CONSTRUCTIONS.items() if c.dense_bits}
        for file in files.values():
            yield from ((file, p) for p in properties(file, seed * 1000 + d + 1, LADDER[-1]))
        if d == LADDER[0]:
            continue  # two steps of its grid are the whole domain
        one, other = (name for name in files if CONSTRUCTIONS[name].everywhere)
        beyond = _exported(rank(d, [files[one].task.ranks[0] + 1]), one)
        yield from ((files[other], p) for p in equal(files[other], files[one], beyond))
    for members in MEMBERS:
        predictions, file = ensemble(members, seed)
        yield from ((file, p) for p in trained_properties(file, predictions, seed))


def _exported(task: Task, construction: str) -> DenseFile:
    spec = Spec(task, construction, bits=task.d - 1, dtype="float32", profile="dense", inputs="grid")
    return dense_file(to_onnx(build(spec)), Path(file_name(spec)))


def _csv(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
