"""Rewriting: every pattern is gone and every bit is the same, nothing else of a model changes, and bad input is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.formats.quantisation import EXCLUDE
from exporter.frontends.rewriting import OPERATORS
from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import model, operators, patterns, saved, values_only
from tests.exporter.passes.quantised import run
from tests.running import parsed

PATTERNS = patterns()
RELU = {"Max", "Min", "TopK", "Greater", "Less", "Equal", "Where"}  # what a Relu-only form does without


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_replaced_and_equal(name: str, tmp_path: Path) -> None:
    path = saved(PATTERNS[name], tmp_path)
    found = rewrite(path, tmp_path / "new.onnx", also=OPERATORS)
    assert found.ok, found.lines()
    assert found.checked >= 4
    assert all(c.equal for r in found.replaced for c in r.outputs)
    assert all(c.equal or "unsorted" in name or "not sorted" in name for c in found.outputs)
    after = onnx.load(tmp_path / "new.onnx")
    onnx.checker.check_model(after, full_check=True)
    assert not set(operators(after)) & (set(OPERATORS) - {"Gather"})  # ours have constant indices
    assert [i.name for i in after.graph.input] == [i.name for i in PATTERNS[name].graph.input]
    assert [o.name for o in after.graph.output] == [o.name for o in PATTERNS[name].graph.output]
    rewrite(path, tmp_path / "again.onnx", also=OPERATORS, check=False)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "new.onnx").read_bytes()


@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize("name", [n for n in PATTERNS if not {"int64", "argsort", "ArgMax", "ArgMin"} & {*n.split()}])
def test_the_values_of_every_pattern_by_relu_networks(name: str, profile: str, tmp_path: Path) -> None:
    """On whole numbers, which are on the grid: values are then equal too."""
    before = values_only(PATTERNS[name])
    found = rewrite(saved(before, tmp_path), domain=(-128, 127), bits=8, profile=profile, also=OPERATORS, check=False)
    kept = {"ReduceMax", "Where", "Less"} if "quantile" in name else set()  # ReduceMax over what is NaN, as int64
    assert not set(operators(found.model)) & (RELU - kept), operators(found.model)
    source = before.graph.input[0].type.tensor_type
    shape = [d.dim_value or 4 for d in source.shape.dim]
    kind = helper.tensor_dtype_to_np_dtype(source.elem_type)
    rng = np.random.default_rng(0)
    for high in (3, 127):
        x = rng.integers(-high, high, shape, endpoint=True).astype(kind)
        for a, b in zip(run(before, x), run(found.model, x), strict=True):
            if "sorted" in name:  # in any order
                axis = 2 if "torch" in name else 1
                assert np.array_equal(np.sort(a, axis=axis), np.sort(b, axis=axis)), name
                continue
            assert np.array_equal(a, b), name


@pytest.mark.parametrize("profile", ["dense", "matmul", "structured", "fused"])
@pytest.mark.parametrize("op", ["TopK", "ArgMax"])
def test_a_relu_profile_leaves_a_node_whose_indices_are_read(op: str, profile: str, tmp_path: Path) -> None:
    path = saved(model(op, ["n", 9], **({"k": 3} if op == "TopK" else {"axis": 1})), tmp_path)
    (left,) = rewrite(path, domain=(0, 1), profile=profile, also=OPERATORS).left
    assert left.reason == f"its indices are read, and profile {profile} only computes values"
    assert left.remedy == "take --profile minmax, which finds indices too"
    assert rewrite(path, profile="minmax", also=OPERATORS).ok  # the remedy works


@pytest.mark.parametrize(("k", "d"), [(3, 9), (9, 131), (20, 300)])
def test_a_batch_may_be_empty(k: int, d: int, tmp_path: Path) -> None:
    for free in (["n"], ["n", "m"]):
        found = rewrite(saved(model("TopK", [*free, d], k=k), tmp_path), check=False)
        v, i = run(found.model, np.zeros([*[0] * len(free), d], np.float32))
        assert v.shape == i.shape == (*[0] * len(free), k)


def test_an_index_stays_inside_the_axis_whatever_nan_does(tmp_path: Path) -> None:
    x = np.where(np.random.default_rng(0).random((100, 7)) < 0.5, np.nan, 1).astype(np.float32)
    for before in (model("TopK", ["n", 7], k=4), model("TopK", ["n", 7], k=1), model("ArgMin", ["n", 7], axis=1)):
        i = run(rewrite(saved(before, tmp_path), also=["ArgMin"]).model, x)[-1]
        assert ((i >= 0) & (i < 7)).all()


def chain() -> onnx.ModelProto:
    """Conv, median of 9 by TopK and Gather, and a second TopK whose length is unknown; metadata and documentation."""
    proto = parsed("""(float[n, 9] x0, float[n, m] y0) => (float[n] median, float[n, 5] w)
    <int64[1] k = {5}, int64 four = {4}, float two = {2}> {
        [scale] x = Mul(x0, two)
        [node] v, i = TopK<axis = 1>(x, k)
        [pick] median = Gather<axis = 1>(v, four)
        [unknown] w, j = TopK(y0, k)
    }""")
    for node in proto.graph.node:
        node.ClearField("domain")  # the parser writes an empty one
    proto.graph.node[0].doc_string = "kept"
    helper.set_model_props(proto, {"author": "someone"})
    return proto


def test_nothing_else_changes_and_what_is_left_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(chain(), tmp_path)
    assert main(["rewrite", str(path), "--out", str(tmp_path / "new.onnx"), "--json", "--no-check"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(each["node"], each["reason"]) for each in told["left"]] == [
        ("unknown", "the length of axis -1 is unknown")
    ]
    assert "make_dynamic_shape_fixed" in told["left"][0]["remedy"]
    before, after = onnx.load(path), onnx.load(tmp_path / "new.onnx")
    kept = {n.name: n for n in after.graph.node}
    for node in before.graph.node:
        if node.name != "node":
            assert kept[node.name].SerializeToString(deterministic=True) == node.SerializeToString(deterministic=True)
    assert {p.key: p.value for p in after.metadata_props if p.key != EXCLUDE} == {"author": "someone"}
    assert after.opset_import[0].version == 17
    assert after.ir_version == before.ir_version
    assert {t.name for t in before.graph.initializer} <= {t.name for t in after.graph.initializer}
    # only the middle one of the five is read: a network for the median, not for five ranks
    assert sum(n.op_type in ("Max", "Min") for n in after.graph.node) < 40
    x = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    session = ort.InferenceSession(after.SerializeToString())
    assert np.array_equal(session.run(["median"], {"x0": x, "y0": x})[0], np.median(2 * x, axis=1))


@pytest.mark.parametrize(
    ("k", "d"), [(1, 200), (9, 131), (16, 300), (9, 9), (40, 256), (17, 257), (300, 1301), (613, 613)]
)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_topk_with_indices_is_numpys_stable_order(k: int, d: int, kind: Any, tmp_path: Path) -> None:
    """Ties, constant rows, infinities beside the largest numbers, subnormals, both zeros."""
    rng = np.random.default_rng(k * d)
    x: Any
    if kind is np.int64:
        ends = np.iinfo(kind)
        x = rng.integers(ends.min, ends.max, (44, d), endpoint=True)
        x[:40] = np.array([ends.min, ends.max, 0, 1])[rng.integers(0, 4, (40, d))]
        x[40] = ends.min
    else:
        info = np.finfo(kind)
        odd = np.array([np.inf, -np.inf, info.max, info.min, info.smallest_subnormal, 0, -0.0, 1, -1], kind)
        x = rng.normal(size=(48, d)).astype(kind)
        x[:40] = odd[rng.integers(0, len(odd), (40, d))]
        x[40], x[41] = -np.inf, np.inf
        x[42] = np.where(rng.random(d) < 0.95, -np.inf, info.min)
        x[43] = np.where(rng.random(d) < 0.5, np.inf, info.max)
    for largest in (0, 1):
        kind_of = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        found = rewrite(saved(model("TopK", ["n", d], kind_of, k=k, largest=largest), tmp_path), check=False)
        assert not found.left
        wide = x.astype(object) if kind is np.int64 else x
        order = np.argsort(-wide if largest else wide, axis=1, kind="stable")[:, :k]
        v, i = run(found.model, x)
        assert np.array_equal(i, order)
        assert np.array_equal(v, np.take_along_axis(x, order, axis=1))
        assert sum(len(t.raw_data) for t in found.model.graph.initializer) < 200 * (d + k) + 8 * k * k


@pytest.mark.parametrize(("k", "d"), [(9, 131), (40, 256), (300, 1301), (2000, 2048), (40, 2100)])
def test_float16_is_compared_and_counted_in_float16(k: int, d: int, tmp_path: Path) -> None:
    """Finite numbers, infinities and ties. No tensor of a wider float is in the file, up to 2048 entries."""
    rng = np.random.default_rng(k)
    x = rng.integers(0, 2**16, (6, d)).astype(np.uint16).view(np.float16)
    x[np.isnan(x)] = np.inf
    x[0], x[1] = 1, rng.choice(np.array([np.inf, -np.inf, 65504, -65504, 2**-24, 0], np.float16), d)
    for largest in (0, 1):
        found = rewrite(
            saved(model("TopK", ["n", d], TensorProto.FLOAT16, k=k, largest=largest), tmp_path), check=False
        )
        order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :k]
        v, i = run(found.model, x)
        assert np.array_equal(i, order)
        assert np.array_equal(v, np.take_along_axis(x, order, axis=1))
        typed = onnx.shape_inference.infer_shapes(found.model).graph
        kinds = {each.name: each.type.tensor_type.elem_type for each in typed.value_info}
        made = {kinds[name] for node in typed.node for name in node.output if name in kinds}
        assert TensorProto.FLOAT16 in made or d > 2048
        assert (d > 2048) == bool(made & {TensorProto.FLOAT, TensorProto.DOUBLE})


def test_indices_that_would_hold_too_many_numbers_are_left(tmp_path: Path) -> None:
    assert rewrite(saved(model("TopK", [1, 40000], k=2), tmp_path)).ok
    (left,) = rewrite(saved(model("TopK", [1, 40000], k=4000), tmp_path)).left
    assert left.reason == "its indices would hold 19,200,000 numbers for each vector, and the limit is 16,777,216"
    assert left.remedy.startswith("shorten the axis")


@pytest.mark.parametrize(("opset", "raised"), [(9, 13), (10, 13), (21, 21)])
def test_the_opset_is_raised_to_13(opset: int, raised: int, tmp_path: Path) -> None:
    proto = model("TopK", [3, 6], opset=max(opset, 10), k=2)
    if opset < 10:  # k was an attribute
        proto.graph.node[0].attribute.append(helper.make_attribute("k", 2))
        del proto.graph.node[0].input[1:], proto.graph.initializer[:]
        proto.opset_import[0].version = opset
    elif opset == 10:
        del proto.graph.output[1]  # values alone need no newer operator
    found = rewrite(saved(proto, tmp_path))
    assert found.ok, found.lines()
    assert found.opset == (opset, raised)
    assert any("opset raised" in line for line in found.lines()) == (opset != raised)


def test_external_data_stays_external(tmp_path: Path) -> None:
    proto = chain()
    big = np.random.default_rng(0).normal(size=(1, 9)).astype(np.float32)
    proto.graph.initializer[2].CopyFrom(numpy_helper.from_array(big, "two"))
    source = tmp_path / "in"
    source.mkdir()
    onnx.save(proto, source / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=60)
    found = rewrite(source / "m.onnx", tmp_path / "out" / "new.onnx")
    assert found.replaced[0].right
    assert (tmp_path / "out" / "m.data").read_bytes() == (source / "m.data").read_bytes()
    raw = onnx.load(tmp_path / "out" / "new.onnx", load_external_data=False)
    assert {t.name for t in raw.graph.initializer if t.external_data} >= {"two"}
    ort.InferenceSession(tmp_path / "out" / "new.onnx")
    assert sorted(os.listdir(source)) == ["m.data", "m.onnx"]


def test_the_range_is_measured(tmp_path: Path) -> None:
    path = saved(values_only(model("TopK", ["n", 9], k=3)), tmp_path)
    wide = tmp_path / "wide.npz"
    rng = np.random.default_rng(0)
    np.savez(wide, x=rng.uniform(-9, 9, (50, 9)).astype(np.float32))
    found = rewrite(path, calibrate=wide, profile="structured", only=["TopK"])
    assert found.profile == "structured"
    domain = found.replaced[0].domain
    assert domain
    assert -9 <= domain[0] < -8
    assert found.replaced[0].outputs[0].difference <= found.replaced[0].error


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(model("TopK", ["n", 9], k=3), tmp_path)
    assert main(["rewrite", str(path), "--dry-run", "--out", str(tmp_path / "new.onnx")]) == 0
    assert "1 replaced, 0 left" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_message_of_the_library_is_python(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="profile='minmax' takes every number as it is: bits changes nothing"):
        rewrite(saved(model("TopK", ["n", 9], k=3), tmp_path), bits=8, profile="minmax")


COMPUTED = """(float[{batch}, 25] x) => (float[{batch}, k] v, int64[{batch}, k] i, int64[1] twice)
<int64[1] seven = {{7}}, int64[1] axis = {{{axis}}}> {{
    shape = Shape(x)
    d = Gather(shape, axis)
    k = Min(d, seven)
    v, i = TopK(x, k)
    twice = Add(k, k)
}}"""


def computed(batch: Any, axis: int) -> onnx.ModelProto:
    return parsed(COMPUTED.format(batch=batch, axis=axis))


@pytest.mark.parametrize("batch", [1, "n"])
def test_a_k_that_constants_give_is_folded(batch: Any, tmp_path: Path) -> None:
    """k = Min(Shape(x)[1], 7), also where the batch is free; the nodes of k stay, because another node reads k."""
    found = rewrite(saved(computed(batch, 1), tmp_path))
    assert found.ok, found.lines()
    assert "largest 7 of 25" in found.replaced[0].was
    assert {"Shape", "Min", "Add"} <= set(operators(found.model))


def test_the_remedy_that_is_printed_works_on_the_model(tmp_path: Path) -> None:
    path = saved(computed("n", 0), tmp_path)
    (left,) = rewrite(path).left
    command = left.remedy[left.remedy.index("python -m ") :].replace("--dim_value N", "--dim_value 1").split()
    assert command[-2:] == ["OLD", "NEW"]
    fixed = tmp_path / "fixed.onnx"
    subprocess.run([sys.executable, *command[1:-2], path, fixed], check=True, capture_output=True)
    assert rewrite(fixed).ok


def test_calibration_of_many_samples_for_a_model_of_one(tmp_path: Path) -> None:
    path = saved(values_only(model("TopK", [1, 9], k=3)), tmp_path)
    x = np.random.default_rng(0).uniform(-9, 9, (50, 9)).astype(np.float32)
    np.savez(tmp_path / "many.npz", x=x)
    found = rewrite(path, calibrate=tmp_path / "many.npz", profile="structured")
    assert found.ok, found.lines()
    assert found.replaced[0].domain == (x.min(), x.max())
    assert found.checked == 56
    two = saved(model("TopK", [2, 9], k=3), tmp_path)
    np.savez(tmp_path / "odd.npz", x=x[:5])
    with pytest.raises(UserError, match=r"odd.npz: onnxruntime does not run it: .* Got: 5 Expected: 2"):
        rewrite(two, calibrate=tmp_path / "odd.npz")


def test_outputs_are_those_of_the_file_as_written(tmp_path: Path) -> None:
    """MatMul and Add after a TopK are one Gemm in a default session; as an output, the product is not fused."""
    rng = np.random.default_rng(0)
    w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 64), (64,)))
    text = "(float[4, 9] x) => (float[4, 64] y) <int64[1] k = {3}> { v, i = TopK(x, k) p = MatMul(v, w) y = Add(p, b) }"
    proto = parsed(text, w=w, b=b)
    path = saved(proto, tmp_path)
    loaded: list[list[str]] = []
    real = ort.InferenceSession

    def noted(source: Any, *arguments: Any, **options: Any) -> Any:
        loaded.append([o.name for o in onnx.load(source).graph.output])
        return real(source, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort, "InferenceSession", noted)
        found = rewrite(path)
    assert found.ok, found.lines()
    assert loaded.count(["y"]) == 2  # both files as they are
