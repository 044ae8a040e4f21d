"""One digit of radix as a model of its own: entries and thresholds in, counts out.

A search that is spread over many parts cannot be one network, but its only work on the entries can: a digit of
`exporter.constructions.radix` counts entries against the thresholds t_i = low + i s, and counts of parts add up. So the
digit is exported, every part runs it, and who asked climbs on the sums (service/tables/search.py).

A search on a grid needs the grid; here a float is its own grid: its bits, read as an unsigned integer x. Among numbers of
one sign these integers are in order, upwards where it is plus and downwards where it is minus; so thresholds among them are
thresholds among the numbers, for every float, subnormals and infinities too, and -0.0 and 0.0 are neighbours.

s = 2^shift, so that all thresholds of the digit are tested at once by dividing, one scatter instead of T comparisons:

    the first digit     bin = x >> shift                              of all integers there are
    any other           bin = (x - low) >> shift                      of those in [low, low + span); what is below wraps
    counts_i = #{bin = i}                                             = c_(i+1) - c_i  for  c_i = #{x < low + i s}

Everything is counted in integers: nothing rounds, however many entries there are.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from exporter.formats.model_file import assemble
from exporter.ir.graph import Graph

MOST_BITS = 16  # of a digit: 2^16 counters are what stays in a processor's cache
WORDS = {"float32": np.uint32, "float64": np.uint64}


def digit(dtype: str, bits: int = MOST_BITS, *, first: bool) -> onnx.ModelProto:
    """The counts of one digit of `bits` bits over entries of a dtype, given as the integers that their bits are.

    The first digit is one of all integers; another takes `low` and `span` too, and leaves out what is not between them.
    """
    if dtype not in WORDS or not 1 <= bits <= MOST_BITS:
        raise ValueError(f"a digit has 1 to {MOST_BITS} bits and counts float32 or float64, not {bits} of {dtype}")
    graph = Graph(np.dtype(WORDS[dtype]))
    inside = "x"
    if not first:
        apart = graph.add("Sub", ["x", "low"])
        inside = graph.add("Compress", [apart, graph.add("Less", [apart, "span"])], axis=0)
    bins = graph.add("Cast", [graph.add("BitShift", [inside, "shift"], direction="RIGHT")], to=TensorProto.INT32)
    one = numpy_helper.from_array(np.ones(1, np.int32))
    ones = graph.add("ConstantOfShape", [graph.add("Shape", [bins])], value=one)
    none = graph.constant(np.zeros(2**bits), np.int32)
    graph.nodes.append(helper.make_node("ScatterElements", [none, bins, ones], ["counts"], axis=0, reduction="add"))
    word = str(graph.dtype)
    scalars = ["shift"] if first else ["low", "span", "shift"]
    return assemble(
        graph,
        f"digit-{dtype}-b{bits}{'-first' if first else ''}",
        {"x": (word, ["entries"]), **{name: (word, []) for name in scalars}},
        {"counts": ("int32", [2**bits])},
        {"part": "digit", "dtype": dtype, "bits": bits, "first": first},
    )
