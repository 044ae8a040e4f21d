"""The command: its output folder, interruptions, kills, a full disk, and the former name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.tables import groups, medians, search
from service.tables import run as running
from service.tables.__main__ import run
from tests.tiers import telling

ROOT = Path(__file__).resolve().parents[3]
SHAPES = [["--column", "v"], ["--column", "x", "--memory", "50kB"], ["--column", "x", "--by", "k", "--memory", "50kB"]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng, n = np.random.default_rng(5), 60000
    lists = pa.FixedSizeListArray.from_arrays(rng.normal(size=n * 9).astype(np.float32), 9)
    table = pa.table({"k": rng.integers(0, 900, n), "x": rng.normal(size=n), "v": lists})
    pq.write_table(table, folder / "t.parquet", row_group_size=2000)
    return folder


def tables(*arguments: Any) -> int:
    return run([*map(str, arguments), "--quiet"])


def test_the_folder_is_read_by_others(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PART", 9000)
    for shape in (["--column", "x", "--by", "k"], ["--column", "v", "--keep", "k"]):
        out = tmp_path / shape[1]
        assert tables("--input", data, *shape, "--out", out) == 0
        names = sorted(path.name for path in out.iterdir())
        assert names == [f"part-{i:05}.parquet" for i in range(len(names))]
        want = pq.read_table(out).to_pandas()
        assert pd.read_parquet(out).equals(want)
        assert pl.read_parquet(out).to_pandas().equals(want)
        assert duckdb.execute(f"select * from '{out}/*.parquet'").df().equals(want)
        assert list(want) == ["k", "count", "median"]
    assert len(names) == 6


def test_the_screen(data: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """One header, however many parts there are."""
    monkeypatch.setattr(running, "PART", 9000)
    assert tables("--input", data, "--column", "v") == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert (lines[0], len(lines)) == ('"count","median"', 60001)
    assert lines.count(lines[0]) == 1


def test_a_finished_run_is_done_at_once(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--input", str(data), "--column", "x", "--out", str(tmp_path / "o")]
    assert run(asked) == 0
    assert f"1 rows written to {tmp_path / 'o'}" in capsys.readouterr().out
    assert run([*asked, "--memory", "2GB"]) == 0
    assert "all answers are there already" in capsys.readouterr().out
    assert run([*asked[:3], "k", *asked[4:]]) == 2
    assert "another question (columns = ['x'], now ['k'])" in capsys.readouterr().err
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "letter.txt").write_text("?")
    assert run([*asked[:-1], str(tmp_path / "p")]) == 2
    assert "letter.txt" in capsys.readouterr().err


def command(data: Path, shape: Sequence[str], out: Path) -> list[str]:
    return [sys.executable, "-m", "service.tables", "--input", str(data), *shape, "--out", str(out), "--workers", "2"]


STOPS = [(shape, sent) for shape in SHAPES for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)]


@pytest.mark.parametrize(("shape", "sent"), telling(STOPS, [STOPS[2], STOPS[4], STOPS[6]]))
def test_a_run_that_is_stopped_goes_on(data: Path, tmp_path: Path, shape: Sequence[str], sent: signal.Signals) -> None:
    """In the middle of its work; no process of it is left, and the folder is not locked."""
    out = tmp_path / "o"
    process = subprocess.Popen(command(data, shape, out), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not out.exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(sent)
    said = process.communicate(timeout=60)[1]
    if process.returncode and sent != signal.SIGKILL:  # otherwise it was done already
        assert (process.returncode, said) == (
            130, "interrupted: finished parts are kept; run the same command to continue\n",
        )  # fmt: skip
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert tables(*command(data, shape, out)[3:]) == 0
    column = shape[1]
    want = medians(data, columns=column, by="k" if "--by" in shape else ())
    assert pq.read_table(out).to_pylist() == want.to_pylist()
    assert [path.name for path in out.iterdir()] == ["part-00000.parquet"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_work_changes_nothing(data: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """The process ends with 0 where the signal comes between the last answer and its end."""
    late = f"import atexit, os; atexit.register(os.kill, os.getpid(), {int(sent)})"
    ends = f"{late}; import sys; from service.tables.__main__ import main; sys.exit(main())"
    asked = [sys.executable, "-c", ends, *command(data, SHAPES[0], tmp_path / "o")[3:]]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "60000 rows written" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_kills_in_every_stage(data: Path, tmp_path: Path, shape: Sequence[str]) -> None:
    """The same command, killed a little later each time until it is done; nothing is left that stops the next run."""
    out, asked = tmp_path / "o", command(data, shape, tmp_path / "o")
    for kills in range(100):
        process = subprocess.Popen(asked, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
        while not _locked(out / "_work" / "lock") and process.poll() is None:
            time.sleep(0.002)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.04 * kills)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        assert not [each for each in psutil.process_iter() if _session(each.pid) == process.pid]
    assert kills
    assert (process.returncode, [path.name for path in out.iterdir()]) == (0, ["part-00000.parquet"])
    want = medians(data, columns=shape[1], by="k" if "--by" in shape else ())
    assert pq.read_table(out).to_pylist() == want.to_pylist()


def _locked(path: Path) -> bool:
    """Whether a process holds the lock. A look at the list of the kernel, because a lock of our own would stop the run."""
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return False
    return f":{inode} " in Path("/proc/locks").read_text()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def test_finished_parts_and_passes_are_kept(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PART", 9000)
    out, done = tmp_path / "rows", groups.answered

    def stops(source: Any, question: Any, item: Any) -> Any:
        if item[0] == 3:
            raise KeyboardInterrupt
        return done(source, question, item)

    monkeypatch.setattr(running, "answered", stops)
    assert tables("--input", data, "--column", "v", "--out", out, "--workers", "1") == 130
    kept = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert 0 < len(kept) < 6
    monkeypatch.setattr(running, "answered", done)
    assert tables("--input", data, "--column", "v", "--out", out) == 0
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
    assert pq.read_table(out)["median"] == medians(data, columns="v")["median"]

    tallied, passes = search.tallied, []

    def counts(source: Any, column: str, nan: str, asked: Any, *rest: Any) -> Any:
        passes.append(asked)
        if len(passes) == 40:  # in the second pass
            raise KeyboardInterrupt
        return tallied(source, column, nan, asked, *rest)

    monkeypatch.setattr(search, "tallied", counts)
    asked = ("--input", data, "--column", "x", "--memory", "50kB", "--out", tmp_path / "x", "--workers", "2")
    assert tables(*asked) == 130
    assert tables(*asked) == 0
    assert len(set(passes[:30])) == 1  # one pass has 30 pieces
    assert (0, 64) not in passes[41].intervals  # and was not counted again
    assert pq.read_table(tmp_path / "x")["median"].to_pylist() == [np.median(pq.read_table(data)["x"])]


def test_a_column_that_was_found_is_not_searched_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tallied, columns = search.tallied, list[str]()

    def stops(source: Any, column: str, nan: str, asked: Any, *rest: Any) -> Any:
        columns.append(column)
        if asked.gather and "k" in columns:  # the second pass over x
            raise KeyboardInterrupt
        return tallied(source, column, nan, asked, *rest)

    asked = ("--input", data, "--column", "k", "x", "--memory", "50kB", "--out", tmp_path / "o", "--workers", "1")
    monkeypatch.setattr(search, "tallied", stops)
    assert tables(*asked) == 130
    columns.clear()
    assert tables(*asked) == 0
    assert set(columns) == {"x"}
    table = pq.read_table(data)
    (row,) = pq.read_table(tmp_path / "o").to_pylist()
    assert (row["k_median"], row["x_median"]) == (np.median(table["k"]), np.median(table["x"]))


def test_two_runs_in_one_folder(data: Path, tmp_path: Path) -> None:
    from service.tables.output import Folder

    out = tmp_path / "o"
    with Folder(str(out), {"question": {}, "input": []}).locked():
        done = subprocess.run(command(data, SHAPES[1], out), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "another run writes to this folder" in done.stderr
    assert tables(*command(data, SHAPES[1], out)[3:]) == 0


def test_a_disk_without_room(data: Path, tmp_path: Path) -> None:
    """No file may grow beyond some kB, so that writing fails where it happens; then there is room, and it goes on."""
    out = tmp_path / "o"
    limited = ["bash", "-c", 'ulimit -f 5; exec "$@"', "bash", *command(data, SHAPES[0], out)]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "part-00000.parquet cannot be written: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(out.glob("*part*"))
    assert tables(*command(data, SHAPES[0], out)[3:]) == 0


def test_the_help_says_what_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "service.tables", "-h"], cwd=ROOT, capture_output=True, check=True)
    for word in (b"networks", b"duckdb", b"BitShift, ScatterElements"):
        assert word in done.stdout


@pytest.mark.slow
def test_two_gigabytes_of_address_space(tmp_path: Path) -> None:
    """A column of 31 million numbers, searched by counting, with `ulimit -v`."""
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(tmp_path / "t.parquet", pa.schema([("x", pa.float32())])) as writer:
        for _ in range(60):
            n = 1 << 19
            writer.write_table(pa.table({"x": rng.standard_normal(n, np.float32)}))
    whole = pq.read_table(tmp_path / "t.parquet")
    asked = command(tmp_path / "t.parquet", ["--column", "x", "--memory", "100MB"], tmp_path / "o")
    limited = ["bash", "-c", 'ulimit -v 2000000; exec "$@"', "bash", *asked]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(limited, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "o")["median"].to_pylist() == [np.median(whole["x"])]
