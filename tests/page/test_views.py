"""Compare, Models and /docs; and what holds for every view: key, keyboard, names, contrast, dark, 360 pixels."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.page.browsing import ROOT, VIEWS, Open, answer, needs_browser, shot, tab_to, until

pytest.importorskip("playwright", reason="make page installs it")
pytestmark = needs_browser


def test_compare(open_page: Open) -> None:
    page = open_page("/#compare")
    page.wait_for_selector("#atlas .point")
    assert page.inner_text("#d-value") == "2,048"
    assert "Corollary 4.8" in page.inner_text("#atlas")
    point = page.locator("#atlas .point[aria-label^='compact:']")
    point.hover()
    assert "47,128 = 23.01 d" in page.inner_text("#atlas-tip")
    page.mouse.move(0, 0)
    page.focus("#d")
    page.keyboard.press("End")
    far = page.inner_text("#d-value")
    assert int(far.replace(",", "")) == 65_536
    assert f"compact, d = {far}" in page.inner_text("#atlas-tip")
    page.check("[name=op][value=max]")
    page.wait_for_selector("#atlas .point[aria-label^='tree-max:']")
    assert "Corollary" not in page.inner_text("#atlas")
    page.click("#compare summary")
    assert page.locator("#atlas-table tbody tr").count() == page.locator("#atlas .point").count()
    again = open_page("/#compare?d=4096&op=max")
    again.wait_for_selector("#atlas .frontier")
    assert again.inner_text("#d-value") == "4,096"


OVERLAPS = """() => {
  const labels = [...document.querySelectorAll('#atlas text.series')], boxes = labels.map((e) => e.getBoundingClientRect())
  const across = (a, b) => a.left < b.right && b.left < a.right
  const down = (a, b) => a.top + 3 < b.bottom - 3 && b.top + 3 < a.bottom - 3
  const met = (a, i) => boxes.slice(i + 1).filter((b) => across(a, b) && down(a, b)).map(() => labels[i].textContent)
  return boxes.flatMap(met)
}"""


@pytest.mark.parametrize("width", [1440, 360])
def test_labels_of_compare_do_not_overlap(open_page: Open, width: int) -> None:
    page = open_page("/#compare", width=width)
    page.wait_for_selector("#atlas .point")
    for d in range(int(page.get_attribute("#d", "max")) + 1):
        page.evaluate(MOVE, d)
        assert page.evaluate(OVERLAPS) == [], (d, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_construction_has_its_own_colour_and_shape(open_page: Open, scheme: Any) -> None:
    """Over all d and both questions: colours are far apart, and further where two of them share a shape."""
    page = open_page("/#compare")
    page.emulate_media(color_scheme=scheme)
    page.wait_for_selector("#atlas .point")
    seen: dict[str, tuple[list[int], object]] = {}
    for op in ("median", "max"):
        page.check(f"[name=op][value={op}]")
        for d in range(int(page.get_attribute("#d", "max")) + 1):
            page.evaluate(MOVE, d)
            seen |= {name: (colour, outline(path)) for name, colour, path in page.evaluate(MARKS)}
    rows = json.loads((ROOT / "service" / "page" / "atlas.json").read_text())["rows"]
    assert set(seen) == {row["construction"] for row in rows if row["width"]}
    for (one, (colour, shape)), (two, (other, its)) in combinations(seen.items(), 2):
        assert math.dist(colour, other) >= (90 if shape == its else 30), (one, two)


MOVE = "(d) => { const at = document.getElementById('d'); at.value = d; at.dispatchEvent(new Event('input')) }"
# names of the points, their colours as a screen shows them, and their paths
MARKS = """() => [...document.querySelectorAll('#atlas .point')].map((point) => {
  const pen = document.createElement('canvas').getContext('2d')
  pen.fillStyle = getComputedStyle(point).fill
  pen.fillRect(0, 0, 1, 1)
  const colour = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3)
  return [point.getAttribute('aria-label').split(':')[0], colour, point.getAttribute('d')]
})"""


def outline(path: str) -> object:
    """The corners of a point about their middle; a circle has none."""
    corners = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[-.\d]+,[-.\d]+", path)]
    x, y = (sum(axis) / len(corners) for axis in zip(*corners, strict=True))
    return None if "a" in path else [(round(at - x), round(up - y)) for at, up in corners]


def test_models(open_page: Open, tmp_path: Path, folder: Path) -> None:
    page = open_page("/#models")
    page.wait_for_selector("#model-list tbody tr")
    name = "median-radix-d25-b16-float32-structured"
    row = page.locator("#model-list tbody tr", has=page.get_by_role("button", name=f"Download {name}.onnx", exact=True))
    assert "Right on every input of its grid" in row.inner_text()
    with page.expect_download() as waiting:
        row.get_by_role("button").click()
    waiting.value.save_as(tmp_path / "file.onnx")
    assert (tmp_path / "file.onnx").read_bytes() == (folder / f"{name}.onnx").read_bytes()
    assert "gone.onnx" in page.inner_text("#left-out")
    chance = page.locator("#model-list tbody tr", has_text="median-compact-d64-b16-structured")
    assert "Right, except on at most" in chance.inner_text()
    shot(page, "models")


def test_the_key_is_asked_for_once_and_kept_in_the_page(open_page: Open, locked: str) -> None:
    page = open_page(locked + "/", expected=[401, 413])
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('key-error').textContent !== ''")
    page.fill("#key", "correct horse")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-dialog", state="hidden")
    page.fill("#numbers", "3 1 2")
    page.click("#compute")
    answer(page, 2)
    assert "correct horse" not in page.inner_text("#curl")
    assert "$MEDIAN_API_KEY" in page.inner_text("#curl")
    for view in VIEWS[1:]:
        page.click(f"nav a[href='#{view}']")
        page.wait_for_load_state("networkidle")
        assert not page.is_visible("#key-dialog")
    page.wait_for_selector("#model-list tbody tr")
    assert page.locator("#model-list tbody tr").count() > 10
    page.click("nav a[href='#try']")
    page.click("[data-example=normal]")
    page.wait_for_selector("#try-error:not([hidden])")
    assert "larger than 10485 bytes" in page.inner_text("#try-error")  # what the service refuses is told
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    page.wait_for_selector("#key-dialog[open]")
    page.click("#key-cancel")


def test_by_keyboard_alone(open_page: Open) -> None:
    """From the first Tab to an answer, to another view, to a neuron's formula, without a pointer."""
    page = open_page("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    tab_to(page, "#numbers")
    page.keyboard.type("9 4 7")
    tab_to(page, "#compute")
    page.keyboard.press("Enter")
    answer(page, 7)
    page.keyboard.press("Control+Home")
    page.evaluate("document.activeElement.blur()")
    tab_to(page, "nav a[href='#watch']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#watch-stage:not([hidden])")
    tab_to(page, "#next")
    page.keyboard.press("Space")
    assert page.inner_text("#layer-text").startswith("Layer 1 ")
    tab_to(page, "#layer")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#layer-text").startswith("Layer 2 ")
    tab_to(page, "#neurons svg")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#formula .expression")
    page.evaluate("document.activeElement.blur()")
    page.goto(page.url.split("#")[0] + "#compare")
    page.wait_for_selector("#atlas .point")
    tab_to(page, "#atlas .point")
    assert "failure" in page.inner_text("#atlas-tip")


def test_everything_has_a_name(open_page: Open) -> None:
    """Every control and picture has a name for a screen reader."""
    page = open_page("/")
    page.click("[data-example=few]")
    page.wait_for_selector("#answer-full:not([hidden])")
    for view in VIEWS:
        page.goto(page.url.split("#")[0] + f"#{view}")
        page.wait_for_load_state("networkidle")
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, input, select, textarea, a, [role]')]
            .filter((e) => e.checkVisibility() && !e.matches('[aria-hidden], [role=status], [role=alert]'))
            .filter((e) => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))
            .map((e) => e.outerHTML.slice(0, 120))"""
        )
        assert not nameless
        heads = page.eval_on_selector_all("h1", "all => all.filter(e => e.checkVisibility()).length")
        assert heads == 1


CONTRAST = """() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
  const parse = (c) => {
    pen.clearRect(0, 0, 1, 1)
    pen.fillStyle = c
    pen.fillRect(0, 0, 1, 1)
    const [r, g, b, opaque] = pen.getImageData(0, 0, 1, 1).data
    return opaque ? [r, g, b] : null
  }
  const part = (v) => (v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4)
  const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b)
  const ground = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c) return c }
    return [255, 255, 255]
  }
  const low = []
  for (const e of document.querySelectorAll('body *')) {
    const words = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
    if (!words || !e.checkVisibility() || e.closest('[disabled], .ahead, .visually-hidden, .skip, .stale')) continue
    const style = getComputedStyle(e), ink = parse(e instanceof SVGElement ? style.fill : style.color)
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x)
    const ratio = (a + .05) / (b + .05)
    if (ratio < 4.5) low.push([e.textContent.trim().slice(0, 40), ratio.toFixed(2)])
  }
  return low
}"""


# texts squeezed into a column of letters
SQUEEZED = """() => [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('svg'))
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim().length > 20))
  .filter((e) => e.getBoundingClientRect().width < 60)
  .map((e) => e.textContent.trim().slice(0, 40))"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 768, 360])
def test_every_view_fits_and_can_be_read(open_page: Open, dark: bool, width: int) -> None:
    page = open_page("/", width=width, dark=dark)
    page.click("[data-example=few]")
    page.wait_for_selector("#answer-full:not([hidden])")
    name = f"{'dark' if dark else 'light'}-{width}"
    for view in VIEWS:
        page.goto(page.url.split("#")[0] + f"#{view}")
        page.wait_for_load_state("networkidle")
        if view == "watch":
            page.click("#last")
            for kind in ("pairs", "live", "bracket"):
                page.locator(f"#idea-{kind}").scroll_into_view_if_needed()
                page.wait_for_selector(f"#idea-{kind} svg[role=img]")
        assert page.evaluate(SQUEEZED) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert page.evaluate(CONTRAST) == [], view
        shot(page, f"{view}-{name}")
    page.goto(page.url.split("#")[0] + "docs")
    page.wait_for_selector(".operation")
    page.click(".operation summary")
    page.wait_for_selector(".operation dl")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SQUEEZED) == []
    assert page.evaluate(CONTRAST) == []
    shot(page, f"docs-{name}")


def test_less_motion(open_page: Open) -> None:
    page = open_page("/", reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.querySelector('#answer')).transitionDuration") == "0s"


def test_docs_work_offline(open_page: Open) -> None:
    """Nothing from another host, every operation there, and one that can be sent."""
    page = open_page("/docs", expected=[422])
    page.wait_for_selector(".operation")
    paths = page.evaluate(
        "fetch('/openapi.json').then(r => r.json()).then(d => Object.values(d.paths).map(o => Object.keys(o).length))"
    )
    assert page.locator(".operation").count() == sum(paths)
    median = page.locator(".operation", has=page.locator(".path", has_text="/median")).first
    median.locator("summary").first.click()
    median.get_by_label("Body").fill('{"vector": [4, 8, 6], "exact": true}')
    median.get_by_role("button", name="Send").click()
    until(page, "document.querySelector('.operation pre[tabindex]')?.textContent.includes('medians')")
    assert '"medians": [\n  6\n ]' in median.locator("pre[tabindex]").inner_text()
    assert median.inner_text().count("Problem details") == 1, "rows of errors that are alike are one"
    median.get_by_label("Body").fill('{"vector": ["x"]}')
    median.get_by_role("button", name="Send").click()
    until(page, "document.querySelector('.operation pre[tabindex]').textContent.includes('not a number')")


def test_a_service_that_is_gone_is_told(open_page: Open) -> None:
    page = open_page("/", expected=[0])
    page.fill("#numbers", "1 2 3")
    page.route("**/median", lambda route: route.abort())
    page.click("#compute")
    page.wait_for_selector("#try-error:not([hidden])")
    assert "cannot be reached" in page.inner_text("#try-error")
