"""Images: a picture before and after, which is what the service makes of its pixels."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from tests.page.browsing import Open, Page, dropped, needs_browser, shot, tab_to, until

pytest.importorskip("playwright", reason="make page installs it")
pytestmark = needs_browser

PIXELS = "id => [...document.getElementById(id).getContext('2d').getImageData(0, 0, 7, 5).data]"
Rows = list[list[tuple[int, int, int]]]


def png(rows: Rows) -> bytes:
    """A picture as a file, of 8 bits and three channels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    body = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def picture(seed: int, width: int = 7, height: int = 5) -> Rows:
    def value(y: int, x: int, c: int) -> int:
        return (seed * 7919 + 104729 * y + 1299709 * x + 15485863 * c) // 97 % 256

    return [[(value(y, x, 0), value(y, x, 1), value(y, x, 2)) for x in range(width)] for y in range(height)]


def median3(rows: Rows) -> list[int]:
    """Of 3 x 3, the border repeated, as a canvas has it."""
    h, w = len(rows), len(rows[0])
    found = []
    for y in range(h):
        for x in range(w):
            near = [rows[min(max(y + i, 0), h - 1)][min(max(x + j, 0), w - 1)] for i in (-1, 0, 1) for j in (-1, 0, 1)]
            found += [sorted(pixel[c] for pixel in near)[4] for c in range(3)] + [255]
    return found


def upload(page: Page, *pictures: Rows) -> None:
    files = [{"name": f"{i}.png", "mimeType": "image/png", "buffer": png(rows)} for i, rows in enumerate(pictures)]
    page.set_input_files("#picture-file", files)


def opened(open_page: Open) -> Page:
    page = open_page("/#images", expected=[422])
    page.wait_for_selector("#images-link:not([hidden])")
    filtered(page, "The example, with noise")
    return page


def filtered(page: Page, source: str) -> None:
    until(page, f"document.getElementById('images-said').textContent.startsWith('{source}: ')")


def test_a_picture_is_filtered_and_every_pixel_is_right(open_page: Open, tmp_path: Path) -> None:
    page = opened(open_page)
    shot(page, "images-example")
    assert page.input_value("#filter") == "median-window3x3-uint8"
    rows = picture(1)
    upload(page, rows)
    filtered(page, "0.png")
    assert page.evaluate(PIXELS, "before")[:3] == list(rows[0][0])
    assert page.evaluate(PIXELS, "after") == median3(rows)
    assert page.get_attribute("#before", "aria-label") == "Before: 0.png, 7 by 5 pixels"
    assert "After: Median of 3 × 3, 7 by 5 pixels" in (page.get_attribute("#after", "aria-label") or "")
    assert "/filter?model=median-window3x3-uint8" in page.inner_text("#images-curl")
    with page.expect_download() as waiting:
        page.click("#picture-save")
    waiting.value.save_as(tmp_path / "filtered.png")
    page.set_input_files("#picture-file", str(tmp_path / "filtered.png"))
    filtered(page, "filtered.png")
    assert page.evaluate(PIXELS, "before") == median3(rows), "what was downloaded is what was seen"
    page.select_option("#filter", "median-window3x3-valid-structured")
    until(page, "document.getElementById('after').width === 5")


def test_noise_is_added_and_taken_away(open_page: Open) -> None:
    page = opened(open_page)
    page.select_option("#filter", "median-window5x5")
    until(page, "document.getElementById('images-said').textContent.includes('median-window5x5')")
    before = page.inner_text("#images-said")
    page.click("#picture-noise")
    until(page, f"document.getElementById('images-said').textContent !== {before!r}")
    shot(page, "images-noise")


def test_frames_are_several_pictures(open_page: Open) -> None:
    page = opened(open_page)
    page.select_option("#filter", "median-frames5-uint8")
    until(page, "document.getElementById('images-said').textContent.includes('median-frames5-uint8')")
    shot(page, "images-frames")
    assert page.inner_text("#picture-choose") == "Choose 5 pictures"
    frames = [picture(seed) for seed in range(5)]
    upload(page, *frames)
    filtered(page, "0.png, 1.png, 2.png, 3.png, 4.png")
    wanted = [
        value
        for y in range(5)
        for x in range(7)
        for value in [*(sorted(frame[y][x][c] for frame in frames)[2] for c in range(3)), 255]
    ]
    assert page.evaluate(PIXELS, "after") == wanted
    upload(page, frames[0])
    page.wait_for_selector("#images-error:not([hidden])")
    assert "takes 5 pictures, not 1" in page.inner_text("#images-error")


def test_what_cannot_be_filtered_is_told(open_page: Open) -> None:
    page = opened(open_page)
    page.set_input_files("#picture-file", {"name": "no.png", "mimeType": "image/png", "buffer": b"nothing"})
    page.wait_for_selector("#images-error:not([hidden])")
    assert "no.png is no picture" in page.inner_text("#images-error")
    page.select_option("#filter", "median-window3x3-valid-structured")
    until(page, "document.getElementById('images-said').textContent.includes('valid')")
    upload(page, picture(1, 2, 2))
    until(page, "document.getElementById('images-error').textContent.includes('no border')")
    assert page.is_disabled("#picture-save")


def test_a_picture_is_dropped(open_page: Open) -> None:
    page = opened(open_page)
    dropped(page, "#picture-drop", "dropped.png", png(picture(2)))
    filtered(page, "dropped.png")
    assert page.evaluate(PIXELS, "after") == median3(picture(2))


def test_by_keyboard_alone(open_page: Open) -> None:
    page = opened(open_page)
    for name in ("filter", "picture-choose", "picture-example", "picture-noise", "images-curl"):
        tab_to(page, f"#{name}", 20)
        if name == "filter":
            page.keyboard.press("ArrowDown")
            until(page, "document.getElementById('images-said').textContent.includes('median-window3x3-valid')")
        if name == "picture-noise":
            before = page.inner_text("#images-said")
            page.keyboard.press("Enter")
            until(page, f"document.getElementById('images-said').textContent !== {before!r}")
