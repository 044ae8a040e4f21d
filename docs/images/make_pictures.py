"""The pictures of docs/images.md, by the files that the exporter writes:

    pip install -c constraints.txt -e '.[dev]' scikit-image
    python docs/images/make_pictures.py

scikit-image has the photographs: a cat (Chelsea, by Stefan van der Walt, CC0) and the brick wall and gravel of the street
(CC0Textures, CC0). People and cars are drawn, nine frames of them, with the noise of a cheap sensor.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort
import skimage

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from exporter.library import export_model

HERE = Path(__file__).resolve().parent
GAP = 6  # white pixels between pictures
MOST = 300_000  # bytes of a picture


def photograph(name: str) -> np.ndarray:
    image = cv2.imread(str(Path(skimage.data_dir) / name))
    if image is None:
        sys.exit(f"scikit-image {skimage.__version__} has no photograph {name}")
    return image


def run(x: np.ndarray, **options: object) -> np.ndarray:
    """What a file of ours makes of uint8 images [n, h, w, c]."""
    with tempfile.TemporaryDirectory() as folder:
        path = export_model(dtype="uint8", out=folder, **options)
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        return np.moveaxis(session.run(None, {"x": np.moveaxis(x, -1, 1)})[0], 1, -1)


def save(name: str, pictures: list[np.ndarray]) -> None:
    gap = np.full((len(pictures[0]), GAP, pictures[0].shape[2]), 255, np.uint8)
    row = np.concatenate([part for picture in pictures for part in (picture, gap)][:-1], axis=1)
    path = HERE / name
    cv2.imwrite(str(path), row, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
    assert path.stat().st_size < MOST


def noisy_photograph(rng: np.random.Generator) -> None:
    """A tenth of the pixels black or white."""
    cat = photograph("chelsea.png")[20:240, 100:320]
    noise = rng.random(cat.shape[:2])
    noisy = np.where(noise[..., None] < 0.05, 0, np.where(noise[..., None] > 0.95, 255, cat)).astype(np.uint8)
    save("photograph.png", [noisy, run(noisy[None], window="3x3")[0], run(noisy[None], window="5x5")[0]])


def street(rng: np.random.Generator) -> list[np.ndarray]:
    """Nine frames of a street with people and cars that do not stay."""
    h, w = 180, 260
    wall, ground = (cv2.resize(photograph(n), (w, w)) for n in ("brick.png", "gravel.png"))
    empty = np.concatenate([wall[:110], ground[:70] // 2 + 60])
    frames = []
    for t in range(9):
        frame = empty.copy()
        for i, (speed, at, top) in enumerate(((26, -40, 132), (-31, 250, 152))):  # cars
            x, colour = at + speed * t, [(40, 40, 190), (170, 110, 40)][i]
            cv2.rectangle(frame, (x, top), (x + 56, top + 16), colour, -1)
            cv2.rectangle(frame, (x + 12, top - 11), (x + 44, top), colour, -1)
            for wheel in (x + 12, x + 44):
                cv2.circle(frame, (wheel, top + 16), 6, (20, 20, 20), -1)
        for i, (speed, at) in enumerate(((19, 10), (-23, 230), (28, -30), (-17, 140))):  # people
            x, coat = at + speed * t, [(60, 30, 30), (30, 90, 30), (90, 90, 160), (20, 20, 20)][i]
            cv2.ellipse(frame, (x, 104), (7, 20), 0, 0, 360, coat, -1)
            cv2.circle(frame, (x, 78), 6, (140, 170, 210), -1)
        noisy = frame + rng.normal(0, 6, frame.shape)
        frames.append(np.clip(np.rint(noisy), 0, 255).astype(np.uint8)[:h])
    return frames


def main() -> None:
    rng = np.random.default_rng(0)
    noisy_photograph(rng)
    frames = street(rng)
    gray = np.stack([cv2.cvtColor(f, cv2.COLOR_BGR2GRAY) for f in frames])[..., None]
    save("street.png", [gray[1], gray[5], run(gray, frames=9)[0]])


if __name__ == "__main__":
    main()
