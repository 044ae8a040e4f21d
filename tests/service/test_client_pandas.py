"""pandas objects as the client takes them: a Series is one vector, a DataFrame one for each column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.client import Client, ServiceError

pd: Any = pytest.importorskip("pandas")


@pytest.fixture
def client(connect: Callable[..., Any], models: Path) -> Client:
    service, client = connect(models), Client(retries=0)
    client.http.request = lambda _, path, **content: service.post(path, **content)  # type: ignore[method-assign]
    return client


def test_the_columns_of_a_frame(client: Client) -> None:
    frame = pd.DataFrame({"a": [1.5, 2.5, 9.0], "b": [3, 1, 2], "c": np.array([1, 2, 4], "f4")})
    for format in ("json", "npy", "raw", "csv", "arrow"):
        answer = client.median(frame, format=format)
        assert dict(zip(answer.names or (), answer.values.tolist(), strict=True)) == frame.median().to_dict()
    quartiles = client.quantile(frame, [0.25, 0.75])
    assert quartiles.values.tolist() == frame.quantile([0.25, 0.75]).T.to_numpy().tolist()


def test_a_series_and_what_is_missing(client: Client) -> None:
    assert client.median(pd.Series([3.0, 1.0, 2.0], name="x")).names == ["x"]
    for series in (pd.Series([3.0, np.nan, 2.0]), pd.Series([3, None, 2], dtype="Int64")):
        assert client.median(series, nan="omit").values.tolist() == [2.5]
        with pytest.raises(ServiceError):
            client.median(series)


@pytest.mark.parametrize("values", [["x", "y"], [2**53 + 1, 1], pd.to_datetime(["2020-01-01", "2021-01-01"])])
def test_columns_that_are_no_numbers(client: Client, values: Any) -> None:
    with pytest.raises(ServiceError, match="column 'x'"):
        client.median(pd.DataFrame({"x": values}))
