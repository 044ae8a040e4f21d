"""The reader of graphs beside onnxruntime: for every attribute and missing input it gives the same numbers, or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.formats.session import open_session
from exporter.prove.graph import Array, Codes, NotProvedError, run

X = np.array([[3.0, -1.0, 4.0, 0.5, -5.0, 2.0]])
INF = float("inf")
LONG = np.iinfo(np.int64)


class Numbers:
    """One vector of numbers: a code is the place of its number in a list."""

    def __init__(self) -> None:
        self.numbers: list[Fraction] = []

    def _codes(self, values: Sequence[Fraction], shape: tuple[int, ...]) -> Codes:
        self.numbers += values
        return np.arange(len(self.numbers) - len(values), len(self.numbers)).reshape(shape)

    def _of(self, codes: Codes) -> list[Fraction]:
        return [self.numbers[c] for c in codes.ravel().tolist()]

    def entries(self, d: int) -> Codes:
        return self._codes([Fraction(v) for v in X[0]], (d,))

    def constants(self, values: Array) -> Codes:
        return self._codes([Fraction(float(v)) for v in np.ravel(values)], np.shape(values))

    def add(self, a: Codes, b: Codes) -> Codes:
        a, b = np.broadcast_arrays(a, b)
        return self._codes([v + w for v, w in zip(self._of(a), self._of(b), strict=True)], a.shape)

    def scale(self, a: Codes, factors: Array) -> Codes:
        by = np.broadcast_to(factors, a.shape).ravel().tolist()
        return self._codes([v * Fraction(f) for v, f in zip(self._of(a), by, strict=True)], a.shape)

    def relu(self, a: Codes) -> Codes:
        return self._codes([max(v, Fraction(0)) for v in self._of(a)], a.shape)

    def extremum(self, a: Codes, b: Codes, largest: bool) -> Codes:
        pick = max if largest else min
        a, b = np.broadcast_arrays(a, b)
        return self._codes([pick(v, w) for v, w in zip(self._of(a), self._of(b), strict=True)], a.shape)

    def total(self, codes: Codes, factors: Array) -> int:
        terms = [v * Fraction(w) for v, w in zip(self._of(codes), factors.tolist(), strict=True)]
        return int(self._codes([sum(terms, Fraction(0))], ()))


def _model(nodes: list[onnx.NodeProto], stored: dict[str, Any], opset: int, kind: int) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", kind, ["N", X.shape[1]])
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in stored.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _floats(*shape: int) -> Array:
    return (np.arange(int(np.prod(shape))).reshape(shape) * 0.5 - 1).astype(np.float64)


def _cases() -> dict[str, tuple[str, list[Any], dict[str, Any], int]]:
    """(operator, inputs, attributes, opset); "x" is the vector, "xt" the same as a column, None a missing input."""
    square = _floats(6, 3)
    found: dict[str, tuple[str, list[Any], dict[str, Any], int]] = {}

    def case(op: str, *inputs: Any, **attributes: Any) -> None:
        opset = attributes.pop("opset", 17)
        found[f"{op}-{len(found)}"] = op, list(inputs), attributes, opset

    for starts, ends, axes, steps in (
        (1, 4, 1, 1), (4, 1, 1, -1), (-100, -101, 1, -1), (100, -100, 1, -2), (-1, -7, 1, -1), (-1, -6, 1, -1),
        (LONG.max, LONG.min, -1, -1), (0, LONG.max, -1, 2), (-3, LONG.max, 1, 1), (-9, 3, 1, 1), (5, 0, 1, -2),
        (-100, 100, 1, -1), (0, 1, 0, 1), (2, 2, 1, 1),
    ):  # fmt: skip
        case("Slice", "x", _ints(starts), _ints(ends), _ints(axes), _ints(steps))
    case("Slice", "x", _ints(0, 1), _ints(1, 3))
    case("Slice", "x", _ints(0, 5), _ints(1, 1), None, _ints(1, -1))
    case("Slice", "x", _ints(1), _ints(3), _ints(1))
    for alpha, beta, ta, tb, bias in (
        (1.0, 1.0, 0, 0, (3,)), (0.5, 2.0, 0, 0, (1, 3)), (-1.0, 0.0, 0, 1, (1,)), (2.0, 1.0, 0, 1, None),
        (0.1, 0.1, 0, 0, ()),
    ):  # fmt: skip
        weights = square.T if tb else square
        case(
            "Gemm",
            "x",
            weights,
            *([] if bias is None else [_floats(*bias)]),
            alpha=alpha,
            beta=beta,
            transA=ta,
            transB=tb,
        )
    case("Gemm", "xt", square, transA=1)
    case("Gemm", square, "xt", transA=1)
    case("Gemm", square.T, "x", _floats(3, 1), transB=1, beta=0.25)
    for low, high in ((None, 1.0), (0.5, None), (None, None), (2.0, 1.0), (-1.0, 1.0)):
        case("Clip", "x", *(None if v is None else np.array(v) for v in (low, high)))
    case("Clip", "x")
    case("Clip", "x", np.array([0.0]), np.array([1.0]))
    for over, keep in (([1], 1), ([-1], 0), ([0], 1), ([0, 1], 1), (None, 1)):
        case("ReduceMax", "x", opset=13, keepdims=keep, **({} if over is None else {"axes": over}))
        case("ReduceSum", "x", None if over is None else _ints(*over), opset=13, keepdims=keep)
    case("ReduceSum", "x", opset=13, noop_with_empty_axes=1)
    case("ReduceSum", "x", _ints(), opset=13, noop_with_empty_axes=1)
    case("ReduceMax", "x", _ints(1), opset=18)
    case("ReduceMax", "x", opset=18, noop_with_empty_axes=1)
    case("Split", "x", _ints(2, 4), axis=1)
    case("Split", "x", _ints(2, 4), axis=-1)
    case("Split", "x", _ints(2, 2), axis=1)
    case("Split", "x", axis=1)
    case("Split", "x", axis=1, num_outputs=2, opset=18)
    case("Transpose", "x")
    case("Transpose", "x", perm=[0, 1])
    case("Reshape", "x", _ints(0, 2, -1))
    case("Reshape", "x", _ints(-1, 6), allowzero=1)
    case("Reshape", "x", _ints(3, 0))
    case("Squeeze", "x")
    case("Squeeze", "x", _ints(0))
    case("Squeeze", "x", _ints(-2))
    case("Unsqueeze", "x", _ints(0, -1))
    case("Unsqueeze", "x", _ints(1, 0))
    case("Gather", "x", _ints(5, -6, 0), axis=1)
    case("Gather", "x", np.array([[1, 2], [-1, 0]]), axis=-1)
    case("Gather", "x", np.array(2), axis=1)
    case("Gather", "x", np.array(0))
    case("Expand", "x", _ints(2, 1, 6))
    case("Expand", "x", _ints(1))
    case("Concat", "x", "x", axis=-1)
    case("Concat", _floats(1, 2), "x", axis=1)
    for op in ("Add", "Sub", "Mul", "Max", "Min"):
        case(op, "x", np.array(0.5))
        case(op, _floats(6), "x")
        case(op, "x", _floats(2, 1, 6))
        case(op, "x", "x")
    case("Max", "x", _floats(6), _floats(1, 6))
    case("MatMul", "x", square)
    case("MatMul", square.T, "xt")
    case("MatMul", "x", _floats(6))
    case("MatMul", "x", _floats(2, 6, 3))
    case("Cast", "x", to=TensorProto.DOUBLE)
    return found


CASES = _cases()


def _case(name: str, kind: int, newer: int | None) -> onnx.ModelProto:
    op, inputs, attributes, opset = CASES[name]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    stored = {
        f"c{i}": v.astype(dtype) if v.dtype.kind == "f" else v
        for i, v in enumerate(inputs)
        if isinstance(v, np.ndarray)
    }
    names = ["" if v is None else v if isinstance(v, str) else f"c{i}" for i, v in enumerate(inputs)]
    nodes = [helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0])] if "xt" in names else []
    nodes.append(helper.make_node(op, names, ["y", "rest"] if op == "Split" else ["y"], **attributes))
    return _model(nodes, stored, newer or opset, kind)


def _read(model: onnx.ModelProto) -> list[float] | None:
    domain = Numbers()
    try:
        return [float(domain.numbers[c]) for c in run(model, domain).tolist()]
    except NotProvedError:
        return None


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE])
@pytest.mark.parametrize("newer", [None, 21])
@pytest.mark.parametrize("name", CASES)
def test_operators_mean_what_onnxruntime_computes(name: str, newer: int | None, kind: int) -> None:
    model = _case(name, kind, newer)
    read = _read(model)
    if read is None:
        return
    try:
        got = np.asarray(open_session(model).run(None, {"x": X.astype(helper.tensor_dtype_to_np_dtype(kind))})[0])
    except Exception:
        return  # a file that does not run is not proved
    assert np.allclose(read, got.ravel(), rtol=1e-6 if kind == TensorProto.FLOAT else 1e-15, atol=0)


def test_the_operators_of_our_files_are_read() -> None:
    read = {CASES[name][0] for name in CASES if _read(_case(name, TensorProto.FLOAT, None)) is not None}
    assert sorted(read) == sorted({*(op for op, *_ in CASES.values())} - {"Cast", "Split", "Squeeze", "Unsqueeze"})


def test_what_changes_on_its_way_is_refused() -> None:
    """Constants of constants, weights that runtimes may take for 0, and weights that a caller may replace."""
    node, one = helper.make_node, np.ones(1, np.float32)
    add = node("Add", ["x", "c"], ["y"])
    cast = _model(
        [node("Cast", ["wide"], ["c"], to=TensorProto.FLOAT), add], {"wide": np.ones(1)}, 17, TensorProto.FLOAT
    )
    tiny = _model([add], {"c": one * np.float32(2.0**-130)}, 17, TensorProto.FLOAT)
    replaceable = _model([add], {"c": one}, 17, TensorProto.FLOAT)
    replaceable.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [1]))
    for model, reason in (
        (cast, "fold constants first"),
        (tiny, "which runtimes may take for 0"),
        (replaceable, "2 inputs"),
    ):
        with pytest.raises(NotProvedError, match=reason):
            run(model, Numbers())
