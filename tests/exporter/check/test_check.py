"""The checker proves our files, and never proves a file that rounds.

A mutant is a file of ours with one number changed. onnxruntime runs it in its own type and, with every stored number as
float64, in a type with 29 bits more: where the two answers differ on grid data, the file rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.build import build, to_onnx
from exporter.check import check
from exporter.frontends.images.build import build_filter, filter_to_onnx
from exporter.library import export
from exporter.problem import task as tasks
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from tests.exporter.check.rational import RATIONAL, exact

REFERENCE = Path(__file__).resolve().parents[3] / "models" / "reference"
PROVEN = [
    "max-tree-max-d9-b16-structured", "median-batcher-d25-b16-float32-structured", "median-batcher-d9-minmax",
    "median-batcher-d25-b16-grid-only-float32-dense", "median-depth3-d9-b16-float32-structured",
    "median-depth3-d3-b16-grid-only-float32-dense", "median-radix-d9-b16-float32-structured",
    "median-radix-d3-b8-grid-only-float32-dense", "median-radix-d64-b16-float32-structured",
]  # fmt: skip
PROFILES = ("dense", "matmul", "structured", "fused")


@cache
def small(construction: str, profile: str, inputs: str = "grid", bits: int = 14) -> bytes:
    options: Any = {"profile": profile, "inputs": inputs, "dtype": "float32"}
    return to_onnx(build(Spec(tasks.median(5), construction, bits=bits, **options))).SerializeToString()


@pytest.mark.parametrize("name", PROVEN)
def test_a_reference_file_is_proven(name: str) -> None:
    assert str(check(REFERENCE / f"{name}.onnx")) == "proven"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("construction", ["batcher", "radix", "depth3"])
@pytest.mark.parametrize("inputs", ["any", "grid"])
def test_a_small_file_is_proven(construction: str, profile: str, inputs: str) -> None:
    assert check(small(construction, profile, inputs, 8)).proven


@pytest.mark.parametrize(
    "options", [{"profile": "structured"}, {"profile": "minmax"}, {"dtype": "int8", "quantized": (0.1, 3)}]
)
def test_an_image_filter_is_proven(options: Any) -> None:
    assert check(filter_to_onnx(build_filter(Spec(tasks.median(9), window=(3, 3), **options)))).proven


def described(proto: onnx.ModelProto, **changes: str) -> onnx.ModelProto:
    for prop in proto.metadata_props:
        prop.value = changes.get(prop.key, prop.value)
    return proto


def test_a_file_that_states_more_than_it_keeps_is_not_proven() -> None:
    proto = onnx.load_model_from_string(small("batcher", "structured", "any", 8))
    step = Grid(0.0, 1.0, 23).step
    assert not check(described(proto, bits="23", step=repr(step), off_grid_error=repr(step / 2))).proven
    proto = onnx.load_model_from_string(small("batcher", "structured", "any", 8))
    assert check(described(proto, off_grid_error="0.0001")).node == "the guard"
    proto = onnx.load_model_from_string(small("depth3", "dense"))
    assert not check(described(proto, bits="24", step=repr(2.0**-24))).proven


def test_a_file_without_its_guard_is_not_proven() -> None:
    proto = onnx.load_model_from_string(small("batcher", "structured"))
    assert not check(described(proto, inputs="any", off_grid_error="0.5")).proven


def test_a_clip_off_the_grid_and_a_foreign_operator_are_not_proven() -> None:
    proto = onnx.load_model_from_string(small("radix", "fused"))
    clip = next(node for node in proto.graph.node if node.op_type == "Clip")
    end = numpy_helper.from_array(np.asarray(0.7 * 2.0**-14, dtype=np.float32), "off_grid")
    proto.graph.initializer.append(end)
    clip.input[2] = "off_grid"
    assert not check(proto).proven
    proto = onnx.load_model_from_string(small("batcher", "structured"))
    next(node for node in proto.graph.node if node.op_type == "Relu").op_type = "Sigmoid"
    assert "Sigmoid" in check(proto).reason
    assert check(onnx.ModelProto()).reason


def test_an_interpolation_off_the_grid_is_off_by_both_roundings() -> None:
    """Data moves by half a step and the last sum rounds; only a mean of two never pays both."""
    spec = Spec(tasks.quantile(5, [0.3]), "batcher", bits=16, dtype="float32", profile="structured")
    proto = to_onnx(build(spec))
    bound, half = check(proto).bound, Grid(0.0, 1.0, 16).step / 2
    assert bound
    assert check(described(proto, off_grid_error=repr(half + 1.01 * bound))).proven
    assert check(described(proto, off_grid_error=repr(half + 0.25 * bound))).node == "the guard"


def test_a_reshape_that_mixes_the_vectors_of_a_batch_is_not_proven() -> None:
    proto = to_onnx(build(Spec(tasks.rank(5, [2, 3]), "batcher", bits=8, profile="structured")))
    assert check(proto).proven
    proto.graph.node[-1].output[0] = "pairs"
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1, 2]), "dims"))
    proto.graph.node.append(helper.make_node("Transpose", ["pairs"], ["turned"], perm=[1, 0]))
    proto.graph.node.append(helper.make_node("Reshape", ["turned", "dims"], ["y"], name="mixed"))
    assert str(check(proto)) == "not proven at mixed: vectors of a batch are mixed"


def test_the_manifest_has_the_verdict_on_the_bytes(tmp_path: Path) -> None:
    made = export(Spec(tasks.median(5), "batcher", bits=8, profile="structured"), tmp_path)
    entry = json.loads((tmp_path / "manifest.json").read_text())["models"][0]
    assert entry["rounding"] == made.entry["rounding"] == "proven"


def mutants(data: bytes, rng: np.random.Generator, n: int) -> Iterator[onnx.ModelProto]:
    """The file with one stored number multiplied, moved by a low bit, or set."""
    for _ in range(n):
        proto = onnx.load_model_from_string(data)
        floats = [t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT]
        tensor = floats[rng.integers(len(floats))]
        values = numpy_helper.to_array(tensor).copy()
        at = int(rng.choice(np.flatnonzero(values))) if values.any() else 0
        old = float(values.flat[at]) if values.size else 0.0
        new = [old * (1 + 2.0**-12), old * 3, old * 2.0**12, old + 2.0**-20, old + 1 / 3, -old, old * (1 + 2.0**-23)]
        values.flat[at] = np.float32(new[rng.integers(len(new))])
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        yield proto


def answers(proto: onnx.ModelProto, x: Any) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def widened(proto: onnx.ModelProto) -> onnx.ModelProto:
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    for tensor in wide.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for end in (*wide.graph.input, *wide.graph.output):
        end.type.tensor_type.elem_type = TensorProto.DOUBLE
    return wide


def counted(construction: str, profile: str, n: int) -> tuple[int, int]:
    """How many mutants round, and how many of these are proven."""
    rng = np.random.default_rng(3)
    grid = rng.integers(0, 2**14 + 1, (400, 5))
    near = rng.integers(0, 2**14 - 3, (400, 1)) + rng.integers(0, 4, (400, 5))
    x = (np.concatenate([grid, near]) / 2.0**14).astype(np.float32)
    rounding = wrong = 0
    for proto in mutants(small(construction, profile), rng, n):
        with np.errstate(all="ignore"):
            same = np.array_equal(answers(proto, x).astype(np.float64), answers(widened(proto), x.astype(np.float64)))
        rounding += not same
        wrong += not same and check(proto).proven
    return rounding, wrong


@pytest.mark.parametrize(
    ("construction", "profile"), [("batcher", "dense"), ("radix", "structured"), ("depth3", "fused")]
)
def test_no_mutant_that_rounds_is_proven(construction: str, profile: str) -> None:
    rounding, wrong = counted(construction, profile, 30)
    assert rounding > 3
    assert wrong == 0


def test_rational_numbers_show_which_mutants_round() -> None:
    """Every file that is proven gives its formula exactly: on data of the grid, in rational numbers."""
    rng = np.random.default_rng(5)
    rounding = 0
    for proto in mutants(small("batcher", "dense"), rng, 25):
        x = rng.integers(2**14 - 9, 2**14 + 1, (8, 5)).astype(np.float32) / np.float32(2**14)
        with np.errstate(all="ignore"):
            floats = answers(proto, x)
        if not (np.isfinite(floats).all() and (RATIONAL(floats) == exact(proto, x)).all()):
            rounding += 1
            assert not check(proto).proven
    assert rounding > 2


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("construction", ["radix", "depth3"])
def test_no_mutant_of_many_that_rounds_is_proven(construction: str, profile: str) -> None:
    assert counted(construction, profile, 80)[1] == 0
