"""Node: onnxruntime-node in a process of its own, rows and results as base64 lines of JSON."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import numpy as np

from tests.runtimes.adapters import Array, Run, npm

PACKAGE = "onnxruntime-node"
OPTIONS = "install with ONNXRUNTIME_NODE_INSTALL=skip"


def version() -> str:
    return npm.version(PACKAGE)


class _Process:
    def __init__(self, path: Path) -> None:
        command = ["node", str(Path(__file__).with_suffix(".mjs")), str(npm.MODULES), str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds = 0.0

    def __call__(self, x: Array) -> Array:
        assert self.process.stdin
        assert self.process.stdout
        request = {"dtype": str(x.dtype), "shape": x.shape, "data": base64.b64encode(x.tobytes()).decode()}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.seconds = answer["seconds"]
        return np.frombuffer(base64.b64decode(answer["data"]), x.dtype).reshape(len(x), -1)

    def __del__(self) -> None:
        self.process.kill()
        self.process.wait()


def load(path: Path) -> Run:
    return _Process(path)
