"""uvicorn's HTTP protocol with limits, and with a short way for medians.

Limits: bytes, fields and time of a head; time without a request; connections; unread requests; unread answers. (Bodies
are limited where they are read.)

A short way: a request of one vector is answered in less time than parsing its head by callbacks, a task and an ASGI
exchange take. So a plain POST /median that arrives as a whole is read here, and shown to `Gateway.begin`; if that takes
it, the answer is written from here. Whatever is less than plain (other headers than values to look up, a body in pieces,
a second request behind it) and whatever goes wrong is fed to uvicorn's parser, as if it had just come.
"""

from __future__ import annotations

import asyncio
import re
import time
from enum import Enum, auto
from functools import lru_cache
from math import inf
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import ProblemError
from service.http.exchange import Head, Reply
from service.http.gateway import Gateway

START = b"POST /median"
HEAD = re.compile(
    rb"POST /median(?:\?([!\"$-~]*))? HTTP/1\.1((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*)*)", re.DOTALL
)
# what changes how the body or the connection is to be treated
SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"content-encoding"})
KEEP = b"keep-alive"
LONGEST = 2048  # bytes of a head that is worth remembering
SLICE = 4096  # bytes the parser is shown at a time, so that few requests in a row are taken in
MOST_HEADERS = 128
LINGER = 1.0  # seconds between refusing a client and closing its connection


def read_plain(data: bytes) -> tuple[Head, bytes] | None:
    """Head and body of a plain request that is here as a whole and alone, or None."""
    end = data.find(b"\r\n\r\n", 0, LONGEST)
    head, length = read_head(data[:end]) if end > 0 else (None, 0)
    return (head, data[end + 4 :]) if head is not None and length == len(data) - end - 4 else None


@lru_cache(maxsize=256)
def read_head(text: bytes) -> tuple[Head | None, int]:
    """What is before the body, and the length it promises, if it is plain. A client sends the same over and over, so it
    is read once."""
    match = HEAD.fullmatch(text)
    if match is None:
        return None, 0
    query, lines = match.groups()
    fields = [line.partition(b":") for line in lines.split(b"\r\n")[1:]]
    headers = {name.lower(): value.strip() for name, _, value in fields}
    length = headers.get(b"content-length", b"")
    if len(headers) < len(fields) or not SPECIAL.isdisjoint(headers) or not length.isdigit():
        return None, 0
    if headers.get(b"connection", KEEP).lower() != KEEP:
        return None, 0
    return Head("POST", "/median", query or b"", headers), int(length)


class Flow(FlowControl):
    """uvicorn's flow control, which does not read on while something that came is still unread."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Stage(Enum):
    """Which part of a request uvicorn's parser expects next."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class ShortWayProtocol(HttpToolsProtocol):
    """One connection.

    uvicorn's parser is given no more than it takes to answer one request: what came behind waits unread, and the client
    with it. A connection has a deadline (`due`) whenever it is the client's turn.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        app: Any = self.app
        while not isinstance(app, Gateway):  # under uvicorn's own middleware
            app = app.app
        self.gateway = app
        self.settings = app.engine.settings
        self.max_head = int(self.settings.max_head_kib * 1024)
        self.stage = Stage.IDLE
        self.head_size = 0  # bytes of an unfinished head, or between parts of a body
        self.brought = False  # some of a body came with the bytes just read
        self.offered = False  # the head offers another protocol
        self.left: int | None = None  # bytes of the body to come, if that is known
        self.pending: bytes | None = None  # the request that is being answered from here
        self.behind = b""  # what came after it
        self.due = inf
        self.stuck = inf  # since when the client does not read
        self.timer: asyncio.TimerHandle | None = None
        self.looked = inf  # when the client's lateness was last looked at
        self.seen: object = None  # the request that was being answered then
        self.since = inf  # and before which look it began
        self.beyond = False  # a connection too many
        self.refused = False
        self.lingers = False  # nothing more is written: what still comes is let by until `due`
        self.last = False

    @property
    def _answering(self) -> bool:
        return self.pending is not None or (self.cycle is not None and not self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: Flow = Flow(transport)
        most = self.settings.max_connections
        if len(self.connections) > 2 * most:
            transport.abort()
            return
        self.beyond = len(self.connections) > most
        self._due_in(LINGER if self.beyond else self.settings.head_timeout_s)
        self._tick()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        if self.beyond:
            said = f"All {self.settings.max_connections} connections are taken; try again later."
            self._refuse(ProblemError(503, said, headers={"Retry-After": "1"}))
        elif self.behind or self.pending is not None:
            self._keep(data)
        elif not self._begun(data):
            self._feed(data)

    def _begun(self, data: bytes) -> bool:
        """Whether a plain request has taken the short way."""
        if self.stage is not Stage.IDLE or self._answering or self.flow.write_paused or not data.startswith(START):
            return False
        plain = read_plain(data)
        if plain is None:
            return False
        self.pending, self.due = data, inf
        if self.gateway.begin(*plain, self._finish, len(self.connections) == 1) or self.pending is None:
            return True
        self.pending = None
        return False

    def _feed(self, data: bytes) -> None:
        """Have uvicorn's parser read on, up to the end of a request that has to be answered before the next."""
        at = 0
        while at < len(data) and not (self.refused or self.transport.is_closing()):
            if self.pipeline or (self._answering and self.stage is not Stage.BODY):
                self._keep(data[at:])
                return
            size = SLICE if self.stage is not Stage.BODY or not self.left else self.left
            part = data[at : at + size]
            self.brought = False
            self._parse(part)
            at += size
            # extensions and trailers of chunks are a head as well: bytes that are no body
            self.head_size = 0 if self.brought or self.stage is Stage.IDLE else self.head_size + len(part)
            if self.head_size > self.max_head:
                self._refuse_head()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _decline(self, behind: bytes) -> None:
        """Go on in HTTP/1.1 with a client that offers another protocol. The parser, which takes all that is behind the
        head for that protocol, makes room for one that is shown the head without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(ProblemError(400, "CONNECT asks for a proxy, which this is not."))
            return
        fields = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            fields.append((b"connection", b"close"))
        lines = [b"%b %b HTTP/1.1" % (method, self.url), *(b"%b: %b" % field for field in fields), b"", behind]
        self.offered = False
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join(lines))

    def _keep(self, data: bytes) -> None:
        """Read this later."""
        self.behind += data
        self.flow.held = True
        self.flow.pause_reading()

    def _go_on(self) -> None:
        """Read what was kept."""
        if self.behind and self.pending is None and not self.transport.is_closing():
            data, self.behind = self.behind, b""
            self.flow.held = False
            self.flow.resume_reading()
            self.data_received(data)

    def on_message_begin(self) -> None:
        self.stage = Stage.HEAD
        self._due_in(self.settings.head_timeout_s)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is Stage.HEAD:  # trailers are left out
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.offered = self.parser.should_upgrade()
        if self.offered:
            return
        self.stage, self.due = Stage.BODY, inf
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self.refused or size > self.max_head or len(self.headers) > MOST_HEADERS:
            self._refuse_head()
            return
        lengths = [value for name, value in self.headers if name == b"content-length"]
        self.left = int(lengths[0]) if lengths and lengths[0].isdigit() else None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.brought = True
        if self.left is not None:
            self.left -= len(body)
        if not self.refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.offered:
            return
        self.stage = Stage.IDLE
        if not self.refused:
            super().on_message_complete()
            if not self._answering:
                self._due_in(self.settings.idle_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # there is a timer for all
        self._answered()

    def _answered(self) -> None:
        """It is the client's turn."""
        times = {Stage.HEAD: self.settings.head_timeout_s, Stage.BODY: self.settings.timeout_s}
        self._due_in(times.get(self.stage, self.settings.idle_s))
        if self.behind:
            self.loop.call_soon(self._go_on)

    def _finish(self, reply: Reply | None) -> None:
        """Write the answer, or send the request the long way; then go on with what came behind it."""
        data, self.pending = self.pending, None
        if data is None or self.transport.is_closing():
            return
        if reply is None:
            self._feed(data)
            return
        self._write(reply, self.last)
        if self.last:
            self.transport.close()
        self.server_state.total_requests += 1
        self._answered()

    def _write(self, reply: Reply, last: bool) -> None:
        content = [STATUS_LINE[reply.status], reply.fields]
        for name, value in self.server_state.default_headers:
            content += (name, b": ", value, b"\r\n")
        content += (b"connection: close\r\n\r\n" if last else b"\r\n", reply.body)
        self.transport.write(b"".join(content))

    def _refuse(self, problem: ProblemError) -> None:
        """Answer what is no request. What still comes is let by for a moment: closing at once could cost the client
        the answer."""
        if self.refused or self.transport.is_closing():
            return
        self.refused = True
        self.behind, self.flow.held = b"", False
        if self.stage is Stage.BODY and self._answering and not self.cycle.response_started:
            self.cycle.disconnected = True  # what is waited for does not come any more
            self.cycle.message_event.set()
        elif self._answering:  # the answer under way is the last then
            super().shutdown()
            return
        self._write(self.gateway.refuse(problem), last=True)
        self.transport.write_eof()
        self.flow.resume_reading()  # a client that cannot write on may not read the answer
        self.lingers = True
        self._due_in(LINGER)

    def _refuse_head(self) -> None:
        said = f"The head of the request has more than {self.max_head} bytes or {MOST_HEADERS} fields."
        self._refuse(ProblemError(431, said))

    def send_400_response(self, msg: str) -> None:
        self._refuse(ProblemError(400, msg))

    def _due_in(self, seconds: float) -> None:
        self.due = time.monotonic() + seconds

    def _tick(self) -> None:
        """Look several times within the shortest limit whether the client is late."""
        times = self.settings.timeout_s, self.settings.head_timeout_s, self.settings.idle_s, LINGER
        try:
            self.timer = self.loop.call_later(min(times) / 4, self._tick)
        except MemoryError:  # nobody would look after this client any more
            self.transport.abort()
            return
        now = time.monotonic()
        if self.transport.is_closing():
            self.stuck = min(self.stuck, now)
        if now > self.stuck + self.settings.timeout_s or self._is_lost(now):
            self.transport.abort()
        elif now > self.due and (self.lingers or not self._answering):
            if self.stage is Stage.HEAD and not self.refused:
                self._refuse(ProblemError(408, "The head of the request did not arrive in time."))
            else:
                self.transport.close()

    def _is_lost(self, now: float) -> bool:
        """Whether a request was under way when the event loop lost callbacks, and is not answered since."""
        engine = self.gateway.engine
        engine.look_after_lanes()
        asked: object = self.pending if self.pending is not None else self.cycle
        if asked is not self.seen:
            self.seen, self.since = asked, min(self.looked, now)
        self.looked = now
        return self._answering and self.since <= engine.lost_at < now - self.settings.timeout_s

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has said all still gets the answer to it, as the last."""
        if self.stage is not Stage.IDLE or not self._answering:
            return False
        self.behind = b""
        self.shutdown()
        return True

    def pause_writing(self) -> None:
        self.stuck = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck = inf
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pending = None
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.pending is None:
            super().shutdown()
        else:
            self.last = True
