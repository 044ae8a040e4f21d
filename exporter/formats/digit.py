"""One digit of the radix search as a model of its own: entries and thresholds in, counts out.

A search over data in many parts cannot be one network. But the work on the entries can be one: a digit of
`exporter.constructions.radix` counts the entries below the thresholds t_i = low + i s, and the counts of all parts add up.
So the digit is exported, every part runs it, and the caller chooses the next interval from the sums
(service/tables/search.py).

This search needs no grid. It reads the bits of a float as an unsigned integer x. For numbers of one sign the integers have
the order of the numbers (reversed for negative numbers). So thresholds of integers are thresholds of numbers, for every
float, also subnormals and infinities. -0.0 and 0.0 are neighbours.

s = 2^shift, so a shift finds the bin of an entry. One scatter then replaces T comparisons:

    the first digit     bin = x >> shift                              of all integers
    any other digit     bin = (x - low) >> shift                      of integers in [low, low + span); below low they wrap
    counts_i = #{bin = i}                                             = c_(i+1) - c_i  for  c_i = #{x < low + i s}

All counts are integers, so they are exact for any number of entries.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from exporter.formats.model_file import assemble
from exporter.ir.graph import Graph

MOST_BITS = 16  # per digit: 2^16 counters fit into a processor's cache
WORDS = {"float32": np.uint32, "float64": np.uint64}


def digit(dtype: str, bits: int = MOST_BITS, *, first: bool) -> onnx.ModelProto:
    """A model that counts one digit of `bits` bits. The entries of `dtype` are given as the integers of their bits.

    The first digit counts all integers. Any other digit has the inputs `low` and `span`, and counts integers in
    [low, low + span).
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
