"""Minima and maxima of shifted planes: what a window filter is made of.

    program ::= the input plane | low(plane, plane) | high(plane, plane)
    plane   ::= a node of the program, moved down and right by constants

A node is one image that is computed once, for all pixels. Nodes are kept apart only up to a shift: the minimum of a pixel
and its right neighbour, asked for at another place of the window, is the same node, moved. So a filter is written for one
window alone, and the work that overlapping windows share is found by name: whatever is computed at a fixed offset from
something else is that, moved (columns sorted once, merged columns merged once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Op = Literal["input", "low", "high"]


class Plane(NamedTuple):
    """A node, read `down` rows and `right` columns from the pixel that is asked for."""

    node: int
    down: int = 0
    right: int = 0

    def moved(self, down: int, right: int) -> Plane:
        return Plane(self.node, self.down + down, self.right + right)


class Operation(NamedTuple):
    """Operands are ordered, and moved so that the smallest shift in each direction is 0."""

    op: Op
    args: tuple[Plane, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """Nodes in an order in which each comes after its operands; the first `inputs` of them are input planes."""

    inputs: int = 1
    nodes: list[Operation] = field(default_factory=list)
    _known: dict[Operation, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes.extend(Operation("input", ()) for _ in range(self.inputs))

    def low(self, a: Plane, b: Plane) -> Plane:
        return self._add("low", a, b)

    def high(self, a: Plane, b: Plane) -> Plane:
        return self._add("high", a, b)

    def _add(self, op: Op, a: Plane, b: Plane) -> Plane:
        a, b = min(a, b), max(a, b)
        down, right = min(a.down, b.down), min(a.right, b.right)
        args = (a.moved(-down, -right), b.moved(-down, -right)) if down or right else (a, b)
        node = Operation(op, args)
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return Plane(self._known[node], down, right)

    def live(self, outputs: Sequence[Plane]) -> list[int]:
        """The nodes that the outputs depend on, operands first: each as late as its readers allow, depth first."""
        order: dict[int, None] = {}
        opened: set[int] = set()
        todo = [plane.node for plane in reversed(outputs)]
        while todo:
            at = todo.pop()
            if at in opened:
                order[at] = None
            elif at not in order:
                opened.add(at)
                todo += [at, *[arg.node for arg in reversed(self.nodes[at].args)]]
        return list(order)

    def cost(self, outputs: Sequence[Plane]) -> Cost:
        live = [self.nodes[at] for at in self.live(outputs) if self.nodes[at].args]
        return Cost(len(live), len({node.args for node in live}))


class Cost(NamedTuple):
    """Per pixel: minima and maxima, and the pairs that are compared for them, which is how sorting networks are counted."""

    operations: int
    comparators: int


def merged(program: Program, a: Sequence[Plane], b: Sequence[Plane], direct: bool = False) -> list[Plane]:
    """Two sorted lists as one: Batcher's odd-even merge (Knuth, TAOCP 3, 5.3.4), for any lengths.

    `direct`: the ends are those of the lists themselves, which is as much work for one of them and less for one alone.
    """
    if not a or not b:
        return [*a, *b]
    if len(a) == len(b) == 1:
        return [program.low(a[0], b[0]), program.high(a[0], b[0])]
    first, second = merged(program, a[0::2], b[0::2]), merged(program, a[1::2], b[1::2])
    found = [first[0]]
    for i in range(max(len(second), len(first) - 1)):
        if i < len(second) and i + 1 < len(first):
            found += [program.low(second[i], first[i + 1]), program.high(second[i], first[i + 1])]
        else:
            found.append(second[i] if i < len(second) else first[i + 1])
    if direct:
        found[0], found[-1] = program.low(a[0], b[0]), program.high(a[-1], b[-1])
    return found


def rank_of_two(program: Program, a: Sequence[Plane], b: Sequence[Plane], rank: int) -> Plane:
    """The entry of a rank, from 1, in the union of two sorted lists: min over i + j = rank of max(a_i, b_j).

    For every such i and j the larger of a_i and b_j has `rank` entries at or below it; for those i and j that count the
    entries of each list among the `rank` smallest it is the entry itself.
    """
    terms = []
    for i in range(max(0, rank - len(b)), min(len(a), rank) + 1):
        j = rank - i
        terms.append(b[j - 1] if i == 0 else a[i - 1] if j == 0 else program.high(a[i - 1], b[j - 1]))
    smallest = terms[0]
    for term in terms[1:]:
        smallest = program.low(smallest, term)
    return smallest
