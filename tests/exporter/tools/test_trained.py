"""Ensembles of trained networks: the weights are the same everywhere, and the answer is the median of the predictions."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from exporter.tools.properties import checked
from exporter.tools.trained import UNIT, bounds, data, ensemble, evaluated, properties, trained


def test_members_predict_better_than_the_mean() -> None:
    rng = np.random.default_rng(2)
    x, y = data(rng)
    w, b, out, bias = trained(rng, x, y)
    predicted = np.maximum(x @ w.T // UNIT + b, 0) @ out // UNIT + bias
    fresh, truth = data(np.random.default_rng(3))
    predicted_fresh = np.maximum(fresh @ w.T // UNIT + b, 0) @ out // UNIT + bias
    assert np.median(np.abs(predicted - y)) < np.median(np.abs(np.mean(y) - y)) / 2
    assert np.median(np.abs(predicted_fresh - truth)) < np.median(np.abs(np.mean(y) - truth)) / 2


def test_the_weights_are_a_function_of_the_seed() -> None:
    def weights(seed: int) -> str:
        layers = ensemble(3, seed)[1].layers
        return sha256(b"".join(w.matrix.toarray().tobytes() + w.bias.tobytes() for w in layers)).hexdigest()[:16]

    assert [weights(seed) for seed in (1, 1, 2)] == ["7ba88876a7b84db7", "7ba88876a7b84db7", "4ec42643ec68dcc4"]


@pytest.mark.parametrize("members", [3, 5, 9])
def test_an_ensemble_is_the_median_of_its_predictions(members: int, tmp_path: Path) -> None:
    predictions, of = ensemble(members, 1)
    x = np.random.default_rng(0).integers(0, 1025, (200, 3)) / 1024
    each = np.stack([evaluated(predictions, row) for row in x])
    assert ((each >= 0) & (each <= 1)).all()
    assert np.ptp(each, axis=1).min() > 1e-3  # members differ
    got = ort.InferenceSession(of.proto.SerializeToString()).run(None, {"x": x.astype(np.float32)})[0][:, 0]
    np.testing.assert_allclose(got, np.median(each, axis=1), atol=1e-6)
    low, high = bounds(predictions, np.full(3, 0.25), np.full(3, 0.5))
    inside = ((x >= 0.25) & (x <= 0.5)).all(axis=1)
    assert inside.any()
    assert ((low <= each[inside]) & (each[inside] <= high)).all()
    found = list(properties(of, predictions, 1))
    assert [p.name for p in found] == ["local", "local-violated", "error", "error-violated"]
    assert [checked(of, p) is None for p in found] == [True, False, True, False]
