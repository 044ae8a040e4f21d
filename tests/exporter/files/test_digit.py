"""One digit against the definition of radix: the counts of entries below low + i s."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.files.digit import WORDS, digit
from tests.running import session


def ordered(x: np.ndarray) -> list[int]:
    """Entries as integers in their order, by sorting all values that occur: no bits are looked at."""
    whole = x.view(WORDS[str(x.dtype)][0]).astype(object)
    low = -(2 ** (8 * x.itemsize - 1))
    return [int(b) if b >= 0 else low - int(b) for b in whole]


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("bits", [1, 4, 16])
def test_counts_are_those_between_the_thresholds(dtype: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    x = np.concatenate([rng.normal(size=500), rng.integers(-3, 3, 300), [np.inf, -np.inf, 0.0, -0.0]]).astype(dtype)
    v = ordered(x)
    signed, unsigned = WORDS[dtype]
    run = session(digit(dtype, bits))
    word = 8 * x.itemsize
    for low, shift in [(-(2 ** (word - 1)), word - bits), (min(v), 0), (int(np.median(v)), 3), (max(v), 0)]:
        feed = {"x": x.view(signed), "low": np.array(low, signed), "shift": np.array(shift, unsigned)}
        counts = run.run(None, feed)[0]
        ends = [low + (i << shift) for i in range(2**bits + 1)]
        below = np.searchsorted(np.sort(np.array(v, object)), np.array(ends, object))
        assert (counts[:-1] == np.diff(below)).all()
        assert counts.sum() == len(x)


def test_the_map_keeps_the_order_of_all_floats_there_are() -> None:
    special = np.array(
        [-np.inf, -3.4e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.1754944e-38, 1.0, 3.4e38, np.inf], np.float32
    )
    found = ordered(special)
    assert found == sorted(found)
    assert found[4] == found[5] == 0
    assert len(set(found)) == len(found) - 1


def test_what_no_digit_has_is_refused() -> None:
    for dtype, bits in [("float16", 8), ("float32", 0), ("float32", 17)]:
        with pytest.raises(ValueError, match="a digit has"):
            digit(dtype, bits)
