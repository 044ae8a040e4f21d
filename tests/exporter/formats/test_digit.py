"""One digit against the definition of radix: the counts of entries below low + i s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporter.formats.digit import WORDS, digit
from tests.running import session


def entries(bits: int, dtype: str) -> Any:
    rng = np.random.default_rng(bits)
    ends = [np.inf, -np.inf, 0.0, -0.0, *np.array([1, 2**23 - 1], np.uint32).view(np.float32)]
    return np.concatenate([rng.normal(size=500), rng.integers(-3, 3, 300), ends]).astype(dtype)


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("bits", [1, 4, 16])
def test_counts_are_those_between_the_thresholds(dtype: str, bits: int) -> None:
    x = entries(bits, dtype)
    word = WORDS[dtype]
    whole = 8 * x.itemsize
    v = np.sort(x.view(word)).astype(object)
    run = session(digit(dtype, bits, first=True))
    counts = run.run(None, {"x": x.view(word), "shift": np.array(whole - bits, word)})[0]
    ends = np.array([i << (whole - bits) for i in range(2**bits + 1)], object)
    assert (counts == np.diff(np.searchsorted(v, ends))).all()
    assert counts.sum() == len(x)
    run = session(digit(dtype, bits, first=False))
    for low, shift, width in [
        (v[0], 0, bits),
        (v[400], 3, bits + 3),
        (v[-1], 0, 1),
        (0, 2, bits + 1),
        (0, 9, whole - 1),
    ]:
        span = min(1 << width, 1 << (shift + bits))
        scalars = {name: np.array(n, word) for name, n in [("low", low), ("span", span), ("shift", shift)]}
        counts = run.run(None, {"x": x.view(word), **scalars})[0]
        ends = np.array([low + min(i << shift, span) for i in range(2**bits + 1)], object)
        assert (counts == np.diff(np.searchsorted(v, ends))).all()


def test_the_integers_of_one_sign_are_in_the_order_of_the_numbers() -> None:
    """Upwards where the sign is plus, downwards where it is minus: so thresholds there are thresholds of numbers."""
    special = np.array([0.0, 1e-45, 1.1754944e-38, 1.0, 3.4e38, np.inf], np.float32)
    for sign, step in ((1, 1), (-1, -1)):
        found = (sign * special).view(np.uint32).astype(np.int64)
        assert (np.diff(found) > 0).all()
        assert (np.sort(sign * special) == (sign * special)[::step]).all()


def test_no_entry_inside_counts_nothing() -> None:
    run = session(digit("float32", 8, first=False))
    fed = {"low": np.array(0, np.uint32), "span": np.array(1, np.uint32), "shift": np.array(0, np.uint32)}
    for x in (np.zeros(0, np.uint32), np.full(5, 7, np.uint32)):
        assert not run.run(None, {"x": x, **fed})[0].any()


def test_what_no_digit_has_is_refused() -> None:
    for dtype, bits in [("float16", 8), ("float32", 0), ("float32", 17)]:
        with pytest.raises(ValueError, match="a digit has"):
            digit(dtype, bits, first=True)
