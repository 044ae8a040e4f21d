"""The command as a process: its progress bar, an interruption, and a disk that is full."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.service.batch.tables import answers, batch

ROOT = Path(__file__).resolve().parents[3]
SHAPES = [["--column", "v"], ["--column", "x"], ["--column", "x", "--by", "k"]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng, n = np.random.default_rng(5), 60000
    lists = pa.FixedSizeListArray.from_arrays(rng.normal(size=n * 9).astype(np.float32), 9)
    table = pa.table({"k": rng.integers(0, 900, n), "x": rng.normal(size=n), "v": lists})
    pq.write_table(table, folder / "t.parquet", row_group_size=2000)
    return folder


def command(data: Path, shape: Sequence[str], out: Path) -> list[str]:
    return [sys.executable, "-m", "service.batch", "--input", str(data), *shape, "--out", str(out), "--workers", "2"]


def test_a_progress_bar_on_a_terminal_and_none_elsewhere(data: Path, tmp_path: Path) -> None:
    terminal, other = pty.openpty()
    termios.tcsetwinsize(other, (24, 100))
    process = subprocess.Popen(command(data, SHAPES[0], tmp_path / "o"), cwd=ROOT, stdout=other, stderr=other)
    os.close(other)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
    os.close(terminal)
    assert process.wait() == 0
    assert b"rows: 100%" in shown
    assert b"30/30" in shown
    done = subprocess.run(command(data, SHAPES[0], tmp_path / "p"), cwd=ROOT, capture_output=True, check=True)
    assert done.stderr == b""
    assert b"60000 answers in 30 parts" in done.stdout


@pytest.mark.parametrize("shape", SHAPES)
def test_ctrl_c_ends_it_in_one_line_and_it_goes_on(data: Path, tmp_path: Path, shape: Sequence[str]) -> None:
    """The signal reaches all processes, as a terminal sends it, once the first of them has something done."""
    out = tmp_path / "o"
    process = subprocess.Popen(
        command(data, [*shape, "--quiet"], out), cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    while not (any(out.glob("part-*")) or any(out.glob("_work/*"))) and process.poll() is None:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    if process.returncode:  # else it was done already
        assert (process.returncode, said) == (
            130, "interrupted: finished parts are kept; run the same command to go on\n",
        )  # fmt: skip
    kept = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    subprocess.run(command(data, shape, out), cwd=ROOT, check=True, capture_output=True)
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
    batch("--input", data, *shape, "--out", tmp_path / "at once")
    assert answers(out).equals(answers(tmp_path / "at once"))
    assert not list(out.glob(".*"))


@pytest.mark.parametrize(("shape", "blocks", "file"), [(SHAPES[0], 5, ""), (SHAPES[2], 20, r"spread-\d+\.arrow ")])
def test_a_disk_without_room(data: Path, tmp_path: Path, shape: Sequence[str], blocks: int, file: str) -> None:
    """No file may grow beyond some kB, so that writing fails where it happens; then there is room, and it goes on."""
    out = tmp_path / "o"
    limited = ["bash", "-c", f'ulimit -f {blocks}; exec "$@"', "bash", *command(data, shape, out)]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(rf"error: .*{file}cannot (be written|write).*File too large.*\n", done.stderr)
    assert str(out) in done.stderr
    left = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in left if path.name.startswith(".")]
    for path in out.glob("part-*"):
        pq.read_table(path)
    subprocess.run(command(data, shape, out), cwd=ROOT, check=True, capture_output=True)
    batch("--input", data, *shape, "--out", tmp_path / "at once")
    assert answers(out).equals(answers(tmp_path / "at once"))
