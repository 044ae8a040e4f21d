"""OpenCV's dnn module."""

from __future__ import annotations

from pathlib import Path

import cv2

from tests.runtimes.adapters import Array, Run

PACKAGE = "opencv-python-headless"


def load(path: Path) -> Run:
    net = cv2.dnn.readNetFromONNX(str(path))

    def run(x: Array) -> Array:
        net.setInput(x, "x")
        return net.forward().copy()

    return run
