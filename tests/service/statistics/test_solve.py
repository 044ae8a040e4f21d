"""The exact core on real models, run by onnxruntime: every answer has the bits and the type of numpy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.problem.quantiles import METHODS
from service.models import registry
from service.models.registry import LoadedModel
from service.statistics.counting import OUTPUT
from service.statistics.layout import Target
from service.statistics.padding import padding_for
from service.statistics.solve import Answers, Counted, ModelCall, Models, RefutedError, Use, solve
from service.statistics.statistic import Statistic
from service.statistics.vectors import Vectors
from tests.service import toy_models
from tests.service.statistics.alone import run

QUANTILES = [Statistic("quantile", q, method) for method in METHODS for q in (0.0, 0.25, 0.37, 0.5, 0.99, 1.0)]
STATISTICS = [Statistic(), Statistic(even="lower"), Statistic("rank", rank=1), *QUANTILES]


class Pool(Models):
    """The models of a folder, small ones first."""

    def __init__(self, folder: Path) -> None:
        self.models = sorted(registry.load([folder]).models.values(), key=lambda model: model.d)

    def choose(self, n: int, target: Target, failed: LoadedModel | None = None) -> Use:
        found = (
            (model, padding_for(model.columns, model.d, n, target)) for model in self.models if model is not failed
        )
        return next(Use(model, fits) for model, fits in found if fits is not None)

    instead = choose


def in_session(call: ModelCall) -> Counted:
    return np.asarray(call.model.session.run([OUTPUT], {call.model.input_name: call.rows})[0])


def solved(vectors: Vectors, statistics: list[Statistic], pool: Pool) -> Answers:
    return run(solve(vectors, statistics, pool), in_session)


def differ(vectors: Vectors, statistics: list[Statistic], answer: Answers) -> list[Any]:
    """The answers that are not numpy's, bit for bit."""
    bad = []
    for statistic, values in zip(statistics, answer.values, strict=True):
        for i in range(len(vectors)):
            want = np.asarray(statistic.by_numpy(vectors[i], statistics))
            same = values.dtype == want.dtype and values[i].tobytes() == want.tobytes()
            if not same and not (np.isnan(values[i]) and np.isnan(want)):
                bad.append((vectors[i], statistic, values[i], want))
    return bad


@pytest.fixture(scope="module")
def pool(models: Path) -> Pool:
    return Pool(models)


def numbers(kind: str, family: str, count: int, rng: np.random.Generator) -> Any:
    if kind[0] != "f":
        info = np.iinfo(kind)
        low, high = (info.min // 2, info.max // 2) if family == "wide" else (0, 9)
        return rng.integers(low, high, count, dtype=kind, endpoint=True)
    values = rng.standard_normal(count)
    if family == "wide":
        values *= 10.0 ** rng.integers(-30, 30, count)
    elif family == "zeros":
        values = np.round(values) * np.where(rng.random(count) < 0.5, -0.0, 1.0)
    return values.astype(kind)


@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u2", "i4", "i8", "u8"])
def test_all_statistics_of_all_types_are_those_of_numpy(pool: Pool, kind: str) -> None:
    rng = np.random.default_rng(5)
    families = ["plain", "wide", "zeros"] if kind[0] == "f" else ["few", "wide"]
    for family in families:
        for lengths in (np.full(3, 25), np.array([33]), rng.integers(1, 33, 6)):
            vectors = Vectors(numbers(kind, family, int(lengths.sum()), rng), lengths)
            assert not differ(vectors, STATISTICS, solved(vectors, STATISTICS, pool))


def test_vectors_that_share_a_bucket_are_told_apart(pool: Pool) -> None:
    """Neighbours in float64 beside a number far away: all of them fall on one grid number."""
    near = 1.0 + np.arange(31) * 2.0**-52
    vectors = Vectors.matrix(np.stack([np.append(near, 1e300), np.append(near[::-1], -1e300)]))
    assert not differ(vectors, STATISTICS, solved(vectors, STATISTICS, pool))


def test_differences_that_numpy_lets_wrap_around_are_right(pool: Pool) -> None:
    """numpy.quantile subtracts integers in their own type."""
    vectors = Vectors.matrix(np.array([[-(2**31), 2**31 - 1]], np.int32))
    (values,) = solved(vectors, [Statistic("quantile", 0.5)], pool).values
    assert values.tolist() == [-0.5] != np.quantile(vectors[0], [0.5]).tolist()


def test_large_requests_are_solved_in_chunks(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.statistics.solve.FED", 256)
    rng = np.random.default_rng(6)
    lengths = rng.integers(1, 66, 40)
    vectors = Vectors(rng.standard_normal(int(lengths.sum())), lengths)
    assert not differ(vectors, [Statistic()], run(solve(vectors, [Statistic()], pool, step=100), in_session))


def test_an_answer_that_counting_refutes_comes_from_another_model(tmp_path: Path) -> None:
    about = toy_models.description(9)
    toy_models.write(tmp_path, "wrong", about, wrong="sorted")
    toy_models.write(tmp_path, "right", toy_models.description(10))
    pool, vectors = Pool(tmp_path), Vectors.matrix(np.array([np.arange(9.0), np.arange(9.0)[::-1]]))
    answer = solved(vectors, [Statistic()], pool)
    assert answer.values[0].tolist() == [4.0, 4.0]
    assert (answer.fallback, answer.models) == (1, {"wrong", "right"})
    toy_models.write(tmp_path, "right", toy_models.description(10), wrong="always")
    with pytest.raises(RefutedError, match="right gave an answer that counting refutes"):
        solved(vectors, [Statistic()], Pool(tmp_path))
