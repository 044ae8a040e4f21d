"""docs/paper-notes.md: its table is what is built, and every correction it lists is shown here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction as F
from math import comb, exp, log, log2, log10, pi, sqrt
from pathlib import Path

import numpy as np
import pytest

from exporter.analysis.accounting import accounting
from exporter.analysis.evaluate import evaluate
from exporter.build import build
from exporter.ir.network import weights
from exporter.ir.trace import Node, Relu, relu, total
from exporter.problem.spec import Spec
from exporter.problem.task import median
from exporter.theory.lower_bounds import exact_width, maximum_within
from tests import paper_blocks as pr
from tests.catalogue import BLOCKS, BLOCKS_SIZE, Part, block_network

NOTES = Path(__file__).parents[2] / "docs" / "paper-notes.md"
EIGHTH = F(1, 8)
EXPONENTS = {2: (76, 50), 3: (52, 50), 4: (28, 26)}  # y' and z' of rounds 2 to 4, in hundredths (Algorithm 5, step 1)


def run(parts: Sequence[Sequence[F | int]], formula: Callable[..., Node]) -> list[F]:
    """A formula on one input, in exact rationals."""
    net = block_network(tuple(Part(len(v), float(min(v)), float(max(v))) for v in parts), formula)
    return list(evaluate(net, np.array([[F(v) for part in parts for v in part]], dtype=object))[0])


def table() -> list[str]:
    rows = [
        f"Stated / built at {BLOCKS_SIZE}:",
        "",
        "| network | definition | hidden layers | width | largest weight |",
        "|---|---|---|---|---|",
    ]
    for b in BLOCKS.values():
        counted = accounting(b.network())
        rows.append(
            f"| {b.name} | {b.label} | {b.layers} / {counted.depth - 1} | {b.width_text} = {b.width} / {counted.width} "
            f"| {b.weight_text} = {b.weight} / {counted.max_weight:g} |"
        )
    return rows


def test_the_table_is_what_is_built() -> None:
    text = NOTES.read_text(encoding="utf-8")
    wanted = "\n".join(table())
    assert wanted in text, f"docs/paper-notes.md should hold this table:\n{wanted}"


def test_every_block_has_an_entry() -> None:
    text = NOTES.read_text(encoding="utf-8")
    assert [b.label for b in BLOCKS.values() if f"({b.label})" not in text] == []


def test_weights_of_one_are_larger_than_a_small_slope() -> None:
    """The bound 1/δ on all weights means max(1, 1/δ)."""
    net = block_network((Part(1), Part(1)), lambda a, b: pr.compare(a, b, 2))
    assert accounting(net).max_weight == 1 > 1 / 2


def test_filter_falls_right_of_u() -> None:
    """Between u and u/(1 - δ) the slope is -(1/δ - 1), where the proof says 1/δ - 1."""
    at = [[F(1, 2)], [F(1, 2) + F(1, 100)]]
    here, there = (run([x, [F(1, 2)], [F(1, 4)]], lambda x, u, low: pr.filter(x, u, low, EIGHTH))[0] for x in at)
    assert (there - here) / F(1, 100) == -(8 - 1)


def test_rank_selection_adds_up_equal_entries() -> None:
    """Without the tie rule two entries of 1/2 share rank 2: rank 2 returns their sum, rank 3 nothing."""
    x = [F(1, 4), F(1, 2), F(1, 2)]
    assert run([x], lambda v: pr.rank_select(v, [1, 2, 3], EIGHTH)) == [F(1, 4), 1, 0]
    assert run([x], lambda v: pr.rank_select(v, [1, 2, 3], EIGHTH, ties=True)) == x


def test_shortlisting_carries_x_through_its_first_layer() -> None:
    """ℓ' = max(ℓ, δ/2) takes a layer before the mask can read x; the proof counts only the components."""
    layer = BLOCKS["non-zero element shortlisting"].network().layers[0]
    assert sorted(g.neurons for g in layer.groups if g.carried) == [4], "the d' = 4 entries of x"


def test_rank_computing_is_off_by_a_half_for_odd_d() -> None:
    """d'/2 is no rank for odd d': the middle one is (d' + 1)/2."""
    x = [F(k, 8) for k in (1, 3, 5)]
    assert run([x, x, [x[0]]], lambda x, y, e: pr.rank_compute(x, y, e, EIGHTH)) == [F(3, 2)]
    assert run([x, x, [x[0]]], lambda x, y, e: pr.rank_compute(x, y, e, EIGHTH, rank=2)) == [2]


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_last_step_of_the_ceiling_is_never_taken(d: int) -> None:
    """x > d' does not happen on [-d', d']: two of the 4d' + 2 neurons are always 0."""
    net = block_network((Part(1, -d, d, 1 / d),), lambda x: pr.ceiling(x.reshape(), d))
    values = np.linspace(-d, d, 8 * d + 1)[:, None]
    first = weights(net)[0]
    neurons = np.maximum(first.matrix @ values.T + first.bias[:, None], 0)
    assert (neurons.max(axis=1) == 0).sum() == 2
    assert net.width == 4 * d + 2


def test_the_biases_of_the_ceiling_exceed_its_weights() -> None:
    first = weights(BLOCKS["ceiling"].network())[0]
    assert np.abs(first.bias).max() == 4 + 1 / 4 > 4


def test_the_ceiling_meets_its_step_with_equality() -> None:
    """The proof has x > i + 1/d' for a fraction above i; x = i + 1/d' is possible, and right."""
    assert run([[F(1, 4)]], lambda x: pr.ceiling(x.reshape(), 4)) == [1]


def test_one_hash_function_of_the_family_is_constant() -> None:
    """a = p is 0 modulo p, so h_p = 0: it is one of the at most n roots, and of no use."""
    p, family = pr.hash_family(30, 0.5)
    assert (family[p - 1] == 0).all()
    assert all(len(np.unique(row)) > 1 for row in family[: p - 1])


def test_digits_are_unique_because_p_to_the_n_exceeds_d() -> None:
    """The proof has p^n >= d^ε', which would not do: n = 1 digit satisfies it and leaves indices alike."""
    d, epsilon = 30, 0.5
    p, _ = pr.hash_family(d, epsilon)
    assert p >= d**epsilon
    one_digit = pr.hash_table(d, p, 1, range(1, p + 1))
    assert (one_digit[:, 0] == one_digit[:, p]).all(), "1 and 1 + p collide under every function"
    assert p**2 > d


def test_block_extraction_compares_counts_with_the_separation_of_the_data() -> None:
    """[c > s] with slope 1/δ is an indicator on integers only for δ <= 1, which entries in [δ, 1] imply."""
    counts = run([[2], [1]], lambda c, s: pr.compare(c, s, 1))
    assert counts == [1]
    assert run([[2], [1]], lambda c, s: pr.compare(c, s, 2)) == [F(1, 2)]


def test_masking_works_for_an_interval_of_one_point() -> None:
    """The definition asks for u > ℓ; u = ℓ is as good."""
    assert run([[0, F(1, 2), 1], [F(1, 2)], [F(1, 2)]], lambda x, u, low: pr.mask(x, u, low, EIGHTH)) == [0, 1, 0]


def test_filter_needs_entries_up_to_1() -> None:
    """Beyond 1 the last neuron opens too late: 2 is δ-far outside [0, 15/8] and is not filtered out."""
    assert run([[2], [F(15, 8)], [0]], lambda x, u, low: pr.filter(x, u, low, EIGHTH)) == [1]


def test_rank_scaling_needs_a_non_zero_entry() -> None:
    """Without one no k matches the count 0, and the answer is 0."""
    assert run([[0, 0, 0], [2]], lambda x, r: pr.rank_scale(x, r.reshape(), 2, EIGHTH)) == [0]


def test_selecting_rank_k_by_the_definition_of_the_paper() -> None:
    """The formula of Definition G.12 written out neuron by neuron gives the same as rank_select."""
    x = [F(k, 8) for k in (5, 1, 7, 3)]

    def literal(v: Node) -> Node:
        picked = [v.take([k]) for k in range(4)]
        y = [total([(1, pr.compare(a, b, EIGHTH)) for b in picked], 1) for a in picked]
        terms = []
        for a, rank in zip(picked, y, strict=True):
            s = 2 - rank
            terms += [(1, relu(a + s)), (-1, relu(a + s - 1)), (-1, relu(s)), (1, relu(s - 1))]
        return total(terms)

    assert run([x], literal) == run([x], lambda v: pr.rank_select(v, [2], EIGHTH)) == [F(3, 8)]


# The linear-width network: what its exponents and constants come to


def test_the_rounds_of_the_paper_need_a_large_d() -> None:
    """3^i d^(z' - y') <= 1, with the factor 3^i that the Parameter Properties leave out."""
    text = NOTES.read_text(encoding="utf-8")
    for i, hundredths in EXPONENTS.items():
        y, z = (h / 100 for h in hundredths)
        assert 1.01 + z - y < 1, "what is compared in the paper"
        least = i * log10(3) / (y - z)
        assert f"10^{least:.1f}" in text
        d = 10 ** (least + 0.01)
        assert 3**i * d ** (z - y) < 1 < 3**i * (d / 1.1) ** (z - y)
    assert "10^95.4" in text


@pytest.mark.parametrize("d", [2.0**11, 2.0**100])
def test_the_constant_of_the_hash_width_is_6_to_the_16(d: float) -> None:
    epsilon, gamma = 0.16 + 4 * log(6) / log(d), 0.18  # y' of what is left, and γ, in step 1 of Algorithm 5
    assert d ** (4 * epsilon + 2 * gamma) == pytest.approx(6**16 * d, rel=1e-9)
    assert 2.8e12 < 6**16 < 2.9e12


def test_soft_rounds_leave_the_ceiling_idle_and_offsets_make_weights_large() -> None:
    """A layer that only carries has x >= 0 as [x]+ and the others as [x]+ - [-x]+; the largest weight is 4 D/δ, not 1/δ."""
    model = build(Spec(median(256), "linear46"))
    idle = []
    for layer in model.network.layers:
        signed = {
            (g.node.arg.lo, g.node.arg.hi) for g in layer.groups if isinstance(g.node, Relu) and g.node.arg.lo < 0
        }
        if all((-high, -low) in signed for low, high in signed):
            idle.append(layer.name)
    assert [name for name in idle if "ceiling" in name] == ["round 3: ceiling", "round 4: ceiling"]
    assert model.accounting.max_weight == 4 * 256 * 2**24
    assert 4 * 2048 * 2**24 == 2**37 == pytest.approx(1.37439e11, rel=1e-5)


# The lower bounds of Section 4


def test_the_maximum_of_padded_numbers_has_rank_d_not_r() -> None:
    """The proof of Theorem 4.2 pads d numbers with r - 1 ones; ranks are ascending (Section 2)."""
    x, r = np.array([0.2, 0.7, 0.4, 0.1, 0.6]), 3
    padded = np.sort(np.r_[x, np.ones(r - 1)])
    assert padded[len(x) - 1] == x.max() != padded[r - 1]


def test_the_interval_of_the_l2_reduction_and_its_constant_differ() -> None:
    """[1, 2 - 1/(2d - 1)] scaled to 1 puts the free numbers below (2d - 1)/(4d - 3); d/(2d - 1) belongs to [1, 2 - 1/d]."""
    for d in range(2, 50):
        assert 1 / (2 - F(1, 2 * d - 1)) == F(2 * d - 1, 4 * d - 3) != F(d, 2 * d - 1)
        assert 1 / (2 - F(1, d)) == F(d, 2 * d - 1)


def test_the_last_step_of_the_stirling_bound_is_turned_around() -> None:
    assert 0.88 < exp(-1 / 8) < 0.89
    assert not exp(-1 / 8) <= 0.5
    for d in range(2, 200):  # what the line concludes is true
        hit = comb(2 * d - 1, d) * F(d, 2 * d - 1) ** d * F(d - 1, 2 * d - 1) ** (d - 1)
        assert hit >= 1 / (2 * sqrt(pi * d))


def test_our_reduction_at_a_half_loses_less() -> None:
    for m in range(1, 300):
        d = 2 * m - 1
        assert F(comb(d, m), 2**d) == F(comb(2 * m, m), 4**m) >= 1 / (2 * sqrt(m))
        assert float(4 * F(2**d, comb(d, m))) <= 8 * sqrt(m) < 8 * sqrt(pi * m)


def test_the_width_proof_needs_a_kernel_vector_without_negative_entries() -> None:
    """d = 4, v = (1, -1, 0, 0)/√2, the second entry among those put above p_1: at x = (1, 0, 0, 0) it is below."""
    d, v = 4, np.array([1.0, -1.0, 0.0, 0.0]) / sqrt(2)
    matrix = np.diag([0.0] + [1 - 2 / d] * (d - 1)) / 2
    matrix[:, 0] = v / (2 * d)
    start = np.array([1 - 1 / d, 1.0, 1 / d, 1.0]) / 2
    p = matrix @ np.array([1.0, 0.0, 0.0, 0.0]) + start
    assert p[1] < p[0]
    assert np.sort(p)[d // 2 - 1] == p[1] != p[0], "the median is not p_1"


def test_the_determinant_of_the_width_proof_is_0_for_two_numbers() -> None:
    bound = [(1 - F(2, d)) ** (d - 1) for d in range(2, 200)]
    assert bound[0] == 0
    assert min(bound[1:]) == bound[1] == F(1, 9)


def test_the_exact_median_bound_starts_at_511() -> None:
    """Theorem 4.1 speaks from 256 numbers on, and the median of d holds the maximum of (d + 1)/2."""
    speaks = [d for d in range(200, 600) if exact_width(maximum_within(median(d).outputs[0], d), 3)]
    assert speaks[0] == 511
    assert log2(log2(256)) == 3


def test_every_repair_of_section_4_is_listed() -> None:
    text = NOTES.read_text(encoding="utf-8")
    labels = ["4.1", "4.2", "4.3", "4.9"]
    assert all(f"Theorem {label} |" in text for label in labels)
    assert "against med" in text


def test_the_second_tail_of_the_inverse_process_is_at_most_the_first() -> None:
    """2 exp(-R/4) <= 2 exp(-L/6) wherever R >= L, where the proof of Lemma F.4 says at least."""
    for low in range(1, 30):
        for high in range(low, 40):
            assert 2 * exp(-high / 4) <= 2 * exp(-low / 6)
    assert "Lemma F.4" in NOTES.read_text(encoding="utf-8")
