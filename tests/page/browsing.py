"""What the tests of the page share: a service to look at, waiting for what it shows, pictures of it (SHOTS)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import free_port

Page = Any  # playwright's; `make test` goes without it
Open = Callable[..., Page]
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium")
PYTHON = Path(os.environ.get("SERVICE_PYTHON", ROOT / ".venv/bin/python"))
SHOTS = os.environ.get("SHOTS")  # a folder for pictures of what was tested
VIEWS = ("try", "watch", "compare", "images", "models")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="make page installs Debian's chromium where it may")


def start(folder: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    command = [str(PYTHON), "-m", "service", "--models", str(folder), "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})
    url = f"http://127.0.0.1:{port}"
    for _ in range(1200):
        assert process.poll() is None, "the service did not start"
        try:
            urllib.request.urlopen(url + "/readyz")
            return process, url
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the service was not ready within a minute")


def shot(page: Page, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def until(page: Page, expression: str, seconds: float = 20) -> None:
    """Wait for an expression to be true. (playwright's own way evaluates text in the page, which its policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def tab_to(page: Page, selector: str, most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
            return
    raise AssertionError(f"{selector} is not reached")


def dropped(page: Page, at: str, name: str, content: bytes) -> None:
    """Drop a file on an element."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => {
          const transfer = new DataTransfer()
          transfer.items.add(new File([new Uint8Array(bytes)], name))
          return transfer
        }""",
        [name, list(content)],
    )
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event(at, kind, {"dataTransfer": transfer})


def answer(page: Page, expected: float) -> None:
    until(page, f"document.getElementById('median').textContent === {json.dumps(number(expected))}")


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def watched(page: Page, construction: str, numbers: str) -> None:
    """Wait for the network of a construction on so many numbers."""
    page.select_option("#construction", construction)
    page.click(f'[data-watch="{numbers}"]')
    until(page, f"document.getElementById('watch-about').textContent.startsWith('{construction}:')")
    until(page, f"document.querySelector('[data-watch=\"{numbers}\"]').getAttribute('aria-pressed') === 'true'")
    page.wait_for_load_state("networkidle")
