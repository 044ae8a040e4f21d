"""Bad input: one line with file, column and row group, and nothing half-written."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.batch.__main__ import main
from service.batch.inputs import SUFFIXES
from tests.service.batch.tables import Here, answers, batch, options


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files with something wrong in each."""
    pq.write_table(
        pa.table({"x": [1.0, 2.0, 3.0, None], "y": [1.0, 2, 3, 4], "s": list("abcd"), "big": [1, 2, 2**62 + 1, 3],
                  "v": [[1.0], [], [2.0], [3.0]], "k": [1, 1, 2, 2], "d": [{"a": 1}] * 4,
                  "w": [[[1.0]]] * 4}),
        tmp_path / "good.parquet", row_group_size=2,
    )  # fmt: skip
    pq.write_table(pa.table({"x": ["1"], "y": ["2"]}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"x": np.zeros(0)}), tmp_path / "empty.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-30])
    (tmp_path / "header.csv").write_text("x,y\n")
    (tmp_path / "words.csv").write_text("x,y\n" + "1,2\n" * 3 + "one,2\n")
    (tmp_path / "data.bin").write_bytes(b"?")
    (tmp_path / "twice.csv").write_text("x,x\n1,2\n")
    pq.write_table(pa.table([[1.0], [2.0]], names=["x", "x"]), tmp_path / "twice.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "arguments", "said"),
    [
        ("good.parquet", ["--column", "z"], ["good.parquet", "no column 'z'", "it has x, y, s"]),
        ("good.parquet", ["--column", "y", "--by", "z"], ["good.parquet", "no column 'z'"]),
        ("good.parquet", ["--column", "w"], ["good.parquet", "column 'w'", "list<", "no numbers"]),
        ("twice.parquet", ["--column", "x"], ["twice.parquet", "there are 2 columns 'x'"]),
        ("twice.csv", [], ["twice.csv", "there are 2 columns 'x'"]),
        ("good.parquet", ["--column", "s"], ["good.parquet", "column 's'", "string"]),
        ("good.parquet", ["--column", "y", "--by", "d"], ["good.parquet", "column 'd'", "a key is a plain value"]),
        ("good.parquet", ["--column", "x"], ["good.parquet", "column 'x'", "row group 1", "null", "--nan skip"]),
        ("good.parquet", ["--column", "x", "--by", "k"], ["good.parquet", "column 'x'", "row group 1"]),
        ("good.parquet", ["--column", "v"], ["good.parquet", "column 'v'", "row group 0", "row 1 has no number"]),
        ("good.parquet", ["--column", "big"], ["good.parquet", "column 'big'", "row group 1", "2^53"]),
        ("good.parquet", ["--column", "v", "--by", "k"], ["column 'v'", "lists"]),
        ("good.parquet", ["--column", "y", "--keep", "k"], ["--keep", "per column"]),
        ("te*.parquet", ["--column", "y"], ["text.parquet", "column 'y'", "no numbers"]),
        ("empty.parquet", ["--column", "x"], ["empty.parquet", "the table is empty"]),
        ("header.csv", ["--column", "x"], ["header.csv", "the table is empty"]),
        ("torn.parquet", ["--column", "x"], ["torn.parquet", "cannot be read"]),
        ("words.csv", ["--column", "y", "x"], ["words.csv", "'x'"]),
        ("data.bin", [], ["data.bin", *list(SUFFIXES)[:2]]),
        ("nothing*", [], ["nothing*", "no such file"]),
        ("good.parquet", ["--column", "y", "--quantile", "1.5"], ["--quantile 1.5"]),
        ("good.parquet", ["--column", "y", "--method", "lower"], ["--method", "--quantile"]),
        ("good.parquet", ["--column", "y", "y"], ["y y", "twice"]),
        ("good.parquet", ["--column", "y", "--per", "group"], ["--by"]),
    ],
)
def test_messages(
    folder: Path, file: str, arguments: Sequence[str], said: Sequence[str],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from service.batch import run

    monkeypatch.setattr(run, "engine", lambda *_: Here())
    out = folder / "out"
    try:
        status = main(["--input", str(folder / file), "--out", str(out), "--quiet", *arguments])
    except SystemExit as end:  # of the parser
        status = int(end.code or 0)
    assert status == 2
    message = capsys.readouterr().err
    for text in said:
        assert text in message
    assert "Traceback" not in message
    assert len([line for line in message.splitlines() if "error:" in line]) == 1
    left = [path.name for path in out.rglob("*") if path.is_file()] if out.exists() else []
    assert not [name for name in left if name.startswith(".")]


def test_mixed_types_name_both_files(folder: Path) -> None:
    from service.batch.inputs import TableError

    pq.write_table(pa.table({"x": np.zeros(1, np.float32)}), folder / "single.parquet")
    with pytest.raises(TableError, match=r"single\.parquet, column 'x' is of type float, .* double in .*good\.parquet"):
        batch("--input", folder / "good.parquet", folder / "single.parquet", "--column", "x", "--out", folder / "o")


@pytest.mark.parametrize("compression", ["snappy", "none"])
@pytest.mark.parametrize("shape", [["--column", "x"], ["--column", "x", "--by", "k"], ["--column", "x", "k"]])
def test_a_damaged_row_group_is_named(folder: Path, compression: str, shape: Sequence[str]) -> None:
    """Its pages cannot be unpacked, or do not have the sum that was written with them."""
    from service.batch.inputs import TableError

    path = folder / "damaged.parquet"
    x = np.random.default_rng(0).normal(size=3000)
    pq.write_table(
        pa.table({"x": x, "k": np.arange(3000) % 7}), path, row_group_size=1000, compression=compression,
        use_dictionary=False, write_page_checksum=compression == "none",
    )  # fmt: skip
    about = pq.ParquetFile(path).metadata.row_group(1).column(0)
    whole = bytearray(path.read_bytes())
    at = about.data_page_offset + (about.total_compressed_size // 2 if compression == "none" else 0)
    whole[at : at + 64] = bytes(64)
    path.write_bytes(whole)
    with pytest.raises(TableError, match=r"damaged\.parquet, columns? .*'x'.*, row group 1: it cannot be read: "):
        batch("--input", path, *shape, "--out", folder / "o")
    left = sorted(each.name for each in (folder / "o").rglob("*") if each.is_file() and each.suffix != ".onnx")
    assert left in (
        ["_plan.json"],
        ["_plan.json", "manifest.json", "part-00000.parquet"],
        ["_plan.json", "spread-00000.arrow", "spread-00000.npy"],
    )


def test_an_empty_group_is_named(folder: Path) -> None:
    from service.batch.inputs import TableError

    pq.write_table(pa.table({"x": [1.0, None], "k": ["a", "b"]}), folder / "holes.parquet")
    with pytest.raises(TableError, match="column 'x', group k = 'b': it has no number"):
        batch("--input", folder / "holes.parquet", "--column", "x", "--by", "k", "--nan", "skip", "--out", folder / "o")


def test_another_question_does_not_enter_the_folder(folder: Path) -> None:
    from exporter.errors import WriteError

    asked = ("--input", folder / "good.parquet", "--out", folder / "o")
    batch(*asked, "--column", "y")
    with pytest.raises(WriteError, match=r"other options \(column \['y'\], now \['k'\]\): choose another --out"):
        batch(*asked, "--column", "k")
    pq.write_table(pa.table({"y": [5.0]}), folder / "good.parquet")
    with pytest.raises(WriteError, match="other input"):
        batch(*asked, "--column", "y")
    (folder / "p").mkdir()
    (folder / "p" / "letter.txt").write_text("?")
    with pytest.raises(WriteError, match=r"letter\.txt"):
        batch("--input", folder / "good.parquet", "--column", "y", "--out", folder / "p")


def test_a_full_disk_leaves_whole_parts_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter.errors import WriteError

    asked = ("--input", folder / "good.parquet", "--column", "y", "k", "--out", folder / "o")
    write, room = pq.ParquetWriter.write_table, [1]

    def full(*arguments: Any, **more: Any) -> Any:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room.pop()
        return write(*arguments, **more)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(WriteError, match=r"part-00001.parquet cannot be written: .*No space left .*make room"):
        batch(*asked)
    assert [path.name for path in (folder / "o").glob("*part*")] == ["part-00000.parquet"]
    monkeypatch.undo()
    batch(*asked)
    assert answers(folder / "o")["median"].to_pylist() == [1.0, 1.5, 2.5, 3.0]


def test_ray_that_is_not_there_is_asked_for(folder: Path) -> None:
    from importlib.util import find_spec

    from exporter.errors import UserError
    from service.batch.run import run

    if find_spec("ray"):
        pytest.skip("Ray is installed here")
    with pytest.raises(UserError, match=r"pip install 'onnx-median\[service,tables,ray\]'"):
        run(options("--input", folder / "good.parquet", "--column", "y", "--engine", "ray", "--out", folder / "o"))
