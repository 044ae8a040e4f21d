"""Try: numbers typed, pasted, dropped and uploaded, and what is said of bad ones."""

from __future__ import annotations

import json
import statistics
import struct
import subprocess
from pathlib import Path

import pytest

from tests.page.browsing import Open, answer, dropped, needs_browser, shot, until

DATA = Path(__file__).resolve().parent / "data"

pytest.importorskip("playwright", reason="make page installs it")
pytestmark = needs_browser


def test_try_typed_numbers(open_page: Open) -> None:
    page = open_page("/")
    assert page.title() == "Try · onnx-median"
    page.fill("#numbers", "3.5 1, 2.25\n8;-4")
    page.click("#compute")
    answer(page, 2.25)
    assert page.inner_text("#certificate") == "2 below, 2 above, 1 equal to it. Counting proves the answer."
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
    dropped(page, "#drop", "dropped.txt", b"6 2 7")
    answer(page, 6)


def test_nine_numbers_are_answered_before_anything_is_pressed(open_page: Open) -> None:
    page = open_page("/", reduced_motion="reduce")
    answer(page, 27)
    page.wait_for_selector("#hero:not([hidden])")
    until(page, "document.getElementById('hero-text').textContent === 'Done: the median is 27.'")
    page.wait_for_selector("#hero-images:not([hidden])")
    different = """() => {
      const data = (id) => document.getElementById(id).getContext('2d').getImageData(0, 0, 480, 320).data
      return data('hero-before').some((value, i) => value !== data('hero-after')[i])
    }"""
    until(page, f"({different})()")


def test_pasted_lines_are_one_list_until_the_visitor_says_table(open_page: Open) -> None:
    page = open_page("/")
    page.fill("#numbers", "1, 10, 100\n2, 20, 200\n3, 30, 300")
    page.click("#compute")
    answer(page, 20)
    assert page.inner_text("#read-as span") == "Read as one list of 9 numbers."
    page.click("#read-other")
    answer(page, 2)
    assert page.inner_text("#read-as span") == "Read as a table of 3 columns."


def test_an_address_holds_the_numbers(open_page: Open) -> None:
    page = open_page("/#try?x=5,3,8,1e300")
    answer(page, 6.5)
    page.click("#share")
    assert page.url.endswith("#try?x=5,3,8,1e%2B300")
    again = open_page("/" + page.url[page.url.index("#") :])
    answer(again, 6.5)


def test_long_numbers_are_rounded_and_whole_on_hover(open_page: Open) -> None:
    page = open_page("/#try?x=0.1234567890123")
    until(page, "document.querySelector('#median span')?.title === '0.1234567890123'")
    assert page.inner_text("#median") == "0.123456789"


ERRORS: list[tuple[str, str]] = [
    ("", "There are no numbers yet."),
    ("1, two, 3", "“two” (number 2) is not a number."),
    ("1,5 2,5x", "is not a number"),
    ("1e999", "Number 1 is not finite"),
    ("[1, null]", "null is not a number"),
    ("1,234.5", "“1,234.5” may be one number or several. Write 1234.5, or put a space after each comma"),
    ("1,234\n5,678", "may be one number or several"),
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
