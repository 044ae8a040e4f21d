"""What rewriting did, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx

from exporter.frontends.rewriting.emission import Emission
from exporter.frontends.rewriting.find import Left, Request
from exporter.problem.grid import at_most, shown

FUSED = ", because onnxruntime fuses other nodes of the new file; equal bit for bit without those fusions"


@dataclass(frozen=True)
class Compared:
    """One tensor of both models: `equal` bit for bit (NaN equals NaN, 0 equals -0), or the largest difference."""

    name: str
    equal: bool
    difference: float
    fused: bool = False  # onnxruntime's own fusions make the difference: equal while the replaced tensors are outputs


@dataclass(kw_only=True)
class Replaced:
    """A node that was replaced: what it was and became; the check adds what it found."""

    request: Request
    emission: Emission
    domain: tuple[float, float] | None = None
    seen: tuple[float, float] | None = None  # the range of the data in the check
    watched: list[str] = field(default_factory=list)  # the tensors that the check compares
    outputs: list[Compared] = field(default_factory=list)

    @property
    def was(self) -> str:
        return self.request.about()

    @property
    def became(self) -> str:
        return self.emission.became

    @property
    def nodes(self) -> int:
        return len(self.emission.graph.nodes)

    @property
    def error(self) -> float:
        """How far a value may be off, for data inside the domain."""
        return self.emission.error + self.emission.rounding * max((abs(end) for end in self.seen or ()), default=0.0)

    @property
    def left_range(self) -> bool:
        return bool(self.domain and self.seen and (self.seen[0] < self.domain[0] or self.seen[1] > self.domain[1]))

    @property
    def right(self) -> bool:
        """Equal, or as near as promised."""
        return not self.left_range and all(c.equal or c.difference <= self.error for c in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        names = ("was", "became", "nodes", "error", "domain", "seen")
        found = {name: getattr(self, name) for name in names} | {"rounding": self.emission.rounding}
        outputs = [asdict(each) for each in self.outputs]
        return {"node": self.request.node, **found, "outputs": outputs, "ordered": self.request.ordered}

    def lines(self) -> list[str]:
        out = [f"replaced {self.was}", f"    by {self.became}, {self.nodes} nodes{_told(self.outputs, self.error)}"]
        if self.left_range and self.domain and self.seen:
            seen, domain = (f"[{shown(lo)}, {shown(hi)}]" for lo, hi in (self.seen, self.domain))
            out.append(
                f"    in the check its data reaches {seen}, outside {domain}, and is clamped there: take a wider --domain, "
                "--calibrate with data of yours, or --profile minmax"
            )
        return out


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The outcome: `ok` if nothing is left, and every replaced node was seen to be as right as promised.

    Without a check, because none was wanted, only what is left counts.
    """

    file: str
    profile: str
    replaced: list[Replaced]
    left: list[Left]
    kept: list[Left]  # Gathers by indices, which may stay
    nodes: tuple[int, int]
    opset: tuple[int, int]
    outputs: list[Compared]
    checked: int  # inputs that both models were run on
    unchecked: str = ""  # why nothing was checked, though it should have been
    model: onnx.ModelProto = field(repr=False, compare=False)

    @property
    def status(self) -> int:
        """The exit status: 1 if something is left or differs, 3 if nothing could be checked, else 0."""
        if self.left or not all(r.right for r in self.replaced):
            return 1
        same = all(r.request.ordered and all(c.equal for c in r.outputs) for r in self.replaced)
        if same and not all(c.equal or c.fused for c in self.outputs):
            return 1
        return 3 if self.unchecked else 0

    @property
    def ok(self) -> bool:
        return self.status == 0

    def as_dict(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name != "model"}
        lists = {name: [asdict(each) for each in found[name]] for name in ("left", "kept", "outputs")}
        replaced = [each.as_dict() for each in self.replaced]
        return found | lists | {"replaced": replaced, "ok": self.ok, "status": self.status}

    def lines(self) -> list[str]:
        """The same for people."""
        out = [line for each in self.replaced for line in each.lines()]
        alike: dict[tuple[str, str, str], list[str]] = {}
        for each in self.left:
            alike.setdefault((each.op, each.reason, each.remedy), []).append(each.node)
        for (op, reason, remedy), nodes in alike.items():
            more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
            out.append(f"left {op} {', '.join(nodes[:3])}{more}: {reason}; {remedy}")
        out += [f"kept {each.op} {each.node}: {each.reason}; {each.remedy}" for each in self.kept]
        if self.opset[0] != self.opset[1]:
            out.append(f"opset raised from {self.opset[0]} to {self.opset[1]}, which the new nodes need")
        counts = f"{len(self.replaced)} replaced, {len(self.left)} left"
        out.append(f"{counts}, {self.nodes[0]} nodes became {self.nodes[1]}")
        if self.checked:
            out += [f"output {c.name}{_told([c], 0.0)}{FUSED * c.fused}" for c in self.outputs]
            out.append(f"checked on {self.checked} inputs in onnxruntime")
        elif self.unchecked:
            out.append(f"NOTHING WAS CHECKED: {self.unchecked}")
        else:
            out.append("not checked, as asked" if self.replaced else "nothing is replaced, so nothing is written")
        return out


def _told(found: Sequence[Compared], error: float) -> str:
    if not found:
        return ""
    if all(c.equal for c in found):
        return ": equal bit for bit"
    allowed = f" (at most {at_most(error)} is promised)" if error else ""
    return f": largest difference {max(c.difference for c in found):.3g}{allowed}"
