"""The page's files: served from the package alone, open without the key, under a policy that nothing in them breaks.

What a browser does with them is tested by `make page` (tests/page)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from service.serving.page import POLICY, TYPES
from service.watch.specimens import PAGE

FILES = sorted(path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*") if path.suffix in TYPES)
KEY = {"X-API-Key": "secret"}


@pytest.mark.parametrize("path", ["/", "/docs", *(f"/page/{file}" for file in FILES)])
def test_every_file_is_served_with_the_policy(client: Any, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["Content-Type"].split(";")[0] == {
        "": "text/html", ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
        ".svg": "image/svg+xml",
    }[Path(path).suffix]  # fmt: skip
    assert response.headers["Content-Security-Policy"] == POLICY
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in response.headers
    again = client.get(path, headers={"If-None-Match": response.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_policy_has_no_exceptions() -> None:
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    assert "data:" not in POLICY
    assert "http" not in POLICY
    for directive in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert directive in POLICY


@pytest.mark.parametrize("file", [file for file in FILES if file.endswith((".html", ".js", ".css", ".svg"))])
def test_nothing_is_loaded_from_elsewhere_or_inline(file: str) -> None:
    text = (PAGE / file).read_text()
    hosts = set(re.findall(r"(?:https?:)?//([\w.-]+\.\w+)", text)) - {"www.w3.org"}  # the name of SVG
    if not file.startswith("vendor/"):
        assert not hosts
    assert not re.search(r"\beval\(|new Function\(|document\.cookie|localStorage|innerHTML", text)
    if file.endswith(".html"):
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
        assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", text)
        for address in re.findall(r'(?:src|href)="(/page/[^"]+)"', text):
            assert address.removeprefix("/page/") in FILES
    for imported in re.findall(r"(?:from|import\() ?'(\.[^']+)'", text):
        assert (PAGE / file).parent.joinpath(imported).resolve().relative_to(PAGE).as_posix() in FILES


def test_every_id_that_a_script_asks_for_is_in_the_page() -> None:
    there = set(re.findall(r'id="([\w-]+)"', (PAGE / "index.html").read_text()))
    for file in FILES:
        if file.startswith("js/"):
            asked = set(re.findall(r"\$\('([\w-]+)'\)", (PAGE / file).read_text()))
            assert asked <= there, file


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/nothing.js", "/page/specimens.zip", "/page/../app.py", "/page/%2e%2e/app.py",
     "/page//etc/passwd", "/page/js/..%2f..%2f..%2fapp.py", "/page/vendor/LICENSES.txt", "/redoc", "/docs/"],
)  # fmt: skip
def test_nothing_else_is_there(client: Any, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["Content-Type"] == "application/problem+json"


def test_other_methods_are_refused(client: Any) -> None:
    assert client.post("/", content=b"").status_code == 405
    assert client.wait(client.http.head("/")).status_code == 200


def test_the_page_needs_no_key_and_its_data_does(connect: Any, models: Path) -> None:
    client = connect(models, api_key="secret")
    for path in ("/", "/docs", "/page/js/main.js", "/page/atlas.json", "/page/nothing"):
        assert client.get(path).status_code == (404 if path.endswith("nothing") else 200)
    for path in ("/models", "/watch", "/openapi.json", "/metrics", "/watch/radix-16/layers/1/neurons/0", "/pages"):
        assert client.get(path).status_code == 401, path
    for path in ("/median", "/watch", "/numpy"):
        assert client.post(path, json={"vector": [1]}).status_code == 401
        assert client.post(path, json={"vector": [1]}, headers=KEY).status_code == 200


def test_every_answer_forbids_sniffing(client: Any) -> None:
    for response in (client.get("/models"), client.get("/nothing"), client.post("/median", json={"vector": [1]})):
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_the_files_of_the_page_are_installed() -> None:
    """The pattern of package-data takes every file below service/page."""
    text = (PAGE.parents[1] / "pyproject.toml").read_text()
    assert 'service = ["page/**/*"]' in text


def test_the_line_for_readers_without_scripts_works(client: Any) -> None:
    """As curl sends it: a form by its Content-Type, JSON by its first byte."""
    (line,) = re.findall(r"<noscript>.*?<code>(curl .*?)</code>", (PAGE / "index.html").read_text(), re.DOTALL)
    path, body = re.fullmatch(r"curl -s localhost:8000(\S+) -d '(.*)'", line).groups()  # type: ignore[union-attr]
    answer = client.post(path, content=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (answer.status_code, answer.json()) == (200, {"medians": [2.0]})
