"""Signals that end the service: it stops in order, leaves nothing behind, and exits with 0.

uvicorn has handlers of its own while it serves, and raises the signal again when it is done; before that, while models
are built and loaded, and after it, these are in force. It imports nothing heavy, to be there before what is.
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
    """Have SIGTERM and SIGINT end the process by SystemExit, and SIGHUP, where it is not ignored, like SIGTERM."""
    for number in ENDING:
        signal.signal(number, _stop)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hang_up)
    sys.unraisablehook, sys.excepthook = _not_raised, _uncaught


def heed_signals() -> None:
    """End now, with status 0, if a signal asked for the end.

    A signal raises SystemExit wherever the process is. Other code can drop this exception (callbacks do), or raise another
    one in its place: the import of a compiled module raises ImportError, and `__set_name__` RuntimeError.
    """
    if _asked:
        _end()


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Heed a signal that comes meanwhile at the end: what is made there is noted there as well, and so removed."""
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
    for each in ENDING:  # what is left to do is cleaning up, which nothing should interrupt
        signal.signal(each, signal.SIG_IGN)
    sys.exit(0)


def _not_raised(found: sys.UnraisableHookArgs) -> None:
    """Nothing is said of a SystemExit that a callback (of a weak reference, say) could not raise: `heed_signals` ends it."""
    if not (_asked and isinstance(found.exc_value, SystemExit)):
        sys.__unraisablehook__(found)


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """An error after a signal is no failure of the service: the signal caused the error."""
    heed_signals()
    sys.__excepthook__(kind, error, where)


def _hang_up(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)
