"""uvicorn's HTTP protocol with limits that uvicorn lacks: bytes, fields and time of a head; time without a request;
connections; unread requests; unread answers. `gateway` limits bodies.
"""

from __future__ import annotations

import asyncio
import time
from enum import Enum, auto
from math import inf
from typing import Any

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import ProblemError
from service.serving.gateway import Gateway

SLICE = 4096  # bytes the parser is shown at a time, so that few requests in a row are taken in
MOST_HEADERS = 128
LINGER = 1.0  # seconds between refusing a client and closing its connection


class Flow(FlowControl):
    """uvicorn's flow control, which also stops reading while received bytes are unread."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Stage(Enum):
    """Which part of a request uvicorn's parser expects next."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    uvicorn's parser gets the bytes of one request at a time. Later bytes wait unread, and so does the client. A connection
    has a deadline (`due`) while the client has to send or read.
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
        self.left: int | None = None  # bytes of the body to come, if known
        self.behind = b""  # bytes behind the request under way
        self.due = inf
        self.stuck = inf  # since when the client does not read
        self.timer: asyncio.TimerHandle | None = None
        self.beyond = False  # a connection too many
        self.refused = False
        self.ending = False  # the service ends: the next answer is the last
        self.lingers = False  # nothing more is written; received bytes are dropped until `due`

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

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
        elif self.behind:
            self._keep(data)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Let uvicorn's parser read up to the end of one request."""
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
            # extensions and trailers of chunks count as a head: they are not part of the body
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
        """Stay with HTTP/1.1 if a client offers another protocol. The parser would take the rest of the connection for that
        protocol, so a new parser reads the head without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(ProblemError(400, "CONNECT is for proxies, and this service is not a proxy."))
            return
        fields = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            fields.append((b"connection", b"close"))
        lines = [b"%b %b HTTP/1.1" % (method, self.url), *(b"%b: %b" % field for field in fields), b"", behind]
        self.offered = False
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join(lines))

    def _keep(self, data: bytes) -> None:
        """Keep bytes to read later."""
        self.behind += data
        self.flow.held = True
        self.flow.pause_reading()

    def _go_on(self) -> None:
        """Read the kept bytes."""
        if self.behind and not self.transport.is_closing():
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
        length = lengths[0].strip(b" \t") if lengths else b""
        self.left = int(length) if length.isdigit() else None
        super().on_headers_complete()
        if self.ending and self.cycle is not None:
            self.cycle.keep_alive = False

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
        self._unset_keepalive_if_required()  # one timer serves all connections
        self._answered()

    def _answered(self) -> None:
        """The request is answered; the client may send the next."""
        times = {Stage.HEAD: self.settings.head_timeout_s, Stage.BODY: self.settings.timeout_s}
        self._due_in(times.get(self.stage, self.settings.idle_s))
        if self.behind:
            self.loop.call_soon(self._go_on)

    def shutdown(self) -> None:
        """The service ends. A client without a request under way has a moment left for one request."""
        self.ending = True
        if self.cycle is None and not (self.refused or self.beyond):
            self._due_in(LINGER)
        else:
            super().shutdown()

    def _write(self, response: Response) -> None:
        """Write the last answer of the connection."""
        lines = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        status, body = STATUS_LINE[response.status_code], bytes(response.body)
        content = [status, *(b"%b: %b\r\n" % line for line in lines), b"\r\n", body]
        self.transport.write(b"".join(content))

    def _refuse(self, problem: ProblemError) -> None:
        """Answer bytes that are not a request. Further bytes are dropped for a moment: if the connection closed at once,
        the client could lose the answer."""
        if self.refused or self.transport.is_closing():
            return
        self.refused = True
        self.behind, self.flow.held = b"", False
        if self.stage is Stage.BODY and self._answering and not self.cycle.response_started:
            self.cycle.disconnected = True  # the rest of the request never comes
            self.cycle.waiting_for_100_continue = False  # the refusal below is the last answer
            self.cycle.message_event.set()
        elif self._answering:  # the answer under way is the last one
            super().shutdown()
            return
        self._write(self.gateway.refuse(problem))
        self.transport.write_eof()
        self.flow.resume_reading()  # a client that is still writing may not read the answer
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
        """Check several times within the shortest limit whether the client is late."""
        times = self.settings.timeout_s, self.settings.head_timeout_s, self.settings.idle_s, LINGER
        self.timer = self.loop.call_later(min(times) / 4, self._tick)
        now = time.monotonic()
        if self.transport.is_closing():
            self.stuck = min(self.stuck, now)
        if now > self.stuck + self.settings.timeout_s:
            self.transport.abort()
        elif now > self.due and (self.lingers or not self._answering):
            if self.stage is Stage.HEAD and not self.refused:
                self._refuse(ProblemError(408, "The head of the request did not arrive in time."))
            else:
                self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that stopped sending still gets its last answer."""
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
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)
