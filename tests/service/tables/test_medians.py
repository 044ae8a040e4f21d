"""`medians` against numpy: rows, columns and groups, every type, in memory and beyond it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from exporter.errors import UserError
from exporter.problem.quantiles import METHODS
from service.tables import medians
from service.tables.types import TableError

FAMILIES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "few": lambda rng, n: rng.integers(0, 3, n) * 1.0,
    "scales": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-44, 37, n),
    "near": lambda rng, n: 1 + rng.integers(0, 4, n) * 2.0**-23,
    "zeros": lambda rng, n: rng.choice([0.0, -0.0, 1.0, -1.0], n),
    "infinite": lambda rng, n: rng.choice([-np.inf, np.inf, 0.5, 2.0, -7.0], n, p=[0.1, 0.1, 0.4, 0.2, 0.2]),
}
SMALL = 3000  # bytes: groups are sorted by duckdb, columns are searched by counting


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng, n = np.random.default_rng(8), 5000
    return pa.table({
        "k": rng.integers(0, 300, n), "s": pa.array(np.array(["a", "b", "ä"])[rng.integers(0, 3, n)]),
        "x": rng.normal(size=n).astype(np.float32), "y": rng.normal(size=n), "i": rng.integers(-9, 9, n),
    })  # fmt: skip


def by_hand(table: pa.Table, keys: list[str], column: str, kind: Any) -> dict[tuple[Any, ...], Any]:
    """The oracle: numpy's medians of a dictionary of lists."""
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for *key, value in zip(*(table.column(name).to_pylist() for name in (*keys, column)), strict=True):
        groups[tuple(map(repr, key))].append(value)
    return {key: np.median(np.array(values, kind)) for key, values in groups.items()}


def same(found: Any, expected: Any) -> bool:
    """Equal bit for bit, except for the sign of zero."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    return bool(((found == expected) | (np.isnan(found) & np.isnan(expected))).all())


@pytest.mark.parametrize("memory", [SMALL, "1GB"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_of_numpy(family: str, dtype: str, memory: Any) -> None:
    """Columns of every length, odd and even; infinities as numpy has them."""
    rng = np.random.default_rng(len(family))
    for n in (1, 2, 3, 900, 901):
        with np.errstate(over="ignore"):
            x = FAMILIES[family](rng, n).astype(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            (row,) = medians({"x": x}, memory=memory).to_pylist()
            assert row["count"] == n
            assert same(np.array(row["median"], dtype), np.median(x))
            for method in METHODS:
                if family == "infinite" and method not in ("linear", "midpoint", "lower", "nearest"):
                    continue
                found = medians({"x": x}, q=[0, 0.3, 0.5, 1], method=method, memory=memory)
                want = np.quantile(x, [0, 0.3, 0.5, 1], method=cast(Any, method))
                for column, one in zip(found.columns[1:], want, strict=True):
                    assert same(column.to_numpy()[0], one), (n, method)


@pytest.mark.parametrize("memory", [SMALL, "1GB"])
@pytest.mark.parametrize("by", [["k", "s"], ["s", "k"]])
def test_groups(table: pa.Table, by: list[str], memory: Any) -> None:
    found = medians(table, by=by, columns=["x", "y"], memory=memory)
    assert found.column_names == [*by, "x_count", "x_median", "y_count", "y_median"]
    assert found.schema.field("x_median").type == pa.float32()  # beside a column of float64
    rows = found.to_pylist()
    for name, kind in (("x", np.float32), ("y", np.float64)):
        want = by_hand(table, by, name, kind)
        assert {tuple(repr(row[key]) for key in by): row[f"{name}_median"] for row in rows} == want
    keys = [tuple(row[key] for key in by) for row in rows]
    assert keys == sorted(keys)
    assert sum(found["x_count"].to_pylist()) == len(table)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_groups_of_words_that_share_their_upper_bits(share: float) -> None:
    """Code and word do not fit into 64 bits; words that differ in their last bits alone are told apart."""
    rng, n = np.random.default_rng(4), 20000
    x = np.where(rng.random(n) < share, 1 + rng.integers(0, 50, n) * 2.0**-52, rng.normal(size=n) * 1e300)
    x[:2] = -1.7e308, 1.7e308
    k = np.minimum(rng.geometric(0.002, n), 3000)
    found = medians({"k": k, "x": pa.array(x, mask=k == 7)}, by="k", q=[0, 0.3, 0.5, 1], method="lower", nan="skip")
    for row in found.to_pylist():
        own = x[(k == row["k"]) & (k != 7)]
        if len(own):
            assert list(row.values())[2:] == np.quantile(own, [0, 0.3, 0.5, 1], method="lower").tolist()
        else:
            assert (row["count"], row["q0.5"]) == (0, None)
    assert found["k"].to_pylist() == np.unique(k).tolist()


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]), "int8": (pa.int8(), [-1, 1]), "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float16": (pa.float16(), [-1.5, 2.0]), "float": (pa.float64(), [0.0, -0.0, float("nan")]),
    "decimal": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("2.25")]),
    "decimal32": (pa.decimal32(5, 1), [Decimal("-1.5"), Decimal("2.2")]),
    "date": (pa.date32(), [date(1, 1, 1), date(2026, 5, 4)]), "time": (pa.time64("ns"), [time(1), time(2, 3, 4)]),
    "far date": (pa.date32(), [-3_000_000, 5_000_000]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, -(2**60)]), "seconds": (pa.timestamp("s"), [datetime(1900, 1, 1), 0]),
    "duration": (pa.duration("ns"), [timedelta(-1), timedelta(1)]), "null": (pa.null(), [None]),
    "string": (pa.string(), ["a", "ä"]), "view": (pa.string_view(), ["a", "a longer text than a view holds itself"]),
    "binary": (pa.binary(), [b"", b"\xff"]), "fixed": (pa.binary(2), [b"ab", b"\xff\xfe"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("memory", [SMALL, "1GB"])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_plain_type(kind: str, memory: Any) -> None:
    """A missing key is a key; no group is lost, split or made up."""
    typed, known = KEYS[kind]
    rng = np.random.default_rng(6)
    place = rng.integers(0, len(known) + 1, 400)
    index = pa.array([None if i == len(known) else i for i in place.tolist()], pa.int64())
    keys = pa.nulls(400) if kind == "null" else pa.array(known, _plain(typed)).take(index)
    keys = keys if kind == "null" else keys.cast(typed)
    x = rng.normal(size=400)
    found = medians({"key": keys, "x": x}, by="key", memory=memory)
    written = found["key"].combine_chunks()
    want: dict[str, list[float]] = defaultdict(list)
    names = [repr(_number(v)) for v in keys.cast(written.type)] if kind != "null" else ["None"] * 400
    for name, value in zip(names, x.tolist(), strict=True):
        want[name].append(value)
    assert found.num_rows == len(want)
    for key, count, median in zip(written, found["count"].to_pylist(), found["median"].to_pylist(), strict=True):
        own = want["None" if kind == "null" else repr(_number(key))]
        assert (count, median) == (len(own), np.median(own))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else pa.string() if kind == pa.string_view() else kind


def _number(scalar: Any) -> Any:
    """A key as Python can hold it; dates beyond Python's are numbers."""
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(scalar.type):
        return scalar.cast(pa.int32() if pa.types.is_date32(scalar.type) else pa.int64()).as_py()
    value = scalar.as_py()
    return value + 0.0 if isinstance(value, float) else value


@pytest.mark.parametrize("memory", [SMALL, "1GB"])
@pytest.mark.parametrize(
    ("typed", "values", "median"),
    [
        (pa.int64(), [2**62 + 1, 2**62 + 3, 2**62 + 2], None),
        (pa.uint64(), [2**64 - 1, 2**63 + 1, 0], None),
        (pa.bool_(), [True, False, True, True], 1.0),
        (pa.timestamp("us"), [datetime(2026, 1, 1), datetime(2026, 1, 3)], datetime(2026, 1, 2)),
        (pa.timestamp("ns", "UTC"), [1, 4], pd.Timestamp(2, tz="UTC")),
        (pa.duration("s"), [timedelta(seconds=-5), timedelta(seconds=0)], timedelta(seconds=-3)),
        (pa.date32(), [date(2026, 1, 1), date(2026, 1, 4)], date(2026, 1, 2)),
        (pa.decimal128(9, 2), [Decimal("0.01"), Decimal("0.02")], Decimal("0.015")),
        (pa.decimal64(9, 2), [Decimal("-0.01"), Decimal("0.02"), Decimal("7.00")], Decimal("0.020")),
        (pa.dictionary(pa.int8(), pa.float32()), [1.0, 2.0], 1.5),
    ],
)
def test_values_of_any_ordered_type(typed: pa.DataType, values: list[Any], median: Any, memory: Any) -> None:
    coded = pa.types.is_dictionary(typed)
    array = pa.array(values, typed.value_type).dictionary_encode() if coded else pa.array(values, typed)
    (row,) = medians({"x": array}, memory=memory).to_pylist()
    assert row["median"] == (np.median(np.array(values)) if median is None else median)
    lower = medians({"x": array}, q=0.5, method="lower", memory=memory)["q0.5"]
    assert lower.to_pylist()[0] == sorted(array.to_pylist())[(len(values) - 1) // 2]  # exact to 2^64
    many = pa.concat_arrays([array] * 500)
    keys = np.repeat(np.arange(5), 100 * len(values))
    found = medians({"k": keys, "x": many}, by="k", q=0.5, method="lower", memory=memory)
    assert found["q0.5"].to_pylist() == lower.to_pylist() * 5


def test_rows() -> None:
    """Lists of many lengths, several columns side by side, and rows longer than any network."""
    rng = np.random.default_rng(1)
    lists = [rng.normal(size=n) for n in (*rng.integers(1, 9, 50), 300)]
    rows = medians({"id": np.arange(51), "v": lists}, columns="v", keep="id")
    assert rows.column_names == ["id", "count", "median"]
    assert same(rows["median"], np.array([np.median(v) for v in lists]))
    long = medians({"v": [*lists, rng.normal(size=3000)]}, q=0.25, columns="v")
    assert long["q0.25"].to_pylist()[:51] == [np.quantile(v, [0.25])[0] for v in lists]
    fixed = rng.normal(size=(700, 25)).astype(np.float32)
    array = pa.FixedSizeListArray.from_arrays(fixed.ravel(), 25)
    found = medians({"v": array.slice(100)}, columns="v")["median"]
    assert same(found, np.median(fixed, axis=1)[100:])
    wide = medians({name: fixed[:, i] for i, name in enumerate("abc")}, per="row", q=[0.9], method="hazen")
    assert same(wide["q0.9"], np.quantile(fixed[:, :3], [0.9], axis=1, method="hazen")[0])
    days = pa.array([[1, 3], [5]], pa.list_(pa.timestamp("s")))
    assert medians({"v": days}, columns="v")["median"].cast(pa.int64()).to_pylist() == [2, 5]


def test_missing_values() -> None:
    rows = {"v": [[1.0, None, 3.0], [float("nan"), 5.0], None, [], [7.0]]}
    rows |= {"x": [1.0, None, float("nan"), 4.0, 2.0], "k": [1, 1, 2, 2, 3]}
    for name in "vx":
        with pytest.raises(TableError, match=f"column '{name}': . (values|rows) are null: nan='skip'"):
            medians(rows, columns=name)
    for memory in (1, "1GB"):
        with pytest.raises(TableError, match=r"^column 'x': 2 values are null: nan='skip'"):
            medians(rows, by="k", columns="x", memory=memory)
    assert medians(rows, columns="v", nan="skip").to_pydict() == {
        "count": [2, 1, 0, 0, 1], "median": [2.0, 5.0, None, None, 7.0],
    }  # fmt: skip
    for memory in (SMALL, 1, "1GB"):
        assert medians(rows, columns="x", nan="skip", memory=memory).to_pylist() == [{"count": 3, "median": 2.0}]
        grouped = medians({**rows, "k": [1, 1, 2, 1, 3]}, by="k", columns="x", nan="skip", memory=memory)
        assert grouped.to_pydict() == {"k": [1, 2, 3], "count": [2, 0, 1], "median": [2.5, None, 2.0]}


def test_no_rows() -> None:
    empty = pa.table(
        {"k": pa.array([], pa.string()), "x": pa.array([], pa.int32()), "v": pa.array([], pa.list_(pa.int8()))}
    )
    for memory in (1, "1GB"):
        assert medians(empty, columns="x", memory=memory).to_pylist() == [{"count": 0, "median": None}]
        assert medians(empty, by="k", columns="x", memory=memory).to_pylist() == []
    assert medians(empty, columns="v").to_pylist() == []


def test_anything_with_arrow_data(table: pa.Table, tmp_path: Any) -> None:
    pq.write_table(table.slice(0, 2500), tmp_path / "0.parquet", row_group_size=700)
    pq.write_table(table.slice(2500), tmp_path / "1.parquet", row_group_size=700)
    want, frame = medians(table, by="s"), table.to_pandas()
    sources: list[Any] = [
        ds.dataset(tmp_path), table.to_reader(300), frame, pl.from_arrow(table), pl.from_arrow(table).lazy(),  # type: ignore[union-attr]
        str(tmp_path), tmp_path / "*.parquet", [tmp_path / "0.parquet", tmp_path / "1.parquet"], table.to_pydict(),
        duckdb.sql("select * from frame"),
    ]  # fmt: skip
    for source in sources:
        found = medians(source, by="s")
        assert found.drop_columns(["x_median"]).to_pylist() == want.drop_columns(["x_median"]).to_pylist()
    beyond = medians(table.to_reader(300), by="s", memory=20000)  # kept in a file meanwhile
    assert beyond == want


def test_reading_is_lazy(tmp_path: Any) -> None:
    """A reader's batches are taken one by one, and only the columns that are needed are read."""
    read = []

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(3):
            read.append(i)
            yield pa.record_batch({"x": [float(i)]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.float64())]), batches())
    assert read == []
    assert medians(reader)["median"].to_pylist() == [1.0]
    pq.write_table(pa.table({"x": [1.0], "bad": ["?"]}), tmp_path / "t.parquet")
    damaged = bytearray((tmp_path / "t.parquet").read_bytes())
    at = pq.ParquetFile(tmp_path / "t.parquet").metadata.row_group(0).column(1).dictionary_page_offset
    damaged[at : at + 8] = bytes(8)
    (tmp_path / "t.parquet").write_bytes(damaged)
    assert medians(tmp_path / "t.parquet", columns="x")["median"].to_pylist() == [1.0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"q": 1.5}, "from 0 to 1"), ({"q": [0.5, 0.5]}, "twice"), ({"method": "lower"}, "give q"),
        ({"columns": ["x", "x"]}, "twice"), ({"per": "group"}, "by"), ({"q": 0.5, "method": "best"}, "hazen"),
        ({"memory": "much"}, "500MB"), ({"columns": "z"}, "no column 'z'"), ({"columns": "s"}, "of type string"),
        ({"keep": "k"}, "per column"), ({"nan": "drop"}, "skip"), ({"by": "count", "columns": "x"}, "rename"),
    ],
)  # fmt: skip
def test_mistakes(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        medians({"k": [1], "s": ["a"], "x": [1.0], "count": [1]}, **asked)


def test_a_column_that_changes_between_passes_is_noticed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.tables import search

    plain: Any = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    pq.write_table(pa.table({"x": np.arange(1000.0)}), tmp_path / "t.parquet", **plain)
    learn = search.Search.learn

    def changed(self: Any, *given: Any) -> None:
        learn(self, *given)
        pq.write_table(pa.table({"x": np.arange(1000.0) % 7}), tmp_path / "t.parquet", **plain)

    monkeypatch.setattr(search.Search, "learn", changed)
    with pytest.raises(TableError, match="data changed meanwhile"):
        medians(tmp_path / "t.parquet", memory=SMALL)


ORDERS: dict[str, Callable[[Any], Any]] = {
    "random": lambda x: x, "sorted": np.sort, "odd first": lambda x: np.concatenate([[2e9] * 70000, x[70000:]]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shift", "order", "count"),
    [
        ("float32", 0, "random", 2), ("float64", 0, "random", 2),
        ("float64", 1e9, "random", 2), ("float64", -1e9, "random", 2), ("int64", 2**40, "random", 1),
        ("float64", 1e9, "sorted", 4), ("float64", 1e9, "odd first", 4),
    ],
)  # fmt: skip
def test_a_search_takes_two_passes(
    dtype: str, shift: float, order: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where most values share their first 16 bits a sample helps, unless it is not like the rest: four at most."""
    from service.tables import search

    x = ORDERS[order](np.random.default_rng(0).normal(size=300_000) * 1000 + shift).astype(dtype)
    passes, tallied = [], search.tallied

    def noted(source: Any, column: str, nan: str, asked: Any, *rest: Any) -> Any:
        passes.append(asked)
        return tallied(source, column, nan, asked, *rest)

    monkeypatch.setattr(search, "tallied", noted)
    found = medians({"x": x}, q=[0.01, 0.5], method="lower", memory=400_000)
    assert found.to_pylist()[0]["q0.5"] == np.quantile(x, 0.5, method="lower")
    assert found.to_pylist()[0]["q0.01"] == np.quantile(x, 0.01, method="lower")
    assert len(passes) == count
    assert passes[-1].gather == (count > 1)
