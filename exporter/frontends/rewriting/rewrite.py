"""`python -m exporter rewrite`: find, decide, emit, check and write."""

from __future__ import annotations

import dataclasses
import filecmp
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from exporter.errors import UserError, WriteError, nearest, spelled
from exporter.formats.manifest import replace_files, writable
from exporter.formats.model_file import reading
from exporter.formats.quantisation import EXCLUDE, listed
from exporter.formats.tflite import model_bytes
from exporter.frontends.rewriting import OPERATORS
from exporter.frontends.rewriting.check import (
    Feed,
    Unchecked,
    calibration_data,
    external_files,
    ranges,
    run,
    sessions,
    watched,
)
from exporter.frontends.rewriting.check import check as compare
from exporter.frontends.rewriting.decide import LARGEST, Found, Policy, estimate, nodes_of_interest
from exporter.frontends.rewriting.edit import names_of, prefix_for, replace
from exporter.frontends.rewriting.emit import emit
from exporter.frontends.rewriting.find import DEFAULT, CannotReplace, Left, Request
from exporter.frontends.rewriting.gather import GATHERS
from exporter.frontends.rewriting.report import Compared, Replaced, Rewritten
from exporter.options import checked
from exporter.passes.profiles import PROFILES
from exporter.problem.grid import shown

OPSET = 13  # the first with the operators that we write
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
    check: bool = True,
    progress: Callable[[str], None] = lambda stage: None,
    announce: Callable[[str], None] = lambda line: None,
) -> Rewritten:
    """Replace TopK in the ONNX file `model` and write `out`; without `out` nothing is written.

    The options are those of `python -m exporter rewrite --help`. `announce` gets the estimate of each new part before the
    part is built.
    """
    path, target = Path(model), Path(out) if out else None
    operators = _operators(only, also)
    policy = _policy(domain, calibrate, bits, profile, operators)
    if "Gather" in operators:
        policy = dataclasses.replace(policy, products=None)
    elif only is not None or not policy.floats:
        policy = dataclasses.replace(policy, products=0)
    progress("reading")
    before = load(path)
    if target is not None and target.is_dir():
        raise UserError(f"{target} is a directory: name a file in it")
    proto, opset = _raised(before)
    policy = dataclasses.replace(policy, opset=opset[1])
    edited, found = nodes_of_interest(proto, path.parent, operators, policy)
    if not found:
        others = sorted({n.op_type for n in edited.graph.all_nodes()} & {*OPERATORS})
        hint = f"; {spelled('also', others[0])} replaces {others[0]}" if others else ""
        raise UserError(f"{path} has no {' or '.join(operators)}: there is nothing to replace{hint}")
    names = sorted({n.inputs[0].name or "" for n, r in found if isinstance(r, Request) and not r.fetch and n.inputs[0]})
    calibration: list[Feed] = []
    known = dict.fromkeys(names, (domain[0], domain[1])) if domain is not None else {}
    if calibrate is not None:
        progress("calibrating")
        calibration, known = _calibrated(before, names, Path(calibrate), path.parent)
    replaced, left = _replaced(edited, found, policy, known, progress=progress, announce=announce)
    after = ir.to_proto(edited)
    outputs: list[Compared] = []
    times, unchecked = 0, ""
    if check and replaced:
        progress("checking")
        try:
            outputs, times = compare(before, after, path.parent, replaced, calibration=calibration, domain=domain)
        except Unchecked as error:
            unchecked = str(error)
    if after.ByteSize() > LARGEST:
        raise UserError(f"the rewritten model {TOO_LARGE}, then rewrite that")
    if target is not None and replaced:
        progress("writing")
        if target.suffix == ".tflite":
            data = model_bytes(after, {"rewritten": path.name, "replaced": [each.was for each in replaced]})
            with writable(target.parent):
                replace_files({target: data})
        else:
            _write(after, path, target)
    kept = [each for each in left if each.op in GATHERS and "Gather" not in operators]
    return Rewritten(
        file=path.name, profile=policy.profile, replaced=replaced, left=[each for each in left if each not in kept],
        kept=kept, nodes=(len(before.graph.node), len(after.graph.node)), opset=opset, outputs=outputs, checked=times,
        unchecked=unchecked, model=after,
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


def _policy(domain: Any, calibrate: Any, bits: int | None, profile: str | None, operators: Sequence[str]) -> Policy:
    if profile is not None and profile not in PROFILES:
        near = nearest(profile, PROFILES)
        raise UserError(f"{spelled('profile')} must be one of {', '.join(PROFILES)}, not {profile!r}{near}")
    if domain is not None and calibrate is not None:
        both = f"{spelled('domain')} and {spelled('calibrate')}"
        raise UserError(f"{both} both say what range the data has: give one of them")
    ranged = domain is not None or calibrate is not None
    reductions = not {"ReduceMax", "ReduceMin", "ArgMax", "ArgMin"} & {*operators}
    policy = Policy(profile or ("structured" if ranged else "minmax"), bits, reductions=reductions)
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


def _raised(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[int, int]]:
    """The model in an opset that has the operators we write; the model as it is where that one is new enough."""
    now = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), OPSET)
    if now >= OPSET:
        return proto, (now, now)
    try:
        newer = version_converter.convert_version(proto, OPSET)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the model is of opset {now}, the new nodes need {OPSET}, and it cannot be raised: {reason[:160]}; export it "
            f"again with opset {OPSET}"
        ) from None
    newer.metadata_props.extend(p for p in proto.metadata_props if p.key not in {q.key for q in newer.metadata_props})
    return newer, (now, OPSET)


def _calibrated(
    proto: onnx.ModelProto, names: Sequence[str], data: Path, folder: Path
) -> tuple[list[Feed], dict[str, tuple[float, float]]]:
    """The calibration data, and the range of each of these tensors on that data."""
    with sessions([watched(proto, names)], folder) as (session,):
        feeds = calibration_data(data, session)
        computed = [n for n in names if n not in feeds[0]]
        return feeds, ranges([run(session, feed, computed) | feed for feed in feeds], names)


def _replaced(
    model: ir.Model, found: Found, policy: Policy, known: Mapping[str, tuple[float, float]], *,
    progress: Callable[[str], None], announce: Callable[[str], None],
) -> tuple[list[Replaced], list[Left]]:  # fmt: skip
    """New nodes in the model for every request that can be met, and what is left. `known` are ranges of tensors."""
    replaced: list[Replaced] = []
    left: list[Left] = []
    numbers: dict[str, tuple[str, str]] = {}
    ours: list[str] = []
    taken = names_of(model)
    sources = [(node.inputs[0].name if node.inputs[0] else None) or "" for node, _ in found]
    for (node, request), x in zip(found, sources, strict=True):
        if isinstance(request, Left):
            left.append(request)
            continue
        its_domain = known.get(x)
        try:
            if its_domain and not np.isfinite(its_domain).all():
                remedy = f"take {spelled('profile', 'minmax')}, which needs no range"
                raise CannotReplace("its calibration data is not finite", remedy)
            announce(f"{request.about()}: {estimate(request, policy)}")
            its_domain = None if policy.floats else its_domain
            emission = emit(request, policy, x, prefix_for(request, taken), its_domain, numbers)
        except CannotReplace as reason:
            left.append(Left(request.node, request.op, *reason.args))
            continue
        progress(f"replacing {request.node}")
        if emission.numbers:
            numbers[request.indices or request.values or ""] = emission.numbers
        replace(model.graph, node, request, emission)
        ours += [new.name for new in emission.graph.nodes]
        replaced.append(
            Replaced(
                request=request, source=x, became=emission.became, nodes=len(emission.graph.nodes), error=emission.error,
                rounding=emission.rounding, domain=its_domain,
            )
        )  # fmt: skip
    if ours:
        model.metadata_props[EXCLUDE] = json.dumps([*listed(model.metadata_props.get(EXCLUDE, "[]")), *ours])
    return replaced, left


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
