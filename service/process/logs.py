"""Log lines on standard error, one JSON object each: time, level, message, and the caller's fields.

Logging never delays serving. A thread writes the lines. If nobody reads them, or the disk is full, lines are lost and
counted, and the count is logged as soon as lines can be written again.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii as quoted
from queue import SimpleQueue

from service.json_text import moment, short

STDERR = 2
MOST_WAITING = 1 << 10  # log records, or batches of request lines, that are not written yet


class Writer:
    """Writes lines to a file descriptor in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self.lost = 0  # lines, since the start
        self.reported = self.counted = 0  # of them, in the log and in the metrics
        self.thread: threading.Thread | None = None

    def write(self, lines: bytes) -> None:
        """Queue lines to be written. Never waits.

        A signal handler may log while the same thread is in this method. So the queue must be reentrant, like SimpleQueue.
        """
        self.start()
        if self.waiting.qsize() < MOST_WAITING:
            self.waiting.put(lines)
        else:
            self.lost += lines.count(b"\n")

    def start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="log", daemon=True)
            self.thread.start()

    def flush(self, seconds: float) -> None:
        """Wait until all lines are written, at most for the given time."""
        if self.thread is not None:
            written = threading.Event()
            self.waiting.put(written)
            written.wait(seconds)

    def _run(self) -> None:
        while True:
            lines = self.waiting.get()
            if isinstance(lines, threading.Event):  # all lines before this one are written
                lines.set()
                continue
            lost = self._put(lines)
            self.lost += lost
            if not lost and (unsaid := self.lost - self.reported):
                fields = {"time": moment(), "level": "warning", "logger": "service", "message": "log lines lost"}
                if not self._put(short({**fields, "lines": unsaid, "in_all": self.reported + unsaid}) + b"\n"):
                    self.reported += unsaid

    def _put(self, chunk: bytes) -> int:
        """The number of lines that could not be written whole."""
        done = 0
        try:
            while done < len(chunk):
                done += os.write(self.descriptor, memoryview(chunk)[done:])
        except OSError:
            return chunk.count(b"\n", done)
        return 0


_writer = Writer(STDERR)


def take_lost() -> int:
    """The number of lost lines since the last call."""
    more = _writer.lost - _writer.counted
    _writer.counted += more
    return more


def flush(seconds: float = 1.0) -> None:
    """Wait for the lines to be written, at most for the given time, because nobody may be reading."""
    _writer.flush(seconds)


atexit.register(flush)


class Handler(logging.Handler):
    """Writes records as JSON; `extra={"fields": {...}}` adds members, an exception becomes a string."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _writer.write(self.format(record).encode() + b"\n")
        except Exception:  # a line that cannot be formatted is lost
            _writer.lost += 1

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        return short(line).decode()


def write_requests(requests: Iterable[tuple[str, str, str, int, float]]) -> None:
    """One line for each request, from its id, method, path, status and seconds, in the same form as other lines.

    The line is built by hand, because a log record costs more than a median.
    """
    start = f'{{"time":"{moment()}","level":"info","logger":"service","message":"request","request_id":'
    lines = []
    for name, method, path, status, seconds in requests:
        texts = f'{quoted(name)},"method":{quoted(method)},"path":{quoted(path)}'
        lines.append(f'{start}{texts},"status":{status},"ms":{seconds * 1000:.3f}}}\n')
    if lines:
        _writer.write("".join(lines).encode())


def configure(level: str) -> None:
    """Route the service's, uvicorn's and asyncio's loggers through one JSON handler."""
    _keep_standard_descriptors()
    _writer.start()  # while a thread can still be started
    # our format prints neither, and finding the caller is the slowest part of a log call
    logging.logThreads = logging.logProcesses = False
    logging.raiseExceptions = False
    handler = Handler()
    for name in ("service", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True


def _keep_standard_descriptors() -> None:
    """If standard error is closed, open the null device in its place, so that no client's socket gets its number."""
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            # takes the lowest free number, which is this one; workers inherit the descriptor
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
