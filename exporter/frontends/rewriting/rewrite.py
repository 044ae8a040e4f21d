"""`python -m exporter rewrite`: find, emit, check and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from exporter.errors import UserError, nearest, spelled
from exporter.formats.manifest import replace_files, writable
from exporter.formats.tflite import model_bytes
from exporter.frontends.rewriting import OPERATORS
from exporter.frontends.rewriting.check import Feed, calibrated
from exporter.frontends.rewriting.check import check as compare
from exporter.frontends.rewriting.edit import edited, names_of, prefix_for
from exporter.frontends.rewriting.emission import Emission, Policy
from exporter.frontends.rewriting.emit import emit
from exporter.frontends.rewriting.files import LARGEST, TOO_LARGE, Unchecked, load, raised, write
from exporter.frontends.rewriting.find import DEFAULT, CannotReplace, Left, Request, find
from exporter.frontends.rewriting.gather import GATHERS, gathers
from exporter.frontends.rewriting.model import complete, understood
from exporter.frontends.rewriting.report import Compared, Replaced, Rewritten
from exporter.options import checked
from exporter.passes.profiles import PROFILES
from exporter.problem.grid import shown

Found = list[tuple[int, Request | Left]]  # with the place of the node in the graph, -1 inside a body or a function


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
) -> Rewritten:
    """Replace TopK in the ONNX file `model` and write `out`; without `out` nothing is written.

    The options are those of `python -m exporter rewrite --help`.
    """
    path, target = Path(model), Path(out) if out else None
    operators = _operators(only, also)
    policy = _policy(domain, calibrate, bits, profile, operators, only is not None)
    progress("reading")
    before = load(path)
    if target is not None and target.is_dir():
        raise UserError(f"{target} is a directory: name a file in it")
    proto, opset = raised(before)
    policy = dataclasses.replace(policy, opset=opset[1])
    found = _nodes_of_interest(proto, path, operators, policy)
    calibration: list[Feed] = []
    names = sorted({r.x for _, r in found if isinstance(r, Request) and not r.fetch})
    known = dict.fromkeys(names, (domain[0], domain[1])) if domain is not None else {}
    if calibrate is not None:
        progress("calibrating")
        calibration, known = calibrated(before, names, Path(calibrate), path.parent)
    made, left = _emitted(found, policy, known, names_of(proto), progress)
    replaced = list(made.values())
    after = edited(proto, {place: (each.request, each.emission) for place, each in made.items()})
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
            write(after, path, target)
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


def _policy(
    domain: Any, calibrate: Any, bits: int | None, profile: str | None, operators: Sequence[str], only: bool
) -> Policy:
    if profile is not None and profile not in PROFILES:
        near = nearest(profile, PROFILES)
        raise UserError(f"{spelled('profile')} must be one of {', '.join(PROFILES)}, not {profile!r}{near}")
    if domain is not None and calibrate is not None:
        both = f"{spelled('domain')} and {spelled('calibrate')}"
        raise UserError(f"{both} both say what range the data has: give one of them")
    reductions = not {"ReduceMax", "ReduceMin", "ArgMax", "ArgMin"} & {*operators}
    policy = Policy(profile=profile or ("minmax" if domain is None else "structured"), bits=bits, reductions=reductions)
    for name, value in (("domain", domain), ("bits", bits)):
        if value is not None:
            checked(name, value)
            if policy.floats:
                remedy = f"leave it out, or take {spelled('profile', 'structured')}"
                floats = spelled("profile", policy.profile)
                raise UserError(f"{floats} takes every number as it is: {spelled(name)} changes nothing; {remedy}")
    if domain is not None and not domain[0] < domain[1]:
        raise UserError(f"the domain must be two finite numbers LO < HI, not {shown(domain[0])} {shown(domain[1])}")
    if "Gather" in operators:
        return dataclasses.replace(policy, products=None)
    return dataclasses.replace(policy, products=0) if only or not policy.floats else policy


def _nodes_of_interest(proto: onnx.ModelProto, path: Path, operators: tuple[str, ...], policy: Policy) -> Found:
    """The nodes of interest. onnxruntime's optimiser is asked if a node would be left otherwise."""
    model = understood(proto, path.parent)
    found = _wanted(model, operators, policy)
    if any(isinstance(each, Left) for _, each in found):
        complete(model, proto, path.parent)
        found = _wanted(model, operators, policy)
    if not found:
        others = sorted({n.op_type for n in model.graph.all_nodes()} & {*OPERATORS})
        hint = f"; {spelled('also', others[0])} replaces {others[0]}" if others else ""
        raise UserError(f"{path} has no {' or '.join(operators)}: there is nothing to replace{hint}")
    return found


def _wanted(model: ir.Model, operators: tuple[str, ...], policy: Policy) -> Found:
    """The nodes of interest, in the order of the graph; a Gather by default if every TopK that it reads is replaced."""
    found = list(find(model, operators))
    tops = {r.node: r.ordered for _, r in found if isinstance(r, Request) and r.op == "TopK"}
    for node, each, chosen in gathers(model) if policy.products != 0 else ():
        if "Gather" in operators or chosen <= tops.keys():
            ordered = all(tops.get(name, True) for name in chosen)
            found.append((node, dataclasses.replace(each, ordered=ordered) if isinstance(each, Request) else each))
    places = {id(node): place for place, node in enumerate(model.graph)}
    return sorted(((places.get(id(node), -1), each) for node, each in found), key=lambda pair: pair[0])


def _emitted(
    found: Found, policy: Policy, known: Mapping[str, tuple[float, float]], taken: set[str],
    progress: Callable[[str], None],
) -> tuple[dict[int, Replaced], list[Left]]:  # fmt: skip
    """New nodes for every request that can be met, by the place of the old node, and what is left.

    `known` are ranges of tensors, `taken` all names of the model.
    """
    made: dict[int, Replaced] = {}
    left: list[Left] = []
    numbers: dict[str, tuple[str, str]] = {}
    for place, request in found:
        if isinstance(request, Left):
            left.append(request)
            continue
        progress(f"replacing {request.node}")
        domain = None if policy.floats else known.get(request.x)
        try:
            if domain and not np.isfinite(domain).all():
                remedy = f"take {spelled('profile', 'minmax')}, which needs no range"
                raise CannotReplace("its calibration data is not finite", remedy)
            emission: Emission = emit(request, policy, prefix_for(request, taken), domain, numbers)
        except CannotReplace as reason:
            left.append(Left(request.node, request.op, *reason.args))
            continue
        if emission.numbers:
            numbers[request.indices or request.values or ""] = emission.numbers
        made[place] = Replaced(request=request, emission=emission, domain=domain)
    return made, left
