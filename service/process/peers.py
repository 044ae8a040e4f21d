"""The other processes that serve the same models: reloads are passed on to them, and metrics are summed over them.

A single worker has no peers (`Peers`). Workers of one machine share a folder (`Neighbours`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from service.errors import ProblemError
from service.process import metrics
from service.process.settings import Settings

log = logging.getLogger("service")
REPORT_S = 2.0  # how often a worker writes down its metrics for the others
UNTOLD = "This worker has reloaded; the others could not be told: {}. Restart the service."


class Peers:
    """The peers of a single process: none."""

    several = False
    pause_s = 0.25  # how often a worker looks whether another was asked to reload
    seen = 0  # the mark of the last reload that is done here

    async def mark(self) -> int:
        """A value that changes with every reload request to any process."""
        return 0

    async def tell(self) -> None:
        """Tell the others to reload."""

    async def figures(self) -> tuple[bytes, str]:
        """The text for Prometheus over all processes, and its media type."""
        return metrics.exposition()

    def close(self) -> None:
        """Report for the last time."""


class Neighbours(Peers):
    """The workers of one machine share a folder.

    Several times a second they check the modification time of the file `reload` there. The time is random, so no clock
    matters, and setting a time needs no room on the disk. uvicorn's own way, a SIGHUP to its parent process, starts every
    worker again, which closes connections and loads every model.

    Each worker writes its metrics to a file of its own. The metrics of workers that ended are kept as one sum.
    """

    several = True

    def __init__(self, folder: Path) -> None:
        self.flag = folder / "reload"
        self.folder = folder / "metrics"
        self.seen = self._mark()
        self.reported = 0.0
        self.can_share = True
        self.thread = ThreadPoolExecutor(1, "metrics")  # the event loop's own executor would start a thread per scrape

    def _mark(self) -> int:
        try:
            return self.flag.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    async def mark(self) -> int:
        if time.monotonic() - self.reported > REPORT_S:
            self.reported = time.monotonic()
            await asyncio.get_running_loop().run_in_executor(self.thread, self._report)
        return self._mark()

    def close(self) -> None:
        self.thread.shutdown()
        self._report()

    def _report(self) -> None:
        """Write the metrics of this worker to its file."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _replace(self.folder / f"{os.getpid()}.prom", metrics.exposition()[0])
            self.can_share = True
        except OSError as error:
            if self.can_share:
                said = "metrics cannot be shared: the other workers do not see those of this worker"
                fields = {
                    "folder": str(self.folder),
                    "error": error.strerror,
                    "remedy": "make room there or set TMPDIR",
                }
                log.error(said, extra={"fields": fields})
            self.can_share = False

    async def figures(self) -> tuple[bytes, str]:
        own, media_type = metrics.exposition()
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, self._sum, own), media_type
        except (OSError, ValueError) as error:  # the metrics of this worker alone are still useful
            log.error("metrics of other workers cannot be read", extra={"fields": {"error": str(error)}})
            return own, media_type

    def _sum(self, own: bytes) -> bytes:
        """The metrics of all workers; the files of those that ended are added to one file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ended = self.folder / "ended"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = [path for path in self.folder.glob("*.prom") if path.stem != str(os.getpid())]
            dead = [path for path in others if not _is_running(int(path.stem))]
            gone = ended.read_bytes() if ended.exists() else b""
            if dead:
                gone = metrics.total([(gone, False), *((path.read_bytes(), False) for path in dead)])
                _replace(ended, gone)
                for path in dead:
                    path.unlink()
            live = [path.read_bytes() for path in others if path not in dead]
        return metrics.total([(gone, False), *((text, True) for text in (own, *live))])

    async def tell(self) -> None:
        mark = secrets.randbits(60)
        try:
            self.flag.parent.mkdir(parents=True, exist_ok=True)  # a cleaner of temporary files may have been here
            self.flag.touch()
            os.utime(self.flag, ns=(mark, mark))
        except OSError as error:
            raise ProblemError(500, UNTOLD.format(error.strerror)) from None


def _replace(path: Path, content: bytes) -> None:
    """Write a file for other processes, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def _is_running(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def peers_of(settings: Settings) -> Peers:
    """The peers of a worker that `python -m service` started."""
    several = settings.runtime_dir and settings.workers > 1
    return Neighbours(Path(settings.runtime_dir)) if several else Peers()
