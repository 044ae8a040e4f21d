"""Both models in onnxruntime on the same inputs: every replaced node and every output, equal bit for bit or how far off."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from exporter.errors import UserError, spelled
from exporter.formats.session import running
from exporter.frontends.rewriting.find import Request
from exporter.frontends.rewriting.report import Compared, Replaced

Feed = dict[str, Any]
KINDS = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8, "tensor(int16)": np.int16, "tensor(uint16)": np.uint16, "tensor(int32)": np.int32,
    "tensor(int64)": np.int64, "tensor(bool)": np.bool_,
}  # fmt: skip
FREE = 3  # the length of an axis that may have any
DRAWS = 6


class Unchecked(UserError):
    """onnxruntime does not run the model as it is, so that there is nothing to compare with."""


def external_files(proto: onnx.ModelProto) -> list[str]:
    """The files beside a model that hold its data, of the bodies of If and Loop and of functions too."""
    tensors: list[onnx.TensorProto] = []
    graphs: list[Any] = [proto.graph, *proto.functions]
    while graphs:
        graph = graphs.pop()
        tensors += getattr(graph, "initializer", [])
        for attribute in (a for node in graph.node for a in node.attribute):
            tensors += [attribute.t, *attribute.tensors]
            graphs += [attribute.g, *attribute.graphs]
    return sorted({e.value for t in tensors for e in t.external_data if e.key == "location"})


@contextmanager
def placed(protos: Sequence[onnx.ModelProto], folder: Path) -> Iterator[list[Path]]:
    """The models as files in a folder of their own, which also holds their external data (linked, or copied)."""
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        for file in external_files(protos[0]):
            (there / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(folder / file, there / file)
            except OSError:
                shutil.copyfile(folder / file, there / file)
        paths = [there / f"model{i}.onnx" for i in range(len(protos))]
        for path, proto in zip(paths, protos, strict=True):
            path.write_bytes(proto.SerializeToString())
        yield paths


def quiet() -> Any:
    """Options of a session that logs nothing."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


@contextmanager
def sessions(protos: Sequence[onnx.ModelProto], folder: Path) -> Iterator[list[Any]]:
    """The models in onnxruntime, with the options of a default session; the first is the model as it was."""
    with placed(protos, folder) as paths:
        loaded = []
        for i, path in enumerate(paths):
            try:
                with running("the rewritten model" if i else "the model"):
                    loaded.append(ort.InferenceSession(path, quiet(), providers=["CPUExecutionProvider"]))
            except UserError as error:
                if i:
                    raise
                told = str(error).replace(str(path.parent), "")
                raise Unchecked(f"{told}; compare both models where the old one runs") from None
        yield loaded


def watched(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with more of its tensors as outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    there = {o.name for o in [*copy.graph.output, *copy.graph.input]}
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names) if n not in there)
    return copy


def feeds(session: Any, calibration: Sequence[Feed], domain: Sequence[float] | None) -> list[Feed]:
    """The calibration data, then random inputs: with ties, without and over a wide range.

    Where a range is given, or that of calibration data is known, the random ones stay within.
    """
    rng, sources = np.random.default_rng(0), session.get_inputs()
    if any(source.type not in KINDS for source in sources):
        return [*calibration]  # a type that is not drawn: strings, sequences
    drawn: list[Feed] = []
    for draw in range(DRAWS):
        free: dict[str, int] = {}
        feed = {}
        for source in sources:
            shape = [n if isinstance(n, int) else free.setdefault(n or "", FREE + draw) for n in source.shape]
            known = [float(end(given[source.name])) for given in calibration for end in (np.min, np.max)] or domain
            ends = (min(known), max(known)) if known is not None and np.isfinite(known).all() else None
            kind = np.dtype(KINDS[source.type])
            feed[source.name] = np.asarray(_drawn(rng, kind, shape, draw, ends), kind)
        drawn.append(feed)
    return [*calibration, *drawn]


def _drawn(
    rng: np.random.Generator, kind: np.dtype[Any], shape: list[int], draw: int, ends: tuple[float, float] | None
) -> Any:
    """Numbers of a type, between the ends if there are any, over three ranges in turn; every other time with many ties."""
    floats, far = kind.kind == "f", (4.0, 100.0, 1e4 if kind.kind == "f" else 2.0**30)[draw % 3]
    lo, hi = ends or (-far if floats or draw % 3 == 2 else 0.0, far)
    if kind.kind == "b":
        lo, hi = 0, 1
    elif not floats:
        lo, hi = max(np.iinfo(kind).min, math.ceil(lo)), min(np.iinfo(kind).max, math.floor(hi))
    parts = rng.random(shape) if draw % 2 else rng.integers(0, 9, shape) / 8
    x = np.clip(lo * (1 - parts) + hi * parts, lo, max(lo, hi))
    return x if floats else np.rint(x)


def calibration_data(path: Path, session: Any) -> list[Feed]:
    """The arrays of an .npz file, by the names of the model's inputs, in batches of the length that the model takes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception:
        raise UserError(f"{path} is not an .npz file of arrays: write it with numpy.savez(path, name=array)") from None
    wanted = [i.name for i in session.get_inputs()]
    if sorted(data) != sorted(wanted):
        raise UserError(f"{path} holds {', '.join(data) or 'nothing'}, and the model's inputs are {', '.join(wanted)}")
    batches: dict[str, list[Any]] = {}  # of inputs that hold several
    for source in session.get_inputs():
        name, array, kind = source.name, data[source.name], KINDS.get(source.type)
        dims = source.shape or array.shape  # [] where nothing is known
        if kind is not None and array.dtype != kind:
            raise UserError(f"{path}: {name} is {array.dtype}, and the model takes {np.dtype(kind)}")
        off = [
            axis for axis, (n, d) in enumerate(zip(array.shape, dims, strict=False)) if isinstance(d, int) and d != n
        ]
        if array.ndim == len(dims) and off == [0] and len(array) and len(array) % dims[0] == 0:
            batches[name] = np.split(array, len(array) // dims[0])
        elif array.ndim != len(dims) or off:
            free = ", ".join(str(d) if isinstance(d, int) else "any" for d in dims)
            raise UserError(f"{path}: {name} has the shape {list(array.shape)}, and the model takes [{free}]")
        if array.size == 0:
            raise UserError(f"{path}: {name} is empty, so nothing can be measured")
    counts = sorted({len(some) for some in batches.values()})
    if len(counts) > 1:
        raise UserError(f"{path}: its arrays hold different numbers of batches: {', '.join(map(str, counts))}")
    return [data | {name: some[i] for name, some in batches.items()} for i in range(*counts or [1])]


def run(session: Any, feed: Feed, names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}  # an empty list would ask for all of them
    with running("the model"):
        return dict(zip(names, session.run(list(names), feed), strict=True))


def ranges(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The least and the largest number of each tensor that has any."""
    found = {n: [r[n] for r in results if r[n].size] for n in names}
    return {
        n: (min(float(v.min()) for v in some), max(float(v.max()) for v in some)) for n, some in found.items() if some
    }


def compared(name: str, pairs: Sequence[tuple[Feed, Feed]], request: Request | None = None) -> Compared:
    """A tensor of both models, over all inputs; of a TopK only the positions that are read, sorted where it is not."""
    equal, most = True, 0.0
    for before, after in pairs:
        a, b = (np.asarray(results[name]) for results in (before, after))
        if a.shape != b.shape or a.dtype != b.dtype:
            return Compared(name, False, float("inf"))
        if request is not None and request.op == "TopK":
            a, b = (v.take(request.read, axis=request.axis) for v in (a, b))
            if not request.ordered:
                a, b = (np.sort(v, axis=request.axis) for v in (a, b))
        if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            continue
        equal = False
        with np.errstate(all="ignore"):
            off = np.abs(a.astype(np.float64) - b.astype(np.float64))
        most = max(most, float(np.nan_to_num(off, nan=np.inf).max()))
    return Compared(name, equal, most)


def check(
    before: onnx.ModelProto, after: onnx.ModelProto, folder: Path, replaced: Sequence[Replaced], *,
    calibration: Sequence[Feed], domain: Sequence[float] | None,
) -> tuple[list[Compared], int]:  # fmt: skip
    """Every output of the files as they are written, and on how many inputs.

    What was found of every replaced tensor, which is made an output for that, is added to `replaced`.
    """
    made = {name for node in after.graph.node for name in node.output}  # without indices that only a Gather read
    watch = [
        [name for name in (r.values, r.indices) if name and name in made and (r.ordered or not r.fetch)]
        for r in (one.request for one in replaced)
    ]
    names = [name for some in watch for name in some]
    outputs = [o.name for o in before.graph.output]
    sources = sorted({one.source for one in replaced if not one.request.fetch})
    with sessions([watched(before, [*names, *sources]), watched(after, names)], folder) as (old, new):
        given = {i.name for i in old.get_inputs()}
        asked = list(dict.fromkeys([*outputs, *names]))
        taken, pairs = [], []
        for place, feed in enumerate(feeds(old, calibration, domain)):
            try:
                a = run(old, feed, [*asked, *(s for s in sources if s not in given and s not in asked)])
            except UserError:
                if place < len(calibration):
                    raise
                continue  # not every random input is one that a model takes
            taken.append(feed)
            pairs.append((a | feed, run(new, feed, asked)))
    if not pairs:
        raise Unchecked(
            f"the model takes none of the inputs that were drawn; give {spelled('calibrate')} a file with some"
        )
    with sessions([before, after], folder) as (old, new):
        written = [(run(old, feed, outputs), run(new, feed, outputs)) for feed in taken]
    seen = ranges([a for a, _ in pairs], sources)
    for one, its in zip(replaced, watch, strict=True):
        one.outputs = [compared(name, pairs, one.request) for name in its]
        one.seen = seen.get(one.source)
        one.error += one.rounding * max((abs(end) for end in one.seen or ()), default=0.0)
    ends = []
    for name in outputs:
        end = compared(name, written)
        ends.append(replace(end, fused=not end.equal and compared(name, pairs).equal))
    return ends, len(pairs)
