"""The page at /, and /docs: static files of the package, served from memory, with nothing from any other host.

The page gets its data from the API, with the API key if one is set. The files themselves need no key. The policy allows no
inline script or style, no frame around the page, and no other host.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.serving import watch_routes
from service.serving.engine import Engine
from service.watch.specimens import PAGE

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",  # browsers ask every time, and get 304
}


class PageFile:
    """A file of the page, ready to send."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.media_type = TYPES[path.suffix]
        self.tag = f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def answer(self, request: Request) -> Response:
        headers = {**HEADERS, "ETag": self.tag}
        if self.tag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def files(folder: Path = PAGE) -> dict[str, PageFile]:
    """All files of the page, by their path below the folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in TYPES and path.is_file())
    return {path.relative_to(folder).as_posix(): PageFile(path) for path in found}


def add_page(app: FastAPI, engine: Engine) -> None:
    """Add the page and its routes. Files are looked up in a dictionary."""
    app.include_router(watch_routes.router(engine))
    served = files()

    def add(path: str, file: str | None) -> None:
        async def page(request: Request) -> Response:
            found = served.get(file or request.path_params["file"])
            if found is None:
                raise HTTPException(404)
            return found.answer(request)

        app.router.add_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)

    add("/", "index.html")
    add("/docs", "index.html")  # which shows that view
    add("/page/{file:path}", None)
