"""Short JSON documents for errors and log lines, and times as text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def short(document: Any) -> bytes:
    """A document of a few members. Values that JSON cannot hold become text."""
    return json.dumps(document, default=str, separators=(",", ":")).encode()


def moment(seconds: float | None = None) -> str:
    """A time, or now."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
