"""Where work is done: processes of this machine, or a Ray cluster. Both run the same tasks on the same pieces.

A task is a function of one item that leaves a whole file behind, or counts, and nothing else; done twice it does the same
again. So a process that is killed costs only time: what it had not finished is done by another.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from exporter.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
Task = Callable[[Item], Result]
ATTEMPTS = 4  # until a piece that kills every process is given up


class Workers(Protocol):
    """Runs a task for each item, in any order, and yields results as they come."""

    workers: int

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]: ...

    def close(self) -> None: ...


class LocalEngine:
    """Processes of this machine; new ones take the place of those that die."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.pool: ProcessPoolExecutor | None = None

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]:
        waiting = [(item, 1) for item in reversed(items)]
        running: dict[Future[Result], tuple[Item, int]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self.workers:  # one more each, so that nobody waits for the next
                    try:
                        running[self._pool().submit(task, waiting[-1][0])] = waiting[-1]
                    except BrokenProcessPool:
                        break
                    waiting.pop()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                broken = False
                for future in done:
                    item, attempt = running.pop(future)
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        broken = True
                        waiting.append(_again(item, attempt))
                if broken:  # all of the pool is lost
                    waiting += [_again(*running.pop(future)) for future in list(running)]
                    self.close()
        finally:
            for future in running:
                future.cancel()

    def _pool(self) -> ProcessPoolExecutor:
        if self.pool is None:
            context = multiprocessing.get_context("spawn")  # threads of onnxruntime do not survive a fork
            self.pool = ProcessPoolExecutor(self.workers, context)
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _again(item: Item, attempt: int) -> tuple[Item, int]:
    if attempt >= ATTEMPTS:
        raise UserError(
            f"processes were killed {ATTEMPTS} times, at last with {item}: is there enough memory? give fewer --workers"
        )
    return item, attempt + 1


class RayEngine:
    """A Ray cluster: every run is a Ray Data pipeline whose actors hold the sessions.

    Ray starts an actor again that died, on another node where the node is gone, and gives it the items it had not finished.
    """

    def __init__(self, workers: int) -> None:
        try:
            import ray  # noqa: PLC0415, the extra `ray`
            import ray.data  # noqa: PLC0415
        except ModuleNotFoundError:
            raise UserError("--engine ray needs Ray: pip install 'onnx-median[service,tables,ray]'") from None
        self.started = not ray.is_initialized()
        if self.started:
            ray.init(logging_level="warning")
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]:
        import ray  # noqa: PLC0415

        if not items:
            return
        data = ray.data.from_items([{"item": item} for item in items], override_num_blocks=len(items))
        done = data.map_batches(
            _Actor, fn_constructor_args=(task,), batch_size=1, concurrency=min(self.workers, len(items)), num_cpus=1
        )
        for row in done.iter_rows():
            if isinstance(row["result"], UserError):
                raise row["result"]
            yield row["result"]

    def close(self) -> None:
        import ray  # noqa: PLC0415

        if self.started:
            ray.shutdown()


class _Actor:
    """One process of the cluster, with what its tasks keep loaded."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self.task = task

    def __call__(self, batch: dict[str, Iterable[Any]]) -> dict[str, list[Any]]:
        results: list[Any] = []
        for item in batch["item"]:
            try:
                results.append(self.task(item))
            except UserError as error:  # an answer, not a fault: Ray need not try again
                results.append(error)
        return {"result": results}


def engine(name: str, workers: int, processes: int) -> Workers:
    return RayEngine(workers) if name == "ray" else LocalEngine(processes)
