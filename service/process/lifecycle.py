"""The life of a worker: its start, the reloads that reach it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import parent_process
from types import FrameType

from service.models import registry
from service.process import logs
from service.serving.engine import Engine

log = logging.getLogger("service")
RETRY_S = 5.0  # longest pause before a failed reload is tried again


class _StoppedError(Exception):
    """The service ends while it is loading."""


async def load_models(engine: Engine) -> None:
    """Load the models for the first time. Readiness names the model being loaded. A failure is tried again."""

    def tell(what: str) -> None:
        engine.loading = what
        if engine.draining:
            raise _StoppedError

    pause = engine.peers.pause_s
    while not engine.draining:
        try:
            fresh = await engine.in_background(registry.load, engine.settings.folders, 1, None, tell)
            break
        except _StoppedError:
            return
        except Exception as error:
            pause = min(RETRY_S, 2 * pause)
            fields = {"error": f"{type(error).__name__}: {error}", "again_in_s": pause}
            log.error("the models could not be loaded", extra={"fields": fields})
            await asyncio.sleep(pause)
    engine.use(fresh)
    engine.loading = ""
    if not fresh.everything:
        log.error("there is no model that can be used", extra={"fields": {"left_out": fresh.left_out}})


async def reload_models(engine: Engine) -> None:
    """Read the folders again and serve their models. Reloads run one after the other, so the last request wins."""
    async with engine.reloading:
        fresh = await engine.in_background(registry.load, engine.settings.folders, 1, engine.registry)
        engine.use(fresh)
    log.info("models loaded", extra={"fields": {"models": sorted(fresh.models), "left_out": fresh.left_out}})


async def follow_reloads(engine: Engine) -> None:
    """Reload when another worker was asked to reload. A failure is logged and tried again."""
    peers = engine.peers
    parent = parent_process()
    pause = peers.pause_s
    while True:
        await asyncio.sleep(pause)
        if parent is not None and not parent.is_alive():
            log.error("the parent process is gone", extra={"fields": {"pid": parent.pid}})
            signal.raise_signal(signal.SIGTERM)
            return
        try:
            now = await peers.mark()
            if now != peers.seen:
                await reload_models(engine)
                peers.seen = now
            pause = peers.pause_s
        except Exception as error:
            pause = min(RETRY_S, 2 * pause)
            fields = {"error": f"{type(error).__name__}: {error}", "again_in_s": pause}
            log.error("the models could not be reloaded", extra={"fields": fields})


@contextlib.asynccontextmanager
async def lifespan(engine: Engine, end: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[None]:
    """Load models if they are not loaded yet, follow the reloads of other workers, and end readiness before the port
    closes."""
    _drain_on_sigterm(engine)
    life = asyncio.create_task(_live(engine))
    yield
    engine.draining = True
    life.cancel()
    if end is not None:
        await end()
    engine.close()
    engine.peers.close()
    logs.flush()  # a signal raised again may leave no time later


async def _live(engine: Engine) -> None:
    if engine.loading:
        await load_models(engine)
    engine.ready.set()
    fields = {"models": sorted(engine.registry.models), "threads": engine.settings.inference_threads}
    log.info("serving", extra={"fields": fields})
    gc.collect()
    gc.freeze()  # the garbage collector need not look at these objects again
    if engine.peers.several:
        await follow_reloads(engine)


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
