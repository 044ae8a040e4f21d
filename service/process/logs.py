"""One JSON object a line on standard error: time, level, message, and whatever fields the caller gave.

Logging never holds up serving. Lines are handed to a thread that writes them; when nobody reads them, or the disk behind
them is full, they are lost, counted, and the count is logged as soon as lines can be written again.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple

from service.json_text import moment, short

STDERR = 2
WAITING_AT_MOST = 1 << 20  # bytes of lines that are not written yet
AT_ONCE = 1 << 16  # bytes of one write


class Writer:
    """Writes lines to a file descriptor in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lines: deque[bytes] = deque()
        self.size = 0  # bytes of lines that are not written yet
        self.lost = 0  # lines, since the start
        self.reported = 0  # of them, in the log
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def write(self, *lines: bytes) -> None:
        """Have lines written some time; never waits."""
        with self.changed:
            for line in lines:
                if self.size + len(line) > WAITING_AT_MOST:
                    self.lost += 1
                else:
                    self.lines.append(line)
                    self.size += len(line)
            self.start()
            self.changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all is written, but not longer than that."""
        with self.changed:
            if self.size:
                self.start()
            self.changed.wait_for(lambda: not self.size, seconds)

    def start(self) -> None:
        """Have the thread, if it is not there and can be had; else the lines wait, and the next one tries again."""
        if self.thread is not None:
            return
        thread = threading.Thread(target=self._run, name="log", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            return
        self.thread = thread

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.lines)
                chunk = self._take()
            lost = self._put(chunk)
            with self.changed:
                self.size -= len(chunk)
                self.lost += lost
                self.changed.notify_all()
            if not lost and self.lost > self.reported:
                self._report()

    def _take(self) -> bytes:
        lines = [self.lines.popleft()]
        size = len(lines[0])
        while self.lines and (size := size + len(self.lines[0])) <= AT_ONCE:
            lines.append(self.lines.popleft())
        return b"".join(lines)

    def _report(self) -> None:
        lost = self.lost
        fields = {"time": moment(), "level": "warning", "logger": "service", "message": "log lines lost"}
        if not self._put(short({**fields, "lines": lost - self.reported, "in_all": lost}) + b"\n"):
            self.reported = lost

    def _put(self, chunk: bytes) -> int:
        """How many of its lines could not be written whole."""
        done = 0
        try:
            while done < len(chunk):
                done += os.write(self.descriptor, memoryview(chunk)[done:])
        except OSError:
            return chunk.count(b"\n", done)
        return 0


_writer = Writer(STDERR)


def lost() -> int:
    """Lines that could not be written, since the start."""
    return _writer.lost


def flush(seconds: float = 1.0) -> None:
    """Wait for the lines to be written, but not longer than that: nobody may be reading."""
    _writer.flush(seconds)


atexit.register(flush)


class JsonFormatter(logging.Formatter):
    """Log records as JSON; `extra={"fields": {...}}` adds members, an exception becomes a string."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if fields:
            line.update(fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return short(line).decode()


class Handler(logging.Handler):
    """Hands formatted records to the writer."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _writer.write(self.format(record).encode() + b"\n")
        except Exception:  # a line that cannot be made is lost, like one that cannot be written
            _writer.lost += 1


class RequestLine(NamedTuple):
    """What the log says of a request."""

    request_id: str
    method: str
    path: str
    status: int
    seconds: float


def write_requests(requests: Iterable[RequestLine]) -> None:
    """One line for each request, in the same form. Put together by hand: a log record costs more than a median."""
    start = f'{{"time":"{moment()}","level":"info","logger":"service","message":"request","request_id":'
    lines = []
    for name, method, path, status, seconds in requests:
        try:
            texts = f'{quoted(name)},"method":{quoted(method)},"path":{quoted(path)}'
            lines.append(f'{start}{texts},"status":{status},"ms":{seconds * 1000:.3f}}}\n'.encode())
        except MemoryError:  # a line that cannot be made is lost, like one that cannot be written
            _writer.lost += 1
    _writer.write(*lines)


def configure(level: str) -> None:
    """Route the service's, uvicorn's and asyncio's loggers through one JSON handler."""
    _keep_standard_descriptors()
    _writer.start()  # while there are threads to be had
    # neither is printed by our format, and finding the caller is the dearest part of a log call
    logging.logThreads = logging.logProcesses = False
    logging.raiseExceptions = False
    handler = Handler()
    handler.setFormatter(JsonFormatter())
    for name in ("service", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True


def _keep_standard_descriptors() -> None:
    """Where standard error was closed, its number must not become that of a client's socket: nothing is behind it then."""
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            # takes the lowest free number, which is this one; the workers get it as well
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
