"""A model of other people and its files: read, raised to our opset, opened in onnxruntime, and written."""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from onnx import version_converter

from exporter.errors import UserError, WriteError
from exporter.formats.manifest import replace_files, writable
from exporter.formats.model_file import reading
from exporter.formats.session import running

OPSET = 13  # the first with the operators that we write
LARGEST = 2**31 - 1  # bytes of a protobuf message
TOO_LARGE = (
    "is larger than 2 GB, which no protobuf message may be: save it with its data beside it, "
    "onnx.save(model, path, save_as_external_data=True)"
)


class Unchecked(UserError):
    """onnxruntime does not run the old model, so there is nothing to compare with."""


def load(path: Path) -> onnx.ModelProto:
    """The model of a file. External data stays where it is."""
    with reading(path):
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} {TOO_LARGE}")
        proto = onnx.load(path, load_external_data=False)
    if not proto.graph.node or not proto.opset_import:
        raise UserError(f"{path} is not a valid ONNX file: it has no nodes")
    for name in external_files(proto):
        if not Path(os.path.abspath(path.parent / name)).is_relative_to(os.path.abspath(path.parent)):
            raise UserError(f"{path}: its data file {name} is not in the model's own folder: save the model anew")
        if not (path.parent / name).is_file():
            raise UserError(f"{path}: its data file {name} is not beside it")
    return proto


def raised(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[int, int]]:
    """The model in an opset with the operators that we write, and its opset before and after."""
    now = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), OPSET)
    if now >= OPSET:
        return proto, (now, now)
    try:
        newer = version_converter.convert_version(proto, OPSET)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the model is of opset {now}, the new nodes need {OPSET}, and it cannot be raised: {reason[:160]}; export it "
            f"again with opset {OPSET}"
        ) from error
    newer.metadata_props.extend(p for p in proto.metadata_props if p.key not in {q.key for q in newer.metadata_props})
    return newer, (now, OPSET)


def graphs_of(proto: onnx.ModelProto) -> list[Any]:
    """The main graph, the functions, and the bodies of If, Loop and Scan in all of them."""
    graphs: list[Any] = [proto.graph, *proto.functions]
    for graph in graphs:  # grows
        for attribute in (a for node in graph.node for a in node.attribute):
            graphs += [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs
    return graphs


def external_files(proto: onnx.ModelProto) -> list[str]:
    """The files beside a model that hold its data."""
    graphs = graphs_of(proto)
    tensors = [tensor for graph in graphs for tensor in getattr(graph, "initializer", [])]
    for attribute in (a for graph in graphs for node in graph.node for a in node.attribute):
        tensors += [attribute.t, *attribute.tensors]
    return sorted({e.value for t in tensors for e in t.external_data if e.key == "location"})


@contextmanager
def placed(protos: Sequence[onnx.ModelProto], folder: Path) -> Iterator[list[Path]]:
    """The models as files in a temporary folder, with their external data (linked, or copied)."""
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


def opened(path: Path, name: str, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    """A session with the default options, which logs nothing."""
    options = options or ort.SessionOptions()
    options.log_severity_level = 4
    with running(name):
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextmanager
def sessions(protos: Sequence[onnx.ModelProto], folder: Path) -> Iterator[list[Any]]:
    """The old model, and the new one if it is given, in onnxruntime."""
    with placed(protos, folder) as (old, *new):
        try:
            first = opened(old, "the model")
        except UserError as error:
            reason = str(error).replace(str(old.parent), "")
            raise Unchecked(f"{reason}; compare both models where the old one runs") from None
        yield [first, *(opened(path, "the rewritten model") for path in new)]


def write(proto: onnx.ModelProto, source: Path, out: Path) -> None:
    """Write the model whole or not at all. Its data files are copied beside it, unless they are there already."""
    files: dict[Path, bytes | Path] = {}
    with writable(out.parent):
        for name in external_files(proto):
            target, there = out.parent / name, source.parent / name
            if target.resolve() == out.resolve():
                raise WriteError(f"{out} is the name of the model's data file: choose another")
            if target.exists() and not (target.samefile(there) or filecmp.cmp(target, there, shallow=False)):
                raise WriteError(f"{target} is there already and is not the model's data: choose another folder")
            if not target.exists():
                files[target] = there
        for target in files:
            target.parent.mkdir(parents=True, exist_ok=True)
        replace_files({**files, out: proto.SerializeToString(deterministic=True)})
