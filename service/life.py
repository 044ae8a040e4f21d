"""The life of a worker: its start, the reloads that reach it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType

from service import logs
from service.compute import registry
from service.compute.engine import Engine
from service.errors import ProblemError

log = logging.getLogger("service")
FOLLOW_S = 0.25  # how often a worker looks whether another was asked to reload
RETRY_S = 5.0  # how long it waits at most before it tries a reload again that failed


class _StoppedError(Exception):
    """The service ends while it is loading."""


async def load_models(engine: Engine) -> None:
    """Load what there is for the first time, while readiness says what is being loaded. What goes wrong is tried again."""

    def tell(what: str) -> None:
        engine.loading = what
        if engine.draining:
            raise _StoppedError

    pause = FOLLOW_S
    while not engine.draining:
        try:
            fresh = await engine.in_thread(registry.load, engine.settings.folders, 1, None, tell)
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
    if not fresh.models:
        log.error("there is no model that can be used", extra={"fields": {"left_out": fresh.left_out}})


async def reload_models(engine: Engine) -> None:
    """Load in a thread, swap in the loop."""
    fresh = await engine.in_thread(registry.load, engine.settings.folders, 1, engine.registry)
    engine.use(fresh)
    log.info("models loaded", extra={"fields": {"models": sorted(fresh.models), "left_out": fresh.left_out}})


def tell_workers(engine: Engine) -> None:
    """Other workers share nothing but a folder: they look several times a second at the time of a file in it.

    The time is a random one, so that no clock matters, and setting it needs no room on the disk. uvicorn's own way, a
    SIGHUP to its parent process, starts every worker again instead: it closes kept connections, has fewer workers while
    each loads all models, also those that did not change, is not there with one worker, and ends the service when the
    folder has become unusable. Here the old models serve on until the new ones are loaded.
    """
    flag = _flag(engine)
    if flag is None:
        return
    mark = secrets.randbits(60)
    try:
        flag.parent.mkdir(parents=True, exist_ok=True)  # a cleaner of temporary files may have been here
        flag.touch()
        os.utime(flag, ns=(mark, mark))
    except OSError as error:
        raise ProblemError(
            500, f"This worker has reloaded; the others could not be told: {error.strerror}. Restart the service."
        ) from None


def _flag(engine: Engine) -> Path | None:
    """The file, if there are others to tell."""
    settings = engine.settings
    return Path(settings.runtime_dir) / "reload" if settings.runtime_dir and settings.workers > 1 else None


def _mark(flag: Path) -> int:
    try:
        return flag.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


async def follow_reloads(engine: Engine, flag: Path, seen: int) -> None:
    """Reload when another worker was asked to. What goes wrong is logged, and tried again."""
    parent = parent_process()
    pause = FOLLOW_S
    while True:
        await asyncio.sleep(pause)
        if parent is not None and not parent.is_alive():
            log.error("the parent process is gone", extra={"fields": {"pid": parent.pid}})
            signal.raise_signal(signal.SIGTERM)
            return
        try:
            now = _mark(flag)
            if now != seen:
                await reload_models(engine)
                seen = now
            pause = FOLLOW_S
        except Exception as error:
            pause = min(RETRY_S, 2 * pause)
            fields = {"error": f"{type(error).__name__}: {error}", "again_in_s": pause}
            log.error("the models could not be reloaded", extra={"fields": fields})


@contextlib.asynccontextmanager
async def lifespan(engine: Engine, end: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[None]:
    """Load models if that is still to be done, follow reloads asked of other workers, and let readiness drop before the
    port closes."""
    _drain_on_sigterm(engine)
    life = asyncio.create_task(_live(engine))
    yield
    engine.draining = True
    life.cancel()
    if end is not None:
        await end()
    engine.close()
    logs.flush()  # a signal that is raised again may leave no time for it later


async def _live(engine: Engine) -> None:
    flag = _flag(engine)
    seen = 0 if flag is None else _mark(flag)
    if engine.loading:
        await load_models(engine)
    engine.ready.set()
    fields = {"models": sorted(engine.registry.models), "threads": engine.settings.inference_threads}
    log.info("serving", extra={"fields": fields})
    gc.collect()
    gc.freeze()  # what is here now stays: no need to look through it again and again
    if flag is not None:
        await follow_reloads(engine, flag, seen)


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
