"""`python -m exporter rewrite`: find, replace, write, and run both models."""

from __future__ import annotations

import dataclasses
import filecmp
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from exporter.errors import UserError, WriteError, spelled
from exporter.formats.manifest import replace_files, writable
from exporter.formats.model_file import reading
from exporter.formats.quantisation import EXCLUDE, listed
from exporter.formats.tflite import model_bytes
from exporter.frontends.rewriting import OPERATORS
from exporter.frontends.rewriting.check import (
    Compared,
    Feed,
    Unchecked,
    calibration_data,
    compared,
    external_files,
    feeds,
    ranges,
    run,
    sessions,
    watched,
)
from exporter.frontends.rewriting.edit import names_of, prefix_for, replace
from exporter.frontends.rewriting.emission import Policy
from exporter.frontends.rewriting.emit import LARGEST, emit, estimate, opset_needed
from exporter.frontends.rewriting.find import DEFAULT, CannotReplace, Left, Request, Types, find, inferred
from exporter.frontends.rewriting.fold import folded, told
from exporter.frontends.rewriting.gather import GATHERS, gathers
from exporter.frontends.rewriting.report import Replaced, Rewritten
from exporter.options import checked, nearest
from exporter.passes.profiles import PROFILES
from exporter.problem.grid import shown

TOO_LARGE = (
    "is larger than 2 GB, which no protobuf message may be: save it with its data beside it, "
    "onnx.save(model, path, save_as_external_data=True)"
)


def rewrite(
    model: Path | str,
    out: Path | str | None = None,
    *,
    domain: Sequence[float] | None = None,
    calibrate: Path | str | None = None,
    bits: int | None = None,
    profile: str | None = None,
    only: Sequence[str] | None = None,
    also: Sequence[str] = (),
    indices: int | None = None,
    check: bool = True,
    progress: Callable[[str], None] = lambda stage: None,
    announce: Callable[[str], None] = lambda line: None,
) -> Rewritten:
    """Replace TopK in the ONNX file `model` and write `out`; without `out` nothing is written.

    The options are those of `python -m exporter rewrite --help`. `announce` gets the estimate of each new part before the
    part is built.
    """
    operators = _operators(only, also)
    policy = _policy(domain, calibrate, bits, profile, indices)
    if {"ReduceMax", "ReduceMin", "ArgMax", "ArgMin"} & {*operators}:
        policy = dataclasses.replace(policy, reductions=False)
    if "Gather" in operators or only is not None or not policy.floats:
        policy = dataclasses.replace(policy, products=None if "Gather" in operators else 0)
    return _rewrite(
        Path(model), Path(out) if out else None, policy, domain=domain,
        calibrate=Path(calibrate) if calibrate else None, only=operators, check=check, progress=progress,
        announce=announce,
    )  # fmt: skip


def _operators(only: Sequence[str] | None, also: Sequence[str]) -> tuple[str, ...]:
    """The operators that are replaced."""
    for option, given in (("only", only or ()), ("also", also)):
        for name in given:
            if name not in OPERATORS:
                raise UserError(
                    f"{spelled(option)} takes {', '.join(OPERATORS)}, not {name!r}{nearest(name, OPERATORS)}"
                )
    return tuple(dict.fromkeys([*(DEFAULT if only is None else only), *also]))


def _policy(domain: Any, calibrate: Any, bits: int | None, profile: str | None, indices: int | None) -> Policy:
    if profile is not None and profile not in PROFILES:
        near = nearest(profile, PROFILES)
        raise UserError(f"{spelled('profile')} must be one of {', '.join(PROFILES)}, not {profile!r}{near}")
    if domain is not None and calibrate is not None:
        raise UserError(
            f"{spelled('domain')} and {spelled('calibrate')} both say what range the data has: give one of them"
        )
    policy = Policy(
        profile or ("structured" if domain is not None or calibrate is not None else "minmax"), bits, indices
    )
    for name, value in (("domain", domain), ("bits", bits)):
        if value is not None:
            checked(name, value)
            if policy.floats:
                remedy = f"leave it out, or take {spelled('profile', 'structured')}"
                floats = spelled("profile", policy.profile)
                raise UserError(f"{floats} takes every number as it is: {spelled(name)} changes nothing; {remedy}")
    if domain is not None and not domain[0] < domain[1]:
        raise UserError(f"the domain must be two finite numbers LO < HI, not {shown(domain[0])} {shown(domain[1])}")
    return policy


def load(path: Path) -> onnx.ModelProto:
    """The model of a file, its external data left where it is; UserError when it is none."""
    with reading(path):
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} {TOO_LARGE}")
        proto = onnx.load(path, load_external_data=False)
    if not proto.graph.node or not proto.opset_import:
        raise UserError(f"{path} is not a valid ONNX file: it has no nodes")
    for kind in ("sparse_initializer", "training_info"):
        if getattr(proto.graph if kind == "sparse_initializer" else proto, kind):
            raise UserError(f"{path} has {kind}, which would be lost (onnx-ir has none): write the model without")
    for name in external_files(proto):
        if not Path(os.path.normpath(name)).parts[:1] or Path(os.path.normpath(name)).parts[0] in ("..", os.sep):
            raise UserError(f"{path}: its data file {name} is not in the model's own folder: save the model anew")
        if not (path.parent / name).is_file():
            raise UserError(f"{path}: its data file {name} is not beside it")
    return proto


def _rewrite(
    path: Path, out: Path | None, policy: Policy, *, domain: Any, calibrate: Path | None, only: tuple[str, ...], check: bool,
    progress: Callable[[str], None], announce: Callable[[str], None],
) -> Rewritten:  # fmt: skip
    progress("reading")
    before = load(path)
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a directory: name a file in it")
    proto, opset = _raised(before, policy, only, path.parent)
    policy = dataclasses.replace(policy, opset=opset[1])
    model, found = _found(proto, path.parent, only, policy)
    if not found:
        others = sorted({n.op_type for n in model.graph.all_nodes()} & {*OPERATORS})
        hint = f"; {spelled('also', others[0])} replaces {others[0]}" if others else ""
        raise UserError(f"{path} has no {' or '.join(only)}: there is nothing to replace{hint}")
    wanted = [r for _, r in found if isinstance(r, Request)]
    sources = {id(node): node.inputs[0].name or "" for node, r in found if isinstance(r, Request) and node.inputs[0]}
    calibration: list[Feed] = []
    measured: dict[str, tuple[float, float]] = {}
    if calibrate is not None:
        progress("calibrating")
        names = sorted({sources[id(node)] for node, r in found if isinstance(r, Request) and not r.fetch})
        with sessions([watched(before, names)], path.parent) as (session,):
            calibration = calibration_data(calibrate, session)
            computed = [n for n in names if n not in calibration[0]]
            measured = ranges([run(session, feed, computed) | feed for feed in calibration], names)
    replaced, left, requests = [], [r for _, r in found if isinstance(r, Left)], []
    numbers: dict[str, tuple[str, str]] = {}
    ours: list[str] = []
    taken = names_of(model)
    for node, request in found:
        if isinstance(request, Left):
            continue
        x = sources[id(node)]
        its_domain = tuple(domain) if domain is not None else measured.get(x)
        try:
            if its_domain and not np.isfinite(its_domain).all():
                raise CannotReplace(
                    "its calibration data is not finite", f"take {spelled('profile', 'minmax')}, which needs no range"
                )
            announce(f"{request.about()}: {estimate(request, policy)}")
            its_domain = None if policy.floats else its_domain
            emission = emit(request, policy, x, prefix_for(request, taken), its_domain, numbers)
        except CannotReplace as reason:
            left.append(Left(request.node, request.op, reason.args[0], reason.args[1]))
            continue
        progress(f"replacing {request.node}")
        if emission.numbers:
            numbers[request.indices or request.values or ""] = emission.numbers
        replace(model.graph, node, request, emission)
        ours += [new.name for new in emission.graph.nodes]
        replaced.append(
            Replaced(
                node=request.node,
                was=request.about(),
                became=emission.became,
                nodes=len(emission.graph.nodes),
                error=emission.error,
                rounding=emission.rounding,
                domain=its_domain,
                ordered=request.ordered,
            )
        )
        requests.append((request, x))
    if ours:
        model.metadata_props[EXCLUDE] = json.dumps([*listed(model.metadata_props.get(EXCLUDE, "[]")), *ours])
    after = ir.to_proto(model)
    kept = [each for each in left if each.op in GATHERS and "Gather" not in only]
    left = [each for each in left if each not in kept]
    order = {called: i for i, called in enumerate(r.node for r in wanted)}
    left.sort(key=lambda each: order.get(each.node, -1))
    outputs: list[Compared] = []
    times, unchecked = 0, ""
    if check and replaced:
        progress("checking")
        try:
            outputs, times, replaced = _checked(
                before, after, path.parent, requests, replaced, calibration=calibration, domain=domain
            )
            if not times:
                unchecked = (
                    f"the model takes none of the inputs that were drawn; give {spelled('calibrate')} a file with some"
                )
        except Unchecked as error:
            unchecked = str(error)
    if after.ByteSize() > LARGEST:
        raise UserError(f"the rewritten model {TOO_LARGE}, then rewrite that")
    counts = (len(before.graph.node), len(after.graph.node))
    if out is not None and replaced:
        progress("writing")
        if out.suffix == ".tflite":
            data = model_bytes(after, {"rewritten": path.name, "replaced": [each.was for each in replaced]})
            with writable(out.parent):
                replace_files({out: data})
        else:
            _write(after, path, out)
    return Rewritten(
        file=path.name, profile=policy.profile, replaced=replaced, left=left, kept=kept, nodes=counts, opset=opset,
        outputs=outputs, checked=times, unchecked=unchecked, model=after,
    )  # fmt: skip


def _model(proto: onnx.ModelProto, folder: Path) -> ir.Model:
    """The model for editing, with data from the files of its folder where it is external."""
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, folder)
    return model


def _found(
    proto: onnx.ModelProto, folder: Path, only: tuple[str, ...], policy: Policy
) -> tuple[ir.Model, list[tuple[ir.Node, Request | Left]]]:
    """The model for editing and its nodes of interest; constants are folded if a node would be left otherwise."""
    model, types = _model(proto, folder), inferred(proto)
    found = _wanted(model, types, only, policy)
    if any(isinstance(each, Left) for _, each in found):
        found = _wanted(model, told(model, types, folded(proto, types, folder)), only, policy)
    return model, found


def _wanted(
    model: ir.Model, types: Types, only: tuple[str, ...], policy: Policy
) -> list[tuple[ir.Node, Request | Left]]:
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


def _raised(
    proto: onnx.ModelProto, policy: Policy, only: tuple[str, ...], folder: Path
) -> tuple[onnx.ModelProto, tuple[int, int]]:
    """The model in an opset that has the operators we write; the model as it is where that one is new enough."""
    now = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    asked = [r for _, r in _found(proto, folder, only, policy)[1] if isinstance(r, Request)]
    need = max((opset_needed(r, policy) for r in asked), default=0)
    if now >= need:
        return proto, (now, now)
    try:
        newer = version_converter.convert_version(proto, need)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the model is of opset {now}, the new nodes need {need}, and it cannot be raised: {reason[:160]}; export it "
            f"again with opset {need}"
        ) from None
    newer.metadata_props.extend(p for p in proto.metadata_props if p.key not in {q.key for q in newer.metadata_props})
    return newer, (now, need)


def _checked(
    before: onnx.ModelProto, after: onnx.ModelProto, folder: Path, requests: list[tuple[Request, str]],
    replaced: list[Replaced], *, calibration: list[Feed], domain: Sequence[float] | None,
) -> tuple[list[Compared], int, list[Replaced]]:  # fmt: skip
    """Every output of the file as it is written, and every replaced tensor, which is made an output for that."""
    there: set[str | None] = {
        name for node in after.graph.node for name in node.output
    }  # without indices that only a Gather read
    watch = [
        [name for name in (r.values, r.indices) if name and name in there and (r.ordered or not r.fetch)]
        for r, _ in requests
    ]
    names = [name for some in watch for name in some]
    outputs = [o.name for o in before.graph.output]
    sources = sorted({x for r, x in requests if not r.fetch})
    with sessions([watched(before, [*names, *sources]), watched(after, names)], folder) as (old, new):
        inputs = feeds(old, calibration, domain)
        made = {i.name for i in old.get_inputs()}
        asked = list(dict.fromkeys([*outputs, *names]))
        taken, pairs = [], []
        for place, feed in enumerate(inputs):
            try:
                a = run(old, feed, [*asked, *(s for s in sources if s not in made and s not in asked)])
            except UserError:
                if place < len(calibration):
                    raise
                continue  # not every random input is one that a model takes
            taken.append(feed)
            pairs.append((a | feed, run(new, feed, asked)))
    if not pairs:
        return [], 0, replaced
    with sessions([before, after], folder) as (old, new):
        written = [(run(old, feed, outputs), run(new, feed, outputs)) for feed in taken]
    seen = ranges([a for a, _ in pairs], sources)
    results = []
    for one, its, (request, x) in zip(replaced, watch, requests, strict=True):
        found = [compared(name, [(a[name], b[name]) for a, b in pairs], request) for name in its]
        largest = max((abs(end) for end in seen.get(x, ())), default=0.0)
        error = one.error + one.rounding * largest
        results.append(dataclasses.replace(one, seen=seen.get(x), outputs=found, error=error))
    ends = []
    for name in outputs:
        end = compared(name, [(a[name], b[name]) for a, b in written])
        unfused = end.equal or compared(name, [(a[name], b[name]) for a, b in pairs]).equal
        ends.append(dataclasses.replace(end, fused=unfused and not end.equal))
    return ends, len(pairs), results


def _write(proto: onnx.ModelProto, source: Path, out: Path) -> None:
    """The model whole or not at all; data files that it names go beside it, unless it stays in their folder."""
    files: dict[Path, bytes | Path] = {}
    with writable(out.parent):
        for name in external_files(proto):
            target, there = out.parent / name, source.parent / name
            if target.resolve() == out.resolve():
                raise WriteError(f"{out} is the name of the model's data file: choose another")
            if target.exists() and not (target.samefile(there) or filecmp.cmp(target, there, shallow=False)):
                raise WriteError(f"{target} is there already and is not the model's data: choose another folder")
            if not target.exists():
                files[target] = there
        for target in files:
            target.parent.mkdir(parents=True, exist_ok=True)
        replace_files({**files, out: proto.SerializeToString(deterministic=True)})


def operators(proto: onnx.ModelProto) -> dict[str, int]:
    """How often each operator stands in the main graph."""
    return dict(Counter(node.op_type for node in proto.graph.node))
