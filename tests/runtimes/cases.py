"""The files of the matrix: what is exported, the rows it is run on and the true answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from exporter.analysis.evaluate import evaluate
from exporter.build import build
from exporter.constructions import CONSTRUCTIONS
from exporter.frontends.images.running import windows
from exporter.frontends.rewriting.rewrite import rewrite
from exporter.library import export, export_model
from exporter.passes.profiles import IMAGE_PROFILES
from exporter.problem.families import UNITS
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import median
from tests.exporter.frontends.rewriting.patterns import model
from tests.runtimes.report import title

MEDIANS = [c for c in CONSTRUCTIONS.values() if c.op == "median" and not c.uniform]
EXACT = [c.name for c in MEDIANS if c.dense_bits]  # right on every grid input
SAMPLED = [c.name for c in MEDIANS if not c.dense_bits]  # wrong on a few inputs: compared with the network itself


@dataclass(frozen=True)
class Case:
    construction: str
    d: int
    bits: int
    dtype: Any
    profile: Any
    batch: int | None = None
    promised: bool = False  # every required runtime must be exact
    inputs: Any = "any"  # "grid": a bare network, without the layers that round and clamp

    @property
    def about(self) -> dict[str, Any]:
        """What the table says of the file."""
        names = ("construction", "d", "bits", "profile", "dtype", "batch", "inputs")
        return {name: getattr(self, name) for name in names}

    @property
    def name(self) -> str:
        return title(self.about)

    def export(self, out: Path) -> Path:
        return export(self.spec, out).path

    @property
    def spec(self) -> Spec:
        return Spec(
            median(self.d), self.construction, bits=self.bits, dtype=self.dtype, profile=self.profile, batch=self.batch,
            inputs=self.inputs,
        )  # fmt: skip

    def rows(self, each: int, seed: int = 0) -> npt.NDArray[Any]:
        """Some vectors of every family, the hostile ones too."""
        rng, grid = np.random.default_rng(seed), Grid(bits=self.bits)
        units = [family(rng, each, self.d, grid.cells) for family in UNITS.values()]
        return grid.values(np.concatenate(units)).astype(self.dtype)

    def answers(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.construction in SAMPLED:
            return evaluate(build(self.spec).network, x)
        return median(self.d).answers(x)


@dataclass(frozen=True)
class ImageCase(Case):
    """A median filter: the rows are images of three channels."""

    @property
    def side(self) -> int:
        return isqrt(self.d)

    def export(self, out: Path) -> Path:
        return export_model(window=(self.side, self.side), profile=self.profile, dtype=self.dtype, out=out)

    def rows(self, each: int, seed: int = 0) -> npt.NDArray[Any]:
        return np.random.default_rng(seed).integers(0, 256, (2 * each, 3, 13, 11)).astype(self.dtype)

    def answers(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.median(windows(x, (self.side, self.side), "edge"), axis=-1).reshape(len(x), -1)


def filters() -> list[Case]:
    """Median filters of 3 x 3 in all profiles, and of 5 x 5 as minima and maxima, on 8-bit images in float32."""
    cases: list[Case] = [ImageCase("window3x3", 9, 8, "float32", profile) for profile in IMAGE_PROFILES]
    return [*cases, ImageCase("window5x5", 25, 8, "float32", "minmax")]


@dataclass(frozen=True)
class RewrittenCase(Case):
    """A model of a node of ONNX, rewritten: `construction` says what it asks for."""

    @property
    def what(self) -> str:
        return self.construction.removeprefix("rewritten ")

    def export(self, out: Path) -> Path:
        out.mkdir(parents=True, exist_ok=True)
        before, after = out / "before.onnx", out / f"{self.what}-{self.d}-{self.profile}.onnx"
        before.write_bytes(self.before().SerializeToString())
        more: dict[str, Any] = {} if self.profile == "minmax" else {"domain": (0, 1), "bits": self.bits}
        assert rewrite(before, after, profile=self.profile, also=["ReduceMax", "ArgMax"], **more).ok
        return after

    def before(self) -> onnx.ModelProto:
        """Along axis 1 of [batch_size, d] or, to be sorted, [batch_size, d, 3]."""
        shape: list[Any] = ["batch_size", self.d, *[3] * (self.what == "sort")]
        if self.what == "largest":
            return named(model("ReduceMax", shape, axes=[1]))
        if self.what == "argmax":
            proto = model("ArgMax", shape, axis=1)
            return followed(proto, helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT))
        proto = model("TopK", shape, k=self.d, axis=1, largest=0)
        del proto.graph.output[1:]
        if self.what == "sort":
            return named(proto)
        proto.graph.initializer.append(numpy_helper.from_array(np.array([self.d // 2]), "middle"))
        return followed(proto, helper.make_node("Gather", ["v", "middle"], ["y"], axis=1))

    def rows(self, each: int, seed: int = 0) -> npt.NDArray[Any]:
        x = super().rows(3 * each if self.what == "sort" else each, seed)
        return np.moveaxis(x.reshape(-1, 3, self.d), 1, 2).copy() if self.what == "sort" else x

    def answers(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        asked: dict[str, Any] = {"sort": np.sort, "median": np.median, "largest": np.max, "argmax": np.argmax}
        return np.asarray(asked[self.what](x, axis=1)).reshape(len(x), -1)


def named(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its output called y, as that of our files is."""
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "y"
    return proto


def followed(proto: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """The model with one more node, whose output is the model's."""
    proto.graph.node.append(node)
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return onnx.shape_inference.infer_shapes(proto)


def rewritten() -> list[Case]:
    """Models of one node, as `python -m exporter rewrite` leaves them. Only profile minmax has indices."""
    cases: list[Case] = []
    for profile, more in (("minmax", [("argmax", 9)]), ("structured", [])):
        for what, d in (("median", 25), ("sort", 9), ("largest", 12), *more):
            cases.append(RewrittenCase(f"rewritten {what}", d, 16, "float32", profile))
    return cases


def promised() -> Iterator[Case]:
    """Exact in every required runtime: d = 25 at 16 bits, dense and structured, and d = 2048 at 24 bits."""
    for name in EXACT:
        yield Case(name, 25, 16, "float32", "dense", promised=True)
        yield Case(name, 25, 16, "float32", "structured", promised=True)
    yield Case("radix", 2048, 24, "float32", "structured", promised=True)


def catalogue() -> list[Case]:
    """The promised files first, then other sizes, profiles, bare networks, a fixed batch and float64."""
    cases = list(promised())
    for name in EXACT:
        cases += [Case(name, 25, 16, "float32", profile) for profile in ("matmul", "fused")]
        cases += [Case(name, 9, 16, "float32", profile) for profile in ("dense", "structured")]
        cases.append(Case(name, 9, 16, "float32", "dense", inputs="grid"))
        cases += [Case(name, 25, 16, "float32", profile, 1) for profile in ("dense", "structured", "fused")]
        cases += [Case(name, 25, 40, "float64", profile) for profile in ("dense", "structured")]
        cases.append(Case(name, 64, 16, "float32", "structured"))
    cases.append(Case("radix", 2048, 24, "float32", "fused"))
    cases += [Case(name, 64, 24, "float32", "fused", 1) for name in ("depth3", "batcher")]
    cases += [Case("batcher", d, 24, "float32", "minmax") for d in (9, 25, 64, 256)]
    cases += [Case("batcher", 25, 24, "float32", "minmax", 1), Case("batcher", 25, 24, "float64", "minmax")]
    cases += [Case(name, 25, 16, "float64", "structured") for name in SAMPLED]
    return [*cases, *rewritten(), *filters()]
