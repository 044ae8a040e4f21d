"""Time and memory of a command and all its processes, and the peers a table is measured against."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]


@dataclass
class Measured:
    seconds: float
    processor: float  # seconds of all processors together: what other work on the machine does not change much
    each: float  # peak GB of the largest process, pages that it shares with others included
    all: float  # peak GB of all processes together, without those
    printed: str


def measured(command: list[str]) -> Measured:
    """Run a command; memory is what is resident, looked at 20 times a second."""
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    each = together = 0.0
    processor: dict[int, float] = {}
    while process.poll() is None:
        own = 0.0
        for one in _family(process.pid):
            resident, shared, processor[one.pid] = _looked_at(one, processor.get(one.pid, 0.0))
            each, own = max(each, resident), own + resident - shared
        together = max(together, own)
        time.sleep(0.05)
    seconds = time.perf_counter() - started
    printed = process.communicate()[0]
    if process.returncode:
        sys.exit(f"{' '.join(command)[:300]}\n{printed}")
    return Measured(seconds, sum(processor.values()), each, together, printed)


def _family(pid: int) -> list[Any]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _looked_at(process: Any, processor: float) -> tuple[float, float, float]:
    """The GB resident in a process, those of them shared, and its seconds of processors: those of before if it is gone."""
    try:
        about, times = process.memory_info(), process.cpu_times()
        return about.rss / 1e9, about.shared / 1e9, float(times.user + times.system)
    except psutil.NoSuchProcess:
        return 0.0, 0.0, processor


def batch(*arguments: Any) -> list[str]:
    """The command that tables are answered with."""
    return [sys.executable, "-m", "service.tables", "--quiet", *map(str, arguments)]


def ours(*arguments: Any) -> Measured:
    return measured(batch(*arguments))


def peer(code: str) -> Measured:
    return measured([sys.executable, "-c", code])


def line(name: str, one: Measured, to: Measured | None = None) -> None:
    memory = f"{one.each:6.2f} GB a process, {one.all:6.2f} in all"
    print(f"  {name:34} {one.seconds:8.2f} s, {one.processor:8.2f} s of processors, {memory}", flush=True)
    if to:
        ratios = to.seconds / one.seconds, to.processor / one.processor, to.all / one.all
        print("    ours takes {:.2f} x its time, {:.2f} x its processor time, {:.2f} x its memory".format(*ratios))
