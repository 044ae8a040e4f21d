"""Gather, GatherElements and GatherND by the indices of a TopK become one-hot products, exact on every number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import operators, saved
from tests.running import parsed

# name: the nodes after v, i = TopK(s, k), and the shape of the data x; s is float[2, D]
USES = {
    "GatherElements of rows": ("u = Unsqueeze(i, two) e = Expand(u, wide) y = GatherElements<axis=1>(x, e)", "2, D, 3"),
    "GatherElements of numbers": ("y = GatherElements<axis=1>(x, i)", "2, D"),
    "Gather along axis 1": ("y = Gather<axis=1>(x, i)", "3, D, 2"),
    "Gather of a computed index": ("one = Sub(i, i) d = Add(one, past) j = Sub(i, d) y = Gather<axis=0>(x, j)", "D, 5"),
    "GatherND of pairs": ("u = Unsqueeze(i, two) p = Concat<axis=2>(first, u) y = GatherND(x, p)", "2, D, 3"),
    "GatherND in a batch": ("u = Unsqueeze(i, two) y = GatherND<batch_dims=1>(x, u)", "2, D, 2, 2"),
}
K = 7
ODD = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1.5)


def proto(nodes: str, shape: str, d: int, kind: str) -> onnx.ModelProto:
    """TopK of s chooses entries of x."""
    stored = f"int64[1] k = {{{K}}}, int64[1] two = {{2}}, int64[3] wide = {{1, 1, 3}}, int64[1] past = {{{d}}}"
    first = ", ".join(["0"] * K + ["1"] * K)
    return parsed(f"""(float[2, {d}] s, {kind}[{shape.replace("D", str(d))}] x) => ({kind} y)
    <{stored}, int64[2, {K}, 1] first = {{{first}}}> {{ v, i = TopK(s, k) {nodes} }}""")


def answer(model: onnx.ModelProto, feed: dict[str, Any]) -> Any:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(["y"], feed)[0]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("d", "kind"), [(40, "float"), (1100, "float"), (40, "float16"), (40, "double"), (1100, "int64")]
)
def test_equal_on_every_number(use: str, d: int, kind: str, tmp_path: Path) -> None:
    """Infinities, NaN and the largest numbers in the data, also in rows that are not chosen."""
    before = proto(*USES[use], d, kind)
    found = rewrite(saved(before, tmp_path))
    assert found.ok, found.lines()
    assert not found.kept
    ops = operators(found.model)
    assert not ops.keys() & {"TopK", "GatherElements", "GatherND", "Expand"}
    rng = np.random.default_rng(0)
    shape = [t.dim_value for t in before.graph.input[1].type.tensor_type.shape.dim]
    dtype = {"float": np.float32, "double": np.float64}.get(kind, np.dtype(kind))
    if kind == "int64":
        x: Any = rng.integers(-(2**63), 2**63 - 1, shape)
    else:
        x = rng.normal(size=shape).astype(dtype)
        ends = [np.finfo(dtype).max, np.finfo(dtype).min, np.finfo(dtype).smallest_subnormal]
        odd = rng.random(shape) < 0.3
        x[odd] = rng.choice(np.array([*ODD, *ends], dtype), odd.sum())
    feed = {"s": rng.normal(size=(2, d)).astype(np.float32), "x": x}
    a, b = answer(before, feed), answer(found.model, feed)
    assert a.dtype == b.dtype
    assert np.array_equal(a, b, equal_nan=kind != "int64")


def test_no_integer_of_64_bits_is_left_where_the_indices_only_choose_rows(tmp_path: Path) -> None:
    found = rewrite(saved(proto(*USES["GatherElements of rows"], 40, "float"), tmp_path))
    typed = onnx.shape_inference.infer_shapes(found.model).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in [*typed.value_info, *typed.output]}
    made = {kinds[name] for node in found.model.graph.node for name in node.output}
    assert onnx.TensorProto.FLOAT in made
    assert onnx.TensorProto.INT64 not in made


def test_only_a_cheap_product_takes_the_place_of_a_gather_unless_asked_for(tmp_path: Path) -> None:
    path = saved(proto("y = Gather<axis=1>(x, i)", "8, D, 600", 2000, "float"), tmp_path)
    found = rewrite(path, check=False)
    assert found.ok
    assert "--also Gather has no limit" in found.kept[0].remedy
    assert any(line.startswith("kept Gather") for line in found.lines())
    assert operators(found.model)["Gather"] >= 1
    assert not rewrite(path, also=["Gather"], check=False).kept
    assert len(rewrite(path, only=["TopK"], check=False).replaced) == 1


def test_a_gather_whose_topk_stays_is_left_alone(tmp_path: Path) -> None:
    model = proto("y = GatherElements<axis=1>(x, i)", "2, D", 40, "float")
    model.graph.input.append(onnx.helper.make_tensor_value_info("k", onnx.TensorProto.INT64, [1]))
    found = rewrite(saved(model, tmp_path), check=False)
    assert [each.op for each in found.left] == ["TopK"]
    assert not found.replaced


def test_quantised_data_stays_in_the_pattern(tmp_path: Path) -> None:
    """Scores and boxes in int8: the scores' TopK chooses boxes, and no float is among the new nodes but in the pattern."""
    model = parsed("""(int8[1, 1100] s, int8[1, 1100, 4] x) => (int8[1, 7, 4] y)
    <int64[1] k = {7}, int64[1] two = {2}, int64[3] wide = {1, 1, 4}, float scale = {0.037}, int8 zero = {-7}> {
        f = DequantizeLinear(s, scale, zero)
        b = DequantizeLinear(x, scale, zero)
        v, i = TopK(f, k)
        u = Unsqueeze(i, two)
        e = Expand(u, wide)
        g = GatherElements<axis=1>(b, e)
        y = QuantizeLinear(g, scale, zero)
    }""")
    found = rewrite(saved(model, tmp_path))
    assert found.ok, found.lines()
    assert not found.kept
    typed = onnx.shape_inference.infer_shapes(found.model)
    floats = {v.name for v in typed.graph.value_info if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    made = {name: node for node in found.model.graph.node for name in node.output}
    readers = {name: [n.op_type for n in found.model.graph.node if name in n.input] for name in floats}
    for name in floats:
        assert (
            name not in made or made[name].op_type == "DequantizeLinear" or set(readers[name]) == {"QuantizeLinear"}
        ), name
    rng = np.random.default_rng(0)
    for _ in range(20):
        feed = {n: rng.integers(-128, 128, s, np.int8) for n, s in (("s", (1, 1100)), ("x", (1, 1100, 4)))}
        assert np.array_equal(answer(model, feed), answer(found.model, feed))
