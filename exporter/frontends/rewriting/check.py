"""Both models in onnxruntime on the same inputs: every replaced node and every output, equal bit for bit or how far off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnx

from exporter.errors import UserError, spelled
from exporter.formats.session import running
from exporter.frontends.rewriting.files import Unchecked, sessions
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


def _watched(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with more of its tensors as outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    there = {o.name for o in [*copy.graph.output, *copy.graph.input]}
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names) if n not in there)
    return copy


def _drawn(session: Any, calibration: Sequence[Feed], domain: Sequence[float] | None) -> list[Feed]:
    """Random inputs: with ties, without and over a wide range.

    Where a range is given, or that of calibration data is known, they stay within.
    """
    rng, sources = np.random.default_rng(0), session.get_inputs()
    if any(source.type not in KINDS for source in sources):
        return []  # a type that is not drawn: strings, sequences
    drawn: list[Feed] = []
    for draw in range(DRAWS):
        free: dict[str, int] = {}
        feed = {}
        for source in sources:
            shape = [n if isinstance(n, int) else free.setdefault(n or "", FREE + draw) for n in source.shape]
            known = [float(end(given[source.name])) for given in calibration for end in (np.min, np.max)] or domain
            kind: np.dtype[Any] = np.dtype(KINDS[source.type])
            floats = kind.kind == "f"
            far = (4.0, 100.0, 1e4 if floats else 2.0**30)[draw % 3]
            wide = (-far if floats or draw % 3 == 2 else 0.0, far)
            ends = known if known is not None and np.isfinite(known).all() else wide
            lo, hi = (0, 1) if kind.kind == "b" else (min(ends), max(ends))
            if kind.kind in "iu":
                lo, hi = max(np.iinfo(kind).min, math.ceil(lo)), min(np.iinfo(kind).max, math.floor(hi))
            parts = rng.random(shape) if draw % 2 else rng.integers(0, 9, shape) / 8  # every other time many ties
            x = np.clip(lo * (1 - parts) + hi * parts, lo, max(lo, hi))
            feed[source.name] = np.asarray(x if floats else np.rint(x), kind)
        drawn.append(feed)
    return drawn


def calibrated(
    proto: onnx.ModelProto, names: Sequence[str], data: Path, folder: Path
) -> tuple[list[Feed], dict[str, tuple[float, float]]]:
    """The calibration data, and the range of each of these tensors on that data."""
    with sessions([_watched(proto, names)], folder) as (session,):
        feeds = _calibration(data, session.get_inputs())
        outputs = [output.name for output in session.get_outputs()]
        with running(data):
            results = [feed | dict(zip(outputs, session.run(None, feed), strict=True)) for feed in feeds]
        return feeds, _ranges(results, names)


def _calibration(path: Path, sources: Sequence[Any]) -> list[Feed]:
    """The arrays of an .npz file, by the names of the model's inputs, in batches of the length that the model takes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, AttributeError, BadZipFile) as error:  # a single array has no names
        told = "is not an .npz file of arrays: write it with numpy.savez(path, name=array)"
        raise UserError(f"{path} {told}") from error
    lengths = {source.name: source.shape[0] for source in sources if source.shape}
    batches: dict[str, list[Any]] = {}
    for name, array in data.items():
        if array.size == 0:
            raise UserError(f"{path}: {name} is empty, so nothing can be measured")
        length: Any = lengths.get(name)
        several = isinstance(length, int) and array.ndim and len(array) % length == 0
        batches[name] = np.split(array, len(array) // length) if several and length else [array]
    counts = sorted({len(some) for some in batches.values()} - {1})
    if len(counts) > 1:
        raise UserError(f"{path}: its arrays hold different numbers of batches: {', '.join(map(str, counts))}")
    return [{name: some[i % len(some)] for name, some in batches.items()} for i in range(*counts or [1])]


def _run(session: Any, feed: Feed, names: Sequence[str]) -> Feed:
    """The tensors of these names, which are outputs of the session or in the feed."""
    asked = [name for name in dict.fromkeys(names) if name not in feed]
    with running("the model"):
        return feed | dict(zip(asked, session.run(asked, feed) if asked else [], strict=True))


def _ranges(results: Sequence[Feed], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The least and the largest number of each tensor that has any."""
    found = {name: [result[name] for result in results if result[name].size] for name in names}
    return {
        n: (min(float(v.min()) for v in some), max(float(v.max()) for v in some)) for n, some in found.items() if some
    }


def _compared(name: str, pairs: Sequence[tuple[Feed, Feed]], request: Request | None = None) -> Compared:
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
    for one in replaced:
        request = one.request
        names = [request.values, request.indices] if request.ordered or not request.fetch else []
        one.watched = [name for name in names if name and name in made]
    watch = [name for one in replaced for name in one.watched]
    outputs = [o.name for o in before.graph.output]
    sources = sorted({one.request.x for one in replaced if not one.request.fetch})
    with sessions([_watched(before, [*watch, *sources]), _watched(after, watch)], folder) as (old, new):
        taken, pairs, refused = [], [], ""
        for place, feed in enumerate([*calibration, *_drawn(old, calibration, domain)]):
            try:
                a = _run(old, feed, [*outputs, *watch, *sources])
            except UserError as error:
                if place < len(calibration):
                    raise
                refused = f" ({error})"
                continue  # not every random input is one that a model takes
            taken.append(feed)
            pairs.append((a, _run(new, feed, [*outputs, *watch])))
    if not pairs:
        raise Unchecked(
            f"the model takes none of the inputs that were drawn; give {spelled('calibrate')} a file with some "
            f"(without a range of the data: with {spelled('profile', 'minmax')}){refused}"
        )
    with sessions([before, after], folder) as (old, new):
        written = [(_run(old, feed, outputs), _run(new, feed, outputs)) for feed in taken]
    seen = _ranges([a for a, _ in pairs], sources)
    for one in replaced:
        one.outputs = [_compared(name, pairs, one.request) for name in one.watched]
        one.seen = seen.get(one.request.x)
    ends = []
    for name in outputs:
        end = _compared(name, written)
        ends.append(replace(end, fused=not end.equal and _compared(name, pairs).equal))
    return ends, len(pairs)
