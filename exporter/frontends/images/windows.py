"""Programs for the ranks of a window and of frames: the cheapest of a few schemes, counted as they were built.

Each line of the window along one axis is sorted once for all windows that hold it. Sorted lines, two, four and so on at a
time, are merged once for all windows that hold them. The last merge is for the wanted ranks only.

    merge     n lines are n/2 lines twice, or n - 1 lines and one more; of the last two lists the rank is taken
    tableau   the i-th entries of all lines are sorted too. Entry (i, j) of that tableau is not below i j entries of the
              window and not above (h + 1 - i)(w + 1 - j) of them, so that few can have the rank: they are merged
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product

from exporter.frontends.images.planes import Cost, Plane, Program, merged, rank_of_two

Ranks = dict[int, Plane]


@dataclass(frozen=True, eq=False)
class Selection:
    """A program, and the planes of the wanted ranks; plane (0, 0) is the upper left pixel of the window."""

    program: Program
    ranks: Ranks

    @property
    def outputs(self) -> list[Plane]:
        return list(self.ranks.values())

    @property
    def cost(self) -> Cost:
        return self.program.cost(self.outputs)


@lru_cache(64)
def window(height: int, width: int, ranks: tuple[int, ...]) -> Selection:
    """The given ranks of every height x width window."""
    return min(_windows(height, width, ranks), key=lambda s: s.cost)


@lru_cache(64)
def frames(count: int, ranks: tuple[int, ...]) -> Selection:
    """The given ranks of as many planes, the inputs 0, 1, ... of the program: no window shares work with another."""
    return min(_frames(count, ranks), key=lambda s: s.cost)


def _halves(n: int) -> int:
    return n - 1 if n % 2 else n // 2


def _middle(n: int) -> int:
    return (n + 1) // 2


@dataclass(frozen=True, eq=False)
class Lines:
    """Sorted lists of neighbouring lines, `step` apart: how they are split, and how lists are merged."""

    program: Program
    step: tuple[int, int]
    split: Callable[[int], int]
    direct: bool

    def sorted(self, line: list[Plane], n: int, known: dict[int, list[Plane]] | None = None) -> list[Plane]:
        known = {1: line} if known is None else known
        if n not in known:
            known[n] = merged(self.program, *self.two(line, n, known), self.direct)
        return known[n]

    def two(
        self, line: list[Plane], n: int, known: dict[int, list[Plane]] | None = None
    ) -> tuple[list[Plane], list[Plane]]:
        """The same as two lists, the second of which is moved to its place; of one line the second is empty."""
        known = {1: line} if known is None else known
        m, (down, right) = self.split(n) if n > 1 else 1, self.step
        if m == n:
            return line, []
        return self.sorted(line, m, known), [p.moved(m * down, m * right) for p in self.sorted(line, n - m, known)]

    def end(self, entry: Plane, n: int, high: bool) -> Plane:
        """The least or the greatest of n neighbours: of two runs of one length that overlap, so of one plane and itself."""
        if n == 1:
            return entry
        m, (down, right) = _middle(n), self.step
        run = self.end(entry, m, high)
        both = run, run.moved((n - m) * down, (n - m) * right)
        return self.program.high(*both) if high else self.program.low(*both)


def _windows(height: int, width: int, ranks: Sequence[int]) -> Iterator[Selection]:
    splits = (_halves, _middle)
    for turned, split, other, direct in product((False, True)[: 1 + (height != width)], splits, splits, (False, True)):
        for scheme in (_merge, _tableau):
            h, w = (width, height) if turned else (height, width)
            down = Lines(Program(), (0, 1) if turned else (1, 0), split, direct)
            across = replace(down, step=down.step[::-1], split=other)
            column = down.sorted([Plane(0)], h)
            yield Selection(down.program, scheme(across, column, w, ranks))


def _merge(lines: Lines, column: list[Plane], w: int, ranks: Sequence[int]) -> Ranks:
    return {r: rank_of_two(lines.program, *lines.two(column, w), r) for r in ranks}


def _tableau(lines: Lines, column: list[Plane], w: int, ranks: Sequence[int]) -> Ranks:
    h, found = len(column), {}
    for r in ranks:
        rows, wanted = [], r
        for i, entry in enumerate(column, 1):
            places = [j for j in range(1, w + 1) if i * j <= r and (h + 1 - i) * (w + 1 - j) <= h * w + 1 - r]
            wanted -= sum((h + 1 - i) * (w + 1 - j) > h * w + 1 - r for j in range(1, w + 1))
            if places in ([1], [w]):
                rows.append([lines.end(entry, w, high=places == [w])])
            elif len(places) == 1:
                rows.append([rank_of_two(lines.program, *lines.two([entry], w), places[0])])
            elif places:
                row = lines.sorted([entry], w)
                rows.append([row[j - 1] for j in places])
        first, *others = rows
        for row in others[:-1]:
            first = merged(lines.program, first, row, lines.direct)
        found[r] = rank_of_two(lines.program, first, others[-1] if others else [], wanted)
    return found


def _frames(count: int, ranks: Sequence[int]) -> Iterator[Selection]:
    for split, direct in product((_halves, _middle), (False, True)):
        program = Program(count)

        def line(start: int, n: int, program: Program, of: Callable[[int], int], direct: bool) -> list[Plane]:
            if n == 1:
                return [Plane(start)]
            rest = partial(line, program=program, of=of, direct=direct)
            return merged(program, rest(start, of(n)), rest(start + of(n), n - of(n)), direct)

        part = partial(line, program=program, of=split, direct=direct)
        m = split(count) if count > 1 else 1
        lists = part(0, m), part(m, count - m) if count > m else []
        yield Selection(program, {r: rank_of_two(program, *lists, r) for r in ranks})
