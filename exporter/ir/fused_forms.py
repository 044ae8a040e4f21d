"""The formula that a fused file computes: a network with its variants, and what Clip stands for.

`served` puts the form of every `Variant` in its place. `trimmed` finds the pairs relu(v) - relu(v - h) that Clip(v, 0, h)
stands for, and `all_pairs`, `picked` are the forms that cost least in memory and bits.

Clip saves bits as well. Rounding never turns the order of two numbers around, and 0 and h are numbers of every type: a v
outside [0, h] may round, for it stays outside, and only what lies inside must be exact (exporter.analysis.contract).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from exporter.ir.linear import Along, Array, Reshape, Scalar, Take
from exporter.ir.network import Network
from exporter.ir.trace import (
    Apply,
    Constant,
    Input,
    Largest,
    Node,
    Relu,
    Stack,
    Sum,
    Variant,
    assume,
    assume_total,
    below_diagonal,
    constant,
    differences,
    kind,
    largest_of,
    relu,
    stack,
    topological,
    total,
    trim,
)

SHORT = 64
RUNS = 8  # so many runs of entries are copied as slices, where they are as long at least


def all_pairs(x: Node, delta: Scalar, cells: int, then: Node | None = None, unique: bool = True) -> Node:
    """The ranks 1..m of all entries, equal ones by position, each pair compared once: no list of pairs, no large matrix.

    With `then` equal entries are compared by these integers, and by position where they are equal as well. What is not
    `unique` is at least 1 + the number of smaller entries, for one of equal entries just that, and at most what it would be
    as the last of them: enough for `largest_within`, and no position is looked at.

    Rows I of the matrix [x_i > x_j] at a time: what lies right of the square I x I is summed along its rows for I, and
    along its columns, from 1, for the entries after I.

        I  | square  wins      |  rank += sums of rows
           |         1 - wins  |  rank += sums of columns
    """
    plain = then is None and not unique
    m, y, unit = x.shape[0], x if plain else x / delta, delta if plain else 1

    def wins(mine: slice, other: slice) -> Node:
        square = below_diagonal(mine.stop - mine.start) if mine == other and unique else None
        later = square
        if then is not None:
            apart = differences(then.take(mine), then.take(other))
            later = trim(apart + square if square is not None else apart)
        apart = differences(y.take(mine), y.take(other))
        return trim(apart + later if later is not None else apart, unit)

    rows = max(1, cells // m)
    ranks: list[Node] = []
    below: Node | None = None  # how many of the entries before are not larger, for all entries from `start` on
    for start in range(0, m, rows):
        n = min(rows, m - start)
        mine, after = slice(start, start + n), slice(start + n, m) if start + n < m else None
        terms = [wins(mine, mine).sum(1) / unit]
        lost: Node | None = None
        if after is not None:
            won = wins(mine, after)
            terms.append(won.sum(1) / unit)
            columns = won.along(0, np.full((1, n), 1 / float(unit))).reshape(m - start - n)
            lost = assume(n - columns, 0.0, float(n))
        if below is not None:
            terms.append(below.take(slice(0, n)))
            rest = below.take(slice(n, None)) if after is not None else None
            below = rest + lost if rest is not None and lost is not None else None
        else:
            below = lost
        ranks.append(assume(total([(1, t) for t in terms], 1), 1.0, float(m)))
    return stack(ranks)


def picked(x: Node, s: Node) -> Node:
    """The sum over the last axis of x [s = 0], 0 <= x <= 1 where s = 0, integers s of which one at most is 0."""
    return assume(assume(trim(x + s) - trim(s), 0.0, 1.0).sum(len(s.shape) - 1), 0.0, 1.0)


def largest_within(x: Node, beyond: Node, found: Node) -> Node:
    """`found`, the largest entry of x >= 0 in each row of integers `beyond`, or in the one row, where they are not above 0.

    With beyond = the rank of every entry less r that is the entry of rank r: an entry that is out falls to 0 or below, for
    x <= 1, and the largest is one that is in. Ranks need not be unique (`all_pairs`): of the entries equal to the one of
    rank r the first is in, and all larger ones are out.
    """
    out = relu(beyond)
    if len(out.shape) == 1:
        return assume(largest_of(x - out, found.reshape()), found.lo, x.hi).reshape(1)
    return assume(largest_of(x.spread(0, out.shape[0]) - out, found), found.lo, x.hi)


def prefix_counts(live: Node) -> Node:
    """The prefix sums of the rows of a matrix of zeros and ones: inside groups, and of the groups before."""
    rows, n = live.shape
    size = math.isqrt(n - 1) + 1
    groups = -(-n // size)
    more = groups * size - n
    padded = stack([live, constant(np.zeros((rows, more)))], 1) if more else live
    inside = assume(padded.reshape(rows, groups, size).prefix_sum(2), 0.0, float(size))
    sums = inside.take([size - 1], 2).reshape(rows, groups)
    before = assume(sums.along(1, np.tril(np.ones((groups, groups)), -1)), 0.0, float(n))
    found = assume(inside + before.spread(2, size), 0.0, float(n)).reshape(rows, groups * size)
    return found.take(slice(0, n), 1)


def served(net: Network, cells: int) -> Network:
    """The network as its formula with every variant in its place; the layers are not those of it."""
    return _without_variants(net, lambda variant: variant.form(cells), _sliced)


def unvaried(net: Network) -> Network:
    """The network as its formula without a trace of its variants, which hide what a form is found by."""
    return _without_variants(net, lambda variant: variant.arg, _rebuilt)


def _without_variants(
    net: Network, instead: Callable[[Variant], Node], rebuilt: Callable[[Node, list[Node]], Node]
) -> Network:
    known: dict[Node, Node] = {}
    forms: dict[Node, Node] = {}

    def args(node: Node) -> tuple[Node, ...]:
        match node:
            case Variant():
                if node not in forms:
                    forms[node] = instead(node)
                return (forms[node],)
            case Largest(arg=arg, of=q):
                return arg, q
            case _:
                return node.args

    for node in topological(net.output, args=args):
        known[node] = rebuilt(node, [known[a] for a in args(node)])
    out = known[net.output]
    return net if out is net.output else replace(net, output=out)


def taken(arg: Node, indices: Array) -> Node:
    """Entries of a vector: a few runs are cut out of the parts that it is stacked of, which then need not be stacked."""
    runs = regular_runs(indices)
    match arg:
        case Apply(linear=Take(0, inner), arg=source) if len(source.shape) == 1 and regular_runs(inner[indices]):
            return taken(source, inner[indices])
        case Stack(parts=parts) if runs:
            starts = np.cumsum([0, *(part.size for part in parts)])
            pieces = [
                (part, run[(run >= start) & (run < start + part.size)] - start)
                for run in runs
                for part, start in zip(parts, starts, strict=False)
            ]
            found = [taken(part, piece) for part, piece in pieces if len(piece)]
            if len(found) <= RUNS:
                return stack(found)
    return arg.take(indices)


def regular_runs(indices: Array) -> list[Array]:
    """The runs of neighbours, if they are so few and long that slices copy them faster than a Gather."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return runs if len(runs) <= RUNS and len(indices) >= RUNS * (len(runs) - 1) else []


def grain(indices: Array, size: int) -> int:
    """The largest g so that the indices are groups g k .. g k + g - 1 of neighbours: as rows they are copied whole.

    1 for a short list, where another node costs more than it saves.
    """
    if len(indices) < SHORT:
        return 1
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    return int(np.gcd.reduce(np.concatenate([starts, indices[starts], [len(indices), size]])))


def _sliced(node: Node, args: list[Node]) -> Node:
    """As `_rebuilt`; entries of a vector are cut out of it where they stand in runs."""
    if isinstance(node, Apply) and isinstance(node.linear, Take) and node.linear.axis == 0 and len(node.shape) == 1:
        return assume_total(assume(taken(args[0], node.linear.indices), node.lo, node.hi), node.total)
    return _rebuilt(node, args)


def _rebuilt(node: Node, args: list[Node]) -> Node:
    """The node over other arguments, within the bounds that were stated of it."""
    if not isinstance(node, Variant) and all(new is old for new, old in zip(args, node.args, strict=False)):
        return node
    new: Node
    match kind(node):
        case Variant():
            new = args[0]
        case Sum(terms=terms, offset=offset):
            new = total([(c, a) for (c, _), a in zip(terms, args, strict=True)], offset)
        case Apply(linear=Take(axis, indices)):
            new = args[0].take(indices, axis)
        case Apply(linear=linear):
            new = args[0].map(linear)
        case Stack(axis=axis):
            new = stack(args, axis)
        case Relu():
            new = relu(args[0])
        case Largest():
            new = largest_of(args[1], args[0])
        case Input() | Constant():
            new = node
        case never:
            assert_never(never)
    return assume_total(assume(new, node.lo, node.hi), node.total)


def trimmed(node: Node) -> tuple[float, Node, float, float] | None:
    """(c, v, h, offset) when the node is c (relu(v) - relu(v - h)) + offset, the pair that Clip(v, 0, h) stands for."""
    match node:
        case Sum(terms=((c, Relu(arg=v)), (minus_c, Relu(arg=w))), offset=offset) if c == -minus_c and c > 0:
            (base, start), (other, end) = _shifted(v), _shifted(w)
            if base == other and end < start:
                return float(c), v, float(start - end), float(offset)
    return None


def _shifted(node: Node) -> tuple[tuple[Any, Node], Any]:
    """((c, a), o) when the node is c a + o."""
    match node:
        case Sum(terms=((c, arg),), offset=offset):
            return (c, arg), offset
        case _:
            return (1, node), 0


def plain_total(node: Node) -> Node | None:
    """The argument when the node is its sum over the last axis, `Node.sum`."""
    match node:
        case Apply(linear=Reshape(), arg=Apply(linear=Along(axis, matrix), arg=arg)) if (
            axis == len(arg.shape) - 1
            and node.shape == arg.shape[:-1]
            and isinstance(matrix, np.ndarray)
            and matrix.shape[0] == 1
            and (matrix == 1).all()
        ):
            return arg
        case _:
            return None


def scaled_total(node: Node) -> tuple[float, Node, float] | None:
    """(c, a, offset) when the node is c times the sum of a over its last axis, plus offset."""
    if node.is_constant:
        return None
    if (arg := plain_total(node)) is not None:
        return 1.0, arg, 0.0
    match node:
        case Sum(terms=((c, inner),), offset=offset) if (arg := plain_total(inner)) is not None:
            return float(c), arg, float(offset)
        case _:
            return None
