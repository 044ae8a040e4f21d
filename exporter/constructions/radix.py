"""A search digit by digit. It is exact on every grid input, for any order, ties or distribution (proof in docs/radix.md).

The search keeps the lower end e of an interval that holds the wanted entry. One digit of T bins of width s counts the
entries below the thresholds e + i s, i = 1..T-1, and moves e up by s for every count that is below the wanted rank k:

    c_i = #{x_j < e + i s},     e <- e + s * sum_i [c_i < k].

After all digits s is the grid step u, and e is the entry. The comparison has three forms:

    pair         u [x >= t] = relu(x - t + u) - relu(x - t)      2 layers per digit; Clip(x - t + u, 0, u) when fused
    saturating   u [x < t]  = relu(u - relu(x - t + u))          3 layers per digit; one pass less over the data
    bounded      saturating, and counts are compared like this   4 layers per digit; no partial sum above 1 in any order,
                                                                 so a merged float32 Gemm is exact

Rank k + 1 needs no second search after rank k. If both entries lie in the same last bin, the counts of the last digit find
the entry of rank k + 1. Otherwise it is the smallest entry beyond this bin, and a mask and a tree of maxima find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np

from exporter.ir.linear import Array, Scalar
from exporter.ir.primitives import column
from exporter.ir.trace import LayerNames, Node, assume, clip, constant, largest_of, relu, stack, total, trim, variant

Form = Literal["pair", "saturating", "bounded"]
MOST_STEPS = 1 << 23  # up to this many grid steps from 0 to 1 a float32 holds the sum of any two numbers
SMALL = 64  # below this many values, a stage of the tree is one small matrix
LAST = "last digit"


@dataclass(frozen=True)
class Digit:
    """The number of bins of a digit, and the width of a bin in grid steps."""

    bins: int
    width: int


@dataclass(frozen=True)
class Digits:
    """The plan of a search over `cells` grid steps: digits, comparison form, and whether neighbouring ranks share it."""

    cells: int
    each: tuple[Digit, ...]
    form: Form = "pair"
    share: bool = True
    _: KW_ONLY
    saturated_moves: bool = False  # one layer more per digit, but two small operations less
    rows: bool = False  # the thresholds of the last digit are one matrix: fewer operations, more neurons
    block: int = 1  # the tree of maxima reduces blocks of this many entries by small matrices; 1: it takes halves
    served: tuple[Digit, ...] = ()  # other digits for the fused profile, whose last digit uses `rows`

    @property
    def step(self) -> Fraction:
        """The step u of the grid on [0, 1]."""
        return Fraction(1, self.cells)


def even_digits(bits: int, radix: int) -> tuple[Digit, ...]:
    """The digits of `bits` bits: log2(radix) bits each, and a shorter first digit if the division leaves a rest."""
    size = radix.bit_length() - 1
    rest = bits % size
    ends = [*range(bits - rest, -1, -size)]
    return tuple(Digit(2 ** (a - b), 2**b) for a, b in pairwise([bits, *ends] if rest else ends))


def radix(x: Node, ranks: Sequence[int], digits: Digits, names: LayerNames | None = None) -> Node:
    """The entries of the given ascending ranks of x. The entries of x lie in [0, 1] on the grid of the digits."""
    if x.size == 1:
        return stack([x] * len(ranks)) if len(ranks) > 1 else x
    found: list[Node] = []
    pending = list(ranks)
    while pending:
        k = pending.pop(0)
        both = digits.share and digits.form != "bounded" and bool(pending) and pending[0] == k + 1
        if both:
            pending.pop(0)
        found.append(_search(x, k, both, digits, LayerNames() if names is None else names))
    return stack(found)


def _search(x: Node, k: int, both: bool, digits: Digits, names: LayerNames) -> Node:
    """The entry of rank k, and with `both` also the entry of rank k + 1."""
    if digits.form == "bounded":
        return _last_digit(*_with_new_differences(x, k, digits, names), k, both, digits, names)
    end, v = _with_updated_differences(x, k, digits, names)
    if digits.rows:
        found = _last_rows(x, end, k, both, digits, names)
    else:
        e = end.value() if end.moves else None
        w = x if e is None else v if digits.each[-2].bins == 2 else x - e.spread(0, x.size)
        found = _last_digit(e, w, k, both, digits, names)
    if not digits.served:
        return found
    other = replace(digits, each=digits.served, rows=True, served=())
    return variant(found, lambda _: _search(x, k, both, other, LayerNames()))


@dataclass
class _End:
    """The lower end as a sum of moves: scalars minus the shifts that they contain, and vectors times a step."""

    moves: list[Node] = field(default_factory=list)
    steps: dict[Node, Fraction] = field(default_factory=dict)
    back: Fraction = Fraction(0)

    def value(self) -> Node:
        """All moves in one sum."""
        terms: list[tuple[Scalar, Node]] = [(1, m) for m in self.moves if m not in self.steps]
        if self.steps:
            moves, row = self._vectors()
            terms.append((1, assume(moves.along(0, row[None]).reshape(), 0.0, 1.0)))
        return assume(total(terms, -self.back), 0.0, 1.0)

    def product(self) -> tuple[Node, Array] | None:
        """A vector and a row whose product is the lower end, or None if some moves are scalars."""
        if not self.moves:
            return None
        return self._vectors() if len(self.steps) == len(self.moves) else (self.value().reshape(1), np.ones(1))

    def _vectors(self) -> tuple[Node, Array]:
        return stack(list(self.steps)), np.concatenate([np.full(m.size, float(s)) for m, s in self.steps.items()])


def _with_updated_differences(x: Node, k: int, digits: Digits, names: LayerNames) -> tuple[_End, Node]:
    """(e, v) before the last digit. v = x - t + u is updated for each digit, with one pass over the data.

    Each move contains a shift, so that v - moves accounts for the move of e and for the new width of the bins. e is summed
    only once, at the end.
    """
    u, end, v = digits.step, _End(), x
    for n, (digit, following) in enumerate(pairwise(digits.each)):
        s, spacing = digit.width * u, following.width * u
        bins, last = digit.bins, n == len(digits.each) - 2
        if n == 0 or bins != digits.each[n - 1].bins:
            v = _distances(x, end.value() if end.moves else None, bins, s, u)
        if bins == 2:
            shift = u - s if last else spacing - s
            end.back += shift
            end.moves.append(_moves(v, k, s, u, digits, shift))
            names.span(f"digit {n + 1}", v, end.moves[-1])
            v = assume(v - end.moves[-1].spread(0, x.size), -1.0, 1.0)
        else:
            # the moves have step 1, and a small matrix scales them to s, so all digits share one long row of ones
            moves = _moves(v, k, Fraction(1), u, digits)
            names.span(f"digit {n + 1}", v, moves)
            end.moves.append(moves)
            end.steps[moves] = s
            if following.bins == bins and not last:
                rows = bins - 1
                shifts = constant(np.array([float(i * (spacing - s)) for i in range(1, rows + 1)]))
                change = shifts + moves.along(0, np.full((rows, rows), float(s)))
                v = assume(v - change.spread(1, x.size), -1.0, 1.0)
    return end, v


def _with_new_differences(x: Node, k: int, digits: Digits, names: LayerNames) -> tuple[Node | None, Node]:
    """(e, x - e) before the last digit. e is carried as one number, and v is recomputed, so no partial sum exceeds 1."""
    u = digits.step
    e: Node | None = None  # one copy for each threshold of the present digit; None means 0
    for n, (digit, following) in enumerate(pairwise(digits.each), 1):
        s = digit.width * u
        v = _distances(x, e, digit.bins, s, u)
        moves = _moves(v, k, s, u, digits)
        names.span(f"digit {n}", v, moves)
        last = n == len(digits.each) - 1
        e = _advanced(e, moves, 1 if last else following.bins - 1, float(1 - s))
    return e, x if e is None else x - e.spread(0, x.size)


def _distances(x: Node, e: Node | None, bins: int, s: Fraction, u: Fraction) -> Node:
    """x - t + u for the thresholds t = e + i s, 0 < i < bins: one row per threshold, or a vector for a single threshold."""
    d = x.size
    if bins == 2:
        return x - (s - u) if e is None else total([(1, x), (-1, e.spread(0, d))], u - s)
    offsets = constant(np.array([float(i * s - u) for i in range(1, bins)]))
    thresholds = offsets if e is None else (e if e.shape else e.spread(0, bins - 1)) + offsets
    return x.spread(0, bins - 1) - thresholds.spread(1, d)


def _moves(v: Node, k: int, s: Fraction, u: Fraction, digits: Digits, shift: Fraction = Fraction(0)) -> Node:
    """s [#{x < t} < k] + shift for v = x - t + u, counted along the last axis."""
    d, axis = v.shape[-1], len(v.shape) - 1
    if digits.form == "pair":
        reached = trim(v, u)  # u [x >= t]
        fewer = reached.sum(axis) * (s / u) - s * (d - k)
    else:
        missed = relu(u - relu(v))  # u [x < t]
        fewer = s * k - missed.sum(axis) * (s / u)
    saturated = digits.saturated_moves or digits.form == "bounded"
    if saturated:
        moves = assume(relu(s - relu(s - fewer)), 0.0, float(s))
        return moves + shift if shift else moves
    moves = clip(fewer, s, relu(fewer), relu(fewer - s), shift)
    return assume(moves, float(shift), float(s + shift))


def _advanced(e: Node | None, moves: Node, copies: int, most: float) -> Node:
    """The lower end after the moves of one digit, at most `most`. `copies`: one for each threshold of the next digit."""
    if copies == 1:
        moved = moves.sum() if moves.shape else moves
        before = None if e is None else e.take([0]).reshape() if e.shape else e
    else:
        column = moves if moves.shape else moves.reshape(1)
        moved = column.along(0, np.ones((copies, column.size)))
        before = None if e is None else (e if e.shape else e.reshape(1)).take([0] * copies) if e.size != copies else e
    return assume(moved if before is None else before + moved, 0.0, most)


def _last_digit(e: Node | None, w: Node, k: int, both: bool, digits: Digits, names: LayerNames) -> Node:
    """The last bins are single grid values. The thresholds are e + i u, i = 1..bins, and one more for rank k + 1.

    w = x - e. Neighbouring thresholds are one grid step apart, so they share neurons: relu(x - t) of a threshold is
    relu(x - t' + u) of the next threshold t'.
    """
    form, bins, u = digits.form, digits.each[-1].bins, digits.step
    apart = [w - i * u for i in range(bins + both + 1)]  # x - (e + (i + 1) u) + u
    ramps = [relu(v) for v in apart]
    pairs = zip(apart, ramps, ramps[1:], strict=False)
    sides = [assume(clip(v, u, a, b), 0.0, float(u)) if form == "pair" else relu(u - a) for v, a, b in pairs]
    below = column([_below(side, u, form) for side in sides])
    lower = _climb(e, _fewer(below.take(slice(0, bins)), k, form), u)
    names.span(LAST, w, lower)
    if form == "bounded":
        # one neuron, so that a merged last Gemm adds two terms and rounds their mean once, as numpy does
        lower = relu(lower)
        names.add(lower.level, "output")
    if not both:
        return lower.reshape(1)
    fewer = _fewer(below, k + 1, form)
    capped = digits.cells > MOST_STEPS and form != "bounded"
    ramp, passed = (ramps[-2], fewer.take(slice(0, bins))) if capped else (ramps[-1], fewer)
    side = sides[-1] / u
    # 1 less the ramp beyond the last threshold, 0 before it; an entry is not on both sides, so ramp + side <= 1
    beyond = assume(side - ramp, 0.0, 1.0) if form == "pair" else relu(1 - assume(ramp + side, 0.0, 1.0))
    largest = max_tree(beyond, digits.block)
    gap = assume(fewer.take([bins]).reshape() - largest, -1.0, 1.0)
    gap = _within(gap, _climb(e, passed, u)) if capped else relu(gap)
    names.span(LAST, w, beyond)
    names.span("maximum", beyond, largest)
    names.add(gap.level, "gap")
    return column([lower, _climb(e, passed, u, gap)])


def _within(gap: Node, passed: Node) -> Node:
    """relu(gap), the way from `passed` to an entry. It is at most 1 - passed, because every entry is at most 1.

    The formula itself says so: a float32 does not hold all sums of numbers up to 1 if the grid has more than 2^23 steps.
    """
    return assume(relu(gap) - relu(gap - assume(1 - passed, 0.0, 1.0)), 0.0, 1.0)


def _last_rows(x: Node, end: _End, k: int, both: bool, digits: Digits, names: LayerNames) -> Node:
    """The last digit with its thresholds as one matrix: more neurons, but the fewest operations.

    Rank k + 1 uses v = x - t + u at the last threshold t. [x >= t] - v is 1 - v >= t - u beyond the threshold and
    -v <= t - u before it. So its maximum is 1 - v of the smallest entry beyond the threshold, if there is one. The maximum
    is never negative. A digit with a single bin has one threshold t for both ranks, because no grid value lies between e
    and t. Rank k is then e, or t if fewer than k entries are below t. Only the largest grid value is such a t.
    """
    u, d, bins = digits.step, x.size, digits.each[-1].bins
    count, step = bins + (both and bins > 1), float(u)
    lower = end.product()
    thresholds = _raised(constant(np.arange(count) * step), lower, np.ones(count))  # less u
    v = x.spread(0, count) - thresholds.spread(1, d)
    sides = trim(v, u) if digits.form == "pair" else relu(u - relu(v))
    below = _below(sides, u, digits.form)
    if not both:
        climb = _fewer(below, k, digits.form).along(0, np.full((1, bins), step))
        names.span(LAST, v, climb)
        return assume(_raised(climb, lower, np.ones(1)), 0.0, 1.0)
    wanted, tested = constant([k] * bins + [k + 1] * count), np.concatenate([np.eye(bins, count), np.eye(count)])
    fewer = trim(wanted + below.along(0, -tested))
    names.span(LAST, v, fewer)
    last = np.eye(1, count, count - 1)  # selects one of several rows: a product is faster than a slice
    side = sides / u if count == 1 else sides.along(0, last / step)
    reached = side if digits.form == "pair" else 1 - side
    beyond = reached - v if count == 1 else reached + v.along(0, -last)
    largest = max_tree(assume(beyond, 0.0, 1.0).reshape(d), digits.block)
    # the part up to rank k; the step to rank k + 1 within the last bins; the step beyond the last bins
    steps = np.zeros((3, bins + count))
    steps[0, :bins], steps[1, bins:-1], steps[2, -1] = step, step, 1
    ends = assume(_raised(fewer.along(0, steps), lower, np.array([1, 1, 0])), 0.0, 1.0)
    ends = ends + largest.reshape(1).along(0, -np.eye(3, 1, -2))
    names.span("maximum", beyond, largest)
    names.add(ends.level + 1, "gap")
    if digits.cells > MOST_STEPS:
        found, passed, gap = (ends.take([i]) for i in range(3))
        return stack([found, assume(passed + _within(gap, passed), 0.0, 1.0)])
    climbed = relu(ends)
    return assume(climbed.along(0, np.array([[1.0, 0, 0], [0, 1, 1]])), 0.0, 1.0)


def _raised(vector: Node, lower: tuple[Node, Array] | None, weights: Array) -> Node:
    """The vector plus the lower end times each weight. The lower end is given as a product."""
    return vector + lower[0].along(0, np.outer(weights, lower[1])) if lower else vector


def _below(side: Node, u: Fraction, form: Form) -> Node:
    """The counts #{x < t} along the last axis: from u [x >= t] in the pair form, from u [x < t] in the other forms."""
    counted = side.sum(len(side.shape) - 1) / u
    return side.shape[-1] - counted if form == "pair" else counted


def _fewer(c: Node, k: int, form: Form) -> Node:
    """[c < k] for counts c."""
    if form != "bounded":
        return trim(k - c)
    return assume(relu(1 - relu(c - (k - 1))), 0.0, 1.0)


def _climb(e: Node | None, fewer: Node, u: Fraction, gap: Node | None = None) -> Node:
    """e + u * (number of thresholds passed) + gap. It lies in [0, 1], so one neuron carries it."""
    terms = [(Fraction(1), n) for n in (e, gap) if n is not None]
    return assume(total([*terms, (u, fewer.sum())]), 0.0, 1.0)


def max_tree(q: Node, block: int = 1) -> Node:
    """The largest entry of q >= 0 by halving: max(a, b) = b + relu(a - b) (Definition G.1).

    Long vectors are halved by slices, or reduced in blocks by small matrices. Short vectors are halved by matrices. A value
    is the sum of `each` neurons: a matrix stage returns the two neurons relu(a - b) and relu(b), and the matrix of the next
    stage adds them.
    """
    h, n, each = q, q.size, 1
    while n > 1:
        size = block if n > SMALL and block > 1 and n % block == 0 else n
        if size > SMALL:
            values = h if each == 1 else assume(h.reshape(n, each).sum(1), q.lo, q.hi)
            m = (n + 1) // 2
            a, b = values.take(slice(0, m)), values.take(slice(n - m, n))
            h, n, each = assume(b + relu(a - b), q.lo, q.hi), m, 1
        else:
            h = h.reshape(n // size, size * each) if n > size else h.reshape(size * each)
            h, n, each = _block_maxima(h, size, each, q), n // size, 2
    return largest_of(q, assume(h.reshape(each).sum(), q.lo, q.hi))


def _block_maxima(h: Node, size: int, each: int, q: Node) -> Node:
    """The maximum of each row of `size` values, as two neurons. A value is the sum of `each` neurons."""
    axis = len(h.shape) - 1
    joined = np.kron(np.eye(size), np.ones((1, each)))
    while size > 1:
        m = (size + 1) // 2
        first, second = np.eye(size)[:m], np.eye(size)[size - m :]
        values = assume(h.along(axis, joined), q.lo, q.hi)
        h = relu(values.along(axis, np.concatenate([first - second, second])))
        size, joined = m, np.concatenate([np.eye(m)] * 2, axis=1)
    return h
