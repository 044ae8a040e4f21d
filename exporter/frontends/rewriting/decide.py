"""Which nodes are replaced, in which way, how large the new nodes are, and what is too large."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import onnx
import onnx_ir as ir

from exporter.frontends.rewriting.find import CannotReplace, Left, Request, Types, find, inferred
from exporter.frontends.rewriting.fold import folded, told
from exporter.frontends.rewriting.gather import gathers
from exporter.frontends.rewriting.maxpool import CHANNELS
from exporter.frontends.rewriting.onehot import CHEAP
from exporter.passes.profiles import PROFILES

ROUNDS = 32  # more rounds than these take longer than a sorting network
PAIRS = 256  # entries whose pairs are compared, in any number of rows
ALL_PAIRS = 2**19  # pairs of all rows together, where their number is known
RELU_PAIRS = 2**14  # pairs that a Relu network compares
HELD = 2**24  # numbers that the indices of one vector may take
WHOLE = 2**24  # float32 holds every whole number up to it
LARGEST = 2**31 - 1  # bytes of a protobuf message
Found = list[tuple[ir.Node, Request | Left]]


@dataclass(frozen=True)
class Policy:
    """How requests are met.

    `products` is how many multiplications may take the place of a Gather, None for any number. `reductions` says whether
    ReduceMax, ReduceMin and ArgMax may be among the new nodes. `opset` is that of the model.
    """

    profile: str = "minmax"
    bits: int | None = None
    products: int | None = CHEAP
    reductions: bool = True
    opset: int = 18

    @property
    def floats(self) -> bool:
        return PROFILES[self.profile].floats


@dataclass(frozen=True)
class Estimate:
    """What a request will take, before it is built: about so many bytes of the file, so many operations for each vector."""

    bytes: int
    operations: int

    def __str__(self) -> str:
        return f"about {self.bytes / 1e6:.2g} MB of file, {self.operations:.2g} operations for each vector"


def nodes_of_interest(
    proto: onnx.ModelProto, folder: Path, only: tuple[str, ...], policy: Policy
) -> tuple[ir.Model, Found]:
    """The model for editing and its nodes of interest; constants are folded if a node would be left otherwise."""
    model, types = ir.from_proto(proto), inferred(proto)
    ir.external_data.set_base_dir(model.graph, folder)
    found = _wanted(model, types, only, policy)
    if any(isinstance(each, Left) for _, each in found):
        found = _wanted(model, told(model, types, folded(proto, types, folder)), only, policy)
    return model, found


def _wanted(model: ir.Model, types: Types, only: tuple[str, ...], policy: Policy) -> Found:
    """The nodes of interest, in the order of the graph; a Gather by default if every TopK that it reads is replaced."""
    found = list(find(model, types, only))
    if policy.products == 0:
        return found
    tops = {r.node: r.ordered for _, r in found if isinstance(r, Request) and r.op == "TopK"}
    for node, each, chosen in gathers(model, types):
        if "Gather" in only or chosen <= tops.keys():
            ordered = all(tops.get(name, True) for name in chosen)
            found.append((node, dataclasses.replace(each, ordered=ordered) if isinstance(each, Request) else each))
    places = {id(node): i for i, node in enumerate(model.graph)}
    return sorted(found, key=lambda pair: places.get(id(pair[0]), -1))


def method(d: int, k: int, reductions: bool, rows: int | None = None) -> str:
    """The fastest of the three ways of `select` in onnxruntime; rounds only where ReduceMax and ArgMax may be written."""
    if reductions and (k == 1 or (d > 64 and k <= min(ROUNDS, 3 + d * d // 6000))):
        return "rounds"
    few = rows is not None and rows * d * d <= ALL_PAIRS
    return "pairs" if few or d <= max(PAIRS, k) else "threshold"


def estimate(request: Request, policy: Policy) -> Estimate:
    """Fitted to files that were written; docs/rewrite.md has some."""
    if request.windows:
        channels, taps = request.dims[1] or 0, sum(window.size for window in request.windows)
        weights = sum(window.size * window.span for window in request.windows) * channels * min(channels, CHANNELS)
        return Estimate(4 * weights + 2000 * taps, 4 * taps * (request.rows or 1) * request.d)
    if request.fetch:
        return Estimate(8 * request.fetch.d + 4000, request.fetch.multiplications)
    d, k = request.d, max(request.read) + 1
    levels = max(d - 1, 1).bit_length()
    stages = levels * (levels + 1) // 2
    network = Estimate(1200 * stages + 80 * d, d * stages)
    if not policy.floats:
        pairs = d * d if request.indices else 0
        return Estimate(8 * network.bytes + 4 * pairs, 4 * network.operations + 4 * pairs)
    if not (request.indices and request.op == "TopK"):
        return network
    match method(d, k, policy.reductions, request.rows):
        case "rounds":
            return Estimate(600 * k + 8 * d + 8000, 4 * k * d)
        case "pairs":
            return Estimate(8 * d + 8000, 6 * d * d + 3 * k * d)
        case _:
            return Estimate(network.bytes + 24 * d + 16 * k + 16000, network.operations + 16 * k * isqrt(d) + 6 * k * k)


def check_size(request: Request, policy: Policy) -> None:
    """CannotReplace if the new nodes would be too large."""
    size = estimate(request, policy)
    if request.fetch and policy.products is not None and size.operations > policy.products:
        reason = f"one-hot rows would take {size.operations:,} multiplications, and the limit is {policy.products:,}"
        raise CannotReplace(reason, "--also Gather has no limit")
    if request.fetch and request.fetch.d > WHOLE:
        raise CannotReplace(f"its data has {request.fetch.d:,} rows, and float32 counts to {WHOLE:,}", "leave it")
    shorter = "shorten the axis, or reduce it in parts: the largest k of the largest k of each part"
    if size.bytes > LARGEST:
        gigabytes = f"{size.bytes / 1e9:.1f} GB"
        raise CannotReplace(f"the new nodes would take about {gigabytes}, and a file holds at most 2 GB", shorter)
    if request.indices and request.k > 1:
        d, k = request.d, max(request.read) + 1
        held, most = (k * (k + 4 * isqrt(d)), HELD) if policy.floats else (d * d, RELU_PAIRS)
        if held > most:
            reason = f"its indices would hold {held:,} numbers for each vector, and the limit is {most:,}"
            raise CannotReplace(reason, shorter if policy.floats else "take --profile minmax, which holds fewer")
