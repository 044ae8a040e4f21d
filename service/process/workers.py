"""Worker processes for uvicorn. Each starts the application, or logs one line with the reason why it cannot start."""

from __future__ import annotations

import logging
import os
import signal
import sys

from uvicorn.supervisors import multiprocess

from service.errors import or_shortage
from service.process import logs
from service.process.settings import Settings

log = logging.getLogger("service")
CANNOT_START = 3  # uvicorn's own status: its parent process gives up instead of starting workers again and again


class Worker(multiprocess.Process):
    """A worker whose parent notices its end at once.

    uvicorn's parent also keeps the worker's end of their pipe open. Without this class, the parent would wait until a
    timeout for a worker that ends during a health check.
    """

    failed = False  # a worker could not start

    def start(self) -> None:
        super().start()
        self.child_conn.close()

    def join(self) -> None:
        super().join()
        Worker.failed |= self.process.exitcode == CANNOT_START

    def terminate(self) -> None:
        """Ask the worker to stop. A worker that SIGSTOP paused is continued first, because it could not end otherwise."""
        if self.process.pid is not None and self.process.exitcode is None:
            os.kill(self.process.pid, signal.SIGCONT)
        super().terminate()

    def is_alive(self, timeout: float = 5) -> bool:
        try:
            return super().is_alive(timeout)
        except (OSError, EOFError):  # the sign that it ended; newer versions of uvicorn handle this themselves
            return False


def application() -> object:
    """The application over the settings in the environment."""
    settings = Settings.from_env()
    logs.configure(settings.log_level)
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
        sys.exit(CANNOT_START)
    return app
