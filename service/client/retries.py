"""When the client sends a request again, and how long it waits before: exponential backoff with jitter, within bounds.

What it asks for is the same however often it is asked, so that a request whose answer was lost may be repeated, POST or not.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf, isfinite

import httpx

AGAIN = frozenset({429, 502, 503, 504})  # busy, or not there at the moment
FIRST_S, LONGEST_S = 0.1, 5.0  # the longest pause before the second attempt; it doubles up to the other
LOST = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)


@dataclass(frozen=True)
class Retries:
    """At most `count` attempts after the first, none begun later than `seconds` after it; 0 of either: one attempt."""

    count: int = 5
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.count < 0 or not (isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"retries and their seconds must be 0 or more, not {self.count} and {self.seconds}")

    def pause(self, attempt: int, end: float, told: float = 0.0) -> float | None:
        """Seconds before the attempt after `attempt` (1 is the first), at least as `told`; None: there is none.

        Any part of the backoff is as likely as any other: clients that failed together do not come back together.
        """
        if attempt > self.count:
            return None
        pause = told + random.uniform(0, min(LONGEST_S, FIRST_S * 2.0 ** min(attempt - 1, 32)))
        return pause if time.monotonic() + pause < end else None


def may_pass(response: httpx.Response) -> bool:
    """Whether the same request may be answered a moment later.

    A 500 of our service is an answer, and has the problem in it; one without is of a proxy that lost the service.
    """
    ours = response.headers.get("Content-Type", "").startswith("application/problem+json")
    return response.status_code in AGAIN or (response.status_code == 500 and not ours)


def retry_after(response: httpx.Response) -> float:
    """The seconds that the answer asks to wait: a number of them or a date, by RFC 9110; 0 when it says nothing else."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) < 10 else inf
    try:
        when = parsedate_to_datetime(text)
        return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return 0.0
