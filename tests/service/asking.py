"""How the tests ask the application, and what a refusal must look like."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np

from service.serving.formats import FORMATS
from service.serving.schemas import MedianAnswer, Problem

JSON, NPY, RAW = ({"Content-Type": FORMATS[name].media_type} for name in ("json", "npy", "raw"))


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def medians(client: Any, vectors: list[Any], **options: Any) -> dict[str, Any]:
    response = client.post("/median", json={"vectors": [list(map(float, vector)) for vector in vectors], **options})
    assert response.status_code == 200, response.text
    answer = response.json()
    MedianAnswer.model_validate(answer)
    return answer


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"]
    problem = response.json()
    Problem.model_validate(problem)
    return problem
