"""Random formulas, with every kind of node in every order: the readings agree on them too."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.analysis.accounting import accounting
from exporter.analysis.evaluate import evaluate, evaluate_exact, evaluate_weights, trace_values
from exporter.ir.network import Network, network, weights
from exporter.ir.trace import Node, constant, relu, stack, topological, trim, vector
from tests.running import exact_dtypes, proto_of, run, writers

STEP = 1 / 4
LIMIT = 60  # entries of a tensor


def grow(rng: np.random.Generator, made: list[Node]) -> Node | None:
    """One more node from those that are there; None where the drawn step does not fit."""
    a = made[rng.integers(len(made))]
    axes = len(a.shape)
    axis = int(rng.integers(axes)) if axes else 0
    alike = [n for n in made if n.shape == a.shape]
    match int(rng.integers(-3, 13)):
        case -3 | -2 | -1 | 0:
            return relu(a) if a.level < 3 else None
        case 1:
            return trim(a, int(rng.integers(1, 3))) if a.level < 3 else None
        case 2:
            b = alike[rng.integers(len(alike))]
            return a * int(rng.integers(-2, 3) or 1) + b * int(rng.integers(1, 3)) + int(rng.integers(-1, 2))
        case 3:
            return 1 - a
        case 4:
            n = int(rng.integers(2, 4))
            return a.spread(int(rng.integers(axes + 1)), n) if a.size * n <= LIMIT and axes < 3 else None
        case 5 if axes:
            return a.take(rng.integers(0, a.shape[axis], int(rng.integers(1, 5))), axis)
        case 6 if axes:
            start = int(rng.integers(a.shape[axis]))
            return a.take(slice(start, None), axis)
        case 7 if axes:
            matrix = rng.integers(-1, 2, (int(rng.integers(1, 4)), a.shape[axis])).astype(float)
            return a.along(axis, matrix)
        case 8 if axes:
            return a.sum(axis) if rng.random() < 0.5 else a.prefix_sum(axis)
        case 10:
            return a.reshape(a.size) if rng.random() < 0.5 else a.reshape(1, *a.shape)
        case 12 if axes:
            both = [a, alike[rng.integers(len(alike))]]
            if rng.random() < 0.3:
                both.append(constant(rng.integers(-1, 2, a.shape)))
            return stack(both, axis) if a.size * len(both) <= LIMIT else None
        case _:
            return None


def random_network(seed: int) -> Network:
    rng = np.random.default_rng(seed)
    source = vector(int(rng.integers(1, 5)), -1.0, 2.0)
    made: list[Node] = [source, constant(rng.integers(-2, 3, source.shape))]
    while len(made) < 20:
        node = grow(rng, made)
        if node is not None and node.magnitude < 2**12:
            made.append(node)
    moving = [n for n in made[2:] if not n.is_constant] or [source]
    chosen = moving[-2:]
    return network(source, stack([n.reshape(n.size) for n in chosen]))


@pytest.mark.parametrize("seed", range(150))
def test_readings_agree(seed: int) -> None:
    net = random_network(seed)
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 8, (12, net.d), endpoint=True) * STEP
    expected = evaluate(net, x)
    layers = weights(net)
    assert np.array_equal(evaluate_weights(layers, x), expected)
    assert np.array_equal(evaluate_exact(net, x[:2]).astype(np.float64), expected[:2])
    for profile in writers(net):
        assert "float32" in exact_dtypes(net, profile, STEP)
        assert np.array_equal(run(proto_of(net, profile, "float32"), x), expected), profile
    counted = accounting(net)
    assert counted.nnz == sum(layer.matrix.nnz for layer in layers)
    assert counted.max_weight == max((float(np.abs(m.matrix.data).max()) for m in layers if m.matrix.nnz), default=0.0)
    values = trace_values(net.output, x, keep=True)
    for node in topological(net.output):
        assert node.lo <= values[node].min() <= values[node].max() <= node.hi
