"""Watch: every construction at work, layer by layer, down to a neuron."""

from __future__ import annotations

import json

import pytest

from tests.page.browsing import Open, Page, answer, needs_browser, shot, until, watched

pytest.importorskip("playwright", reason="make page installs it")
pytestmark = needs_browser


SCENES = {
    "radix": ("16", "The bracket closes, digit by digit"),
    "batcher": ("16", "Comparators"),
    "depth3": ("16", "All pairs, compared at once"),
    "depth5": ("64", "How 64 entries become 54"),
    "linear46": ("256", "How 256 entries become"),
    "compact": ("2048", "How 2,048 entries become"),
    "window5": ("256", ""),
    "window6": ("256", ""),
}


def opened(open_page: Open) -> Page:
    page = open_page("/#watch")
    page.wait_for_selector("#watch-stage:not([hidden])")
    return page


@pytest.mark.parametrize("construction", SCENES)
def test_watch(open_page: Open, construction: str) -> None:
    page = opened(open_page)
    numbers, title = SCENES[construction]
    watched(page, construction, numbers)
    until(page, f"document.getElementById('scene-title').textContent.startsWith({json.dumps(title)})")
    said = page.inner_text("#watch-about")
    assert "counting proves it" in said
    assert ("made for uniform inputs" in said) == construction.startswith("window")
    assert page.inner_text("#layer-text") == "The input"
    last = int(page.get_attribute("#layer", "max") or 0)
    page.click("#next")
    assert page.inner_text("#layer-text").startswith("Layer 1 of ")
    before = page.inner_html("#scene")
    page.click("#last")
    assert page.input_value("#layer") == str(last)
    assert page.inner_html("#scene") != before
    assert page.is_disabled("#next")
    page.click("#back")
    assert page.input_value("#layer") == str(last - 1)
    shot(page, f"watch-{construction}")


def test_watch_opens_on_a_sorting_network_and_follows_a_wire(open_page: Open) -> None:
    page = opened(open_page)
    assert page.input_value("#construction") == "batcher"
    assert page.url.endswith("#watch?construction=batcher&n=16")
    page.click("#last")
    page.locator("#scene line[data-entry='3']").first.dispatch_event("pointerenter")
    assert page.inner_text("#scene-tip").endswith("number 4.")
    assert page.locator("#scene .following line.on").count() == page.locator("#scene line[data-entry='3']").count()
    assert "the way of the answer" in page.inner_text("#scene-legend")
    watched(page, "batcher", "9")
    assert "filler" not in page.inner_text("#watch-about")


def test_an_idea_leads_to_its_construction(open_page: Open) -> None:
    page = opened(open_page)
    page.get_by_role("button", name="Watch radix").click()
    until(page, "document.getElementById('scene-title').textContent.startsWith('The bracket')")


def test_every_construction_that_is_offered_can_be_watched(open_page: Open) -> None:
    page = opened(open_page)
    offered = page.eval_on_selector_all("#construction option", "all => all.map(o => o.value)")
    assert set(SCENES) <= set(offered)
    for construction in offered:
        watched(page, construction, "256")
        page.click("#last")
        assert page.inner_text("#layer-text").startswith("Layer ")
        assert not page.is_visible("#watch-error")


def test_watch_plays_to_the_end(open_page: Open) -> None:
    page = opened(open_page)
    watched(page, "depth3", "9")
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    until(page, "document.getElementById('layer').value === document.getElementById('layer').max")
    assert page.inner_text("#play") == "Play"


def test_watch_a_neuron(open_page: Open) -> None:
    """Pointing at a neuron tells its formula, whose value is what its weights and the values beside them give."""
    page = opened(open_page)
    watched(page, "batcher", "16")
    for _ in range(4):
        page.click("#next")
    page.hover("#neurons svg", position={"x": 12, "y": 8})
    page.wait_for_selector("#formula .expression")
    assert page.inner_text("#formula .expression").startswith("relu( ")
    rows = page.eval_on_selector_all("#formula tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))")
    total = sum(float(weight) * float(value) for _, weight, value in rows)
    shown = float(page.inner_text("#formula strong").split("=")[1])
    assert shown == pytest.approx(max(total, 0), abs=2e-5)
    assert "wire 1 > wire " in page.inner_text("#formula p")
    page.focus("#neurons svg")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#formula strong').textContent.includes('·2 ')")


def test_watch_your_numbers(open_page: Open) -> None:
    page = open_page("/")
    page.fill("#numbers", "5 3 8")
    page.click("#compute")
    answer(page, 5)
    page.click("nav a[href='#watch']")
    until(page, "document.getElementById('watch-about').textContent.includes('Your 3 numbers')")
    assert "It answers 5, and counting proves it." in page.inner_text("#watch-about")
    page.goto(page.url.split("#")[0] + "#try")
    page.fill("#numbers", " ".join(str(i) for i in range(63)))
    page.click("#compute")
    page.click("nav a[href='#watch']")
    until(page, "document.getElementById('watch-about').textContent.includes('63 numbers')")
    assert "It answers 31, and counting proves it." in page.inner_text("#watch-about")
