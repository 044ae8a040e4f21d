"""Progress on stderr: a bar on a terminal, and elsewhere a line every few seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from threading import Event, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")
EVERY = 5.0  # seconds between two lines


class Progress(Generic[T]):
    """Iterates over the items, while stderr shows how many are done and the present `stage`.

    A log or a pipe gets no bar: the first line comes after `EVERY` seconds, so short work prints nothing.
    """

    def __init__(self, items: Iterable[T], desc: str, unit: str) -> None:
        self._items = list(items)
        self._desc, self._unit, self._stage = desc, unit, ""
        self._done = 0
        self._bar: Any = None

    def stage(self, text: str) -> None:
        """Set the name of the present stage."""
        self._stage = text
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def __iter__(self) -> Iterator[T]:
        if sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415, a log needs no bar

            with tqdm(self._items, desc=self._desc, unit=self._unit, leave=False) as self._bar:
                yield from self._bar
            return
        over = Event()
        thread = Thread(target=self._print_lines, args=(over,), daemon=True)
        thread.start()
        try:
            for item in self._items:
                self._done += 1
                yield item
        finally:
            over.set()
            thread.join()

    def _print_lines(self, over: Event) -> None:
        began = monotonic()
        while not over.wait(EVERY):
            stage = f", {self._stage}" if self._stage else ""
            count = f"{self._unit} {self._done} of {len(self._items)}"
            print(f"{self._desc}: {count}{stage}, {monotonic() - began:.0f} s", file=sys.stderr, flush=True)
