"""More than 300 files of all kinds are proven not to round."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from exporter.build import build, to_onnx
from exporter.check import check
from exporter.frontends.images.build import build_filter, filter_to_onnx
from exporter.problem.spec import Spec
from exporter.problem.task import extremum, median, quantile

pytestmark = pytest.mark.slow
TREES, BORDERS = ("structured", "fused"), ("edge", "reflect", "zero", "valid")


def exact() -> Iterator[Spec]:
    """Constructions that are right on every input."""
    for d, profile, bits in product((3, 9, 25), TREES, (8, 16, 24)):
        yield Spec(median(d), "radix", profile=profile, bits=bits)
        yield Spec(median(d), "radix", profile=profile, bits=bits, inputs="grid")
    for d, profile, bits in product((64, 100, 2048), TREES, (8, 16, 24)):
        yield Spec(median(d), "radix", profile=profile, bits=bits)
    for d, profile, bits in product((3, 9, 10, 25, 64), TREES, (8, 16, 24)):
        yield Spec(median(d), "batcher", profile=profile, bits=bits)
    for d, profile, bits in product((3, 9), ("dense", "matmul"), (8, 16)):
        yield Spec(median(d), "batcher", profile=profile, bits=bits)
        yield Spec(median(d), "depth3", profile=profile, bits=bits)
    for d, bits in product((3, 9, 10, 25, 64), (8, 16, 24)):
        yield Spec(median(d), "depth3", profile="structured", bits=bits)
    for d, bits in product((3, 9, 10, 25, 64), (8, 16)):
        yield Spec(median(d), "depth3", profile="fused", bits=bits)
    for d in (9, 64, 255):
        yield Spec(median(d), "depth3", profile="fused", bits=24)
    yield Spec(median(2048, "lower"), "radix", radix=16, optimize_for="width")
    for d, profile in product((9, 25, 64), TREES):
        yield Spec(extremum(d, "max"), "tree-max", profile=profile, bits=16)


def options() -> Iterator[Spec]:
    """Tunes, domains, quantiles, certificates, fixed batches, types."""
    for optimize_for, d, profile in product(("throughput", "latency", "depth", "width"), (64, 101, 256), TREES):
        chosen: Any = {"optimize_for": optimize_for}
        yield Spec(median(d, "lower"), "radix", profile=profile, bits=24, **chosen)
    domains = ((-1.0, 1.0), (0.0, 255.0), (-3.0, 5.0), (1000.0, 1001.0))
    for name, domain, bits, profile in product(("radix", "batcher"), domains, (12, 23), TREES):
        yield Spec(median(33), name, domain=domain, bits=bits, profile=profile)
    for name, q in product(("radix", "batcher"), (0.1, 0.99)):
        yield Spec(quantile(50, [q]), name, bits=16, profile="structured")
    for name, d in product(("batcher", "depth3"), (9, 64)):
        yield Spec(median(d), name, bits=16, certificate=True, profile="structured")
        yield Spec(median(d), name, bits=16, batch=1, profile="structured")
        yield Spec(median(d), name, bits=30, dtype="float64", profile="structured")


def sampled() -> Iterator[Spec]:
    for name, d in product(("compact", "linear18", "depth5", "window5", "window6"), (25, 64, 100)):
        yield Spec(median(d), name, bits=24, profile="structured")
    yield Spec(median(25), "linear46", bits=24, profile="structured")


def compared() -> Iterator[Spec]:
    """Files without a grid, and 8-bit integers."""
    for d, dtype in product((3, 9, 10, 25, 64), ("float32", "float64")):
        chosen: Any = {"dtype": dtype}
        yield Spec(median(d), "batcher", profile="minmax", **chosen)
    for d in (3, 9, 10, 25, 64):
        yield Spec(quantile(d, [0.3]), "batcher", profile="minmax")
        yield Spec(median(d, "lower"), "batcher", dtype="int8", quantized=(0.1, 3))


def images() -> Iterator[Spec]:
    kinds = product(((3, 3), (5, 5), (1, 3), (4, 4)), ("minmax", *TREES), ("float32", "float64", "uint8"), BORDERS)
    for i, (window, profile, dtype, border) in enumerate(kinds):
        if i % 2:
            continue
        chosen: Any = {"dtype": dtype, "border": border}
        yield Spec(median(window[0] * window[1], "lower"), window=window, profile=profile, **chosen)
    for frames, profile in product((5, 8), ("minmax", *TREES)):
        yield Spec(median(frames), frames=frames, profile=profile)
    for domain, profile in product(((-1.0, 1.0), (0.0, 1.0), (1000.0, 1001.0)), TREES):
        yield Spec(median(9), window=(3, 3), profile=profile, domain=domain)
        yield Spec(quantile(9, [0.3]), window=(3, 3), profile=profile, domain=domain, bits=12)
        yield Spec(extremum(9, "max"), window=(3, 3), profile=profile, domain=domain, inputs="grid")


GROUPS = (exact, options, sampled, compared, images)


@pytest.mark.parametrize("group", GROUPS)
def test_every_file_of_a_group_is_proven(group: Any) -> None:
    verdicts = {spec: check(made(spec)) for spec in group()}
    assert not [f"{spec}: {v}" for spec, v in verdicts.items() if not v.proven]


def made(spec: Spec) -> bytes:
    proto = filter_to_onnx(build_filter(spec)) if spec.images else to_onnx(build(spec))
    return proto.SerializeToString()


def test_they_are_more_than_300() -> None:
    assert sum(len(list(group())) for group in GROUPS) > 300
