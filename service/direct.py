"""uvicorn's HTTP protocol with a short way for medians.

A request of one vector is answered in less time than a task, an ASGI exchange and their bookkeeping take. So a POST
/median that arrives in one piece is shown to `Front.begin` first, with its whole body; if that takes it, the answer is
written from there, in one piece too. Everything else, and everything that goes wrong, is uvicorn's as ever: the short
way touches nothing that the long way needs, so a request can still be sent there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.formats import Reply
from service.front import Front


class DirectProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        app: Any = self.app
        while app is not None and not isinstance(app, Front):  # under uvicorn's own middleware
            app = getattr(app, "app", None)
        self.front: Front | None = app
        self.receiving = False
        self.held: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        self.receiving = True
        super().data_received(data)
        self.receiving = False
        if (cycle := self.held) is not None:  # the rest of the body is yet to come
            self.held = None
            super()._start_asgi_task(cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Hold a request for a median back until its body is here, which may be soon."""
        scope: Any = cycle.scope
        is_median = scope["path"] == "/median" and scope["method"] == "POST"
        if is_median and self.receiving and cycle.more_body and app is self.app and not self.expect_100_continue:
            self.held = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if (cycle := self.held) is not None:
            self.held = None
            scope: Any = cycle.scope
            if self.front is None or not self.front.begin(scope, bytes(cycle.body), partial(self._finish, cycle)):
                super()._start_asgi_task(cycle, self.app)

    def _finish(self, cycle: RequestResponseCycle, reply: Reply | None) -> None:
        """Write the answer, and leave connection and cycle as uvicorn does."""
        if cycle.disconnected or self.transport.is_closing():
            return
        if reply is None:
            super()._start_asgi_task(cycle, self.app)
            return
        content = [STATUS_LINE[reply.status]]
        for name, value in (*cycle.default_headers, *reply.headers):
            content += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            content.append(b"connection: close\r\n")
        content += (b"\r\n", reply.body)
        cycle.response_started = cycle.response_complete = True
        self.transport.write(b"".join(content))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
