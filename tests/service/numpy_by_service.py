"""A pytest plugin: numpy.median and numpy.quantile answered by the service, for numpy's own tests of them.

MEDIAN_TEST_MODELS is the folder of models. Calls that the service does not take (objects, complex numbers, weights, `out`,
numbers that are not finite, no numbers) are left to numpy, and so are the calls of the service itself, which runs in threads
of this process. The number of calls that the service answered is written to
MEDIAN_TEST_COUNT at the end.
"""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from service.app import create_app
from service.process.settings import Settings
from tests.service.asking import NPY, npy
from tests.service.conftest import InProcess

MEDIAN: Any = np.median
QUANTILE: Any = np.quantile
LONGEST = 32
service = InProcess(create_app(Settings(models=Path(os.environ["MEDIAN_TEST_MODELS"]), log_level="error", build=False)))
answered = 0


def vectors(a: Any, axis: Any) -> tuple[Any, tuple[int, ...]] | None:
    """The vectors along an axis as a matrix, and the shape of their answers; None for what the service does not take."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if type(a) is not np.ndarray and not isinstance(a, list | tuple | int | float):
        return None
    a = np.asarray(a)
    if a.dtype.kind not in "fiu" or a.dtype.itemsize not in (4, 8) or not a.size or not np.isfinite(a).all():
        return None
    given = range(a.ndim) if axis is None else np.atleast_1d(axis)
    axes = [int(each) % max(a.ndim, 1) for each in given if -a.ndim <= each < a.ndim]
    if not axes or len(axes) != (a.ndim if axis is None else np.size(axis)) or len(set(axes)) < len(axes):
        return None
    rest = [each for each in range(a.ndim) if each not in axes]
    moved = a.transpose(*rest, *axes)
    shape = moved.shape[: len(rest)]
    matrix = np.ascontiguousarray(moved.reshape(int(np.prod(shape)), -1))
    return (matrix, shape) if matrix.shape[1] <= LONGEST and len(matrix) <= 4096 else None


def ask(path: str, matrix: Any, **query: str) -> Any:
    global answered  # noqa: PLW0603
    answered += 1
    told = service.post(path, content=npy(matrix), headers=NPY, params=query)
    assert told.status_code == 200, told.text
    return np.load(io.BytesIO(told.content))


def median(a: Any, axis: Any = None, **options: Any) -> Any:
    taken = None if options else vectors(a, axis)
    if taken is None:
        return MEDIAN(a, axis, **options)
    matrix, shape = taken
    return ask("/median", matrix).reshape(shape)[()]


def quantile(a: Any, q: Any, axis: Any = None, *, method: str = "linear", **options: Any) -> Any:
    taken = None if options or method not in METHODS else vectors(a, axis)
    numbers = np.asarray(q)
    good = numbers.dtype.kind in "fi" and numbers.size and ((numbers >= 0) & (numbers <= 1)).all()
    if taken is None or not good or (not numbers.ndim and taken[0].dtype == np.float32):
        return QUANTILE(a, q, axis, method=method, **options)
    matrix, shape = taken
    listed = ",".join(repr(float(each)) for each in numbers.ravel())
    found = ask("/quantile", matrix, quantiles=listed, method=method)
    return np.moveaxis(found, -1, 0).reshape((*numbers.shape, *shape))[()]


from exporter.problem.quantiles import METHODS  # noqa: E402

setattr(np, "median", median)  # noqa: B010
setattr(np, "quantile", quantile)  # noqa: B010


def pytest_sessionfinish() -> None:
    service.close()
    Path(os.environ["MEDIAN_TEST_COUNT"]).write_text(str(answered))
