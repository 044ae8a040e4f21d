"""uvicorn's HTTP protocol with a short way for medians.

A request of one vector is answered in less time than parsing its head by callbacks, a task and an ASGI exchange take. So
a plain POST /median that arrives as a whole is read here, and shown to `Front.begin`; if that takes it, the answer is
written from here. Whatever is less than plain (other headers than values to look up, a body in pieces, a second request
behind it) and whatever goes wrong is fed to uvicorn's parser, as if it had just come.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.formats import Head, Reply
from service.front import Front

START = b"POST /median"
HEAD = re.compile(
    rb"POST /median(?:\?([!\"$-~]*))? HTTP/1\.1((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*)*)", re.DOTALL
)
# what changes how the body or the connection is to be treated
SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"content-encoding"})
KEEP = b"keep-alive"
LONGEST = 2048  # bytes of a head that is worth remembering


def read_plain(data: bytes) -> tuple[Head, bytes] | None:
    """Head and body of a plain request that is here as a whole and alone, or None."""
    end = data.find(b"\r\n\r\n", 0, LONGEST)
    head = read_head(data[:end]) if end > 0 else None
    return (head, data[end + 4 :]) if head is not None and head.length == len(data) - end - 4 else None


@lru_cache(maxsize=256)
def read_head(text: bytes) -> Head | None:
    """What is before the body, if it is plain. A client sends the same over and over, so it is read once."""
    match = HEAD.fullmatch(text)
    if match is None:
        return None
    query, lines = match.groups()
    fields = [line.partition(b":") for line in lines.split(b"\r\n")[1:]]
    headers = {name.lower(): value.strip() for name, _, value in fields}
    length = headers.get(b"content-length", b"")
    if len(headers) < len(fields) or not SPECIAL.isdisjoint(headers) or not length.isdigit():
        return None
    if headers.get(b"connection", KEEP).lower() != KEEP:
        return None
    return Head(query or b"", headers, int(length))


class DirectProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        app: Any = self.app
        while app is not None and not isinstance(app, Front):  # under uvicorn's own middleware
            app = getattr(app, "app", None)
        self.front: Front | None = app
        self.parsing = False  # uvicorn's parser has seen a part of a request
        self.pending: bytes | None = None  # the request that is being answered from here
        self.behind: list[bytes] = []  # what came after it
        self.answered = 0.0  # when that was last done
        self.last = False

    def on_message_begin(self) -> None:
        self.parsing = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self.parsing = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self.pending is not None:
            self.behind.append(data)
            return
        idle = not self.parsing and (self.cycle is None or self.cycle.response_complete)
        if idle and self.front is not None and data.startswith(START):
            plain = read_plain(data)
            if plain is not None:
                self.pending = data
                if self.front.begin(*plain, self._finish, len(self.connections) == 1) or self.pending is None:
                    return
                self.pending = None
        super().data_received(data)

    def _finish(self, reply: Reply | None) -> None:
        """Write the answer, or send the request the long way; then go on with what came behind it."""
        data, self.pending = self.pending, None
        if data is None or self.transport.is_closing():
            return
        if reply is None:
            super().data_received(data)
        else:
            content = [STATUS_LINE[reply.status], reply.fields]
            for name, value in self.server_state.default_headers:
                content += (name, b": ", value, b"\r\n")
            content += (b"connection: close\r\n\r\n" if self.last else b"\r\n", reply.body)
            self.transport.write(b"".join(content))
            if self.last:
                self.transport.close()
            self.server_state.total_requests += 1
            self._keep_alive()
        behind, self.behind = self.behind, []
        for more in behind:
            self.data_received(more)

    def _keep_alive(self) -> None:
        """Have the connection closed when nothing more comes; a timer that is set already only has to look again."""
        self.answered = time.monotonic()
        if self.timeout_keep_alive_task is None:
            self._ring_in(self.timeout_keep_alive)

    def _ring_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        left = self.answered + self.timeout_keep_alive - time.monotonic()
        if self.pending is not None:
            left = self.timeout_keep_alive
        if left > 0 and not self.transport.is_closing():
            self._ring_in(left)
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pending = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.pending is None:
            super().shutdown()
        else:
            self.last = True
