"""Retries of the client: exponential backoff with jitter, within bounds.

Requests have no side effects, so a request with a lost answer may be repeated, even a POST.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from math import isfinite

import httpx

AGAIN = frozenset({429, 502, 503, 504})  # busy, or not there at the moment
FIRST_S, LONGEST_S = 0.1, 5.0  # the longest pause before the second attempt, which doubles up to the limit
LOST = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)


@dataclass(frozen=True)
class Retries:
    """At most `count` further attempts, begun at most `seconds` after the first. With 0 of either there is one attempt."""

    count: int = 5
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.count < 0 or not (isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"retries and their seconds must be 0 or more, not {self.count} and {self.seconds}")

    def pause(self, attempt: int, end: float, told: float = 0.0) -> float | None:
        """Seconds of pause after `attempt` (1 is the first), at least `told`. None means no further attempt.

        The pause is uniformly random, so that clients that failed together do not return together.
        """
        if attempt > self.count:
            return None
        pause = told + random.uniform(0, min(LONGEST_S, FIRST_S * 2.0 ** min(attempt - 1, 32)))
        return pause if time.monotonic() + pause < end else None


def may_pass(response: httpx.Response) -> bool:
    """True if the same request may succeed a moment later.

    A 500 of our service has problem details and is final. A 500 without them comes from a proxy that lost the service.
    """
    ours = response.headers.get("Content-Type", "").startswith("application/problem+json")
    return response.status_code in AGAIN or (response.status_code == 500 and not ours)


def retry_after(response: httpx.Response) -> float:
    """The pause in seconds that an answer asks for; 0 without a valid header. Dates, which RFC 9110 allows, are not read."""
    text = response.headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdigit() else 0.0
