"""The browser: onnxruntime-web (WebAssembly) in headless Chromium, driven by playwright."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtimes.adapters import Array, Run, npm
from tests.runtimes.browser import open_page, serve

PACKAGE = "onnxruntime-web"
OPTIONS = "wasm"
LOAD = """async (model) => {
  window.ort ??= await import("/ort/ort.wasm.min.mjs");
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = "/ort/";
  const bytes = Uint8Array.from(atob(model), c => c.charCodeAt(0));
  window.session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
}"""
RUN = """async ([data, dtype, shape]) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const values = dtype === "float32" ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer);
  const start = performance.now();
  const { y } = await session.run({ x: new ort.Tensor(dtype, values, shape) });
  const seconds = (performance.now() - start) / 1000;
  return { values: Array.from(y.data), seconds };
}"""


def version() -> str:
    return npm.version(PACKAGE)


@cache
def _page() -> Any:
    return open_page(serve({"/ort/": npm.MODULES / PACKAGE / "dist"}) + "/empty")


class _Session:
    def __init__(self, path: Path) -> None:
        self.seconds = 0.0
        _page().evaluate(LOAD, base64.b64encode(path.read_bytes()).decode())

    def __call__(self, x: Array) -> Array:
        answer = _page().evaluate(RUN, [base64.b64encode(x.tobytes()).decode(), str(x.dtype), list(x.shape)])
        self.seconds = answer["seconds"]
        return np.array(answer["values"], x.dtype).reshape(len(x), -1)


def load(path: Path) -> Run:
    return _Session(path)
