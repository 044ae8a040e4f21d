"""`python -m service`: make sure there is something to serve, then hand over to uvicorn."""

from __future__ import annotations

import sys

from service import stopping

if sys.platform == "win32":
    sys.exit("error: the service needs the signals and sockets of Unix: use WSL or the container")
if __name__ == "__main__":
    stopping.handle_signals()  # before what takes a second to import

import contextlib
import logging
import os
import resource
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import uvicorn

from exporter.errors import UserError
from service import logs, sharing, worker
from service.compute import registry
from service.http.short_way import ShortWayProtocol
from service.settings import Settings

log = logging.getLogger("service")
DEFAULT_D = 2048
DEFAULT_CONSTRUCTION = "radix"
DEFAULT_PROFILE = "fused"
SILENT_S = 60  # a worker that says nothing for so long is dead; one that starts on a busy machine needs more than 5
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
        if not ensure_models(settings) or not port_is_free(settings) or not enough_files(settings.max_connections):
            return 2
        stopping.heed_signals()
        uvicorn.run(
            "service.worker:application",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            http=ShortWayProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout_s) + 1,
            timeout_worker_healthcheck=SILENT_S,
        )
        return worker.CANNOT_START if scratch and (Path(scratch) / worker.FAILED).exists() else 0


def port_is_free(settings: Settings) -> bool:
    """Whether the service can listen where it should; better known before the models are loaded once more."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # the latter for what can be nobody's name
        said = error.strerror if isinstance(error, OSError) else str(error)
        fields = {"host": settings.host, "port": settings.port, "error": said}
        log.error("cannot listen there: choose another --host or --port", extra={"fields": fields})
        return False
    return True


def enough_files(connections: int) -> bool:
    """Have the system allow as many open files as there may be connections: it closes the door in its own way else."""
    needed = connections * 2 + 256  # those beyond the limit are told so
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            fields = {"max_connections": connections, "files": hard, "needed": needed}
            log.error("the system allows too few open files: lower --max-connections", extra={"fields": fields})
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


def ensure_models(settings: Settings) -> bool:
    """Build the default model when there is none, and a companion of odd d when some lengths could not be served.

    A model of even d answers with the mean of its two middle ranks; no padding makes that the middle of an odd number
    of values once they fill more than half of the row. One model of d + 1 closes every gap, for all conventions.
    Nothing to serve, because the default model cannot or must not be built, is a reason not to start.
    """
    log.info("loading models", extra={"fields": {"folder": str(settings.models)}})
    found = registry.load(settings.folders)
    if not settings.build:
        if not found.models:
            fields = {"folder": str(settings.models), "left_out": found.left_out}
            log.error("there is no model to serve, and --no-build forbids to build one", extra={"fields": fields})
        return bool(found.models)
    if not found.models:
        if not _build(settings, DEFAULT_D, "there is no model to serve"):
            return False
        found = registry.load(settings.folders, previous=found)
    if missing := found.gaps():
        d = found.largest + 1 - found.largest % 2
        _build(settings, d, f"{len(missing)} lengths up to {found.largest} cannot be served exactly")
    return True


def _build(settings: Settings, d: int, reason: str) -> bool:
    try:
        from exporter.library import export_model  # noqa: PLC0415, the builder is loaded only when it is needed
    except ModuleNotFoundError as error:  # the container serves and does not build
        remedy = "write models with python -m exporter where it is installed, and name their folder with --models"
        said = {"reason": reason, "error": str(error), "remedy": remedy}
        log.error("no model can be built here: this installation only serves", extra={"fields": said})
        return False
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
