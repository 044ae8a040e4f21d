"""Programs are right by the 0-1 principle: a program of minima and maxima that is right on zeros and ones is right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from exporter.frontends.images.planes import Plane, Program, merged, rank_of_two
from exporter.frontends.images.windows import Selection, frames, window

Truth = dict[Plane, int]  # a bit for each state of the inputs


def table(bits: np.ndarray) -> int:
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def value(selection: Selection, known: Callable[[Plane], int | None], wanted: Plane) -> int:
    """What a plane is in every state: minima are and, maxima are or."""
    found: Truth = {}

    def of(plane: Plane) -> int:
        if plane not in found:
            node = selection.program.nodes[plane.node]
            given = known(plane)
            if given is None:
                a, b = (of(arg.moved(plane.down, plane.right)) for arg in node.args)
                given = a & b if node.op == "low" else a | b
            found[plane] = given
        return found[plane]

    return of(wanted)


def _pixel(pixels: dict[tuple[int, int], int], plane: Plane) -> int | None:
    return pixels[plane.down, plane.right] if plane.node == 0 else None


def pixelwise(selection: Selection, height: int, width: int, rank: int) -> bool:
    """All states of all pixels."""
    d = height * width
    states = np.arange(1 << d)
    planes = {(y, x): table(states >> (y * width + x) & 1) for y in range(height) for x in range(width)}
    ones = np.bitwise_count(states)
    got = value(selection, partial(_pixel, planes), selection.ranks[rank])
    return got == table(ones > d - rank)


@pytest.mark.parametrize(("height", "width"), [(1, 2), (2, 1), (3, 3), (1, 9), (9, 1), (2, 5), (4, 3)])
def test_every_rank_on_every_state_of_a_small_window(height: int, width: int) -> None:
    for rank in range(1, height * width + 1):
        assert pixelwise(window(height, width, (rank,)), height, width, rank), rank
    middle = (height * width + 1) // 2
    both = window(height, width, (middle, middle + 1))
    assert pixelwise(both, height, width, middle)
    assert pixelwise(both, height, width, middle + 1)


def sorted_lines(selection: Selection, k: int) -> dict[int, int]:
    """The nodes that are the ranks of a column (or row) of k pixels, proven on all its states; node -> rank."""
    states = np.arange(1 << k)
    found: dict[int, int] = {}
    for turned in (False, True):
        inputs = {i: table(states >> i & 1) for i in range(k)}

        def known(p: Plane, turned: bool = turned, inputs: dict[int, int] = inputs) -> int | None:
            along, across = (p.right, p.down) if turned else (p.down, p.right)
            if across or along >= k:
                raise IndexError
            return inputs[along] if p.node == 0 else None

        ranks = {table(np.bitwise_count(states) > k - r): r for r in range(1, k + 1)}
        for at in selection.program.live(selection.outputs):
            try:
                truth = value(selection, known, Plane(at))
            except IndexError:
                continue
            if truth in ranks:
                found[at] = ranks[truth]
        if sorted(found.values()) == list(range(1, k + 1)):
            return found
    raise AssertionError("no line is sorted")


@pytest.mark.parametrize(("k", "ranks"), [(5, (7, 10, 13, 16, 19)), (7, (25,))])
def test_square_windows_on_every_state_of_their_sorted_lines(k: int, ranks: tuple[int, ...]) -> None:
    """A sorted line of zeros and ones is a number of ones: (k + 1)^k states."""
    states = np.arange((k + 1) ** k)
    ones = [states // (k + 1) ** i % (k + 1) for i in range(k)]
    total = np.sum(ones, axis=0)
    for rank in ranks:
        selection = window(k, k, (rank,))
        lines = sorted_lines(selection, k)
        planes = {(i, r): table(ones[i] > k - r) for i in range(k) for r in range(1, k + 1)}

        def known(p: Plane, lines: dict[int, int] = lines, planes: dict[tuple[int, int], int] = planes) -> int | None:
            return planes[max(p.down, p.right), lines[p.node]] if p.node in lines else None

        assert value(selection, known, selection.ranks[rank]) == table(total > k * k - rank), rank


@pytest.mark.parametrize(("height", "width"), [(9, 9), (7, 7), (5, 7), (3, 11)])
def test_large_windows_on_random_states(height: int, width: int) -> None:
    """Half the pixels one, give or take one: where a median must decide."""
    d, rng, n = height * width, np.random.default_rng(0), 4096
    for rank in (d // 2 + 1, d // 4, d - 1):
        selection = window(height, width, (rank,))
        ones = d - rank + rng.integers(0, 2, n)
        bits = rng.random((n, d)).argsort(axis=1) < ones[:, None]
        pixels = {(i // width, i % width): table(bits[:, i]) for i in range(d)}
        got = value(selection, partial(_pixel, pixels), selection.ranks[rank])
        assert got == table(ones > d - rank)


@pytest.mark.parametrize("count", range(2, 12))
def test_frames_on_every_state(count: int) -> None:
    states = np.arange(1 << count)
    for rank in range(1, count + 1):
        selection = frames(count, (rank,))
        got = value(selection, lambda p: table(states >> p.node & 1) if p.node < count else None, selection.ranks[rank])
        assert got == table(np.bitwise_count(states) > count - rank)


def test_counts_of_the_programs() -> None:
    """The table of docs/images.md; unshared, the best median networks have 19 comparators for 3 x 3 and 85 for 5 x 5."""
    counted = {k: window(k, k, (k * k // 2 + 1,)).cost for k in (3, 5, 7, 9)}
    assert {k: tuple(c) for k, c in counted.items()} == {3: (18, 13), 5: (88, 56), 7: (234, 141), 9: (394, 237)}
    assert tuple(window(9, 9, (81,)).cost) == (8, 8)
    assert tuple(window(9, 9, (1,)).cost) == (8, 8)


def test_work_is_shared_up_to_a_shift() -> None:
    program = Program()
    here, right, far = Plane(0), Plane(0, 0, 1), Plane(0, 2, 4)
    pair = program.low(here, right)
    assert program.low(far.moved(0, 1), far) == pair.moved(2, 4)
    assert program.low(here, Plane(0, 1, 0)).node != pair.node
    assert len(program.nodes) == 3


@pytest.mark.parametrize("direct", [False, True])
def test_merging_lists_of_any_lengths(direct: bool) -> None:
    for n in range(7):
        for m in range(7):
            program = Program(max(n + m, 1))
            lists = [Plane(i) for i in range(n)], [Plane(n + i) for i in range(m)]
            found = merged(program, *lists, direct)
            zeros = [(a, b) for a in range(n + 1) for b in range(m + 1)]
            truth = {i: table(np.array([i >= a for a, _ in zeros])) for i in range(n)}
            truth |= {n + i: table(np.array([i >= b for _, b in zeros])) for i in range(m)}
            for r, plane in enumerate(found, 1):
                expected = table(np.array([r > a + b for a, b in zeros]))
                other = rank_of_two(program, *lists, r)
                for p in (plane, other):
                    assert value(Selection(program, {}), partial(_given, truth), p) == expected


def _given(truth: dict[int, int], plane: Plane) -> int | None:
    return truth.get(plane.node)
