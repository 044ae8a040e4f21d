"""Signals that end the service in order, with status 0 and no files left behind.

While uvicorn serves, its own handlers are active; it raises the signal again at the end. These handlers are active before,
while models are built and loaded, and afterwards. The module imports nothing heavy, so that the handlers are set early.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGINT)
_asked: list[int] = []
_put_off: list[bool] = []


def handle_signals() -> None:
    """SIGTERM and SIGINT end the process by SystemExit; SIGHUP too, unless ignored."""
    for number in ENDING:
        signal.signal(number, _stop)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hang_up)
    sys.unraisablehook, sys.excepthook = _not_raised, _uncaught


def heed_signals() -> None:
    """Exit with status 0 if a signal has arrived.

    A signal raises SystemExit wherever the process is. Other code can drop this exception (callbacks do), or raise another
    one in its place: the import of a compiled module raises ImportError, and `__set_name__` RuntimeError.
    """
    if _asked:
        _end()


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Delay signals until the scratch folder is registered for removal."""
    _put_off.append(True)
    try:
        yield
    finally:
        _put_off.pop()
    heed_signals()


def _stop(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    if not _put_off:
        _end()


def _end() -> NoReturn:
    for each in ENDING:  # the cleaning up must not be interrupted
        signal.signal(each, signal.SIG_IGN)
    sys.exit(0)


def _not_raised(found: sys.UnraisableHookArgs) -> None:
    """Print nothing for a SystemExit that a callback (of a weak reference, for example) could not raise: `heed_signals`
    ends the process."""
    if not (_asked and isinstance(found.exc_value, SystemExit)):
        sys.__unraisablehook__(found)


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Errors after a signal are effects of the signal, not failures of the service."""
    heed_signals()
    sys.__excepthook__(kind, error, where)


def _hang_up(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)
