"""Tables in, tables out: shapes, formats, what is missing, going on after an interruption, and a killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from exporter.errors import UserError
from service.batch import engines, grouping
from service.batch.engines import Item, LocalEngine, Result, Task
from service.batch.run import run
from service.batch.search import Round
from service.batch.work import CountTask
from tests.service.batch.killing import Kills
from tests.service.batch.tables import Here, answers, batch, options, same

ROOT = Path(__file__).resolve().parents[3]
# what can be asked, and how often the workers run for it
SHAPES = {("--column", "v"): 1, ("--column", "x", "--quantile", "0.5", "0.999"): 2, ("--column", "x", "--by", "k"): 2}


@pytest.fixture
def table() -> pa.Table:
    rng = np.random.default_rng(8)
    n = 5000
    return pa.table({
        "k": rng.integers(0, 300, n), "s": pa.array(np.array(["a", "b", "ä"])[rng.integers(0, 3, n)]),
        "x": rng.normal(size=n).astype(np.float32), "y": rng.normal(size=n), "i": rng.integers(-9, 9, n),
        "v": [rng.normal(size=size) for size in rng.integers(1, 9, n)],
    })  # fmt: skip


@pytest.fixture
def data(table: pa.Table, tmp_path: Path) -> Path:
    """Two files, several row groups each."""
    (tmp_path / "data").mkdir()
    for i in range(2):
        pq.write_table(table.slice(i * 2500, 2500), tmp_path / "data" / f"{i}.parquet", row_group_size=700)
    return tmp_path / "data"


def by_key(table: pa.Table, keys: Sequence[str], column: str, kind: Any = None) -> dict[tuple[Any, ...], float]:
    """The oracle: medians by a dictionary of lists."""
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for *key, value in zip(*(table.column(name).to_pylist() for name in (*keys, column)), strict=True):
        groups[tuple(key)].append(value)
    kind = kind or table.column(column).to_numpy().dtype
    return {key: np.median(np.array(values, kind)) for key, values in groups.items()}


def test_rows_of_a_list_column(table: pa.Table, data: Path, tmp_path: Path) -> None:
    assert batch("--input", data / "*.parquet", "--column", "v", "--keep", "k", "--out", tmp_path / "o").rows == 5000
    found = answers(tmp_path / "o")
    assert found.column_names == ["k", "median", "certified", "error_bound"]
    assert same(found["median"], np.array([np.median(v) for v in table["v"].to_pylist()]))
    assert found["k"].to_pylist() == table["k"].to_pylist()
    assert all(found["certified"].to_pylist())
    assert not any(found["error_bound"].to_pylist())
    assert sorted(path.name for path in (tmp_path / "o").iterdir())[0] == "_plan.json"
    assert not (tmp_path / "o" / "_work").exists()


def test_rows_of_several_columns(table: pa.Table, data: Path, tmp_path: Path) -> None:
    batch("--input", data, "--column", "x", "y", "i", "--quantile", "0.25", "1", "--out", tmp_path / "o")
    found = answers(tmp_path / "o")
    rows = np.stack([table[name].to_numpy().astype(np.float64) for name in "xyi"], axis=1)
    assert same(found["q0.25"], np.quantile(rows, 0.25, axis=1))
    assert same(found["q1"], rows.max(axis=1))


def test_columns(table: pa.Table, data: Path, tmp_path: Path) -> None:
    tally = batch("--input", data, "--per", "column", "--quantile", "0.001", "0.5", "--out", tmp_path / "o")
    found = {row["column"]: row for row in answers(tmp_path / "o").to_pylist()}
    assert list(found) == ["k", "x", "y", "i"]
    for name in "kyi":
        assert found[name]["q0.001"] == np.quantile(table[name].to_numpy().astype(float), 0.001)
    assert found["x"]["q0.5"] == np.quantile(table["x"].to_numpy(), 0.5)
    assert tally.passes is not None
    assert len(tally.passes) == 4


@pytest.mark.parametrize("partition", [300, 1 << 21])
def test_groups(table: pa.Table, data: Path, tmp_path: Path, partition: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "PARTITION", partition)
    batch("--input", data, "--column", "x", "--by", "k", "s", "--largest", "8", "--out", tmp_path / "o")
    found = answers(tmp_path / "o")
    expected = by_key(table, ["k", "s"], "x")
    assert {(row["k"], row["s"]): row["median"] for row in found.to_pylist()} == expected
    assert len(found) == len(expected)
    assert found.schema.field("median").type == pa.float32()
    first = pq.read_table(tmp_path / "o" / "part-00000.parquet").select(["k", "s"]).to_pylist()
    assert first == sorted(first, key=lambda row: (row["k"], row["s"]))


def test_groups_larger_than_memory(
    table: pa.Table, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups that would not fit stay in their files, and null is a key like any other."""
    keys = pa.array(
        [None if k < 200 else float("nan") if k < 250 else k % 5 for k in table["k"].to_pylist()], pa.float64()
    )
    pq.write_table(table.set_column(0, "k", keys), tmp_path / "t.parquet", row_group_size=999)
    monkeypatch.setattr(grouping, "HELD", 100)
    monkeypatch.setattr(grouping, "GIANT", 180)
    monkeypatch.setattr(grouping, "SPREAD", 500)
    batch("--input", tmp_path / "t.parquet", "--column", "x", "y", "--by", "k", "--out", tmp_path / "o")
    named = table.set_column(0, "k", pa.array([repr(k) for k in keys.to_pylist()]))
    found = answers(tmp_path / "o").to_pylist()
    for name in "xy":
        own = {(repr(row["k"]),): row["median"] for row in found if row["column"] == name}
        assert own == by_key(named, ["k"], name, np.float64)
    assert len(found) == 2 * 7


KEYS: dict[str, list[Any]] = {
    "boolean": [True, False], "int8": [-1, 1], "uint64": [0, 2**64 - 1], "float16": [-1.5, 2.0], "float32": [0.5, 1.5],
    "decimal": [Decimal("-1.50"), Decimal("2.25")], "date": [date(1, 1, 1), date(2026, 5, 4)], "time": [time(1), time(2)],
    "timestamp": [datetime(1900, 1, 1), datetime(2026, 5, 4)], "duration": [timedelta(-1), timedelta(1)],
    "null": [None, None], "string": ["a", "\u00e4"], "large_string": ["", "b"],
    "string_view": ["a", "a longer text than a view holds itself"],
    "binary": [b"", b"\xff"], "large_binary": [b"a", b"\xff"], "fixed": [b"ab", b"\xff\xfe"], "dictionary": ["a", "b"],
}  # fmt: skip
TYPES = {
    "boolean": pa.bool_(), "decimal": pa.decimal128(9, 2), "date": pa.date32(), "time": pa.time64("us"),
    "fixed": pa.binary(2), "timestamp": pa.timestamp("us"), "duration": pa.duration("us"),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_plain_type(kind: str, tmp_path: Path) -> None:
    """Rows of one key are in one group, whichever file and partition they come from; a missing key is one too."""
    rng, typed = np.random.default_rng(6), TYPES.get(kind) or getattr(pa, kind)()
    keys = [[*KEYS[kind], None][i] for i in rng.integers(0, 3, 400)]
    table = pa.table({"value": pa.array(keys, typed), "x": rng.normal(size=400)})
    for i in range(2):
        pa.feather.write_feather(table.slice(200 * i, 200), tmp_path / f"{i}.feather", chunksize=70)
    batch("--input", tmp_path / "*.feather", "--column", "x", "--by", "value", "--out", tmp_path / "o")
    found = answers(tmp_path / "o").to_pylist()
    assert {(row["value"],): row["median"] for row in found} == by_key(table, ["value"], "x")
    assert len(found) == len({*keys})


def test_formats_agree(table: pa.Table, tmp_path: Path) -> None:
    flat = table.select(["k", "y"])
    pq.write_table(flat, tmp_path / "t.parquet")
    pa.feather.write_feather(flat, tmp_path / "t.feather", chunksize=999)
    pa.csv.write_csv(flat, tmp_path / "t.csv")
    (tmp_path / "t.csv.gz").write_bytes(__import__("gzip").compress((tmp_path / "t.csv").read_bytes()))
    expected = by_key(flat, ["k"], "y")
    for name in ("t.parquet", "t.feather", "t.csv", "t.csv.gz"):
        out = tmp_path / f"{name}-out"
        batch("--input", tmp_path / name, "--column", "y", "--by", "k", "--out", out)
        assert {(row["k"],): row["median"] for row in answers(out).to_pylist()} == expected
    batch("--input", f"file://{tmp_path}/t.fe*r", "--column", "y", "--out", tmp_path / "uri")
    assert answers(tmp_path / "uri")["median"].to_pylist() == [np.median(flat["y"].to_numpy())]


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    rows = [[1.0, None, 3.0], [float("nan"), 5.0], None, [], [7.0]]
    pq.write_table(
        pa.table({"v": rows, "x": [1.0, None, float("nan"), 4.0, 2.0], "k": [1, 1, 2, 2, 3]}), tmp_path / "t.parquet"
    )
    skip = ("--input", tmp_path / "t.parquet", "--nan", "skip", "--empty", "null")
    batch(*skip, "--column", "v", "--out", tmp_path / "v")
    assert answers(tmp_path / "v")["median"].to_pylist() == [2.0, 5.0, None, None, 7.0]
    assert answers(tmp_path / "v")["certified"].to_pylist() == [True, True, None, None, True]
    batch(*skip, "--column", "x", "--out", tmp_path / "x")
    assert answers(tmp_path / "x")["median"].to_pylist() == [2.0]
    batch(*skip, "--column", "x", "--by", "k", "--out", tmp_path / "g")
    assert answers(tmp_path / "g")["median"].to_pylist() == [1.0, 4.0, 2.0]


class Stops(Here):
    """Done with so many items it is interrupted."""

    def __init__(self, after: int) -> None:
        self.left = after

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]:
        for item in items:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield task(item)


@pytest.mark.parametrize(
    ("arguments", "at"),
    [
        (("--column", "v"), 3),
        (("--column", "x"), 9),
        (("--column", "x", "--by", "k"), 3),
        (("--column", "x", "--by", "k"), 9),
    ],
)
def test_an_interrupted_run_goes_on(
    data: Path, tmp_path: Path, arguments: Sequence[str], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "PARTITION", 1000)
    out = tmp_path / "o"
    wanted = options("--input", data, *arguments, "--out", out)
    with pytest.raises(KeyboardInterrupt):
        run(wanted, Stops(at))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*") if path.suffix in (".parquet", ".arrow")}
    run(wanted, Here())
    assert all(path.stat().st_mtime_ns == then for path, then in before.items() if path.exists())
    batch("--input", data, *arguments, "--out", tmp_path / "at once")
    assert answers(out).equals(answers(tmp_path / "at once"))
    assert run(wanted, Stops(0)).skipped == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_killed_process_changes_nothing(
    data: Path, tmp_path: Path, shape: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in every pass over the data."""
    monkeypatch.setattr(grouping, "PARTITION", 1000)
    workers = Kills(LocalEngine(2), tmp_path)
    run(options("--input", data, *shape, "--out", tmp_path / "o"), workers)
    assert workers.runs == SHAPES[shape]
    assert (tmp_path / f"killed in run {workers.runs}").exists()
    batch("--input", data, *shape, "--out", tmp_path / "at once")
    assert answers(tmp_path / "o").equals(answers(tmp_path / "at once"))


@pytest.mark.parametrize("name", ["_plan.json", "part-00002.parquet"])
def test_what_a_killed_process_was_writing_is_removed(data: Path, tmp_path: Path, name: str) -> None:
    dies = "import os, sys; from pathlib import Path; from service.batch.journal import whole\n"
    dies += "with whole(Path(sys.argv[1])) as new: new.write_text('half'); os.kill(os.getpid(), 9)"
    out = tmp_path / "o"
    done = subprocess.run([sys.executable, "-c", dies, str(out / name)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    (half,) = out.iterdir()
    if "part" in name:  # of a run that had begun
        (tmp_path / "half").write_bytes(half.read_bytes())
        half.unlink()
        with pytest.raises(KeyboardInterrupt):
            run(options("--input", data, "--column", "v", "--out", out), Stops(1))
        (tmp_path / "half").rename(half)
    run(options("--input", data, "--column", "v", "--out", out), Here())
    assert sorted(path.name for path in out.iterdir()) == ["_plan.json", *(f"part-{i:05}.parquet" for i in range(8))]


def suicide(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_piece_that_kills_every_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "ATTEMPTS", 2)
    workers = LocalEngine(1)
    with pytest.raises(UserError, match="killed 2 times, at last with 7"):
        list(workers.run(suicide, [7]))
    workers.close()


def test_counts_of_parts_add_up(data: Path) -> None:
    """What a round sends does not depend on how the pieces are shared out."""
    from service.batch.inputs import find, pieces

    todo = [piece for source in find([str(data)]) for piece in pieces(source)]
    task = CountTask({"x": Round("float32", 8, (0,), 32)}, "error")
    assert (np.sum([task([piece])[0]["x"] for piece in todo], axis=0) == task(todo)[0]["x"]).all()
    assert len(todo) == 8


def test_memory_is_bounded_and_the_command_line_works(tmp_path: Path) -> None:
    """A column of 32 MB in row groups of 4 MB: no process holds much of it beyond what it needs to run."""
    writer = pq.ParquetWriter(tmp_path / "t.parquet", pa.schema([("x", pa.float64())]))
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=1 << 19) for _ in range(8)]
    for part in parts:
        writer.write_table(pa.table({"x": part}))
    writer.close()
    command = [sys.executable, "-m", "service.batch", "--input", tmp_path / "t.parquet", "--out", tmp_path / "o"]
    process = subprocess.Popen([*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    peak = defaultdict(int)  # type: ignore[var-annotated]
    while process.poll() is None:
        for each in [psutil.Process(process.pid), *_children(process.pid)]:
            try:
                peak[each.pid] = max(peak[each.pid], each.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
        sleep(0.02)
    assert process.returncode == 0
    assert "pass 4" in process.communicate()[0]
    assert max(peak.values()) < 400e6
    assert answers(tmp_path / "o")["median"].to_pylist() == [np.median(np.concatenate(parts))]


def _children(pid: int) -> list[Any]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
