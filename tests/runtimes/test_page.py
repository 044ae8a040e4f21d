"""The page models/browser/index.html in headless Chromium; runs in `make runtimes`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="make runtimes installs it")

from tests.runtimes.browser import chromium, open_page, serve

MODELS = Path(__file__).resolve().parents[2] / "models"
READY = "document.querySelector('#verdict').textContent !== ''"

pytestmark = pytest.mark.skipif(
    chromium() is None or not (MODELS / "browser" / "ort").is_dir(),
    reason="make runtimes sets up Chromium and the page",
)


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    page = open_page(serve({"/": MODELS}) + "/browser/index.html")
    page.wait_for_function(READY)
    yield page
    page.close()


def _verdict(page: Any) -> str:
    page.wait_for_timeout(200)
    return str(page.inner_text("#verdict"))


def test_random_numbers_come_out_equal(page: Any) -> None:
    for button in ("#random", "#ties"):
        for _ in range(5):
            page.click(button)
            assert _verdict(page).startswith("Equal, bit for bit")
    numbers = [float(v) for v in page.input_value("#numbers").split()]
    assert len(numbers) == 25
    assert float(page.inner_text("#network")) == pytest.approx(statistics.median(numbers), abs=1e-8)


def test_every_listed_model_is_exact(page: Any) -> None:
    names = page.eval_on_selector_all("#model option", "options => options.map(o => o.text)")
    assert len(names) >= 9
    for name in names:
        page.select_option("#model", label=name)
        page.wait_for_function(f"document.querySelector('#facts').textContent.includes({name.split('-')[1]!r})")
        assert _verdict(page).startswith("Equal, bit for bit"), name


def test_typed_numbers_are_padded_and_refused(page: Any) -> None:
    page.select_option("#model", label="median-batcher-d9-b16-float32-structured")
    page.wait_for_timeout(300)
    page.fill("#numbers", "0.5, 0.25\n0.75")
    assert _verdict(page).startswith("Equal, bit for bit")
    assert page.inner_text("#network") == "0.5"
    page.fill("#numbers", "0.5 0.25")
    assert "takes 9 numbers or fewer by an even count, here are 2" in _verdict(page)
    page.fill("#numbers", "0.5 many 0.25")
    assert "“many” is not a number in [0, 1]" in _verdict(page)


def test_a_file_from_disk(page: Any, tmp_path: Path) -> None:
    page.set_input_files("#file", MODELS / "reference" / "median-depth3-d9-b16-float32-structured.onnx")
    assert _verdict(page).startswith("Equal, bit for bit")
    other = tmp_path / "other.onnx"
    other.write_bytes(b"\x09 not a model")
    page.set_input_files("#file", other)
    assert "not an ONNX file" in _verdict(page)
