"""Files that only compare numbers and move them: every number of the type goes in and comes out as it is.

Floats may be added up at the very end, as numpy does it: (a + b) / 2 for the mean of two entries, a + (b - c) t between two
ranks. Of 8-bit integers all tensors share one scale and one zero point, so that the numbers they stand for are in the same
order, and the way back from a number finds its integer: the quotient is off by three parts in 2^24 at most, of up to 255.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from exporter.check.tensor import NotProven

MOVES = {"Transpose", "Reshape", "Slice", "Gather", "Concat", "Pad"}
ENDS = {"entry", "mean", "mixed", "integer"}


def compares(graph: onnx.GraphProto, about: dict[str, Any], dtype: str) -> float:
    """0.0 if the graph is of this kind; NotProven names the first node that is not."""
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    quantized = about.get("quantized")
    kinds = {i.name: "integer" if quantized else "entry" for i in graph.input if i.name not in stored}
    if bool(quantized) != (dtype in ("int8", "uint8")):
        raise NotProven("the file", f"{dtype} data and quantized = {quantized} do not go together")
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        read = [kinds[name] for name in node.input if name in kinds]
        consts = [stored[name] for name in node.input if name in stored]
        kind = _kind(node.op_type, read, consts, attributes, quantized, dtype)
        if kind is None or len(read) + len(consts) != sum(bool(name) for name in node.input):
            raise NotProven(node.name, f"this {node.op_type} does more than compare numbers and move them")
        kinds[node.output[0]] = kind
    end = kinds.get(graph.output[0].name)
    if end not in ENDS or (end == "integer") != bool(quantized):
        raise NotProven("the output", "it is no entry of the data, and no mean or mix of two")
    if about.get("grid_error") != 0:
        raise NotProven("the file", "numbers that are only compared have no error, and one is stated")
    return 0.0


def _kind(
    op: str, read: list[str], consts: list[Any], attributes: dict[str, Any], quantized: Any, dtype: str
) -> str | None:
    """What comes out: an integer, an entry of the data, or one of the sums; None for anything else."""
    both = sorted(read)
    if op == "DequantizeLinear" and read == ["integer"] and _scale(consts, quantized, dtype):
        return "entry"
    if op == "QuantizeLinear" and read == ["entry"] and _scale(consts, quantized, dtype):
        return "integer"
    if "integer" in read:
        return None
    if op in MOVES and read and len(set(read)) == 1 and (op != "Pad" or not any(c.any() for c in consts[1:])):
        return read[0] if op == "Concat" or len(read) == 1 else None
    if op == "Concat" and set(read) <= ENDS:
        return "mean"
    if op in ("Max", "Min") and set(read) == {"entry"} and not consts:
        return "entry"
    if quantized:
        return None
    if op == "Cast" and both == ["entry"] and attributes["to"] == onnx.TensorProto.DOUBLE:
        return "entry"
    if op == "Add" and both == ["entry", "entry"]:
        return "sum"
    if op == "Mul" and both == ["sum"] and len(consts) == 1 and (consts[0] == 0.5).all():
        return "mean"
    if op == "Sub" and both == ["entry", "entry"]:
        return "gap"
    if op == "Mul" and both == ["gap"] and len(consts) == 1 and (np.abs(consts[0]) <= 1).all():
        return "part"
    if op == "Cast" and both == ["gap"] and attributes["to"] == onnx.TensorProto.DOUBLE:
        return "gap"
    return "mixed" if op == "Add" and both == ["entry", "part"] else None


def _scale(consts: list[Any], quantized: Any, dtype: str) -> bool:
    """Whether scale and zero point are the stated ones, and the products with 255 are normal numbers."""
    if len(consts) != 2 or not isinstance(quantized, list) or any(c.size != 1 for c in consts):
        return False
    scale, zero = float(consts[0].reshape(-1)[0]), int(consts[1].reshape(-1)[0])
    types = consts[0].dtype == np.float32 and consts[1].dtype == np.dtype(dtype)
    return types and [scale, zero] == quantized and 2.0**-100 <= scale <= 2.0**100
