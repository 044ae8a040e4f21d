"""VNN-LIB properties of a dense model, for verifiers.

A property file states the violation: a verifier that answers `unsat` has proved the property, for all real inputs of the
domain and not only for those on the grid. VNN-LIB compares an output with a constant, so what compares outputs with inputs
is stated on a chain made from the model's own weights, written beside it:

    NAME-range.vnnlib                on NAME.onnx    entries in the middle half of the domain give an output in it
    NAME-swap.vnnlib, -swap.onnx     y(x) - y(x with the first and the last entry swapped)    is 0
    NAME-error.vnnlib, -error.onnx   y(x) - x_k for every k: y is the median where neither half of the x_k lies beyond it

each up to a grid step, two for a difference of two outputs; the last two at small d. They are meant for bare chains
(`--inputs grid`): on real numbers inside the domain the layers that round and clamp data only cost a verifier time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from exporter.build import Built
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.manifest import replace_file, writable
from exporter.formats.model_file import assemble
from exporter.ir.network import Weights, weights
from exporter.passes.dense import dense_graph

SMALL = 5  # d up to which the further chains are written: verifiers do not get far beyond, and 20 halves are listed
Case = list[str]


def write_properties(model: Built, path: Path) -> list[Path]:
    """Write the properties of the dense model at `path` beside it; returns the files."""
    if not CONSTRUCTIONS[model.options.construction].everywhere:
        able = [name for name, c in CONSTRUCTIONS.items() if c.everywhere]
        raise UserError(
            f"{model.options.construction} keeps its promise on the grid alone, a VNN-LIB property speaks of all reals: "
            f"properties are written for {' and '.join(able)}"
        )
    layers, d = weights(model.network), model.task.d
    files = {"-range.vnnlib": range_property(model).encode()}
    if 1 < d <= SMALL:
        files["-swap.onnx"] = _chain(swap_chain(layers, 0, d - 1), model, "swap")
        files["-swap.vnnlib"] = swap_property(model).encode()
    if d <= SMALL and d % 2:
        files["-error.onnx"] = _chain(error_chain(layers, model.options.grid.low), model, "error")
        files["-error.vnnlib"] = error_property(model).encode()
    with writable(path.parent):
        for suffix, data in files.items():
            replace_file(path.with_name(path.stem + suffix), data)
    return [path.with_name(path.stem + suffix) for suffix in files]


def range_property(model: Built) -> str:
    grid = model.options.grid
    quarter = (grid.hi - grid.lo) / 4
    lo, hi = grid.lo + quarter, grid.hi - quarter
    cases = [[_below(0, lo - grid.step)], [_above(0, hi + grid.step)]]
    return _property(model, "the output lies in the range of the input", (lo, hi), 1, cases)


def swap_property(model: Built) -> str:
    grid = model.options.grid
    cases = [[_below(0, -2 * grid.step)], [_above(0, 2 * grid.step)]]
    text = "swapping the first and the last entry changes nothing"
    return _property(model, text, (grid.lo, grid.hi), 1, cases)


def error_property(model: Built) -> str:
    """More than half of the y - x_k at or above a step: y is too high; at or below: too low."""
    grid, d = model.options.grid, model.task.d
    halves = list(combinations(range(d), (d + 1) // 2))
    cases = [[_above(k, grid.step) for k in half] for half in halves]
    cases += [[_below(k, -grid.step) for k in half] for half in halves]
    return _property(model, "the output is the median", (grid.lo, grid.hi), d, cases)


def swap_chain(layers: list[Weights], i: int, j: int) -> list[Weights]:
    """y(x) - y(x with entries i and j swapped): the chain twice, side by side."""
    first, last = layers[0], layers[-1]
    order = np.arange(first.matrix.shape[1])
    order[[i, j]] = order[[j, i]]
    swapped = sp.csr_array(first.matrix[:, order])
    chain = [Weights(_csr(sp.vstack([first.matrix, swapped])), np.tile(first.bias, 2))]
    chain += [Weights(_csr(sp.block_diag([m.matrix, m.matrix])), np.tile(m.bias, 2)) for m in layers[1:-1]]
    return [*chain, Weights(_csr(sp.hstack([last.matrix, -last.matrix])), np.zeros_like(last.bias))]


def error_chain(layers: list[Weights], low: float) -> list[Weights]:
    """y(x) - x_k for every k: the chain with x - low >= 0 carried along by one neuron an entry."""
    first, last = layers[0], layers[-1]
    d = first.matrix.shape[1]
    keep = sp.identity(d, format="csr")
    chain = [Weights(_csr(sp.vstack([first.matrix, keep])), np.concatenate([first.bias, np.full(d, -low)]))]
    chain += [
        Weights(_csr(sp.block_diag([m.matrix, keep])), np.concatenate([m.bias, np.zeros(d)])) for m in layers[1:-1]
    ]
    answer = sp.vstack([last.matrix] * d)
    return [*chain, Weights(_csr(sp.hstack([answer, -keep])), np.repeat(last.bias, d) - low)]


def _csr(matrix: object) -> sp.csr_array:
    return sp.csr_array(matrix)


def _chain(layers: list[Weights], model: Built, name: str) -> bytes:
    x, y = ((model.dtype, ["batch_size", n]) for n in (model.task.d, layers[-1].matrix.shape[0]))
    proto = assemble(dense_graph(layers, model.dtype), f"{model.task.label}-{name}", {"x": x}, {"y": y})
    return bytes(proto.SerializeToString(deterministic=True))


def _below(k: int, limit: float) -> str:
    return f"(<= Y_{k} {_number(limit)})"


def _above(k: int, limit: float) -> str:
    return f"(>= Y_{k} {_number(limit)})"


def _number(value: float) -> str:
    """Digits without an exponent, exact: every grid number is a dyadic one."""
    text = f"{value:.60f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _property(model: Built, text: str, box: tuple[float, float], outputs: int, cases: Iterable[Case]) -> str:
    grid, d = model.options.grid, model.task.d
    lines = [
        f"; {model.task.label} of {d} numbers by {model.options.construction}: {text}, up to the grid step {grid.step:g}",
        "; unsat: it does, on all real inputs of the domain",
        *(f"(declare-const X_{i} Real)" for i in range(d)),
        *(f"(declare-const Y_{i} Real)" for i in range(outputs)),
    ]
    for i in range(d):
        lines += [f"(assert (>= X_{i} {_number(box[0])}))", f"(assert (<= X_{i} {_number(box[1])}))"]
    lines += ["(assert (or", *(f"    (and {' '.join(case)})" for case in cases), "))"]
    return "\n".join(lines) + "\n"
