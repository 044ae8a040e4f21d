"""`python -m service`: make sure there is something to serve, then hand over to uvicorn."""

from __future__ import annotations

from service import stopping

if __name__ == "__main__":
    stopping.handle_signals()  # before what takes a second to import

import contextlib
import logging
import os
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import uvicorn

from exporter.errors import UserError
from service import logs, registry, sharing, worker
from service.settings import Settings

log = logging.getLogger("service")
DEFAULT_D = 2048
DEFAULT_CONSTRUCTION = "radix"
DEFAULT_PROFILE = "fused"
DEFAULT_TUNE = "latency"  # the fewest operations for a lone vector; batches are nearly as fast


def main(arguments: list[str] | None = None) -> int:
    """Build what is missing, start the workers, and leave nothing behind but the models."""
    settings = Settings.from_args(arguments)
    logs.configure(settings.log_level)
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="onnx-median-", ignore_cleanup_errors=True)
            )
            if settings.workers > 1:
                shared = Path(scratch) / "metrics"
                shared.mkdir()
                os.environ[sharing.VARIABLE] = str(shared)
        except OSError as error:  # a full disk or a read-only system: fine as long as nothing has to be shared
            scratch = ""
            if settings.workers > 1:
                remedy = "make room in the folder for temporary files, or name another in TMPDIR"
                fields = {"error": str(error), "remedy": remedy}
                log.error("several workers need a scratch folder", extra={"fields": fields})
                return 2
        settings = replace(settings, runtime_dir=scratch)
        os.environ.update(settings.to_env())
        if settings.build and not ensure_models(settings):
            return 2
        uvicorn.run(
            "service.worker:application",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            http=http_protocol(),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout_s) + 1,
        )
        return worker.CANNOT_START if scratch and (Path(scratch) / worker.FAILED).exists() else 0


def http_protocol() -> str:
    """Ours, with its short way for medians, where httptools is installed."""
    return "service.direct:DirectProtocol" if find_spec("httptools") else "auto"


def ensure_models(settings: Settings) -> bool:
    """Build the default model when there is none, and a companion of odd d when some lengths could not be served.

    A model of even d answers with the mean of its two middle ranks; no padding makes that the middle of an odd number
    of values once they fill more than half of the row. One model of d + 1 closes every gap, for all conventions.
    Only a default model that cannot be built leaves nothing to serve, and is a reason not to start.
    """
    found = registry.load(settings.folders)
    if not found.models:
        if not _build(settings, DEFAULT_D, "there is no model to serve"):
            return False
        found = registry.load(settings.folders, previous=found)
    if missing := found.gaps():
        d = found.largest + 1 - found.largest % 2
        _build(settings, d, f"{len(missing)} lengths up to {found.largest} cannot be served exactly")
    return True


def _build(settings: Settings, d: int, reason: str) -> bool:
    from exporter.api import export_model  # noqa: PLC0415, the builder is loaded only when something has to be built

    folder = settings.folders[0] if _writable(settings.folders[0]) else settings.folders[-1]
    fields = {"construction": DEFAULT_CONSTRUCTION, "d": d, "folder": str(folder), "reason": reason}
    log.warning("building a model", extra={"fields": fields})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = export_model(d, DEFAULT_CONSTRUCTION, folder, profile=DEFAULT_PROFILE, tune=DEFAULT_TUNE)
    except (UserError, OSError) as error:
        log.error("the model cannot be built", extra={"fields": {**fields, "error": str(error)}})
        return False
    log.warning("model built", extra={"fields": {"file": str(path)}})
    return True


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
