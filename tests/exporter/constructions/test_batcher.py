"""batcher: a sorting network for any d, pruned to what is asked for."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from exporter.build import build, to_onnx
from exporter.constructions.batcher import Stage, merge_exchange, pruned, shallowest, staged
from exporter.constructions.known_networks import MEDIANS, SORTERS, comparators
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.spec import Spec
from tests.exporter.constructions.exactness import data
from tests.running import run, session


def sort_by(stages: list[Stage], x: np.ndarray) -> np.ndarray:
    y = x.copy()
    for stage in stages:
        for i, j in stage:
            y[:, [i, j]] = np.sort(y[:, [i, j]], axis=1)
    return y


@pytest.mark.parametrize("d", range(1, 15))
def test_the_network_sorts(d: int) -> None:
    """A comparator network sorts if it sorts all 2^d inputs of zeros and ones."""
    x = np.array(list(product([0, 1], repeat=d)))
    assert np.array_equal(sort_by(merge_exchange(d), x), np.sort(x, axis=1))


CHUNK = 3**11


def places_right(stages: list[Stage], d: int, wanted: list[int]) -> bool:
    """Whether every input of zeros and ones has the right values on the wanted wires at the end: all of them are run.

    The comparators of the first stage are disjoint, and behind one the two wires hold 00, 01 or 11: these 3 of 4 cases are
    enough. Many cases are run at a time, as bits of bytes: min is `and`, max is `or`.
    """
    pairs = [list(pair) for pair in stages[0]] if stages else []
    groups = pairs + [[wire] for wire in range(d) if all(wire not in pair for pair in pairs)]
    together = next((n for n in range(len(groups)) if prod(len(g) + 1 for g in groups[:n]) >= CHUNK), len(groups))
    counts = np.indices([len(g) + 1 for g in groups[:together]], np.uint8).reshape(together, -1)
    ones = counts.sum(axis=0, dtype=np.uint8)
    size = -(-len(ones) // 8)
    for others in product(*(range(len(g) + 1) for g in groups[together:])):
        values = np.empty((d, size), np.uint8)
        for k, group in enumerate(groups):
            for place, wire in enumerate(reversed(group)):
                in_all = k >= together and others[k - together] > place
                values[wire] = np.packbits(counts[k] > place) if k < together else 255 * in_all
        for stage in stages[1:]:
            for i, j in stage:
                values[i], values[j] = values[i] & values[j], values[i] | values[j]
        for k in wanted:
            right = np.packbits(ones >= d - k - sum(others))
            if not np.array_equal(values[k][: len(ones) // 8], right[: len(ones) // 8]):
                return False
            rest = len(ones) % 8  # the bits of the last byte that are cases
            if rest and (values[k][-1] ^ right[-1]) >> (8 - rest):
                return False
    return True


@pytest.mark.parametrize("d", SORTERS)
def test_every_listed_sorter_sorts(d: int) -> None:
    assert places_right(staged(comparators(SORTERS[d])), d, list(range(d)))


@pytest.mark.parametrize("d", MEDIANS)
def test_every_listed_median_network_has_the_median(d: int) -> None:
    ordered = [] if d % 2 else [(d // 2 - 1, d // 2)]
    assert places_right(staged(comparators(MEDIANS[d]) + ordered), d, sorted({(d - 1) // 2, d // 2}))


@pytest.mark.parametrize(("lists", "d"), [(SORTERS, 6), (SORTERS, 9), (SORTERS, 16), (MEDIANS, 13), (MEDIANS, 17)])
def test_no_comparator_of_a_list_can_be_left_out(lists: dict[int, str], d: int) -> None:
    """The check itself sees a list that is wrong in one place."""
    pairs, wanted = comparators(lists[d]), list(range(d)) if lists is SORTERS else [d // 2]
    for k in range(len(pairs)):
        assert not places_right(staged(pairs[:k] + pairs[k + 1 :]), d, wanted)


@pytest.mark.parametrize("d", range(2, 33))
def test_what_is_taken_from_the_lists(d: int) -> None:
    """The median and all of d wires, with the last wires of a list left out and what no rank depends on."""
    middle = sorted({(d - 1) // 2, d // 2})
    for wanted in (middle, middle[:1], middle[-1:], list(range(d))):
        stages, _ = shallowest(d, [k + 1 for k in wanted])
        assert places_right(stages, d, wanted)
        ours, batchers = (sum(map(len, s)) for s in (stages, pruned(merge_exchange(d), set(wanted), d)[0]))
        assert ours <= batchers + 2 * (len(wanted) > 2)  # some sorters pay for their stages with a comparator or two
        if d >= 9:
            assert len(stages) < len(merge_exchange(d))


@pytest.mark.parametrize("d", range(2, 33))
def test_every_rank_has_a_network_that_finds_it(d: int) -> None:
    """Comparators are monotone: inputs with just enough ones for rank k and with one less decide. 1000 of each are tried."""
    rng = np.random.default_rng(d)
    for k in range(d):
        x = np.zeros((2000, d), dtype=np.int64)
        x[:1000, : d - k] = x[1000:, : d - k - 1] = 1
        x = rng.permuted(x, axis=1)
        stages, _ = shallowest(d, [k + 1])
        for stage in stages:
            a, b = x[:, stage[:, 0]], x[:, stage[:, 1]]
            x[:, stage[:, 0]], x[:, stage[:, 1]] = a & b, a | b
        assert x[:1000, k].all(), k
        assert not x[1000:, k].any(), k


@pytest.mark.parametrize("d", [1, 2, 3, 17, 64, 100, 2048])
def test_stages_touch_every_wire_at_most_once(d: int) -> None:
    stages = merge_exchange(d)
    levels = (d - 1).bit_length()
    assert len(stages) == levels * (levels + 1) // 2
    for stage in stages:
        ends = [wire for pair in stage for wire in pair]
        assert len(ends) == len(set(ends))
        assert all(0 <= i < j < d for i, j in stage)


@pytest.mark.parametrize("d", [6, 11])
def test_pruning_keeps_the_wanted_ranks(d: int) -> None:
    x = np.random.default_rng(0).integers(0, 5, (300, d))
    whole = sum(map(len, merge_exchange(d)))
    for k in range(d):
        kept, _ = pruned(merge_exchange(d), {k}, d)
        assert sum(map(len, kept)) < whole
        assert np.array_equal(sort_by(kept, x)[:, k], np.sort(x, axis=1)[:, k])


@pytest.mark.parametrize("task", [tasks.median(2048), tasks.sort(2048)], ids=["median", "sort"])
def test_depth_and_width_at_2048(task: tasks.Task) -> None:
    counted = build(Spec(task, "batcher", inputs="grid")).accounting
    assert counted.depth - 1 <= 66
    assert counted.width <= 1.5 * 2048
    assert counted.max_weight == 1


@pytest.mark.parametrize("d", [1, 2, 3, 5, 9, 25, 64, 100])
def test_depth_and_width(d: int) -> None:
    levels = (d - 1).bit_length()
    counted = build(Spec(tasks.sort(d), "batcher", inputs="grid")).accounting
    assert counted.depth - 1 == {5: 5, 9: 7, 25: 13}.get(d, levels * (levels + 1) // 2)
    assert counted.width <= 1.5 * d


def test_the_bare_network_needs_no_grid() -> None:
    """Comparators are right on any reals; only the float that is returned may round."""
    x = np.random.default_rng(3).random((200, 9))
    got = run(to_onnx(build(Spec(tasks.sort(9), "batcher", dtype="float64", inputs="grid"))), x)
    assert np.allclose(got, np.sort(x, axis=1), rtol=0, atol=1e-15)


@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("d", [2, 9, 25, 32, 33, 64, 65, 257])
def test_medians_in_files_for_single_vectors(d: int, batch: int | None) -> None:
    model = session(
        to_onnx(build(Spec(tasks.median(d), "batcher", profile="fused", optimize_for="latency", batch=batch)))
    )
    for family in UNITS:
        for row in data(family, 3, d):
            assert run(model, row[None]).item() == np.float32(np.median(row.astype(np.float64))), family


@pytest.mark.parametrize("d", [2, 7, 25, 32])
def test_few_wires_are_two_products_a_stage(d: int) -> None:
    proto = to_onnx(build(Spec(tasks.sort(d), "batcher", profile="fused", optimize_for="latency")))
    for family in UNITS:
        x = data(family, 20, d)
        assert np.array_equal(run(proto, x), np.sort(x, axis=1)), family
    stages, _ = shallowest(d, range(1, d + 1))
    ops = [node.op_type for node in proto.graph.node]
    assert (ops.count("Relu"), ops.count("Gemm")) == (len(stages), 2 * len(stages))
