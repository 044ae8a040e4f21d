"""The end of the service: by itself or by a signal, without its scratch folder, and with status 0 after a signal.

While uvicorn serves, its own handlers are active; it raises the signal again at the end. These handlers are active before,
while models are built and loaded, and afterwards. The module imports nothing heavy, so that the handlers are set early.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT)
_at_end: list[Callable[[], None]] = []


def handle_signals() -> None:
    """SIGTERM and SIGINT end the process in order; SIGHUP too, unless ignored."""
    for number in ENDING:
        signal.signal(number, _end)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def at_end(action: Callable[[], None]) -> None:
    """Do this when the process ends; the last action comes first."""
    _at_end.append(action)


def scratch_folder() -> str:
    """A new folder, which is removed at the end. A signal may arrive as soon as it is there."""
    folder = os.path.join(tempfile.gettempdir(), "onnx-median-" + secrets.token_hex(8))
    at_end(partial(shutil.rmtree, folder, ignore_errors=True))
    os.mkdir(folder, 0o700)
    return folder


def clean_up() -> None:
    """All actions of `at_end`, which no signal interrupts."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    while _at_end:
        _at_end.pop()()


def _end(number: int, frame: FrameType | None) -> None:
    """End here and now: an exception would be dropped by some callbacks, and replaced by some imports."""
    clean_up()
    os._exit(0)
