"""One digit of radix as a model of its own: entries and thresholds in, counts out.

A search that is spread over many parts cannot be one network, but its only work on the entries can: a digit of
`exporter.constructions.radix` counts entries against the thresholds t_i = low + i s, and counts of parts add up. So the
digit is exported, every part runs it, and who asked climbs on the sums (service/batch/search.py).

A search on a grid needs the grid; here a float is its own grid. Its bits, read as an integer b and turned where the sign
is set, are integers in the order of the numbers, -0.0 and 0.0 being one:

    v = b  where b >= 0,  MIN - b  where b < 0                       exact for every float, subnormals and infinities too

s = 2^shift divides every difference v - low, so all thresholds of the digit are tested at once by dividing:

    bin = min((v - low) >> shift, T)      T thresholds apart, one scatter instead of T comparisons; what is below low wraps
    counts_i = #{bin = i}                 = c_(i+1) - c_i  for  c_i = #{v < low + i s},  i = 0 .. T-1;  counts_T the rest

Everything is counted in integers: nothing rounds, however many entries there are.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from exporter.files.graph import Graph
from exporter.files.model_file import IR_VERSION, OPSET, encode
from exporter.version import __version__

MOST_BITS = 16  # of a digit: 2^16 counters are what stays in a processor's cache
WORDS = {"float32": (np.int32, np.uint32), "float64": (np.int64, np.uint64)}


def digit(dtype: str, bits: int = MOST_BITS) -> onnx.ModelProto:
    """The counts of one digit of `bits` bits over entries of a dtype, given as the integers that their bits are."""
    if dtype not in WORDS or not 1 <= bits <= MOST_BITS:
        raise ValueError(f"a digit has 1 to {MOST_BITS} bits and counts float32 or float64, not {bits} of {dtype}")
    signed, unsigned = (np.dtype(word) for word in WORDS[dtype])
    word, plain = (helper.np_dtype_to_tensor_dtype(each) for each in (signed, unsigned))
    graph = Graph(signed)
    turned = graph.add("Sub", [graph.constant(-(2 ** (8 * signed.itemsize - 1))), "x"])
    ordered = graph.add("Where", [graph.add("Less", ["x", graph.constant(0)]), turned, "x"])
    apart = graph.add("Cast", [graph.add("Sub", [ordered, "low"])], to=plain)
    bins = graph.add("BitShift", [apart, "shift"], direction="RIGHT")
    bins = graph.add("Cast", [graph.add("Min", [bins, graph.constant(2**bits, unsigned)])], to=TensorProto.INT64)
    one = numpy_helper.from_array(np.ones(1, np.int32))
    ones = graph.add("ConstantOfShape", [graph.add("Shape", ["x"])], value=one)
    none = graph.constant(np.zeros(2**bits + 1), np.int32)
    graph.nodes.append(helper.make_node("ScatterElements", [none, bins, ones], ["counts"], axis=0, reduction="add"))
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            f"radix-digit-{dtype}-b{bits}",
            [
                helper.make_tensor_value_info("x", word, ["entries"]),
                helper.make_tensor_value_info("low", word, []),
                helper.make_tensor_value_info("shift", plain, []),
            ],
            [helper.make_tensor_value_info("counts", TensorProto.INT32, [2**bits + 1])],
            list(graph.initializers.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="onnx-median",
        producer_version=__version__,
    )
    helper.set_model_props(proto, encode({"part": "digit", "dtype": dtype, "bits": bits}))
    onnx.checker.check_model(proto, full_check=True)
    return proto
