"""The paper's lower bounds at one d, with every constant: see "Lower bounds" in docs/paper-notes.md.

A claim is one output, f(x) = the sum of w_r x_(r) over the sorted entries x_(1) <= ... <= x_(d). All bounds here concern
equality (or mean squared error) on all real inputs of a cube. A network that is exact only on a grid may break them.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from itertools import pairwise
from math import exp, lgamma, log, log2

from exporter.problem.task import Output


def least_depth(out: Output, d: int) -> int:
    """The depth below which no ReLU network equals f on an open set that meets the wall x_1 = x_2 at every rank: 1, 2 or 3.

    An open set that meets all orders of the entries is not enough: a network of depth 2 can equal the median of 3 on a ball
    in each order. Take x with x_1 = x_2 = t, k - 1 other entries below t and the rest above, k = 1 to d - 1. Near x the two
    entries contribute w_k min + w_(k+1) max, a kink of (w_(k+1) - w_k)/2 |x_1 - x_2|. An affine map has no kink. A network
    with one hidden layer has finitely many kinks. Each extends along a whole hyperplane, with the same slope everywhere. At
    almost every point of x_1 = x_2, the kinks along this hyperplane add up to one multiple of |x_1 - x_2|. So depth 1 needs
    w_(k+1) = w_k for every k, and depth 2 needs the same w_(k+1) - w_k for every k. A single rank satisfies this only for
    d <= 2, and the mean of the middle two only for d = 2.
    """
    weight = dict(zip(out.ranks, out.weights, strict=True))
    w = [weight.get(r, Fraction(0)) for r in range(1, d + 1)]
    jumps = {b - a for a, b in pairwise(w)}
    return 1 if jumps <= {Fraction(0)} else 2 if len(jumps) == 1 else 3


def maximum_within(out: Output, d: int) -> int:
    """The largest m such that fixing d - m inputs makes f the maximum (or minimum) of m numbers, up to an affine map.

    Let the lowest rank be l and fix d - l entries to 1: rank l is the maximum of the l free entries, and all higher ranks
    are 1. Let the highest rank be h and fix h - 1 entries to 0: rank h is the minimum of the d + 1 - h free entries. Depth
    and width do not change.
    """
    return max(min(out.ranks), d + 1 - max(out.ranks))


def least_m(depth: int) -> int | None:
    """The smallest m for which Theorem 4.1 covers a depth, 3 <= depth <= log2 log2 m; None if there is none."""
    return 2 ** (2**depth) if 3 <= depth <= 5 else None


def exact_width(m: int, depth: int) -> float | None:
    """A lower bound of the width of the exact maximum of m numbers at a depth, by Theorem 4.1. None if it does not apply.

    Theorem 4.2 states d^(1 + e)/40 for log2 log2 d >= depth. Its proof fixes inputs until m numbers are left, and applies
    Theorem 4.1 to these m numbers. So it proves m^(1 + e)/10 for log2 log2 m >= depth. For the median of d = 2m - 1 numbers
    at depth 3 this means d >= 511, not 256.
    """
    start = least_m(depth)
    if start is None or m < start:
        return None
    return float(m ** (1 + 1 / (2 ** (depth - 2) - 1)) / 10)


def forbidden(d: int) -> list[tuple[int, float, str, bool]]:
    """(depth, width, theorem, exact): no median of this depth below this width is exact (or, if not `exact`, accurate)."""
    found = [(2, float("inf"), "Corollary 4.6", False), (3, d * d / 20, "Corollary 4.8", False)]
    for depth in range(3, int(log2(max(2.0, log2(d)))) + 1):
        found.append((depth, d ** (1 + 1 / (2 ** (depth - 2) - 1)) / 40, "Theorem 4.2", True))
    return [bound for bound in found if bound[1] > 1.1 * d]  # below d, Theorem 4.9 is stronger than the others


def narrow_error(out: Output, d: int) -> float | None:
    """A lower bound of the mean squared error on [0, 1]^d if the first affine map has rank below d; rounded down.

    This is Theorem 4.9, with a proof for kernel vectors v of any signs. Let a = |v_i| be the largest entry, v_i = a after a
    change of sign, h > 0, and τ = ha. For one rank k, choose k - 1 of the other entries:

        p_i = c + h v_i t            c = τ + s
        p_j = τ + h v_j t + s x_j                   for the chosen ones
        p_j = c + 2τ + h v_j t + s' x_j             for the others,       4τ + s + s' = 1,    t, x_j in [0, 1].

    Since |v_j| <= a, all p lie in [0, 1] and p_i has rank k. The choices give disjoint sets, each of volume
    τ s^(k-1) s'^(d-k). Along t the network is constant and f moves by τ t, so the mean squared error is at least τ²/12:

        binom(d - 1, k - 1) τ³ s^(k-1) s'^(d-k) / 12,  largest at 4τ = 3/(d + 2), s = (k - 1)/(d + 2), s' = (d - k)/(d + 2).

    For the mean of ranks k and k + 1, two entries i, j stand in the middle in any order, p_j = c + h v_j t + s'' x_j. If
    d >= 3, some pair of entries of v has a sum of size at least 2a/3 (if all others are negative, -α and -β, the sums are
    a - α, a - β and α + β). Then f moves by at least τ/3, |v_i| >= a/3, and with 6τ + s + s' + s'' = 1 the bound is
    binom(d - 2, k - 1) (τ/3) (τ/3)²/12 s'' s^(k-1) s'^(d-k-1). For d = 2 this mean is linear, so there is no bound.
    """
    k = out.ranks[0]
    if len(out.ranks) == 1 and d >= 2 and out.weights == (Fraction(1),):
        left, right, tau, constant, chosen = k - 1, d - k, 3 / (4 * (d + 2)), 1 / 12, d - 1
    elif out.ranks == (k, k + 1) and set(out.weights) == {Fraction(1, 2)} and d >= 3:
        left, right, tau, constant, chosen = k - 1, d - k - 1, 1 / (2 * (d + 2)), 1 / (324 * (d + 2)), d - 2
    else:
        return None
    logarithm = log(constant) + 3 * log(tau) + lgamma(chosen + 1) - lgamma(left + 1) - lgamma(right + 1)
    for n in (left, right):
        logarithm += n * log(n / (d + 2)) if n else 0.0
    return round_down(exp(logarithm))


def round_down(value: float) -> float:
    """The value, rounded down to two significant digits."""
    exact = Decimal(value)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_FLOOR)) if value > 0 else 0.0
