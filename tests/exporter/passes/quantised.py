"""Models and their quantisation by onnxruntime, for the tests and for the table of docs/quantisation.md."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.running import parsed

CHANNELS, MIDDLE = 9, 4
SCALE = 0.125  # a power of two: int8 numbers of it are the grid of 8 bits on [-16, 15.875]


def quantised(
    path: Path, data: Sequence[Any], exclude: Sequence[str] = (), scale: float | None = None
) -> onnx.ModelProto:
    """What quantize_static makes of a file: int8 numbers and weights between QuantizeLinear and DequantizeLinear.

    `scale` is that of the tensor `channels`; what is not given is measured on the data.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(data)

        def get_next(self) -> dict[str, Any] | None:
            x = next(self.left, None)
            return None if x is None else {name: x}

    name = onnx.load(path, load_external_data=False).graph.input[0].name
    chosen = [{"scale": np.array(scale, np.float32), "zero_point": np.array(0, np.int8)}]
    options: dict[str, Any] = {} if scale is None else {"TensorQuantOverrides": {"channels": chosen}}
    before = logging.root.manager.disable
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)  # it asks for a preprocessing that changes nothing here
        try:
            quantize_static(
                str(path), str(Path(folder) / "q.onnx"), Reader(), activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8, nodes_to_exclude=list(exclude), extra_options=options,
            )  # fmt: skip
        finally:
            logging.disable(before)
        return onnx.load(Path(folder) / "q.onnx")


def run(proto: onnx.ModelProto, x: Any, names: Sequence[str] = ()) -> list[Any]:
    """The model's outputs, and other tensors of it by name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    session = ort.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [*names] or [o.name for o in proto.graph.output]
    return list(session.run(wanted, {session.get_inputs()[0].name: x}))


def convolutions() -> onnx.ModelProto:
    """Conv, the median of its nine channels by TopK, and Conv."""
    rng = np.random.default_rng(0)
    w1, w2 = (rng.normal(size=(n, 1, 3, 3)).astype(np.float32) for n in (CHANNELS, 2))
    return parsed(
        f"""(float[n, 1, 16, 16] image) => (float[n, 2, 12, 12] y)
        <int64[1] k = {{{CHANNELS}}}, int64[1] middle = {{{MIDDLE}}}> {{
            [first] channels = Conv(image, w1)
            [top] sorted, unread = TopK<axis = 1>(channels, k)
            [pick] median = Gather<axis = 1>(sorted, middle)
            [second] y = Conv(median, w2)
        }}""",
        w1=w1,
        w2=w2,
    )


def median_inside(proto: onnx.ModelProto, ours: Sequence[str], x: Any) -> tuple[Any, Any]:
    """In a run of a quantised model: the median that `ours` computed, and numpy's of what these nodes were given."""
    (first,) = (n for n in proto.graph.node if n.name == ours[0])
    given, found = run(proto, x, [first.input[0], "median"])
    return found, np.median(given, axis=1, keepdims=True)
