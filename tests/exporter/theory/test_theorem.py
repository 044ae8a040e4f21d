"""The networks of the asymptotic theorems, built at a small d: what they compute, and that the formulas count them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from exporter.analysis.accounting import accounting
from exporter.analysis.contract import structured_bits
from exporter.analysis.evaluate import evaluate, evaluate_exact, evaluate_weights, trace_values
from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.ir.network import Network, network, weights
from exporter.ir.trace import topological, vector
from exporter.theory import asymptotic as networks
from exporter.theory.asymptotic_plan import Depth6, Depth10, Hashing
from exporter.theory.theorem import BITS, built, holds, measured, planned, relaxed

TINY: dict[int, Depth6 | Depth10] = {
    6: Depth6(d=16, rank=8, margin=3, ending=Hashing(2, 3, 6, 2)),
    10: Depth10(
        d=24, rank=12, candidates=4, counted=10, cuts=3, blocks=3, block=4, entries=3, first=0, last=3, margin=1,
        ending=Hashing(3, 4, 12, 4),
    ),
}  # fmt: skip


def tiny(depth: int, seed: int = 0, bits: int = 6) -> Network:
    return built(TINY[depth], seed, bits)


@pytest.mark.parametrize(("depth", "d"), [(6, 64), (6, 512), (10, 64), (10, 100), (10, 333)])
@pytest.mark.parametrize("equal", [False, True])
def test_right_wherever_the_events_of_the_proof_hold(depth: int, d: int, equal: bool) -> None:
    """Against numpy; and the events do hold, on distinct entries and, in any order, on equal ones."""
    found = measured(depth, d, 100, seed=d, equal=equal)
    assert found.depth == depth
    assert found.wrong_where_held == 0
    assert found.held >= 40 or (depth, equal) == (6, True), "sixteen values are not uniform"
    assert found.widths == relaxed(depth, d).widths


@pytest.mark.parametrize("depth", TINY)
def test_counted_by_the_formula_and_by_the_accounting(depth: int) -> None:
    net, plan = tiny(depth), TINY[depth]
    counted = accounting(net)
    assert counted.depth == depth == plan.depth
    assert counted.widths == plan.widths
    assert [len(w.bias) for w in weights(net)[:-1]] == [*plan.widths]


@pytest.mark.parametrize("depth", TINY)
@pytest.mark.parametrize("seed", range(4))
def test_the_weight_list_and_rational_arithmetic_agree(depth: int, seed: int) -> None:
    """Affine, ReLU, affine, ... as matrices, and the formula in fractions: the events decide both."""
    net, plan = tiny(depth, seed), TINY[depth]
    x = np.random.default_rng(seed).integers(0, 2**6 + 1, (12, plan.d))
    exact = evaluate_exact(net, x / 2.0**6)[:, 0]
    assert np.array_equal(exact.astype(float), evaluate_weights(weights(net), x / 2.0**6)[:, 0])
    for row, out in zip(x, exact, strict=True):
        if holds(plan, row, seed, 6):
            assert out * 2**6 == np.sort(row)[plan.rank - 1]


@pytest.mark.parametrize("depth", [6, 10])
def test_float64_has_the_bits(depth: int) -> None:
    assert structured_bits(built(relaxed(depth, 256)), 2.0**-BITS).exact_in("float64")


@pytest.mark.parametrize("depth", TINY)
def test_outputs_are_bounded_on_every_input(depth: int) -> None:
    """By what the L2 statements allow, on the grid or off it, whatever fails; stated bounds hold on the grid."""
    plan = TINY[depth]
    net, ending = tiny(depth), plan.ending
    rng = np.random.default_rng(5)
    real = rng.random((400, plan.d)) ** rng.choice([0.1, 1, 9], (400, 1))
    grid = np.rint(real * 2**6) / 2**6
    if isinstance(plan, Depth6):
        low = (2 * plan.rank - plan.margin) / plan.d - 1
        high = (2 * plan.rank - plan.margin) / plan.d + ending.functions * ending.size * 2 * plan.margin / plan.d
        assert low <= evaluate(net, real).min() <= evaluate(net, real).max() <= high
    else:
        assert 0 <= evaluate(net, grid).min() <= evaluate(net, grid).max() <= 1
        assert np.abs(evaluate(net, real)).max() <= ending.functions * ending.size
    values = trace_values(net.output, grid, keep=True)
    for node in topological(net.output):
        assert node.lo - 1e-9 <= values[node].min() <= values[node].max() <= node.hi + 1e-9, node
    values = trace_values(net.output, real, keep=True)
    for group in (g for layer in net.layers for g in layer.groups if g.carried and len(g.signs) == 1):
        assert values[group.node].min() >= 0, "one neuron carries it, off the grid as well"


def test_without_offsets_the_order_alone_decides() -> None:
    """Distinct entries: the position of the answer is the same for all values in one order."""
    plan = TINY[10]
    assert isinstance(plan, Depth10)
    x = vector(plan.d)
    net = network(x, networks.depth10(x, plan, Fraction(1, 2**10), 3, offsets=False))
    rng = np.random.default_rng(2)
    for _ in range(40):
        order = rng.permutation(plan.d)
        values = [np.sort(rng.choice(np.arange(1, 2**10), plan.d, replace=False))[order] for _ in range(3)]
        out = evaluate(net, np.array(values) / 2.0**10)[:, 0] * 2**10
        places = {tuple(np.flatnonzero(v == o)) for v, o in zip(values, out, strict=True)}
        assert len(places) == 1


def test_a_crowded_function_is_passed_over() -> None:
    """With one function less, what the first bad function would have said is lost: the gate picks the next good one."""
    plan = TINY[10]
    assert isinstance(plan, Depth10)
    one = replace(plan, ending=replace(plan.ending, functions=1))
    x = np.random.default_rng(1).integers(0, 2**6 + 1, (200, plan.d))
    more, fewer = (np.array([holds(p, row, 1, 6) for row in x]) for p in (plan, one))
    right = evaluate(built(plan, 1, 6), x / 2.0**6)[:, 0] * 2**6 == np.sort(x, axis=1)[:, plan.rank - 1]
    assert (more & ~fewer).sum() >= 10
    assert right[more].all()


def test_the_command_counts_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theorem", "10", "--d", "1e120", "1e200"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[-1].split()[:3] == ["1.00e200", "10", "6.000"]
    assert main(["theorem", "6", "--d", "64", "--run", "20"]) == 0
    assert "where it is wrong on 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["6", "--d", "100", "--run", "5"], "power of two only"),
        (["10", "--d", "1e9", "--run", "5"], "without --run any d can be counted"),
        (["10", "--d", "1.5"], "whole number from 2 to 1e1000, not '1.5'"),
        (["10", "--d", "64", "--failure", "2"], "between 0 and 1, not '2'"),
        (["10", "--d", "64", "--exponent", "x"], "as 1/100 or 0.01, not 'x'"),
        (["7", "--d", "64"], "choose from 4, 5, 6, 10"),
    ],
)
def test_bad_arguments_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theorem", *words]) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_fit_says_which_inequality() -> None:
    with pytest.raises(UserError, match="its windows leave"):
        planned(6, 100)
    with pytest.raises(UserError, match="shorter than one of its blocks"):
        planned(10, 10**6)


def test_votes_are_counted_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "theorem", "5", "--d", "1e15"]) == 0
    assert "564.000" in capsys.readouterr().out
    assert main(["theory", "theorem", "4", "--d", "512", "--run", "3"]) == 2
    assert "--construction window4 is its network" in capsys.readouterr().err
