"""Missing models are built while the service keeps serving.

    python -m service.models.building FOLDER D     builds the model of D entries into FOLDER, unless it is there already

If no loaded model can answer a request, the worker starts this program, waits within the time limit of the request, loads
the new model, and tells the other workers. A lock in the folder lets one program build at a time, so that several workers
build the same model once. Files and manifest are replaced whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from exporter.errors import UserError
from service.errors import ProblemError
from service.models import entries, registry
from service.process import lifecycle
from service.process.metrics import FOLDER
from service.process.settings import Settings
from service.serving.engine import Engine

log = logging.getLogger("service")
DEFAULT_D = 2048
PROFILE = "fused"
OPTIMIZE_FOR = "latency"  # the fewest operations for a lone vector; batches are nearly as fast
BITS = 16  # of the grid: a third less work than 24 bits, and rarely two numbers on one grid number
LOCK = ".building"
AGAIN_S = 3.0  # when to ask again for a model that is being built
FAILED_S = 10.0  # how long a build that failed is not tried again
MARGIN_S = 0.1  # of a request's time, reserved for the answer 503


def place(folders: list[Path]) -> Path | None:
    """The first folder that can be written to."""
    return next((folder for folder in folders if _writable(folder)), None)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def build(folder: Path, d: int) -> Path | None:
    """Build a model. Returns None if another process has just built the model. Raises UserError or OSError."""
    from exporter import library, specs  # noqa: PLC0415, the builder is loaded only when it is needed
    from exporter.constructions import default  # noqa: PLC0415

    task = specs.question(d, {})
    options = {"profile": PROFILE, "optimize_for": OPTIMIZE_FOR, "bits": BITS}
    (wanted,) = specs.requests(task, [default(task.op)], options)
    name = specs.file_name(wanted)
    with _alone(folder):
        for entry in entries.listed(folder):
            with contextlib.suppress(entries.UnusableModelError):
                if entries.label(entry, 0) == name and registry.open_entry(folder, entry):
                    return None
        return library.export(wanted, folder).path


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, until the block or the process ends. The end of the block removes the file."""
    path = folder / LOCK
    while True:
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock.fileno()).st_nlink:
                continue  # its last holder removed the file
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def ensure_models(settings: Settings) -> bool:
    """Build the default model if there is no median model. Other models are built when a request needs them.

    This function looks for one usable model; the workers load all models. The service does not start without any model or
    image filter, if the default model cannot or must not be built.
    """
    log.info("loading models", extra={"fields": {"folder": str(settings.models)}})
    found = registry.load(settings.folders, enough=_is_median if settings.build else bool)
    if any(map(_is_median, found.models.values())) or (found.everything and not settings.build):
        return True
    if not settings.build:
        said = {"folder": str(settings.models), "left_out": found.left_out}
        log.error("there is no model to serve, and --no-build forbids building one", extra={"fields": said})
        return False
    folder = place(settings.folders)
    fields = {"d": DEFAULT_D, "folder": str(folder or settings.models), "reason": "there is no model to serve"}
    log.warning("building a model", extra={"fields": fields})
    try:
        if folder is None:
            raise UserError(f"neither {settings.models} nor a scratch folder can be written to")
        build(folder, DEFAULT_D)
    except (UserError, OSError) as error:
        log.error("the model cannot be built", extra={"fields": {**fields, "error": str(error)}})
        return False
    log.warning("model built", extra={"fields": fields})
    return True


def _is_median(model: registry.Loaded) -> bool:
    return isinstance(model, registry.LoadedModel) and model.is_median


class Builder:
    """The builds of one worker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.failed: dict[int, tuple[float, ProblemError]] = {}
        self.turn = asyncio.Semaphore(1)
        engine.reach, engine.provide = engine.settings.max_length, self.provide

    async def provide(self, d: int, until: float) -> None:
        """Wait for a model of d entries until a time of `time.perf_counter`, then say when to come back."""
        when, problem = self.failed.get(d, (0.0, None))
        if problem is not None and time.monotonic() - when < FAILED_S:
            raise problem
        if d not in self.tasks:
            self.tasks[d] = asyncio.create_task(self._provide(d))
        task = self.tasks[d]
        await asyncio.wait([task], timeout=max(0.0, until - time.perf_counter() - MARGIN_S))
        if not task.done():
            said = f"A model of {d} entries is being built for this; repeat the request in {AGAIN_S:g} s."
            building = sorted(map(str, self.tasks))
            raise ProblemError(503, said, headers={"Retry-After": f"{AGAIN_S:g}"}, building=building)
        task.result()

    async def _provide(self, d: int) -> None:
        try:
            async with self.turn:
                await self._build(d)
            await lifecycle.load_models(self.engine)  # the other workers notice the manifest
            found = self.engine.registry
            if not any(model.d == d and model.exact and model.is_median for model in found.models.values()):
                reason = next((why for name, why in found.left_out.items() if f"-d{d}-" in name), "it is not there")
                raise ProblemError(503, f"The model of {d} entries was built but cannot be used: {reason}.")
        except Exception as error:
            problem = (
                error if isinstance(error, ProblemError) else ProblemError(503, f"No model of {d} entries: {error}")
            )
            problem.headers.setdefault("Retry-After", f"{FAILED_S:g}")
            log.error("a model cannot be provided", extra={"fields": {"d": d, "error": problem.detail}})
            self.failed[d] = time.monotonic(), problem
            raise problem from None
        finally:
            del self.tasks[d]

    async def _build(self, d: int) -> None:
        folder = await self.engine.in_background(place, self.engine.settings.built)
        if folder is None:
            raise ProblemError(
                503, f"A model of {d} entries is needed, and no folder can be written to: see --build-into."
            )
        fields = {"d": d, "folder": str(folder), "reason": "a request needs it"}
        log.warning("building a model", extra={"fields": fields})
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "service.models.building", str(folder), str(d)),
            stdin=nothing, stdout=nothing, stderr=pipe,
            env={name: text for name, text in os.environ.items() if name != FOLDER},
        )  # fmt: skip
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process.returncode:
            lines = said.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"]
            raise ProblemError(503, f"The model of {d} entries cannot be built: {lines[-1][:200]}")
        log.warning("model built", extra={"fields": fields})

    async def close(self) -> None:
        """Stop the builds under way."""
        for task in (tasks := list(self.tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main(folder: str, d: str) -> int:
    os.nice(5)  # serving goes first
    try:
        build(Path(folder), int(d))
    except (UserError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
