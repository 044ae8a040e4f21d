"""Tables as bodies: columns by name, an answer for each column or row, and tables that nobody should send."""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.serving import tables
from tests.service.conftest import InProcess

CSV = "text/csv"
STREAM, FILE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
TABLE = 'price,size,"a, b"\n1.5,3,7\n2.5,1,8\n0.1,2,9\n'


def stored(table: Any, kind: str = STREAM, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    write = pa.ipc.new_stream if kind == STREAM else pa.ipc.new_file
    with write(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def ask(client: InProcess, body: Any, query: str = "", kind: str = CSV, path: str = "/median") -> Any:
    content = body.encode() if isinstance(body, str) else body
    return client.post(f"{path}?exact=true&{query}", content=content, headers={"Content-Type": kind})


def cells(answer: Any) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == CSV
    return list(csv.reader(io.StringIO(answer.text)))


def test_an_answer_for_each_column(client: InProcess) -> None:
    answer = ask(client, TABLE)
    assert cells(answer) == [["column", "median"], ["price", "1.5"], ["size", "2.0"], ["a, b", "8.0"]]
    assert cells(ask(client, TABLE, 'columns=size,"a, b"')) == [["column", "median"], ["size", "2.0"], ["a, b", "8.0"]]
    told = cells(ask(client, TABLE, "columns=size&quantiles=0.1,0.5", path="/quantile"))
    assert told == [["column", "0.1", "0.5"], ["size", repr(float(np.quantile([3, 1, 2], 0.1))), "2.0"]]


def test_an_answer_for_each_row(client: InProcess) -> None:
    assert cells(ask(client, TABLE, "by=rows")) == [["median"], ["3.0"], ["2.5"], ["2.0"]]
    assert cells(ask(client, TABLE.replace("\n", "\r\n"), "by=rows&columns=price,size")) == [
        ["median"], ["2.25"], ["1.75"], ["1.05"],
    ]  # fmt: skip
    assert cells(ask(client, "1,2,6\n4,5,9", "by=rows&header=false")) == [["median"], ["2.0"], ["5.0"]]
    assert cells(ask(client, "1,2\n4,5\n0,0", "header=false&columns=f1")) == [["column", "median"], ["f1", "2.0"]]


def test_text_is_left_out_by_naming_the_numbers(client: InProcess) -> None:
    table = "name,price\nx,1\ny,3\nz,2"
    refused = ask(client, table)
    assert refused.status_code == 422
    assert "'x'" in refused.json()["detail"]
    assert "?columns=" in refused.json()["detail"]
    assert cells(ask(client, table, "columns=price"))[1] == ["price", "2.0"]
    for kind in (STREAM, FILE):
        body = stored(pa.table({"name": ["x", "y", "z"], "price": [1, 3, 2]}), kind)
        assert "not numbers" in ask(client, body, kind=kind).json()["detail"]
        assert ask(client, body, "columns=price", kind).status_code == 200


def test_empty_cells_are_missing_numbers(client: InProcess) -> None:
    table = "a,b\n1,\n2,5\nNA,7\n"
    refused = ask(client, table)
    assert (refused.status_code, refused.json()["vector"], refused.json()["index"]) == (422, 0, 2)
    assert cells(ask(client, table, "nan=omit")) == [["column", "median"], ["a", "1.5"], ["b", "6.0"]]
    assert cells(ask(client, table, "nan=propagate")) == [["column", "median"], ["a", ""], ["b", ""]]
    body = stored(pa.table({"a": [1, 2, None], "b": [None, 5.0, 7.0]}))
    told = pa.ipc.open_stream(ask(client, body, "nan=omit", STREAM).content).read_all().to_pydict()
    assert told == {"column": ["a", "b"], "median": [1.5, 6.0]}


@pytest.mark.parametrize("kind", [STREAM, FILE])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u8"])
def test_arrow_in_several_batches(client: InProcess, kind: str, dtype: str) -> None:
    x = (np.random.default_rng(0).random((3, 25)) * 100).astype(dtype)
    body = stored(pa.table(list(x), names=["a", "b", "c"]), kind)
    read = pa.ipc.open_stream if kind == STREAM else pa.ipc.open_file
    told = read(ask(client, body, kind=kind).content).read_all()
    assert told["median"].to_numpy().tolist() == np.median(x, axis=1).tolist()
    assert told["median"].type == (pa.float32() if dtype == "f4" else pa.float64())
    told = read(ask(client, body, "by=rows&quantiles=0,1", kind, "/quantile").content).read_all()
    assert told["0.0"].to_numpy().tolist() == x.min(axis=0).tolist()
    assert told["1.0"].to_numpy().tolist() == x.max(axis=0).tolist()


@pytest.mark.parametrize(
    ("table", "query"),
    [
        ("", ""), ("\n", ""), ("a,b", ""), ("a,b\n", ""), ("a,a\n1,2", ""), ("a\n1", "columns=b"), ("a\n1\n2,3", ""),
        ("a,b\n1", ""), ("a\nx", ""), ("a\n1e999", ""), ("a\ninf", ""), ("\udcff\n1".encode(errors="surrogateescape"), ""),
        ('"a\n1', ""), ("a\n1", "columns="), ("a\n1", "columns=a,a"), ("a\n1", "by=cells"), ("a\n1", "header=1"),
        ("," * 5000 + "\n", ""), ("a\n" + "1\n" * 70, ""), ("a\n" + "1\n" * 5000, "by=rows"), ("\0" * 100, ""),
    ],
)  # fmt: skip
def test_csv_that_is_none_is_refused(client: InProcess, table: Any, query: str) -> None:
    answer = ask(client, table, query)
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert cells(ask(client, TABLE))[1] == ["price", "1.5"]


def test_arrow_that_may_be_larger_than_it_looks_is_refused(client: InProcess) -> None:
    zeros = pa.table({"a": np.zeros(60)})
    assert "Compressed" in ask(client, stored(zeros, compression="zstd"), kind=STREAM).json()["detail"]
    assert "Compressed" in ask(client, stored(zeros, FILE, compression="lz4"), kind=FILE).json()["detail"]
    words = pa.table({"a": pa.array(["x", "y"]).dictionary_encode(), "b": [1.0, 2.0]})
    assert "Dictionary" in ask(client, stored(words), "columns=b", STREAM).json()["detail"]
    nothing = pa.table({"a": pa.nulls(60)})
    assert "not numbers" in ask(client, stored(nothing), kind=STREAM).json()["detail"]
    long = struct.pack("<iI", -1, 1 << 25) + bytes(1000)
    assert ask(client, long, kind=STREAM).status_code == 400


def test_too_many_batches(client: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCHES", 3)
    assert ask(client, stored(pa.table({"a": [1.0] * 6})), kind=STREAM).status_code == 200
    assert "Too many batches" in ask(client, stored(pa.table({"a": [1.0] * 7})), kind=STREAM).json()["detail"]


def test_any_damage_of_a_stream_is_refused_or_read(client: InProcess) -> None:
    """Whatever bytes change: an answer or a refusal, never a failure."""
    body = stored(pa.table({"a": [1.0, 2.0, 3.0], "b": [4, 5, 6]}))
    rng = np.random.default_rng(0)
    statuses = set()
    for _ in range(400):
        damaged = bytearray(body)
        for place in rng.integers(0, len(body), rng.integers(1, 4)):
            damaged[place] = int(rng.integers(256))
        cut = int(rng.integers(1, len(body))) if rng.random() < 0.2 else len(body)
        statuses.add(ask(client, bytes(damaged[:cut]), kind=STREAM).status_code)
    assert statuses <= {200, 400, 422}
    assert 200 in statuses


def test_without_pyarrow_the_remedy_is_told(client: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refused = ask(client, TABLE)
    assert refused.status_code == 415
    assert "pip install -e '.[tables]'" in refused.json()["detail"]


def test_a_long_column(connect: Callable[..., InProcess], tmp_path: Path) -> None:
    from tests.service import toy_models

    toy_models.write(tmp_path, "long", toy_models.description(65536))
    client = connect(tmp_path)
    x = np.random.default_rng(5).normal(size=60_001)
    table = "x\n" + "\n".join(map(repr, x.tolist()))
    assert float(cells(ask(client, table))[1][1]) == np.median(x)
