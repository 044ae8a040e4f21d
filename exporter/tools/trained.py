"""A median behind trained networks: the answer of an ensemble is the median of its members' predictions.

Members are small networks with one hidden layer, each trained on its own share of noisy data, of which some values are wild.
Training is in whole numbers, in units of 2^-16: the weights are the same on every machine. Predictions are clipped to
[0, 1], and a sorting network takes their median, so that the whole is a chain of Gemm and Relu.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from exporter.build import build, to_onnx
from exporter.constructions import CONSTRUCTIONS
from exporter.formats.model_file import assemble
from exporter.ir.network import Weights
from exporter.passes.dense import dense_graph
from exporter.problem.spec import Spec
from exporter.problem.task import median
from exporter.specs import file_name
from exporter.tools.properties import Case, DenseFile, Floats, Property, error_chain, layers_of, ranked

Ints = npt.NDArray[np.int64]

INPUTS, HIDDEN, SAMPLES, STEPS = 3, 6, 96, 400
UNIT = 1 << 16
STEP = 1 / 1024  # weights are rounded to it, and properties leave so much room for rounding in float32


def data(rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Inputs in [0, 1], and half their largest entry plus a quarter of their first; every eighth value is wild."""
    x = rng.integers(0, UNIT + 1, (SAMPLES, INPUTS))
    y = x.max(axis=1) // 2 + x[:, 0] // 4 + rng.integers(-UNIT // 50, UNIT // 50, SAMPLES)
    wild = rng.integers(0, 8, SAMPLES) == 0
    return x, np.where(wild, rng.integers(0, UNIT + 1, SAMPLES), y)


def trained(rng: np.random.Generator, x: Ints, y: Ints) -> tuple[Ints, Ints, Ints, int]:
    """Weights and biases of a member, by gradient descent on the squared error."""
    w = rng.integers(-UNIT // 2, UNIT // 2 + 1, (HIDDEN, INPUTS))
    b = rng.integers(-UNIT // 4, UNIT // 4 + 1, HIDDEN)
    out, bias = rng.integers(-UNIT // 2, UNIT // 2 + 1, HIDDEN), UNIT // 2
    n = len(x)
    for _ in range(STEPS):
        hidden = np.maximum(x @ w.T // UNIT + b, 0)
        error = hidden @ out // UNIT + bias - y
        back = (error[:, None] * out // UNIT) * (hidden > 0)
        out -= error @ hidden // (4 * n * UNIT)  # a rate of a quarter
        bias -= int(error.sum()) // (4 * n)
        w -= back.T @ x // (4 * n * UNIT)
        b -= back.sum(axis=0) // (4 * n)
    return w, b, out, bias


def ensemble(members: int, seed: int) -> tuple[list[Weights], DenseFile]:
    """The layers of the clipped predictions, and the file with their median."""
    rng = np.random.default_rng(seed)
    x, y = data(rng)
    ways = [trained(rng, x[k::members], y[k::members]) for k in range(members)]
    scale = 1 / UNIT

    def rounded(values: object) -> Floats:
        return np.round(np.asarray(values, np.float64) * scale / STEP) * STEP

    first = Weights(
        sp.csr_array(rounded(np.concatenate([w for w, *_ in ways]))), rounded(np.concatenate([b for _, b, *_ in ways]))
    )
    second = sp.block_diag([rounded(out)[None] for _, _, out, _ in ways])
    bias = rounded([b for *_, b in ways])
    clip = Weights(sp.csr_array(sp.vstack([second, second])), np.concatenate([bias, bias - 1]))
    keep = sp.identity(members)
    predictions = [first, clip, Weights(sp.csr_array(sp.hstack([keep, -keep])), np.zeros(members))]
    spec = _median_of(members)
    layers = followed(predictions, _layers(spec))
    ends = {"x": ("float32", ("batch_size", INPUTS))}, {"y": ("float32", ("batch_size", 1))}
    proto = assemble(dense_graph(layers, "float32"), f"ensemble of {members}", *ends)
    name = f"median of {members} trained predictions"
    file = {"dtype": "float32", "stem": f"ensemble-of-{members}", "name": name}
    return predictions, DenseFile(proto, layers, spec.task, spec.grid, spec.construction, **file)


def _median_of(members: int) -> Spec:
    sorting = next(name for name, c in CONSTRUCTIONS.items() if c.comparators and c.dense_bits)
    return Spec(median(members), sorting, bits=10, dtype="float32", profile="dense", inputs="grid")


def _layers(spec: Spec) -> list[Weights]:
    return layers_of(to_onnx(build(spec)), Path(file_name(spec)))


def followed(first: list[Weights], then: list[Weights]) -> list[Weights]:
    """One chain after the other: the last map of the first is merged into the first map of the second."""
    last, start = first[-1], then[0]
    joined = Weights(sp.csr_array(start.matrix @ last.matrix), start.matrix @ last.bias + start.bias)
    return [*first[:-1], joined, *then[1:]]


def properties(of: DenseFile, predictions: list[Weights], seed: int) -> Iterator[Property]:
    """`local`: near one input the answer lies between the medians of the members' bounds. `error`: it is their median."""
    rng = np.random.default_rng(seed)
    centre = rng.integers(256, 769, INPUTS) / 1024
    lower, upper = centre - 1 / 64, centre + 1 / 64
    low, high = (float(np.median(end)) for end in bounds(predictions, lower, upper))
    cases: list[Case] = [[(0, "<=", low - STEP)], [(0, ">=", high + STEP)]]
    yield Property(
        "local", "inputs near one give an answer between the medians of the members' bounds", lower, upper, cases
    )
    at = float(evaluated(of.layers, centre)[0])
    text = "inputs near one give an answer below that of this one"
    yield Property("local-violated", text, lower, upper, [[(0, ">=", at - STEP)]], counterexample=centre)

    box = np.zeros(INPUTS), np.ones(INPUTS)
    members = of.task.d
    chain = "error", followed(predictions, error_chain(_layers(_median_of(members)), 0.0))
    rank = (members + 1) // 2
    text = "the answer is the median of the members' predictions"
    yield Property("error", text, *box, ranked(members, rank, members - rank + 1, STEP), chain=chain)
    text = f"fewer than {rank - 1} predictions lie below the answer, and fewer than {rank - 1} above"
    tries = np.random.default_rng(seed).integers(0, 1025, (500, INPUTS)) / 1024
    apart = [min(np.diff(np.sort(evaluated(predictions, x)))) for x in tries]
    cases = ranked(members, rank - 1, rank - 1, STEP)
    yield Property("error-violated", text, *box, cases, chain=chain, counterexample=tries[int(np.argmax(apart))])


def bounds(chain: list[Weights], lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """Bounds of the outputs by interval arithmetic."""
    for i, layer in enumerate(chain):
        up, down = layer.matrix.maximum(0), layer.matrix.minimum(0)
        lower, upper = up @ lower + down @ upper + layer.bias, up @ upper + down @ lower + layer.bias
        if i < len(chain) - 1:
            lower, upper = np.maximum(lower, 0), np.maximum(upper, 0)
    return lower, upper


def evaluated(chain: list[Weights], x: Floats) -> Floats:
    return bounds(chain, x, x)[0]
