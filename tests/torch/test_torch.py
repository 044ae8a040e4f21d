"""With the real torch (`make torch`): exports without TopK that equal torch, and networks as modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kornia
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import exporter
from exporter.errors import UserError
from exporter.torch import Module, translations
from tests.torch.make_fixtures import Function


class TrimmedMean(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.sort(x, dim=-1)[0][..., 2:-2].mean(-1)


class Aggregation(torch.nn.Module):  # type: ignore[misc]
    """The coordinate-wise median of 25 gradients."""

    def forward(self, gradients: Any) -> Any:
        return gradients.median(dim=0).values


class Neighbours(torch.nn.Module):  # type: ignore[misc]
    """The features of the 4 nearest points of a cloud."""

    def forward(self, points: Any) -> Any:
        inner = -2 * points @ points.transpose(1, 2)
        squares = (points**2).sum(-1, keepdim=True)
        nearest = (-squares - inner - squares.transpose(1, 2)).topk(4, dim=-1)[1]
        rows = torch.arange(points.shape[0])[:, None, None]
        return points[rows, nearest], nearest


MODULES: dict[str, tuple[Any, Any]] = {
    "median dim": (Function(lambda x: torch.median(x, dim=1)), torch.rand(3, 8, 9)),
    "median keepdim": (Function(lambda x: torch.median(x, dim=-1, keepdim=True)[0]), torch.rand(3, 8, 9)),
    "median of all": (Function(torch.median), torch.rand(3, 4)),
    "nanmedian": (Function(lambda x: torch.nanmedian(x, dim=-1)), torch.rand(3, 8, 9)),
    "kthvalue": (Function(lambda x: torch.kthvalue(x, 3, dim=2)), torch.rand(3, 8, 9)),
    "quantile": (Function(lambda x: torch.quantile(x, 0.3, dim=2)), torch.rand(3, 8, 9)),
    "topk": (Function(lambda x: torch.topk(x, 3, dim=1)), torch.rand(3, 8, 9)),
    "topk smallest": (Function(lambda x: torch.topk(x, 3, dim=-1, largest=False)[0]), torch.rand(3, 8, 9).double()),
    "sort": (Function(lambda x: torch.sort(x, dim=1)), torch.rand(3, 8, 9)),
    "sort stable": (Function(lambda x: torch.sort(x, dim=-1, stable=True, descending=True)), torch.rand(3, 8, 9)),
    "msort": (Function(torch.msort), torch.rand(5, 8)),
    "argsort": (Function(lambda x: torch.argsort(x, dim=-1)), torch.rand(5, 8)),
    "sort of 200": (Function(lambda x: torch.sort(x, dim=-1)[0]), torch.rand(2, 200)),
    "quantile of 200": (Function(lambda x: torch.quantile(x, 0.3, dim=-1)), torch.rand(2, 200)),
    "median of 9001, without its index": (Function(lambda x: torch.median(x, dim=-1).values), torch.rand(1, 9001)),
    "kornia MedianBlur": (kornia.filters.MedianBlur((3, 3)), torch.rand(1, 3, 12, 14)),
    "kornia median_blur": (Function(lambda x: kornia.filters.median_blur(x, (5, 5))), torch.rand(2, 1, 9, 11)),
    "trimmed mean": (TrimmedMean(), torch.rand(6, 25)),
    "aggregation of 25 gradients": (Aggregation(), torch.randn(25, 100)),
    "nearest neighbours": (Neighbours(), torch.rand(2, 30, 3)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_exports_without_topk_and_equals_torch(name: str, tmp_path: Path) -> None:
    module, x = MODULES[name]
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        module.eval(),
        (x,),
        path,
        dynamo=True,
        verbose=False,
        custom_translation_table=translations(),
        external_data=False,
    )
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert "TopK" not in {node.op_type for node in proto.graph.node} | {
        n.op_type for f in proto.functions for n in f.node
    }
    session = ort.InferenceSession(path)
    rng = np.random.default_rng(0)
    for _ in range(3):
        data = torch.from_numpy(rng.permuted(x.numpy(), axis=-1))
        wanted = module(data)
        wanted = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
        got = session.run(None, {session.get_inputs()[0].name: data.numpy()})
        for a, b in zip(got, wanted, strict=True):
            if name in (
                "trimmed mean",
                "quantile",
                "quantile of 200",
            ):  # sums of torch and onnxruntime round in their own order
                np.testing.assert_allclose(a, b.numpy(), rtol=1e-6)
            else:
                assert np.array_equal(a, b.numpy())


NETS: dict[str, Callable[[], Any]] = {
    "minmax": lambda: exporter.median(10, construction="batcher", profile="minmax"),
    "batcher": lambda: exporter.sort(9, construction="batcher", bits=16),
    "radix": lambda: exporter.median(25, construction="radix"),
    "depth3 float64": lambda: exporter.median(7, construction="depth3", dtype="float64", profile="structured"),
    "pixels": lambda: exporter.rank(9, [2, 5], construction="radix", domain=(0, 255), bits=8),
    "compact": lambda: exporter.median(64, construction="compact"),
    "compact fused": lambda: exporter.median(16, construction="compact", profile="fused", bits=8),
    "tree": lambda: exporter.maximum(16),
}


@pytest.mark.parametrize("name", NETS)
def test_a_network_as_a_module(name: str) -> None:
    net = NETS[name]()
    module = Module(net)
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 256, (4, 20, net.d)) / (1 if name == "pixels" else 255)).astype(net.dtype)
    assert np.array_equal(module(torch.from_numpy(x)).numpy(), net(x))
    assert module(torch.from_numpy(x[0, 0])).shape == net(x[0, 0]).shape


def test_a_network_that_needs_clip_is_refused() -> None:
    """In float32 the pairs of depth3 fit at 24 bits by Clip alone; in float64 they fit as they are."""
    with pytest.raises(UserError, match=r"with Clip alone, .* profile='structured'"):
        Module(exporter.median(25, construction="depth3", profile="fused", dtype="float32"))
    Module(exporter.median(25, construction="depth3", profile="fused", dtype="float64"))


def test_the_gradient_of_a_median_is_that_of_its_entry() -> None:
    x = torch.from_numpy(np.random.default_rng(0).permutation(9).astype(np.float32)).requires_grad_()
    Module(exporter.median(9, construction="batcher", profile="minmax"))(x).backward()
    assert torch.equal(x.grad, (x.detach() == 4).float())
    y = (x.detach() / 16).requires_grad_()
    Module(exporter.median(9, construction="batcher", profile="structured", inputs="grid"))(y).backward()
    assert torch.equal(y.grad, (x.detach() == 4).float())


def test_state_moves() -> None:
    module = Module(exporter.median(9, construction="radix"))
    assert {b.device.type for b in module.to("meta").buffers()} == {"meta"}
    wide = Module(exporter.median(9, construction="radix")).double()
    assert wide(torch.rand(3, 9, dtype=torch.float64)).dtype == torch.float64
