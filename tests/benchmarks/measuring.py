"""Time and memory of a command, and the peers a table is measured against."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass
class Measured:
    seconds: float
    processor: float  # seconds of all processors together, which other work on the machine changes little
    memory: float  # peak GB that were resident, libraries included
    printed: str


def measured(command: list[str]) -> Measured:
    """Run a command, which is one process."""
    started, memory = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT)
        ended, status, used = 0, 0, None
        while not ended:
            memory = max(memory, _peak(process.pid))
            time.sleep(0.005)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    if process.returncode:
        sys.exit(f"{' '.join(command)[:300]}\n{text}")
    assert used is not None
    return Measured(seconds, used.ru_utime + used.ru_stime, memory / 1e6, text)


def _peak(pid: int) -> int:
    """The peak of a process so far in kB. `ru_maxrss` would begin with the memory of the process that started it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def ours(*arguments: Any) -> Measured:
    return measured([sys.executable, "-m", "service.tables", "--quiet", *map(str, arguments)])


def peer(code: str) -> Measured:
    return measured([sys.executable, "-c", code])


def line(name: str, one: Measured, to: Measured | None = None) -> None:
    print(
        f"  {name:34} {one.seconds:8.2f} s, {one.processor:8.2f} s of processors, {one.memory:6.2f} GB",
        flush=True,
    )
    if to:
        ratios = to.seconds / one.seconds, to.processor / one.processor, to.memory / one.memory
        print("    ours takes {:.2f} x its time, {:.2f} x its processor time, {:.2f} x its memory".format(*ratios))
