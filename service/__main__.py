"""`python -m service`: build a missing model, then run uvicorn."""

from __future__ import annotations

import sys

from service import require_service
from service.process import signals

require_service(command=__name__ == "__main__")
if sys.platform == "win32":
    sys.exit("error: the service needs the signals and sockets of Unix: use WSL or the container")
if __name__ == "__main__":
    signals.handle_signals()  # before what takes a second to import

import logging
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import uvicorn
from uvicorn.supervisors import multiprocess

from service.models.building import ensure_models
from service.process import logs, metrics, workers
from service.process.settings import Settings

log = logging.getLogger("service")
SILENT_S = 60  # a worker is dead after this silence; a start on a busy machine takes more than 5


def main(arguments: list[str] | None = None) -> int:
    """Build a missing model, start the workers, and remove all files except models at the end."""
    settings = Settings.from_args(arguments)
    logs.configure(settings.log_level)
    signals.at_end(logs.flush)
    try:
        return _serve(settings)
    finally:
        signals.clean_up()


def _serve(settings: Settings) -> int:
    try:
        scratch = signals.scratch_folder()
    except OSError as error:  # a full disk or a read-only system is fine for a single worker
        scratch = ""
        if settings.workers > 1:
            remedy = "make room in the folder for temporary files, or name another in TMPDIR"
            fields = {"error": str(error), "remedy": remedy}
            log.error("several workers need a scratch folder", extra={"fields": fields})
            return 2
    settings = replace(settings, runtime_dir=scratch)
    os.environ.update(settings.to_env())
    if settings.workers > 1:
        os.environ[metrics.FOLDER] = str(Path(scratch) / "metrics")
    if not port_is_free(settings) or not enough_files(settings.max_connections) or not ensure_models(settings):
        return 2
    multiprocess.Process = workers.Worker  # type: ignore[misc]  # uvicorn takes no class of ours for it
    uvicorn.run(
        "service.process.workers:application",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        http="service.serving.limits:LimitedProtocol",  # by name: who has workers need not import it
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nothing uses the client's address
        server_header=False,
        timeout_graceful_shutdown=int(settings.timeout_s) + 1,
        timeout_worker_healthcheck=SILENT_S,
    )
    return workers.CANNOT_START if workers.Worker.failed else 0


def port_is_free(settings: Settings) -> bool:
    """True if the service can listen on its port. Checked early, before models are loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # the latter for invalid host names
        said = error.strerror if isinstance(error, OSError) else str(error)
        fields = {"host": settings.host, "port": settings.port, "error": said}
        log.error("cannot listen there: choose another --host or --port", extra={"fields": fields})
        return False
    return True


def enough_files(connections: int) -> bool:
    """Raise the limit of open files to the number of connections, so that our own limit comes first."""
    needed = connections * 2 + 256  # connections beyond the limit get an answer
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            fields = {"max_connections": connections, "files": hard, "needed": needed}
            log.error("the system allows too few open files: lower --max-connections", extra={"fields": fields})
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


if __name__ == "__main__":
    sys.exit(main())
