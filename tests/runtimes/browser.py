"""A page in headless Chromium, and the small server that it loads from."""

from __future__ import annotations

import atexit
import mimetypes
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
mimetypes.add_type("text/javascript", ".mjs")
mimetypes.add_type("application/wasm", ".wasm")


def serve(folders: dict[str, Path]) -> str:
    """Serve folders under their prefixes on a free port, isolated as WebAssembly threads need it; returns the origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            body, kind = b"<!doctype html><title>empty</title>", "text/html"
            for prefix, folder in folders.items():
                if path.startswith(prefix):
                    file = folder / path[len(prefix) :]
                    if not file.is_file():
                        self.send_error(404)
                        return
                    body, kind = file.read_bytes(), mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                    break
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def open_page(url: str, width: int = 1000, height: int = 900) -> Any:
    """A new page in Debian's Chromium; it closes when the process ends."""
    from playwright.sync_api import sync_playwright

    driver = sync_playwright().start()
    browser = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
    atexit.register(driver.stop)
    atexit.register(browser.close)
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(url)
    return page


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
