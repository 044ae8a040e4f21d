"""JSON as it is sent and logged, also when memory is short.

orjson does not look whether it was given the memory that it asked for: refused, it ends the process. So what tells of a
shortage, refusals and the log, goes through the standard library, which raises. Answers, which may hold a million numbers,
go through orjson once as much as it could take was there a moment before.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson

ROOM = 512  # bytes of a document besides its long lists
NUMBER = 26  # bytes of a number and what separates it from the next
GREED = 20  # orjson's room grows by four, to 16 times the text at most, while the quarter before it is still held


def short(document: Any) -> bytes:
    """A document of a few members; what JSON does not know becomes text."""
    return json.dumps(document, default=str, separators=(",", ":")).encode()


def long(document: Any, size: int) -> bytes:
    """A document with lists that take `size` bytes at most."""
    bytearray(GREED * (ROOM + size))
    return orjson.dumps(document)


def moment(seconds: float | None = None) -> str:
    """A time, or now."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
