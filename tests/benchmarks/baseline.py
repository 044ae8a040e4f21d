"""What the service is measured against: a bare endpoint that reads a body, and numpy.median behind pydantic."""

from __future__ import annotations

import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

app = FastAPI()


@app.post("/echo")
async def echo(request: Request) -> Response:
    await request.body()
    return Response(b"\0\0\0\0", media_type="application/octet-stream")


class Vectors(BaseModel):
    vectors: list[list[float]]


@app.post("/numpy")
async def numpy_median(body: Vectors) -> dict[str, list[float]]:
    return {"medians": np.median(np.array(body.vectors), axis=1).tolist()}
