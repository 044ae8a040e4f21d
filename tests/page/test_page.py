"""The page in a real browser: `make page`. Debian's chromium, driven by playwright, against services started here.

Every test fails on any message of the console, error of a script, breach of the policy, or request to another host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="make page installs it")

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PYTHON = Path(os.environ.get("SERVICE_PYTHON", ROOT / ".venv/bin/python"))
SHOTS = os.environ.get("SHOTS")  # a folder for pictures of what was tested
VIEWS = ("try", "watch", "compare", "models")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="make page installs Debian's chromium where it may")
Open = Callable[..., Page]


def start(folder: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference models, one of 2048 numbers (the service adds its odd companion), and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("page") / "models"
    shutil.copytree(ROOT / "models" / "reference", folder)
    options = [
        "--d",
        "2048",
        "--construction",
        "radix",
        "--profile",
        "fused",
        "--tune",
        "latency",
        "--out",
        str(folder),
    ]
    subprocess.run([str(PYTHON), "-m", "exporter", *options], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
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
        page: Page = context.new_page()
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


def shot(page: Page, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def until(page: Page, expression: str, seconds: float = 20) -> None:
    """Wait for an expression to be true. (playwright's own way evaluates text in the page, which its policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


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


def test_try_typed_numbers(open_page: Open) -> None:
    page = open_page("/")
    assert page.title() == "Try · onnx-median"
    page.fill("#numbers", "3.5 1, 2.25\n8;-4")
    page.click("#compute")
    answer(page, 2.25)
    assert page.inner_text("#certificate") == "2 below, 2 above, 1 equal to it. The service has proven it by counting."
    assert page.inner_text("#answer-title") == "Median of 5 numbers"
    assert "numpy.median" in page.inner_text("#facts")
    assert page.get_attribute("#histogram svg", "aria-label") == (
        "Histogram of 5 numbers from -4 to 8; the median 2.25 is marked."
    )
    until(page, "document.getElementById('times').textContent.includes('numpy.median')")
    page.uncheck("#exact")
    until(page, "document.getElementById('facts').textContent.includes('at most')")


def test_the_curl_line_does_the_same(open_page: Open) -> None:
    page = open_page("/")
    page.fill("#numbers", "1e300, -0.5, 7")
    page.click("#compute")
    answer(page, 7)
    line = page.inner_text("#curl")
    done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["medians"] == [7.0]


def test_examples(open_page: Open) -> None:
    page = open_page("/")
    for name, count in (("few", 9), ("normal", 2048), ("skewed", 1999), ("ties", 500)):
        page.click(f"[data-example={name}]")
        numbers = [float(word) for word in page.input_value("#numbers").split(",")]
        assert len(numbers) == count
        answer(page, statistics.median(numbers))
        assert page.inner_text("#answer-title") == f"Median of {count:,} numbers"
        below, above = (sum(sign * value < sign * statistics.median(numbers) for value in numbers) for sign in (1, -1))
        assert page.inner_text("#certificate").startswith(f"{below:,} below, {above:,} above")
    shot(page, "try-dice")


def npy(values: list[float], kind: str = "<f8", shape: str = "") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape or f'{len(values)},'}), }}"
    head = head.ljust(117) + "\n"
    code = {"<f8": "<d", "<f4": "<f", ">i4": ">i", "|u1": "B"}[kind]
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(head))
        + head.encode()
        + b"".join(struct.pack(code, v) for v in values)
    )


UPLOADS: list[tuple[str, bytes, float, list[str]]] = [
    ("plain.txt", b"5\n1\n9\n", 5, []),
    ("table.csv", b"name,price,size\nx,1.5,10\ny,2.5,30\nz,99,20\n", 2.5, ["price (3)", "size (3)"]),
    ("semicolon.csv", b'"a b";c\n1;4\n2;5\n3;9\n', 2, ["a b (3)", "c (3)"]),
    ("one.csv", b"\xef\xbb\xbfvalue\n4\n2\n8\n", 4, []),
    ("vector.npy", npy([4, 1, 3, 2]), 2.5, []),
    ("small.npy", npy([4, 1, 250], "|u1"), 4, []),
    ("big.npy", npy([-4, 1, 3], ">i4"), 1, []),
    ("matrix.npy", npy([1, 2, 9, 4, 5, 6], "<f4", "2, 3"), 2, ["row 1 (3)", "row 2 (3)"]),
    ("vectors.json", b'{"vectors": [[1, 5, 3], [7]]}', 3, ["vector 1 (3)", "vector 2 (1)"]),
    ("snappy.parquet", (DATA / "snappy.parquet").read_bytes(), 9.75, ["price (4)", "rooms (5)"]),
    ("zstd.parquet", (DATA / "zstd.parquet").read_bytes(), 9.75, ["price (4)", "rooms (5)"]),
]


@pytest.mark.parametrize(("name", "content", "expected", "columns"), UPLOADS, ids=[each[0] for each in UPLOADS])
def test_an_upload(open_page: Open, name: str, content: bytes, expected: float, columns: list[str]) -> None:
    page = open_page("/")
    page.set_input_files("#file", {"name": name, "mimeType": "application/octet-stream", "buffer": content})
    answer(page, expected)
    assert name in page.inner_text("#loaded")
    assert page.eval_on_selector_all("#column option", "all => all.map(o => o.text)")[: len(columns)] == columns
    if columns:
        page.select_option("#column", index=1)
        last = {"table.csv": 20, "semicolon.csv": 5, "matrix.npy": 5, "vectors.json": 7}.get(name, 3)
        answer(page, last)
    page.click("#unload")
    assert page.is_visible("#numbers")


def test_a_file_is_dropped(open_page: Open) -> None:
    page = open_page("/")
    transfer = page.evaluate_handle(
        "() => { const t = new DataTransfer(); t.items.add(new File(['6 2 7'], 'dropped.txt')); return t }"
    )
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event("#drop", kind, {"dataTransfer": transfer})
    answer(page, 6)


ERRORS: list[tuple[str, str]] = [
    ("", "There are no numbers yet."),
    ("1, two, 3", "“two” (number 2) is not a number."),
    ("1,5 2,5x", "is not a number"),
    ("1e999", "Number 1 is not finite"),
    ("[1, null]", "null is not a number"),
]


@pytest.mark.parametrize(("typed", "said"), ERRORS)
def test_an_error_is_told(open_page: Open, typed: str, said: str) -> None:
    page = open_page("/", expected=[422])
    page.fill("#numbers", typed)
    page.click("#compute")
    page.wait_for_selector("#try-error:not([hidden])")
    assert said in page.inner_text("#try-error")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gzip.parquet", (DATA / "gzip.parquet").read_bytes(), "Plain, Snappy and Zstandard"),
        ("no.parquet", b"PAR1 nothing", "not a Parquet file"),
        ("no.npy", b"nothing", "not a .npy file"),
        ("cut.npy", npy([1, 2, 3])[:-4], "ends before its last number"),
        ("words.csv", b"a,b\nx,y\nz,w\n", "no column of numbers"),
        ("picture.png", b"\x89PNG", "none of .csv"),
    ],
)
def test_a_bad_file_is_told(open_page: Open, name: str, content: bytes, said: str) -> None:
    page = open_page("/")
    page.set_input_files("#file", {"name": name, "mimeType": "application/octet-stream", "buffer": content})
    page.wait_for_selector("#try-error:not([hidden])")
    assert said in page.inner_text("#try-error")


SCENES = {
    "radix": ("16", "The bracket closes, digit by digit"),
    "batcher": ("16", "Comparators"),
    "depth3": ("16", "All pairs, compared at once"),
    "depth5": ("64", "How 64 entries become 54"),
    "linear46": ("256", "How 256 entries become"),
    "linear22": ("256", "How 256 entries become"),
    "compact": ("2048", "How 2,048 entries become"),
}


@pytest.mark.parametrize("construction", SCENES)
def test_watch(open_page: Open, construction: str) -> None:
    page = open_page("/#watch")
    page.wait_for_selector("#watch-stage:not([hidden])")
    numbers, title = SCENES[construction]
    watched(page, construction, numbers)
    until(page, f"document.getElementById('scene-title').textContent.startsWith({json.dumps(title)})")
    assert "counting proves it" in page.inner_text("#watch-about")
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


def test_watch_plays_to_the_end(open_page: Open) -> None:
    page = open_page("/#watch")
    page.wait_for_selector("#watch-stage:not([hidden])")
    watched(page, "depth3", "9")
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    until(page, "document.getElementById('layer').value === document.getElementById('layer').max")
    assert page.inner_text("#play") == "Play"


def test_watch_a_neuron(open_page: Open) -> None:
    """Pointing at a neuron tells its formula, whose value is what its weights and the values beside them give."""
    page = open_page("/#watch")
    page.wait_for_selector("#watch-stage:not([hidden])")
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


def test_models(open_page: Open, tmp_path: Path, folder: Path) -> None:
    page = open_page("/#models")
    page.wait_for_selector("#model-list .card")
    name = "median-radix-d25-b16-float32-structured"
    card = page.locator("article", has=page.get_by_role("heading", name=name, exact=True))
    assert "Right on every input of its grid" in card.inner_text()
    with page.expect_download() as waiting:
        card.get_by_role("button").click()
    waiting.value.save_as(tmp_path / "file.onnx")
    assert (tmp_path / "file.onnx").read_bytes() == (folder / f"{name}.onnx").read_bytes()
    assert "gone.onnx" in page.inner_text("#left-out")
    chance = page.locator(
        "article", has=page.get_by_role("heading", name="median-compact-d64-b16-structured", exact=True)
    )
    assert "Right but for" in chance.inner_text()
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
    page.wait_for_selector("#model-list .card")
    assert page.locator("#model-list .card").count() > 10
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

    def tab_to(selector: str, most: int = 60) -> None:
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"{selector} is not reached")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    tab_to("#numbers")
    page.keyboard.type("9 4 7")
    tab_to("#compute")
    page.keyboard.press("Enter")
    answer(page, 7)
    page.keyboard.press("Control+Home")
    page.evaluate("document.activeElement.blur()")
    tab_to("nav a[href='#watch']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#watch-stage:not([hidden])")
    tab_to("#next")
    page.keyboard.press("Space")
    assert page.inner_text("#layer-text").startswith("Layer 1 ")
    tab_to("#layer")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#layer-text").startswith("Layer 2 ")
    tab_to("#neurons svg")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#formula .expression")
    page.evaluate("document.activeElement.blur()")
    page.goto(page.url.split("#")[0] + "#compare")
    page.wait_for_selector("#atlas .point")
    tab_to("#atlas .point")
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
  const parse = (c) => {
    const m = c.match(/[\\d.]+/g).map(Number)
    return m.length > 3 && m[3] === 0 ? null : m.slice(0, 3)
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


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 360])
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
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert page.evaluate(CONTRAST) == [], view
        shot(page, f"{view}-{name}")
    page.goto(page.url.split("#")[0] + "docs")
    page.wait_for_selector(".operation")
    page.click(".operation summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
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
