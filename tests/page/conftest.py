"""The page in a real browser: `make page`. Debian's chromium, driven by playwright, against services started here.

Every test fails on any message of the console, error of a script, breach of the policy, or request to another host."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.page.browsing import CHROMIUM, PYTHON, ROOT, Open, Page, start

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
EXPORTED = [
    "--d 2048 --construction radix --profile fused --optimize-for latency",
    "--window 3x3 --dtype uint8",
    "--window 5x5",
    "--window 3x3 --border valid --profile structured",
    "--frames 5 --dtype uint8",
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference models, one of 2048 numbers, filters for images, and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("page") / "models"
    shutil.copytree(ROOT / "models" / "reference", folder)
    for options in EXPORTED:
        command = [str(PYTHON), "-m", "exporter", *options.split(), "--out", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["models"].append({**manifest["models"][0], "file": "gone.onnx"})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def url(folder: Path) -> Iterator[str]:
    process, url = start(folder)
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="session")
def locked(folder: Path) -> Iterator[str]:
    process, url = start(folder, MEDIAN_API_KEY="correct horse", MEDIAN_MAX_BODY_MIB="0.01")
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[Open]:
    """Open pages; whatever is wrong in one of them fails the test at its end."""
    wrong: list[str] = []
    contexts = []

    def open_at(at: str = "", width: int = 1200, dark: bool = False, expected: Sequence[int] = (), **more: Any) -> Page:
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        base = at if at.startswith("http") else url
        page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
        page.on(
            "request", lambda each: None if each.url.startswith((base, "blob:")) else wrong.append(f"asked {each.url}")
        )

        def said(message: Any) -> None:
            refused = "net::ERR_FAILED" in message.text and 0 in expected
            refused = refused or any(f"status of {status}" in message.text for status in expected)
            if message.type in ("error", "warning") and not refused:
                wrong.append(f"console: {message.text}")

        page.on("console", said)
        page.goto(at if at.startswith("http") else url + at)
        return page

    yield open_at
    cookies = [cookie for context in contexts for cookie in context.cookies()]
    for context in contexts:
        context.close()
    assert not wrong
    assert not cookies
