"""The graphs that torch's exporter writes: `.venv-torch/bin/python -m tests.torch.make_fixtures`, by torch 2.13.0."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch

FIXTURES = Path(__file__).resolve().parents[1] / "exporter" / "frontends" / "rewriting" / "fixtures"
OPS: dict[str, Callable[[Any], Any]] = {
    "sort_dim1": lambda x: torch.sort(x, dim=1),
    "sort_descending": lambda x: torch.sort(x, dim=-1, descending=True)[0],
    "msort": torch.msort,
    "argsort": lambda x: torch.argsort(x, dim=1),
    "topk_dim1": lambda x: torch.topk(x, 3, dim=1),
    "topk_smallest_unsorted": lambda x: torch.topk(x, 3, dim=2, largest=False, sorted=False)[0],
    "median_by_sort": lambda x: torch.sort(x, dim=2)[0][..., 4],
    "quantile": lambda x: torch.quantile(x, 0.3, dim=2),
    "two_quantiles": lambda x: torch.quantile(x, torch.tensor([0.25, 0.5]), dim=2),
    "max_dim": lambda x: torch.max(x, dim=1),
    "min_dim": lambda x: torch.min(x, dim=1)[0],
}


class Function(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    x = torch.rand(3, 4, 9)
    for name, function in OPS.items():
        proto = torch.onnx.export(Function(function), (x,), dynamo=True, verbose=False).model_proto
        save(proto, name)
    buffer = io.BytesIO()
    torch.onnx.export(Function(OPS["sort_dim1"]), (x,), buffer, dynamo=False)
    save(onnx.load_from_string(buffer.getvalue()), "sort_torchscript")


def save(proto: onnx.ModelProto, name: str) -> None:
    for node in proto.graph.node:
        del node.metadata_props[:]  # stack traces with paths
        node.doc_string = ""
    del proto.graph.metadata_props[:], proto.metadata_props[:]
    proto.graph.doc_string = ""
    (FIXTURES / f"{name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
