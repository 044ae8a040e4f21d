"""Where work is done: processes of this machine, or a Ray cluster. Both run the same tasks on the same pieces.

A task is a function of one item that leaves a whole file behind, or counts, and nothing else; done twice it does the same
again. So a process that is killed costs only time: what it had not finished is done by another.
"""

from __future__ import annotations

import multiprocessing.forkserver
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from exporter.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
Task = Callable[[Item], Result]
ATTEMPTS = 4  # until a piece that kills every process is given up
_CONTEXT = multiprocessing.get_context("forkserver")  # threads of onnxruntime do not survive a fork of this process
_CONTEXT.set_forkserver_preload(["service.batch.run"])


class Workers(Protocol):
    """Runs a task for each item, in any order, and yields results as they come."""

    @property
    def workers(self) -> int: ...

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]: ...

    def close(self) -> None: ...


def prepare() -> None:
    """Start the process that processes of this machine are forked from: it imports what they need while others do."""
    multiprocessing.forkserver.ensure_running()


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
            # an interruption is this process's matter: it waits for the others
            self.pool = ProcessPoolExecutor(self.workers, _CONTEXT, signal.signal, (signal.SIGINT, signal.SIG_IGN))
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def _again(item: Item, attempt: int) -> tuple[Item, int]:
    if attempt >= ATTEMPTS:
        raise _given_up(item)
    return item, attempt + 1


def _given_up(item: Any) -> UserError:
    return UserError(
        f"processes were killed {ATTEMPTS} times, at last with {item}: is there enough memory? give fewer --workers"
    )


class RayEngine:
    """A Ray cluster: every run is a Ray Data pipeline whose actors hold the sessions.

    Where an actor dies, or its node, another pipeline does what is left on what is left of the cluster.
    """

    def __init__(self, workers: int) -> None:
        try:
            import ray  # noqa: PLC0415, the extra `ray`
            import ray.data  # noqa: PLC0415
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415
        except ModuleNotFoundError:
            raise UserError("--engine ray needs Ray: pip install 'onnx-median[service,tables,ray]'") from None
        self.started = not ray.is_initialized()
        if self.started:
            ray.init(logging_level="warning")
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.limit, self.pipelines = workers, 0
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # lost with us alone
        self.leash = ray.remote(num_cpus=0, scheduling_strategy=here)(_Leash).remote()

    @property
    def workers(self) -> int:
        """As many as asked for, but no more than the cluster has processors now."""
        import ray  # noqa: PLC0415

        there = max(1, int(ray.cluster_resources().get("CPU", 1)))
        return min(self.limit or there, there)

    def run(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[Result]:
        import ray.exceptions as lost  # noqa: PLC0415

        left, failed = dict(enumerate(items)), 0
        while left:
            try:
                for row in self._pipeline(task, left):
                    if isinstance(row["result"], UserError):
                        raise row["result"]
                    del left[row["number"]]
                    failed = 0
                    yield row["result"]
            except (lost.RayActorError, lost.WorkerCrashedError, lost.ObjectLostError, lost.NodeDiedError):
                failed += 1
                if failed == ATTEMPTS:
                    raise _given_up(left.popitem()[1]) from None

    def _pipeline(self, task: Task[Item, Result], items: dict[int, Item]) -> Iterator[dict[str, Any]]:
        """The results of some items, until one of the actors is lost: to start it again Ray might wait for ever."""
        import ray  # noqa: PLC0415

        data = ray.data.from_items(
            [{"number": number, "item": item} for number, item in items.items()], override_num_blocks=len(items)
        )
        self.pipelines = number = self.pipelines + 1
        actors = min(self.workers, len(items))
        done = data.map_batches(
            _Actor,
            fn_constructor_args=(task, self.leash, number),
            batch_size=1,
            concurrency=actors,
            num_cpus=1,
            max_restarts=0,
        )
        try:
            yield from done.iter_rows()
        finally:
            ray.get(self.leash.end.remote(number))

    def close(self) -> None:
        import ray  # noqa: PLC0415

        ray.kill(self.leash)
        if self.started:
            ray.shutdown()


class _Leash:
    """The actors of pipelines, which end with them. Ray itself ends an actor when nothing refers to it any more: after a
    failure that may be never, and the processors it holds are missing where the work goes on."""

    def __init__(self) -> None:
        self.held: dict[int, list[Any]] = {}
        self.ended = 0

    def hold(self, pipeline: int, actor: Any) -> None:
        if pipeline <= self.ended:
            raise RuntimeError("it comes too late: its pipeline has ended")
        self.held.setdefault(pipeline, []).append(actor)

    def end(self, pipeline: int) -> None:
        import ray  # noqa: PLC0415

        self.ended = max(self.ended, pipeline)
        for actor in self.held.pop(pipeline, []):
            ray.kill(actor)


class _Actor:
    """One process of the cluster, with what its tasks keep loaded."""

    def __init__(self, task: Task[Any, Any], leash: Any, pipeline: int) -> None:
        import ray  # noqa: PLC0415

        self.task = task
        ray.get(leash.hold.remote(pipeline, ray.get_runtime_context().current_actor))

    def __call__(self, batch: dict[str, Iterable[Any]]) -> dict[str, Iterable[Any]]:
        results: list[Any] = []
        for item in batch["item"]:
            try:
                results.append(self.task(item))
            except UserError as error:  # an answer, not a fault: Ray need not try again
                results.append(error)
        return {"number": batch["number"], "result": results}


def engine(name: str, workers: int, processes: int) -> Workers:
    return RayEngine(workers) if name == "ray" else LocalEngine(processes)
