"""An image filter in onnxruntime, beside what its answers are taken from: rows of pixels, for numpy to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.formats.model_file import decode, load
from exporter.formats.session import open_session, running

Array = npt.NDArray[Any]
MODES: dict[str, Any] = {"edge": "edge", "reflect": "symmetric", "zero": "constant"}  # of numpy.pad


def windows(images: Array, window: tuple[int, int], border: str, zero: int = 0) -> Array:
    """The pixels of every window of [n, c, h, w], as [n, c, rows, columns, pixels]; borders and origin are scipy's.

    `zero` is the integer that stands for 0, beyond the image with border="zero".
    """
    if border != "valid":
        pads = [(k // 2, k - 1 - k // 2) for k in window]
        filled = {"constant_values": zero} if border == "zero" else {}
        images = np.pad(images, [(0, 0), (0, 0), *pads], mode=MODES[border], **filled)
    seen = np.lib.stride_tricks.sliding_window_view(images, window, axis=(2, 3))
    return seen.reshape(*seen.shape[:4], -1)


class ImageSession:
    """A file of ours for windows or frames."""

    def __init__(self, path: Path) -> None:
        proto = load(path)
        self.path, self.description = path, decode(proto)
        self.d = int(self.description["d"])
        self.dtype: np.dtype[Any] = np.dtype(self.description["dtype"])
        self.session = open_session(path)

    def run(self, images: Array) -> Array:
        with running(self.path):
            return np.asarray(self.session.run(None, {"x": np.ascontiguousarray(images, self.dtype)})[0])

    def sample(self, draw: Callable[[int, int], Array], least: int) -> tuple[Array, Array]:
        """Rows of pixels and the answers for them, at least so many, from images of several sizes."""
        rows, answers = [], []
        for h, w in self._sizes(least):
            x, pixels = self._image(draw, h, w)
            y = self.run(x)
            if y.shape != pixels.shape[:-1]:
                y = np.full(pixels.shape[:-1], 0 if self.dtype.kind in "iu" else np.nan)
            rows.append(pixels.reshape(-1, self.d))
            answers.append(y.reshape(-1, 1))
        return np.concatenate(rows), np.concatenate(answers)

    def _sizes(self, least: int) -> Iterator[tuple[int, int]]:
        """One pixel, one row, one column, less than a window, and an image as large as is asked for."""
        rows, columns = (self.description["window"] or (1, 1)) if self.description["border"] == "valid" else (1, 1)
        side = int(np.ceil(least**0.5)) + 1
        for h, w in ((1, 1), (1, 7), (7, 1), (3, 2), (side, side)):
            yield h + rows - 1, w + columns - 1

    def _image(self, draw: Callable[[int, int], Array], h: int, w: int) -> tuple[Array, Array]:
        c, about = 2, self.description
        window, border = about["window"], about["border"]
        if window is None or border is None:
            pixels = draw(c * h * w, self.d).reshape(1, c, h, w, self.d)
            return np.moveaxis(pixels[0], -1, 0), pixels
        x = draw((about["batch"] or 1) * c * h, w).reshape(-1, c, h, w)
        zero = int(about.get("quantized", [1, 0])[1])
        return x, windows(x, (window[0], window[1]), border, zero)
