"""Vectors through networks, and by counting, against numpy: every length, ties, scales, zeros and infinities."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.errors import UserError
from service.batch import models, solve
from service.batch.ranks import Statistic
from service.batch.search import Climb, Round, search, wanted
from service.batch.solve import Solver
from tests.service.batch.tables import FAMILIES, oracle, same

STATISTICS = [Statistic(), Statistic(0.1), Statistic(0.999), Statistic(1.0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_many_lengths(dtype: str, family: str, folder: Path) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.permutation(np.concatenate([np.arange(1, 49), rng.integers(1, 30, 60)]))  # above 32 by counting
    with np.errstate(over="ignore"):
        values = FAMILIES[family](rng, lengths.sum()).astype(dtype)
    found = Solver(folder, search, largest=32).solve(values, lengths, STATISTICS)
    vectors = np.split(values, np.cumsum(lengths)[:-1])
    for statistic, answer in zip(STATISTICS, found, strict=True):
        assert same(answer, np.array([oracle(x, statistic.q) for x in vectors], dtype)), statistic


def test_every_vector_of_few_values(folder: Path) -> None:
    x = np.array(list(product([0.0, 1.0, 1.0 + 2.0**-23, -5.0], repeat=5)), np.float32)
    (found,) = Solver(folder, search, own_length=True).solve(x.ravel(), np.full(len(x), 5), [Statistic()])
    assert same(found, np.median(x, axis=1))


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_methods_are_numpys(method: Any, folder: Path) -> None:
    rng = np.random.default_rng(4)
    lengths = rng.integers(1, 20, 200)
    values = rng.normal(size=lengths.sum())
    statistics = [Statistic(q, method) for q in (0.0, 0.3, 0.5, 0.95)]
    for largest in (4, 24):
        found = Solver(folder, search, largest).solve(values, lengths, statistics)
        for statistic, answer in zip(statistics, found, strict=True):
            vectors = np.split(values, np.cumsum(lengths)[:-1])
            expected = [np.quantile(x, statistic.q or 0.0, method=method) for x in vectors]
            assert same(answer, np.array(expected))


def test_the_ladder_serves_every_rank(folder: Path) -> None:
    """Padding brings each rank of each length to a column of the model, for any quantile."""
    for q in (0.0, 1e-9, 0.001, 0.29, 0.5, 0.7, 0.999, 1 - 2.0**-53, 1.0):
        for method in ("linear", "higher", "nearest"):
            one = Statistic(q, method)
            n = np.arange(1, 4097)
            low, high, _ = one.ends(n)
            d = np.array([models.rung(int(k)) for k in n])
            base = np.array([one.base(int(k)) for k in d])
            lowest = np.clip(base - low, 0, d - n)
            assert ((low + lowest >= base) & (high + lowest <= np.minimum(base + 1, d))).all(), (q, method)


def test_an_answer_that_counting_refutes_is_not_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = models.loaded

    class Spoilt:
        def __init__(self, session: Any) -> None:
            self.session = session

        def run(self, *arguments: Any) -> Any:
            (told,) = self.session.run(*arguments)
            told[3, 1] += 9
            return [told]

    def spoilt(*arguments: Any) -> Any:
        model = load(*arguments)
        return replace(model, session=Spoilt(model.session))

    monkeypatch.setattr(solve, "loaded", spoilt)
    with pytest.raises(UserError, match="counting refutes"):
        Solver(folder, search).solve(np.arange(30.0), np.full(5, 6), [Statistic()])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bits", [3, 8, 11, 16])
def test_a_search_in_digits_of_any_width(dtype: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for make in FAMILIES.values():
        with np.errstate(over="ignore"):
            x = make(rng, 999).astype(dtype)
        climb, rounds = Climb(dtype, bits), 0
        while (asked := climb.round()) is not None:
            counted, rounds = asked.blank(), rounds + 1
            for part in np.array_split(x, 7):
                asked.count(part, counted)
            climb.climb(asked, counted, lambda n: range(1, n + 1, 37))
        assert rounds == -(-8 * x.itemsize // bits)
        assert same(climb.values(range(1, 1000, 37)), np.sort(x)[::37])


def test_data_that_changes_between_passes_is_noticed() -> None:
    climb = Climb("float32")
    x = np.arange(100, dtype=np.float32)
    first = climb.round()
    assert isinstance(first, Round)
    counted = first.blank()
    first.count(x, counted)
    climb.climb(first, counted, wanted([Statistic()]))
    second = climb.round()
    assert second is not None
    with pytest.raises(UserError, match="the data changed"):
        climb.climb(second, second.blank(), wanted([Statistic()]))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from service.batch import search as module

    x = np.random.default_rng(5).normal(size=1000)
    monkeypatch.setattr(module, "BLOCK", 7)
    assert search(x, [Statistic()])[0][0] == np.median(x)
