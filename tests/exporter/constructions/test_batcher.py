"""batcher: a sorting network for any d, pruned to what is asked for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from exporter.build import build, to_onnx
from exporter.constructions.batcher import merge_exchange, pruned
from exporter.options import Options
from exporter.question import task as tasks
from tests.running import run


def sort_by(stages: list[list[tuple[int, int]]], x: np.ndarray) -> np.ndarray:
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
        kept, _ = pruned(merge_exchange(d), {k})
        assert sum(map(len, kept)) < whole
        assert np.array_equal(sort_by(kept, x)[:, k], np.sort(x, axis=1)[:, k])


@pytest.mark.parametrize("task", [tasks.median(2048), tasks.sort(2048)], ids=["median", "sort"])
def test_depth_and_width_at_2048(task: tasks.Task) -> None:
    counted = build(task, Options(construction="batcher", inputs="grid")).accounting
    assert counted.depth - 1 <= 66
    assert counted.width <= 1.5 * 2048
    assert counted.max_weight == 1


@pytest.mark.parametrize("d", [1, 2, 3, 5, 9, 25, 64, 100])
def test_depth_and_width(d: int) -> None:
    levels = (d - 1).bit_length()
    counted = build(tasks.sort(d), Options(construction="batcher", inputs="grid")).accounting
    assert counted.depth - 1 == levels * (levels + 1) // 2
    assert counted.width <= 1.5 * d


def test_the_bare_network_needs_no_grid() -> None:
    """Comparators are right on any reals; only the float that is returned may round."""
    x = np.random.default_rng(3).random((200, 9))
    got = run(to_onnx(build(tasks.sort(9), Options(construction="batcher", dtype="float64", inputs="grid"))), x)
    assert np.allclose(got, np.sort(x, axis=1), rtol=0, atol=1e-15)
