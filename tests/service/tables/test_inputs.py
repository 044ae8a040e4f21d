"""Files: formats, hive partitions, types that differ, odd names, damage."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from service.tables import medians
from service.tables.types import TableError


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng, n = np.random.default_rng(3), 2000
    return pa.table({"k": rng.integers(0, 30, n), "y": rng.normal(size=n)})


def test_formats_agree(table: pa.Table, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=300)
    pa.feather.write_feather(table, tmp_path / "t.feather", chunksize=999)
    pa.csv.write_csv(table, tmp_path / "t.csv")
    pa.csv.write_csv(table, tmp_path / "t.tsv", pa.csv.WriteOptions(delimiter="\t"))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    want = medians(table, by="k")
    for name in ("t.parquet", "t.feather", "t.csv", "t.tsv", "t.csv.gz"):
        assert medians(tmp_path / name, by="k") == want
        assert medians(tmp_path / name, columns="y", memory=999)["median"] == medians(table, columns="y")["median"]
    assert medians(f"file://{tmp_path}/t.fe*r", by="k") == want
    both = medians([tmp_path / "t.parquet", tmp_path / "t.feather"], columns="y")
    assert both["count"].to_pylist() == [4000]


@pytest.mark.parametrize("memory", [5000, "1GB"])
def test_hive_columns_are_keys(table: pa.Table, tmp_path: Path, memory: Any) -> None:
    for i, city in enumerate(["paris", "rome"]):
        for year in (1, 2):
            (tmp_path / f"city={city}" / f"year={year}").mkdir(parents=True)
            part = table.slice(500 * (2 * i + year - 1), 500)
            pq.write_table(part, tmp_path / f"city={city}" / f"year={year}" / "t.parquet", row_group_size=200)
    for source in (tmp_path, f"{tmp_path}/*/*/*.parquet"):
        found = medians(source, by=["city", "year"], columns="y", memory=memory).to_pydict()
        assert found["city"] == ["paris", "paris", "rome", "rome"]
        assert found["year"] == [1, 2, 1, 2]
        assert found["median"] == [np.median(table["y"].slice(500 * i, 500)) for i in range(4)]


@pytest.mark.parametrize("ending", ["parquet", "feather", "csv"])
@pytest.mark.parametrize("memory", [1000, "1GB"])
def test_types_that_differ_between_files_are_unified(tmp_path: Path, ending: str, memory: Any) -> None:
    rng = np.random.default_rng(0)
    x, i = rng.normal(size=301), rng.integers(-(2**31), 2**31, 301)
    first = pa.table({"x": x[:150].astype(np.float32), "i": i[:150].astype(np.int32)})
    second = pa.table({"i": i[150:] * 2**20, "x": x[150:]})
    for number, table in enumerate((first, second)):
        path = tmp_path / f"{number}.{ending}"
        {"parquet": pq.write_table, "feather": pa.feather.write_feather, "csv": pa.csv.write_csv}[ending](table, path)
    (row,) = medians(tmp_path, q=0.5, method="lower", memory=memory).to_pylist()
    shown = x[:150].astype(np.float32).astype(float)
    if ending == "csv":  # the texts of float32 are read as float64
        shown = np.array([float(str(each)) for each in x[:150].astype(np.float32)])
    assert row["x_q0.5"] == np.sort(np.concatenate([shown, x[150:]]))[150]
    assert row["i_q0.5"] == np.sort(np.concatenate([i[:150], i[150:] * 2**20]))[150]


def test_a_column_that_some_files_lack_is_null_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2], "x": [5.0, 7.0]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"k": [1, 3]}), tmp_path / "1.parquet")
    found = medians(tmp_path, by="k", columns="x", nan="skip").to_pydict()
    assert found == {"k": [1, 2, 3], "count": [1, 1, 0], "median": [5.0, 7.0, None]}
    with pytest.raises(TableError, match="column 'x': 2 values are null"):
        medians(tmp_path, columns="x")


def test_integers_of_a_csv_are_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("i\n" + "\n".join(str(2**53 + n) for n in (1, 3, 5)))
    assert medians(path, q=0.5, method="lower")["q0.5"].to_pylist() == [2**53 + 3]


@pytest.mark.parametrize("memory", [1000, "1GB"])
def test_fractions_may_begin_late(tmp_path: Path, memory: Any) -> None:
    """pyarrow takes the type of a CSV column from its first megabyte."""
    path, n = tmp_path / "t.csv", 200000
    path.write_text("k,i,x\n" + "".join(f"{j % 3},{2**60 + j},{j if j < n - 9 else j + 0.5}\n" for j in range(n)))
    (row,) = medians(path, q=0.5, method="higher", columns=["i", "x"], memory=memory).to_pylist()
    assert (row["i_q0.5"], row["x_q0.5"]) == (2**60 + n // 2, n / 2)
    assert medians(path, by="k", columns="x", q=1.0, memory=memory)["q1"].to_pylist() == [n - 1.5, n - 0.5, n - 2.5]


def test_a_csv_of_its_header_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("k,x\n")
    assert medians(tmp_path / "t.csv", columns="x").to_pylist() == [{"count": 0, "median": None}]
    assert medians(tmp_path / "t.csv", columns="x", by="k").num_rows == 0
    (tmp_path / "u.csv").write_text("k,x\n1,2.5\n")
    assert medians(tmp_path, columns="x").to_pylist() == [{"count": 1, "median": 2.5}]


def test_a_name_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    for name, x in (("a[1].parquet", 1.0), ("a1.parquet", 2.0)):
        pq.write_table(pa.table({"x": [x]}), tmp_path / name)
    assert medians(tmp_path / "a[1].parquet")["median"].to_pylist() == [1.0]
    assert medians(tmp_path / "a[0-9].parquet")["median"].to_pylist() == [2.0]


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    for x in (1.0, 2.0):
        pq.write_table(pa.table({"x": [x], "v": [[x]]}), tmp_path / "t.parquet")
        for columns, memory in (("x", "1GB"), ("x", 1), ("v", "1GB")):
            assert medians(tmp_path / "t.parquet", columns=columns, memory=memory)["median"].to_pylist() == [x]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.parquet", "there is no such file"), ("none*", "there is no such file"), ("notes.txt", "unknown kind of file"),
        ("twice.parquet", "duplicate field names"), ("text.parquet", "text.parquet: cannot be read"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "notes.txt").write_text("?")
    (tmp_path / "text.parquet").write_text("?")
    pq.write_table(pa.table([[1.0], [2.0]], names=["x", "x"]), tmp_path / "twice.parquet")
    with pytest.raises(TableError, match=said):
        medians(tmp_path / name)


@pytest.mark.parametrize("asked", [{"memory": 2000}, {"by": "k"}, {"columns": ["x", "k"], "per": "row"}])
def test_a_damaged_row_group_is_named(tmp_path: Path, asked: dict[str, Any]) -> None:
    path = tmp_path / "damaged.parquet"
    x = np.random.default_rng(0).normal(size=3000)
    table = pa.table({"x": x, "k": np.arange(3000) % 7})
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    whole = bytearray(path.read_bytes())
    whole[at : at + 64] = bytes(64)
    path.write_bytes(whole)
    pq.write_table(table, tmp_path / "a.parquet")
    for source in (path, tmp_path):
        with pytest.raises(TableError, match=r"damaged\.parquet, columns? .*'x'.*: cannot be read: "):
            medians(source, **{"columns": "x", **asked})
