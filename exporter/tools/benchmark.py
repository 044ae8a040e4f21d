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
PAGE = """# Medians for verifiers

Networks of `Gemm` and `Relu` that compute the median of d numbers in [0, 1] exactly on a grid of 2^b steps, d = 2 to 9 and
b = d - 1. Seed {seed}: {instances} instances, half of them unsat and half sat.

| file | contents |
|---|---|
| `instances.csv` | network, property in VNN-LIB 1.0, timeout in seconds |
| `instances2.csv` | the same with properties in VNN-LIB 2.0 (`vnnlib2/`) |
| `expected.csv` | property, `sat` or `unsat` |
| `counterexamples/` | for every `sat` an input with its outputs, run in onnxruntime |
| `generate_properties.py SEED` | writes the folder again: another seed draws other vectors and entries |

## Networks

- `batcher`: a sorting network. max(a, b) = b + relu(a - b), so the function is the median on all real numbers. Weights are
  -1, 0, 1 or a half. Bounds by intervals grow with every comparator.
- `radix`: digit by digit, the number of entries up to a threshold decides the next digit of the median. Steep ramps count,
  of slope 2^b. On real inputs the output is within one grid step of the median.
- `depth3`: three hidden layers compare all pairs, with slope 2^b, and select one rank. The output is the median wherever
  entries are a grid step apart.

## Properties

Let s be the grid step and m the median. A property file states the violation.

- `local`: m is monotone, so a box [l, u] gives outputs in [m(l), m(u)], up to s. For `depth3` this is exact: all entries
  of the box are s apart. Violated twin: the output stays below m(u), which is the output at u.
- `range`: m lies between the smallest and the largest entry, up to s. Violated twin: the output stays below the highest
  grid value of the box. Equal entries are their own median.
- `swap`: m does not depend on the order, so y(x) - y(swapped x) is 0, up to 2 s. Violated twin: one entry is overwritten by
  another instead, which can move m by half of the domain or more.
- `error` (odd d): less than half of the entries lie below m, and less than half above. Violated twin: fewer than
  (d - 1) / 2 entries lie below, or above.

`swap` and `error` are stated on chains made from the weights of the network: y(x) - y(x') and y(x) - x_k for every k.
The properties that hold follow from these arguments, and were tried on random inputs. `python -m exporter prove` proves the
networks exact on their grids.
"""


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
        files[out / "README.md"] = PAGE.format(seed=seed, instances=len(instances)).encode()
        replace_files(files)
    return len(instances)


def _csv(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
