"""The other processes that serve the same models: how they are told of a reload, and how the figures of all are added up.

A worker alone has none (`Peers`); those of one machine share a folder (`Neighbours`); replicas on several machines report
to a board (`Board`), which Ray keeps running (`service.process.ray_app`).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.errors import ProblemError
from service.process import metrics
from service.process.settings import Settings

SILENT_S = 10.0  # a replica that reported nothing for so long is gone
REMEMBERED = 64  # replicas that are gone whose figures are kept apart; those of older ones are kept as one sum
UNTOLD = "This worker has reloaded; the others could not be told: {}. Restart the service."


class Peers:
    """None: whoever has nobody to tell."""

    several = False
    pause_s = 0.25  # how often a worker looks whether another was asked to reload
    seen = 0  # the mark of the last reload that is done here

    async def mark(self) -> int:
        """What changes when one of us is asked to reload."""
        return 0

    async def tell(self) -> None:
        """Have the others reload."""

    async def figures(self) -> tuple[bytes, str]:
        """The text Prometheus scrapes, over all of us, and its media type."""
        return metrics.exposition()


class Neighbours(Peers):
    """Other workers share nothing but a folder: they look several times a second at the time of a file in it.

    The time is a random one, so that no clock matters, and setting it needs no room on the disk. uvicorn's own way, a
    SIGHUP to its parent process, starts every worker again instead: it closes kept connections, has fewer workers while
    each loads all models, also those that did not change, is not there with one worker, and ends the service when the
    folder has become unusable. Here the old models serve on until the new ones are loaded.
    """

    several = True

    def __init__(self, folder: Path) -> None:
        self.flag = folder / "reload"
        self.seen = self._mark()

    def _mark(self) -> int:
        try:
            return self.flag.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    async def mark(self) -> int:
        return self._mark()

    async def tell(self) -> None:
        mark = secrets.randbits(60)
        try:
            self.flag.parent.mkdir(parents=True, exist_ok=True)  # a cleaner of temporary files may have been here
            self.flag.touch()
            os.utime(self.flag, ns=(mark, mark))
        except OSError as error:
            raise ProblemError(500, UNTOLD.format(error.strerror)) from None


def peers_of(settings: Settings) -> Peers:
    """Those of a worker that `python -m service` started."""
    several = settings.runtime_dir and settings.workers > 1
    return Neighbours(Path(settings.runtime_dir)) if several else Peers()


@dataclass
class Heard:
    """What a replica said last: its figures, whether it is ready, and when that was."""

    figures: bytes
    ready: bool
    at: float


class Board:
    """What replicas tell each other. A new board has a new mark: should the old one be lost, with a reload that not all had
    heard of, they reload once more."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.current = secrets.randbits(60)
        self.reports: dict[str, Heard] = {}
        self.gone = b""

    def reload(self) -> None:
        self.current = secrets.randbits(60)

    def report(self, replica: str, figures: bytes, ready: bool) -> int:
        """Take what a replica says; returns the mark of the last reload."""
        self.reports.pop(replica, None)
        self.reports[replica] = Heard(figures, ready, self.now())  # the latest is the last
        silent = [name for name, report in self.reports.items() if not self._is_live(report)]
        for name in silent[: max(0, len(silent) - REMEMBERED)]:
            self.gone = metrics.total([(self.gone, False), (self.reports.pop(name).figures, False)])
        return self.current

    def figures(self) -> bytes:
        """The figures of all replicas: counters of those that are gone count on, but nothing waits in them."""
        reports = list(self.reports.values())
        live = [report for report in reports if self._is_live(report)]
        ready = sum(report.ready for report in live)
        states = {"true": ready, "false": len(live) - ready}
        return metrics.total([(self.gone, False), *((r.figures, self._is_live(r)) for r in reports)], states)

    def _is_live(self, report: Heard) -> bool:
        return self.now() - report.at < SILENT_S
