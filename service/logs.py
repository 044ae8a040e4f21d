"""One JSON object a line on standard error: time, level, message, and whatever fields the caller gave."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

LINE = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE


class JsonFormatter(logging.Formatter):
    """Log records as JSON; `extra={"fields": {...}}` adds members, an exception becomes a string."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if fields:
            line.update(fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()


def write_requests(requests: list[dict[str, object]]) -> None:
    """One line for each request, in the same form. Written directly: a log record costs more than a median."""
    common = {"time": datetime.now(UTC), "level": "info", "logger": "service", "message": "request"}
    sys.stderr.write("".join(orjson.dumps(common | fields, option=LINE).decode() for fields in requests))
    sys.stderr.flush()


def configure(level: str) -> None:
    """Route the service's and uvicorn's loggers through one JSON handler."""
    # neither is printed by our format, and finding the caller is the dearest part of a log call
    logging.logThreads = logging.logProcesses = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("service", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.access").disabled = True
