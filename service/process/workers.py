"""Worker processes for uvicorn. Each starts the application, or logs one line with the reason why it cannot start."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from uvicorn.supervisors import multiprocess

from service.errors import or_shortage
from service.process import logs
from service.process.settings import Settings

log = logging.getLogger("service")
CANNOT_START = 3  # uvicorn's own status: its parent process gives up instead of starting workers again and again
FAILED = "failed"  # a file in the scratch folder: the last worker failed to start


class Worker(multiprocess.Process):
    """A worker whose parent notices its end at once.

    uvicorn's parent also keeps the worker's end of their pipe open. Without this class, the parent would wait until a
    timeout for a worker that ends during a health check.
    """

    def start(self) -> None:
        super().start()
        self.child_conn.close()

    def terminate(self) -> None:
        """Ask the worker to stop. A worker that SIGSTOP paused is continued first, because it could not end otherwise."""
        pid = self.process.pid if self.process.exitcode is None else None
        super().terminate()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def is_alive(self, timeout: float = 5) -> bool:
        try:
            return super().is_alive(timeout)
        except (OSError, EOFError):  # the sign that it ended; newer versions of uvicorn handle this themselves
            return False


def application() -> object:
    """The application over the settings in the environment."""
    settings = Settings.from_env()
    logs.configure(settings.log_level)
    failed = Path(settings.runtime_dir or "/nonexistent") / FAILED
    try:
        from service.app import create_app  # noqa: PLC0415, loads prometheus_client, which may fail on a full disk
        from service.process.metrics import not_shared  # noqa: PLC0415

        app = create_app(settings, later=True)
        if not_shared is not None:
            said = "metrics cannot be shared: the other workers do not see those of this worker"
            remedy = "make room there or set TMPDIR"
            fields = {"folder": settings.runtime_dir, "error": not_shared.strerror, "remedy": remedy}
            log.error(said, extra={"fields": fields})
    except Exception as error:
        fields = {"error": f"{type(error).__name__}: {error}"}
        log.error("the service cannot start", extra={"fields": fields}, exc_info=or_shortage(error) is error)
        with contextlib.suppress(OSError):
            failed.touch()
        sys.exit(CANNOT_START)
    with contextlib.suppress(OSError):
        failed.unlink()
    return app
