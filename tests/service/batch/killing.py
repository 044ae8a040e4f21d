"""Tasks in whose middle something dies; in a module of their own, as other processes must find it by its name."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.batch.engines import Workers


@dataclass(frozen=True)
class Deadly:
    """A task whose process is killed in the middle of it, the first time."""

    task: Any
    mark: Path

    def __call__(self, item: Any) -> Any:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return self.task(item)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            self.task(item)


@dataclass
class Kills:
    """Workers of whom one is killed in every run."""

    engine: Workers
    folder: Path
    runs: int = 0

    @property
    def workers(self) -> int:
        return self.engine.workers

    def run(self, task: Any, items: Sequence[Any]) -> Iterator[Any]:
        self.runs += 1
        return self.engine.run(Deadly(task, self.folder / f"killed in run {self.runs}"), items)

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Doomed:
    """A task that leaves a mark on one node of a Ray cluster and waits there to be killed; elsewhere it waits for that."""

    task: Any
    node: str
    mark: Path

    def __call__(self, item: Any) -> Any:
        import ray

        if ray.get_runtime_context().get_node_id() == self.node:
            self.mark.touch()
            time.sleep(600)
        while not self.mark.exists():
            time.sleep(0.05)
        return self.task(item)
