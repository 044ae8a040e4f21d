"""The life of a worker: its start, the models that it loads whenever a manifest changes, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType

from exporter.formats.manifest import MANIFEST
from service.models import registry
from service.process import logs
from service.serving.engine import Engine

log = logging.getLogger("service")
PAUSE_S = 0.25  # how often a worker looks whether a manifest has changed
RETRY_S = 5.0  # longest pause before a failed load is tried again


class _StoppedError(Exception):
    """The service ends while it is loading."""


async def load_models(engine: Engine) -> None:
    """Read the folders and serve their models. Loads run one after the other, so the newest one wins.

    Until models are loaded for the first time, readiness names the model being loaded.
    """

    def tell(what: str) -> None:
        if engine.loading and engine.draining:
            raise _StoppedError
        engine.loading = engine.loading and what

    def read() -> tuple[dict[Path, int], registry.Registry]:
        folders = engine.settings.folders
        return manifests(folders), registry.load(folders, engine.registry, tell)

    async with engine.reloading:
        engine.manifests, fresh = await engine.in_background(read)
        engine.use(fresh)
        engine.loading = ""
    if not fresh.everything:
        log.error("there is no model that can be used", extra={"fields": {"left_out": fresh.left_out}})
    log.info("models loaded", extra={"fields": {"models": sorted(fresh.models), "left_out": fresh.left_out}})


def manifests(folders: Sequence[Path]) -> dict[Path, int]:
    """When each manifest was written. A manifest that is not there is left out."""
    times = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            times[folder] = (folder / MANIFEST).stat().st_mtime_ns
    return times


async def _follow(engine: Engine) -> None:
    """Load the models, and again whenever a manifest changes. A failure is logged and tried again."""
    parent = parent_process()
    pause = 0.0
    while True:
        await asyncio.sleep(pause)
        if parent is not None and not parent.is_alive():
            log.error("the parent process is gone", extra={"fields": {"pid": parent.pid}})
            signal.raise_signal(signal.SIGTERM)
            return
        try:
            now = await engine.in_background(manifests, engine.settings.folders)
            if engine.loading or now.items() - engine.manifests.items():
                await load_models(engine)
            if not engine.ready.is_set():
                _begin(engine)
            pause = PAUSE_S
        except _StoppedError:
            return
        except Exception as error:
            pause = min(RETRY_S, 2 * max(pause, PAUSE_S))
            fields = {"error": f"{type(error).__name__}: {error}", "again_in_s": pause}
            log.error("the models could not be loaded", extra={"fields": fields})


def _begin(engine: Engine) -> None:
    """Let requests in."""
    engine.ready.set()
    fields = {"models": sorted(engine.registry.models), "threads": engine.settings.inference_threads}
    log.info("serving", extra={"fields": fields})
    gc.collect()
    gc.freeze()  # the garbage collector need not look at these objects again


@contextlib.asynccontextmanager
async def lifespan(engine: Engine, end: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[None]:
    """Load models if they are not loaded yet, follow their manifests, and end readiness before the port closes."""
    _drain_on_sigterm(engine)
    life = asyncio.create_task(_follow(engine))
    yield
    engine.draining = True
    life.cancel()
    if end is not None:
        await end()
    engine.close()
    logs.flush()  # a signal raised again may leave no time later


def _drain_on_sigterm(engine: Engine) -> None:
    """On SIGTERM: not ready at once, connections asked to close, and only after `drain_s` uvicorn's own shutdown."""
    shut_down = signal.getsignal(signal.SIGTERM)
    if not callable(shut_down):
        return  # not under uvicorn, as in tests in one process
    loop = asyncio.get_running_loop()

    def begin(number: int, frame: FrameType | None) -> None:
        if engine.draining:
            return
        engine.draining = True
        log.info("draining", extra={"fields": {"seconds": engine.settings.drain_s}})
        loop.call_soon_threadsafe(loop.call_later, engine.settings.drain_s, shut_down, number, frame)

    with contextlib.suppress(ValueError):  # not in the main thread, as in tests
        signal.signal(signal.SIGTERM, begin)
