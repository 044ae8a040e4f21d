"""A user's own data and no options: numpy's answer, or an error that names the cause and the remedy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import exporter
from exporter.constructions import CONSTRUCTIONS, default
from exporter.options import OPTIONS, ExportOptions, NetOptions
from exporter.problem.quantiles import METHODS
from tests.tiers import telling

DATA = Path(__file__).resolve().parents[1] / "data"
Array = npt.NDArray[Any]
LENGTHS = sorted({1, 2, *np.random.default_rng(5).integers(3, 400, 18).tolist()})
RANGES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "unit": lambda rng, n: rng.standard_normal((3, n)),
    "tiny": lambda rng, n: rng.standard_normal((3, n)) * 1e-30,
    "huge": lambda rng, n: rng.standard_normal((3, n)) * 1e30,
    "all scales": lambda rng, n: rng.standard_normal((3, n)) * 10.0 ** rng.uniform(-30, 30, (3, n)),
    "negative": lambda rng, n: -50000 + 10000 * rng.random((3, n)),
    "constant": lambda rng, n: np.full((3, n), 0.1),
    "integers": lambda rng, n: rng.integers(-1000, 1000, (3, n)).astype(float),
}


def same(found: Array, expected: Array) -> None:
    """Equal in shape, type and every bit of the values."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


def quantiles(x: Array, q: Any, **method: Any) -> Array:
    found = np.quantile(x, q, axis=-1, **method)
    return np.moveaxis(found, 0, -1) if np.ndim(q) else found


@pytest.mark.parametrize("n", telling(LENGTHS, [1, 2, 20, 113, 322]))
def test_no_options_is_numpy(n: int) -> None:
    rng, middle = np.random.default_rng(n), (n + 1) // 2
    nets: list[tuple[exporter.Net, Callable[[Array], Array]]] = [
        (exporter.median(n), lambda x: np.median(x, axis=-1)),
        (exporter.sort(n), lambda x: np.sort(x, axis=-1)),
        (exporter.rank(n, middle), lambda x: np.partition(x, middle - 1, axis=-1)[:, middle - 1]),
        (exporter.rank(n, [1, middle]), lambda x: np.sort(x, axis=-1)[:, [0, middle - 1]]),
        (exporter.maximum(n), lambda x: np.max(x, axis=-1)),
        (exporter.minimum(n), lambda x: np.min(x, axis=-1)),
        (exporter.quantile(n, 0.3), lambda x: quantiles(x, 0.3)),
        (exporter.quantile(n, [0.1, 0.5, 0.77]), lambda x: quantiles(x, [0.1, 0.5, 0.77])),
    ]
    for draw in RANGES.values():
        for dtype in (np.float32, np.float64):
            x = draw(rng, n).astype(dtype)
            for net, numpys in nets:
                same(net(x), numpys(x))


@pytest.mark.parametrize("method", telling(METHODS, ["linear", "nearest", "midpoint", "hazen", "closest_observation"]))
def test_every_method_of_quantiles_is_numpy(method: Any) -> None:
    for n in (1, 2, 7, 10, 41):
        for q in (0.3, 0.75, [0.3], [0.0, 0.1, 0.5, 1.0]):
            net = exporter.quantile(n, q, method=method)
            for dtype in (np.float32, np.float64):
                x = RANGES["all scales"](np.random.default_rng(n), n).astype(dtype)
                same(net(x), quantiles(x, q, method=method))
            whole = np.random.default_rng(n).integers(-(2**53), 2**53, n)
            same(net(whole), quantiles(whole, q, method=method))


@pytest.mark.parametrize("table", ["wine", "diabetes"])
def test_the_columns_of_a_real_table(table: str) -> None:
    """Two tables of scikit-learn: wine, and three columns of diabetes as load_diabetes scales them."""
    columns = np.loadtxt(DATA / f"{table}.csv", delimiter=",").T
    n = columns.shape[1]
    for x in (columns, columns.astype(np.float32)):
        same(exporter.median(n)(x), np.median(x, axis=1))
        same(exporter.sort(n)(x), np.sort(x, axis=1))
        same(exporter.quantile(n, [0.05, 0.95])(x), quantiles(x, [0.05, 0.95]))


def with_domain(name: str) -> exporter.Net:
    construction = CONSTRUCTIONS[name]
    d = 2048 if construction.uniform else 32
    build = exporter.maximum if construction.op == "max" else exporter.median
    loose: dict[str, Any] = {"failure": 0.2} if "failure" in construction.takes else {}
    return build(d, construction=name, domain=(-1, 1), bits=12, **loose)


@pytest.mark.parametrize("name", [c.name for c in CONSTRUCTIONS.values() if not c.uniform])
def test_data_outside_the_domain_is_refused(name: str) -> None:
    net = with_domain(name)
    x = np.random.default_rng(0).permutation(net.d) / net.d
    x[[3, 5, 8]] = 50312.5, -7, np.inf
    with pytest.raises(exporter.UserError) as caught:
        net([np.zeros(net.d), x])
    assert str(caught.value).startswith(f"3 of {2 * net.d} values lie outside [-1, 1], for example 50312.5 in row 1: ")
    assert "domain=(lo, hi)" in str(caught.value)
    assert "leave construction" in str(caught.value)
    assert net(x, clamp=True) == net(np.clip(x, -1, 1))


def test_the_range_and_the_depth_are_shown() -> None:
    net = exporter.median(9, construction="depth3", domain=(0, 255), bits=8)
    assert " on [0, 255]: depth 3 + 3 (rounding and clamping), " in repr(net)
    assert "off between grid values" in repr(net)
    assert "by batcher: depth" in repr(exporter.median(9))


def test_values_between_grid_values_are_answered_within_the_stated_bound() -> None:
    net = exporter.median(9, construction="radix", bits=8)
    assert net.dtype == np.float32
    x = np.random.default_rng(1).random((200, 9))  # float64: not exact in float32
    assert np.abs(net(x) - np.median(x, axis=1)).max() <= net.description["off_grid_error"]


def test_profile_or_construction_alone_chooses_the_other() -> None:
    assert "radix" not in repr(exporter.median(25, profile="minmax"))
    assert repr(exporter.median(25, construction="batcher")) == repr(exporter.median(25))
    assert "by radix on [0, 1]" in repr(exporter.median(25, profile="dense"))
    assert "by radix on [0, 9]" in repr(exporter.median(25, domain=(0, 9)))
    assert "by radix" in repr(exporter.median(25, radix=4))
    assert "minmax" in repr(exporter.minimum(25))
    assert default("median") == "radix"
    with pytest.raises(exporter.UserError, match="comparators"):
        exporter.median(25, construction="radix", profile="minmax")


def test_numbers_that_a_type_does_not_have_are_refused() -> None:
    net = exporter.median(3, dtype="float32")
    with pytest.raises(
        exporter.UserError, match=r"1 of 3 values are not exact in float32, for example 16777217\.0 in row 0"
    ):
        net([16777217, 0, 1])
    assert net([16777217, 0, 2**25], round=True) == 16777216
    assert exporter.median(3)([16777217, 0, 2**25]) == 16777217
    for x in ([2**53 + 1, 0, 1], np.array([2**53 + 1, 0, 1]), [10**400, 0, 1], [Fraction(1, 3), 0, 1]):
        with pytest.raises(exporter.UserError, match="1 of 3 values are not exact in float64"):
            exporter.median(3)(x)
    assert exporter.median(3)([2**60, 0, 2**70]) == 2**60
    assert exporter.median(3)([Fraction(1, 3), 0, 1], round=True) == 1 / 3


def test_pandas_lists_and_other_arrays() -> None:
    frame = pd.DataFrame({"a": [1, 50312, 8], "b": [2.5, -7.5, 3.0]})
    same(exporter.median(3)(frame), frame.median().to_numpy())  # each column is a vector, as in pandas
    same(exporter.median(3)(frame.astype("float32")), np.array([8, 2.5], dtype=np.float32))
    assert exporter.median(3)(frame["a"]) == 8
    with pytest.raises(exporter.UserError, match="1 of 3 values are not exact in float64"):
        exporter.median(3)(frame.assign(a=[1, 2**53 + 1, 8]))
    assert exporter.median(3)(pd.Series([1, 2, 3], dtype="Int64")) == 2
    assert exporter.median(3)([True, False, True]) == 1
    assert exporter.median(3)(np.array([1.5, 2.5, 0.5], dtype=np.float16)).dtype == np.float32
    assert exporter.median(3)(np.empty((0, 3))).shape == (0,)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (5.0, "takes 3 numbers along the last axis, not a single number"),
        ([], "takes 3 numbers along the last axis, not 0"),
        (np.ones((3, 2)), "takes 3 numbers along the last axis, not 2"),
        ([1, np.nan, 2], "1 of 3 values are NaN, for example nan in row 0"),
        (pd.Series([1, None, 3]), "1 of 3 values are NaN"),
        (pd.Series([1, None, 3], dtype="Int64"), "1 of 3 values are NaN"),
        ([1, None, 3], "None is not a number"),
        (["1", "2", "3"], "vectors of numbers are needed"),
        ([1, 2, 3j], "vectors of numbers are needed"),
        (pd.to_datetime(["2024-01-01"] * 3), "vectors of numbers are needed"),
        (np.ma.masked_array([1.0, 2, 3], [False, True, False]), "a masked array"),
    ],
)
def test_what_is_no_vector_of_numbers_is_refused(x: Any, words: str) -> None:
    with pytest.raises(exporter.UserError, match=words):
        exporter.median(3)(x)


@pytest.mark.parametrize("name", ["median", "quantile", "rank", "maximum", "minimum", "sort", "export_model"])
def test_signatures_name_the_options_of_the_table(name: str) -> None:
    parameters = inspect.signature(getattr(exporter, name)).parameters
    extra = {"median": {"even"}, "quantile": {"method"}}.get(name, set())
    elsewhere = {"op", "rank", "quantile", "even", "method", "layout", "quantized"} if name != "export_model" else set()
    images = {o.name for o in OPTIONS.values() if o.group == "image"} if elsewhere else set()
    own = {"d", "q", "k", "construction", "out", "task"}
    assert set(parameters) - own == set(OPTIONS) - elsewhere - images | extra
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize("options", [NetOptions, ExportOptions])
def test_options_have_the_choices_of_the_table(options: type) -> None:
    for name, hint in get_type_hints(options).items():
        words = {word for part in get_args(hint) for word in get_args(part) if isinstance(word, str)}
        words |= {word for part in get_args(hint) if isinstance(part, str) for word in [part]}
        if words:
            assert words == set(OPTIONS[name].choices), name
        assert f"{name}: " in (options.__doc__ or "")
