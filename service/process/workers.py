"""What uvicorn starts: workers, and in each the application, or one line that says why there is none."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from uvicorn.supervisors import multiprocess

from service.errors import or_shortage
from service.process import logs, signals
from service.process.settings import Settings

log = logging.getLogger("service")
CANNOT_START = 3  # uvicorn's own status: its parent process gives up instead of starting the same again and again
FAILED = "failed"  # a file in the scratch folder: the last worker that was started could not


class Worker(multiprocess.Process):
    """A worker whose end its parent sees at once.

    uvicorn's parent keeps the worker's end of their pipe open as well, so that one that ends while it is asked for a sign of
    life is waited for until the time for that is over.
    """

    def start(self) -> None:
        super().start()
        self.child_conn.close()

    def terminate(self) -> None:
        """Ask the worker to stop. A worker that was stopped by SIGSTOP is continued, or it would never end."""
        pid = self.process.pid if self.process.exitcode is None else None
        super().terminate()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def is_alive(self, timeout: float = 5) -> bool:
        try:
            return super().is_alive(timeout)
        except (OSError, EOFError):  # what its end looks like; newer versions of uvicorn take it for that themselves
            return False


def application() -> object:
    """The application over the settings in the environment."""
    settings = Settings.from_env()
    logs.configure(settings.log_level)
    failed = Path(settings.runtime_dir or "/nonexistent") / FAILED
    try:
        from service.app import create_app  # noqa: PLC0415, it loads prometheus_client, which may find no room

        app = create_app(settings, later=True)
    except Exception as error:
        fields = {"error": f"{type(error).__name__}: {error}"}
        log.error("the service cannot start", extra={"fields": fields}, exc_info=or_shortage(error) is error)
        with contextlib.suppress(OSError):
            failed.touch()
        sys.exit(CANNOT_START)
    with contextlib.suppress(OSError):
        failed.unlink()
    signals.heed_signals()
    return app
