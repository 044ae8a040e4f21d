"""Exports with a TopK as people deploy them, with random weights: `make corpus` runs this in an environment of its own.

    python -m tests.corpus.make FOLDER

FOLDER gets the whole models. `tests/models` gets the part of each around its TopK, as small files for the fast tests.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper
from skl2onnx import to_onnx
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torchvision.models import detection

os.environ["YOLO_OFFLINE"] = "true"
HEADS = Path(__file__).resolve().parents[1] / "models"
STEPS = 4  # nodes after a TopK that belong to the head
LARGEST = 300_000  # bytes of a head

import ultralytics  # noqa: E402, after YOLO_OFFLINE
from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig  # noqa: E402


class TwoStage(nn.Module):  # type: ignore[misc]
    """The 300 best of 576 tokens, as RF-DETR chooses its queries: classes, boxes and features are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.boxes = nn.Linear(64, 91), nn.Linear(64, 4)

    def forward(self, memory: Any) -> Any:
        best = self.classes(memory).max(-1).values.topk(300, dim=1).indices[..., None]
        boxes = self.boxes(memory)
        return memory.gather(1, best.repeat(1, 1, 64)), boxes.gather(1, best.repeat(1, 1, 4)).sigmoid()


class Router(nn.Module):  # type: ignore[misc]
    """A router of a mixture of experts: 8 of 128, their weights normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(256, 128, bias=False)

    def forward(self, x: Any) -> Any:
        weights, experts = self.gate(x).softmax(-1).topk(8, dim=-1)
        return weights / weights.sum(-1, keepdim=True), experts


class PatchCore(nn.Module):  # type: ignore[misc]
    """The 9 nearest of 512 stored patches, for 784 patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = nn.Buffer(torch.rand(512, 96))

    def forward(self, x: Any) -> Any:
        squares = (x * x).sum(1, keepdim=True) + (self.bank * self.bank).sum(1) - 2 * x @ self.bank.T
        near, place = squares.clamp(min=0).sqrt().topk(9, dim=1, largest=False)
        return near, place, near.softmax(1)[:, 0].max()


class Keypoints(nn.Module):  # type: ignore[misc]
    """CenterNet's decoding: local maxima of a heat map, the 100 best of 768 cells, their offsets."""

    def forward(self, heat: Any, offset: Any) -> Any:
        peak = nn.functional.max_pool2d(heat, 3, 1, 1)
        scores, place = (heat * (peak == heat)).flatten(1).topk(100)
        offset = offset.flatten(2).transpose(1, 2).gather(1, place[..., None].expand(-1, -1, 2))
        return scores, torch.stack([place % 32, place // 32], -1) + offset


class TopP(nn.Module):  # type: ignore[misc]
    """Nucleus sampling: tokens in the order of their logits, cut where their probabilities sum to 0.9."""

    def forward(self, logits: Any) -> Any:
        ordered, index = logits.sort(descending=True)
        late = ordered.softmax(-1).cumsum(-1) > 0.9
        late = torch.cat([torch.zeros_like(late[:, :1]), late[:, :-1]], 1)
        return ordered.masked_fill(late, float("-inf")), index


class Boxes(nn.Module):  # type: ignore[misc]
    """A detector of transformers without the dictionary of its outputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        found = self.model(pixel_values=x)
        return found.logits, found.pred_boxes


def torchvision(name: str, **options: Any) -> Callable[[Path], None]:
    def export(path: Path) -> None:
        model = getattr(detection, name)(weights=None, weights_backbone=None, **options)
        exported(model, [torch.rand(3, 320, 320)])(path)

    return export


def yolo(name: str) -> Callable[[Path], None]:
    def export(path: Path) -> None:
        kind = ultralytics.RTDETR if "rtdetr" in name else ultralytics.YOLO
        made = kind(name).export(format="onnx", imgsz=640, opset=17, simplify=False, nms=False)
        Path(made).replace(path)

    return export


def exported(model: Any, *inputs: Any) -> Callable[[Path], None]:
    def export(path: Path) -> None:
        torch.onnx.export(model.eval(), inputs, path, opset_version=17, dynamo=False)

    return export


def deformable(path: Path) -> None:
    backbone = ResNetConfig(
        depths=[1, 1, 1, 1], layer_type="basic", hidden_sizes=[32, 64, 128, 256], embedding_size=32,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = DeformableDetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone, two_stage=True,
        with_box_refine=True, encoder_layers=1, decoder_layers=1, d_model=64, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=4, decoder_attention_heads=4,
    )  # fmt: skip
    exported(Boxes(DeformableDetrForObjectDetection(config)), torch.rand(1, 3, 320, 320))(path)


def neighbours(path: Path) -> None:
    rng = np.random.default_rng(0)
    model = KNeighborsClassifier(9).fit(rng.normal(size=(512, 16)), rng.integers(0, 3, 512))
    source = rng.normal(size=(1, 16)).astype(np.float32)
    path.write_bytes(to_onnx(model, source, options={"zipmap": False}, target_opset=17).SerializeToString())


torch.manual_seed(0)  # for the weights of the modules that are made here
MODELS: dict[str, Callable[[Path], None]] = {
    "ultralytics-yolo26n": yolo("yolo26n.yaml"),
    "ultralytics-rtdetr-l": yolo("rtdetr-l.yaml"),
    "transformers-deformable-detr": deformable,
    "torchvision-fasterrcnn": torchvision("fasterrcnn_mobilenet_v3_large_320_fpn"),
    "torchvision-ssdlite": torchvision("ssdlite320_mobilenet_v3_large"),
    "torchvision-retinanet": torchvision("retinanet_resnet50_fpn", min_size=320, max_size=320),
    "rf-detr-queries": exported(TwoStage(), torch.rand(1, 576, 64)),
    "moe-router": exported(Router(), torch.rand(1, 256)),
    "patchcore": exported(PatchCore(), torch.rand(784, 96)),
    "keypoints": exported(Keypoints(), torch.rand(1, 1, 24, 32), torch.rand(1, 2, 24, 32)),
    "top-p": exported(TopP(), torch.rand(1, 1024)),
    "sklearn-neighbours": neighbours,
}


DATA_DEPENDENT = ("torchvision-ssdlite", "torchvision-retinanet")  # TopK of so many boxes as pass a threshold


def head(model: onnx.ModelProto) -> onnx.ModelProto:
    """The TopK nodes, what is computed from constants alone, and what reads them within a few steps.

    Tensors that other nodes compute become inputs of the head, and those that other nodes read become outputs.
    """
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {v.name: v for v in [*graph.input, *graph.value_info, *graph.output]}
    maker = {name: node for node in graph.node for name in node.output}
    stored = {t.name: t for t in graph.initializer}
    reach = {name: 0 for node in graph.node if node.op_type == "TopK" for name in node.output}
    constant = set(stored) | {""}
    chosen = []
    for node in graph.node:
        steps = min((reach[name] for name in node.input if name in reach), default=STEPS)
        shape = node.op_type == "Shape" and fixed(types.get(node.input[0]))
        if shape or all(name in constant for name in node.input):
            constant.update(node.output)
            chosen.append(node)
        elif node.op_type == "TopK" or (steps < STEPS and node.op_type not in ("If", "Loop", "NonMaxSuppression")):
            chosen.append(node)
            for name in node.output:
                reach.setdefault(name, steps + 1)
    made = {name for node in chosen for name in node.output}
    others = {id(node) for node in chosen}
    outside = {name for node in graph.node if id(node) not in others for name in node.input}
    ends = [n for n in reach if n in made and (n in outside or n in {o.name for o in graph.output}) and maker[n]]
    kept, needed = [], set(ends)
    for node in reversed(chosen):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
    sources = sorted(name for node in kept for name in node.input if name not in made | set(stored) | {""})
    new = helper.make_graph(
        kept[::-1], "head", [types[name] for name in dict.fromkeys(sources)], [types[name] for name in ends],
        [t for name, t in stored.items() if name in needed],
    )  # fmt: skip
    return helper.make_model(new, opset_imports=[o for o in model.opset_import if not o.domain], ir_version=8)


def folded(path: Path) -> onnx.ModelProto:
    """The model after onnxruntime's basic optimiser, which knows shapes that exports compute."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level, options.optimized_model_filepath = 4, str(path.with_suffix(".folded"))
    try:
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:  # Deformable DETR: onnxruntime has no such GridSample
        return onnx.load(path)
    return onnx.load(path.with_suffix(".folded"))


def fixed(value: Any) -> bool:
    return value is not None and all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    HEADS.mkdir(exist_ok=True)
    os.chdir(folder)
    for name, export in MODELS.items():
        torch.manual_seed(0)
        path = folder / f"{name}.onnx"
        if not path.exists():
            export(path)
        if name in DATA_DEPENDENT:
            continue
        whole = onnx.load(path)
        small = whole if whole.ByteSize() < LARGEST else head(folded(path))
        for node in small.graph.node:
            node.doc_string = ""
            del node.metadata_props[:]
        del small.metadata_props[:]
        (HEADS / path.name).write_bytes(small.SerializeToString(deterministic=True))
        print(name, f"{whole.ByteSize():,} bytes, head {small.ByteSize():,}", flush=True)


if __name__ == "__main__":
    main()
