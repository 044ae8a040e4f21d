"""Options: the same checks and the same words on the command line and in the library; what changes nothing is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from exporter.build import build, to_onnx
from exporter.cli.parser import main
from exporter.constructions import CONSTRUCTIONS, takers
from exporter.errors import ContractError, UserError, command_line
from exporter.library import export_model
from exporter.options import OPTIONS
from exporter.problem import task as tasks
from exporter.problem.spec import Spec
from exporter.specs import QUESTION, checked_all, question, requests

# a good value of every option that not all constructions take, other than what it is by default
OTHER = {
    "epsilon": 0.5, "optimize_for": "latency", "radix": 4, "seed": 1, "failure": 0.1, "objective": "weights",
    "depth": 13, "width": 1300,
}  # fmt: skip
DEFAULT = {"optimize_for": "throughput", "seed": 0, "failure": 1e-3, "objective": "width"}
# where another value is needed to see the effect, or another d and rank
SEEN: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("depth3", "epsilon"): [{"d": 3}],
    ("linear46", "width"): [{"width": 2900}],
    ("window4", "seed"): [{"failure": 0.45}],
    ("tree-max", "depth"): [{"depth": 5}],
    ("tree-max", "width"): [{"width": 300}],
    **{(name, "width"): [{"width": 64}] for name in ("linear46", "linear18", "linear-max")},  # refused: too narrow
}


def graph(construction: str, given: dict[str, Any]) -> bytes | str:
    """The network that an export would write, without its name, or why there is none."""
    given = {"profile": "structured", **given}
    d = given.pop("d", 64)
    task = question(d, checked_all(given))
    (spec,) = requests(task, [construction], checked_all(given))
    try:
        return bytes(to_onnx(build(spec)).graph.SerializeToString(deterministic=True))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize(("construction", "option"), [(c.name, o) for c in CONSTRUCTIONS.values() for o in c.takes])
def test_every_option_that_is_taken_is_read(construction: str, option: str) -> None:
    """It changes the network, or is answered with a reason."""
    base: dict[str, Any] = {"op": "max"} if construction.endswith("-max") else {}
    for more in SEEN.get((construction, option), [{}]):
        with_it = {**base, option: OTHER[option], **more}
        if graph(construction, with_it) != graph(construction, {k: v for k, v in with_it.items() if k != option}):
            return
    pytest.fail("it changes nothing")


def said_by_both(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], construction: str = "radix"
) -> str:
    """The one message of the command line and the library, as the library says it; nothing is written."""
    out = tmp_path / "out"
    words: list[str] = ["--out", str(out), "--construction", construction]
    for name, value in {"d": 64, **given}.items():
        values = value if isinstance(value, list) else [value]
        for v in values:
            words += [f"--{name.replace('_', '-')}", *map(str, v if isinstance(v, tuple) else [v])]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    options = {"d": 64, "construction": construction, "out": out, **given}
    with command_line(), pytest.raises(UserError) as printed:
        export_model(**options)
    assert f"error: {printed.value}" == line
    with pytest.raises(UserError) as caught:
        export_model(**options)
    assert "--" not in str(caught.value)
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("construction", "option"), [(c.name, o) for c in CONSTRUCTIONS.values() for o in OTHER if o not in c.takes]
)
def test_an_option_that_is_not_taken_is_refused(
    construction: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its default value too: it was given."""
    for value in {OTHER[option], DEFAULT.get(option, OTHER[option])}:
        given = {option: value, **({"op": "max"} if construction.endswith("-max") else {})}
        said = said_by_both(given, tmp_path, capsys, construction)
        assert said.startswith(f"{construction} does not use {option}, which would change nothing")
        assert takers(option)[-1] in said


def test_options_are_fields_of_a_spec_with_its_defaults() -> None:
    defaults = {f.name: f.default for f in fields(Spec)[2:]}
    assert set(defaults) == set(OPTIONS) - set(QUESTION)
    given = {name: default for name, default in defaults.items() if default}  # the others are not given by default
    assert {name: OPTIONS[name].default for name in given} == {name: str(default) for name, default in given.items()}


def test_the_options_of_few_are_the_ones_tried_here() -> None:
    assert set(OTHER) == {o for c in CONSTRUCTIONS.values() for o in c.takes}
    assert set(OTHER) <= set(OPTIONS)


@pytest.mark.parametrize(
    ("construction", "given", "unread"),
    [
        ("tree-max", {"op": "max", "depth": 5, "width": 800}, "width"),
        ("depth3", {"d": 3, "epsilon": 0.5, "bits": 24}, "bits"),
    ],
)
def test_an_option_that_another_makes_idle_is_refused(
    construction: str, given: dict[str, Any], unread: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_by_both(given, tmp_path, capsys, construction)
    assert f"does not use {unread}: " in said


@pytest.mark.parametrize("construction", ["radix", "batcher"])
def test_a_wider_type_is_named_where_it_works(construction: str) -> None:
    """In float32 neither domain can be had; in float64 one can."""
    for domain, works in (((1.0, 1.0 + 2.0**-40), False), ((5.0, 5.0000001), True)):
        given = {"domain": domain, "dtype": "float32"}
        said = graph(construction, {"d": 5, **given})
        assert isinstance(said, str)
        assert ("dtype='float64'" in said) == works
        assert isinstance(graph(construction, {"d": 5, **given, "dtype": "float64"}), bytes) == works


def test_every_fused_file_can_be_laid_out_for_single_vectors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("batcher", "compact"):
        assert build(Spec(tasks.median(16), name, profile="fused", optimize_for="latency")).profile == "fused"
    for given in ({"profile": "structured", "optimize_for": "latency"}, {"profile": "fused", "optimize_for": "width"}):
        assert "batcher does not use optimize_for" in said_by_both(given, tmp_path, capsys, "batcher")


BAD = [
    ({"d": 0}, "d must be 1 or more"),
    ({"d": 5.0}, "d must be a whole number, not 5.0"),
    ({"d": float("nan")}, "d must be a whole number, not nan"),
    ({"d": "many"}, "d must be a whole number, not 'many'"),
    ({"bits": 8.5}, "bits must be a whole number, not 8.5"),
    ({"bits": 0}, "bits must be between 1 and 52"),
    ({"rank": 65}, "rank 65 is out of range"),
    ({"rank": [1, 1.5]}, "rank must be a whole number, not 1.5"),
    ({"quantile": -0.5}, "quantile -0.5 is out of range"),
    ({"quantile": float("nan")}, "quantile nan is out of range"),
    ({"quantile": "half"}, "quantile must be a number, not 'half'"),
    ({"quantile": 0.5, "method": "nearby"}, "method must be one of linear, lower, higher, midpoint, nearest"),
    ({"profile": "fussed"}, "not 'fussed': did you mean 'fused'?"),
    ({"dtype": "float16"}, "dtype='float16' is only for image filters: it needs window or frames"),
    ({"dtype": "half"}, "dtype must be one of auto, float32, float64, int8, uint8, float16, not 'half'"),
    ({"border": "edge"}, "border is only for image filters: it needs window or frames"),
    ({"op": "mode"}, "op must be one of median, max, min, sort"),
    ({"even": "middle"}, "even must be one of mean, lower, upper"),
    ({"domain": (1, 0)}, "the domain must be two finite numbers LO < HI"),
    ({"domain": (0, float("inf"))}, "the domain must be two finite numbers LO < HI"),
    ({"domain": (-1e6, "high")}, "domain must be a number, not 'high'"),
    ({"batch": 0}, "batch must be from 1 to 2147483647, not 0"),
    ({"batch": 2**31}, "batch must be from 1 to 2147483647, not 2147483648"),
    ({"radix": 3}, "radix must be a power of two from 2 to 256, not 3"),
    ({"radix": 16, "bits": 2}, "2 bits have 4 values"),
    ({"construction": "magic"}, "unknown construction 'magic': choose from radix"),
    ({"construction": "lineer18"}, "did you mean 'linear18'?"),
    ({"construction": "linear22"}, "use linear18"),
    ({"construction": "depth5", "seed": -1}, "seed must be 0 or more, not -1"),
    ({"construction": "depth5", "failure": float("nan")}, "failure must be a probability above 0 and below 1"),
    ({"construction": "depth5", "failure": 1}, "failure must be a probability"),
    ({"construction": "compact", "width": 0}, "width must be 1 or more, not 0"),
    ({"construction": "compact", "depth": 9.5}, "depth must be a whole number, not 9.5"),
    ({"construction": "depth3", "d": 3, "epsilon": 0}, "epsilon must be above 0 and at most 1, not 0"),
    ({"construction": "depth3", "bits": 50}, "is the most that works"),
    ({"construction": "fastest"}, "fastest is gone"),
    ({"tune": "depth", "optimize_for": "depth"}, "tune is the old name of optimize_for"),
    ({"op": "max", "rank": 3}, "op and rank ask for different things"),
    ({"method": "linear"}, "it needs quantile"),
    ({"even": "mean", "d": 9}, "9 is odd, so leave it out"),
    ({"even": "lower", "rank": 3}, "it changes nothing with rank"),
    ({"even": "lower", "op": "max"}, "it changes nothing with op='max'"),
]


@pytest.mark.parametrize(("given", "cause"), BAD, ids=lambda v: str(v) if isinstance(v, dict) else None)
def test_bad_values(given: dict[str, Any], cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = dict(given)
    assert cause in said_by_both(given, tmp_path, capsys, given.pop("construction", "radix"))


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"d": True}, "d must be a whole number, not True"),
        ({"d": None, "bits": True}, "bits must be a whole number"),
        ({"bits": "8"}, "bits must be a whole number, not '8'"),
        ({"domain": 5}, "domain takes two numbers LO HI, not 5"),
        ({"domain": (0, 1, 2)}, "domain takes two numbers LO HI"),
        ({"domain": "01"}, "domain takes two numbers LO HI"),
        ({"domain": {0, 1}}, "domain takes two numbers LO HI"),
        ({"construction": ""}, "unknown construction ''"),
        ({"rank": []}, "rank needs at least one value"),
        ({"quantile": {}}, "quantile must be a number"),
        ({"profile": ["dense"]}, "profile must be one of"),
        ({"certificate": 1}, "certificate is a switch: True or False, not 1"),
        ({"construction": 3}, "unknown construction 3"),
        ({"construction": ["radix"]}, "unknown construction"),
        ({"fialure": 0.1}, "unknown option 'fialure': did you mean 'failure'?"),
        ({"out": 5}, "out must be a directory, not 5"),
        ({"task": "median"}, "task must be one of exporter.problem.task"),
        ({"task": question(5, {}), "d": 6}, "the task is of 5 numbers, not d=6"),
        ({"task": question(5, {}), "rank": 2}, "leave rank out"),
    ],
)
def test_bad_values_that_only_a_program_can_give(given: dict[str, Any], cause: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        export_model(**{"d": 6, "out": tmp_path / "out", **given} if "task" not in given else {**given})
    assert cause in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_options_are_checked_without_a_front_door() -> None:
    wrong: dict[str, Any]
    for wrong in ({"profile": "fussed"}, {"batch": 0}, {"optimize_for": "fast"}, {"seed": -1}, {"dtype": "half"}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            build(Spec(question(64, {}), "radix", **wrong))
    for wrong in ({"failure": 2.0}, {"objective": "size"}, {"depth": 0}, {"width": float("nan")}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            build(Spec(question(64, {}), "compact", **wrong))
    with pytest.raises(UserError, match="batcher does not use failure"):
        build(Spec(question(64, {}), "batcher", failure=0.1))


def test_the_library_has_the_options_of_the_command_line(tmp_path: Path) -> None:
    """The same bytes under the same names."""
    sampled = {"construction": "compact", "failure": 0.2, "seed": 3, "depth": 7}
    signed = {"construction": "radix", "op": "max", "domain": np.array([-1e6, 1e6]), "bits": 12}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"d": 6, "construction": "batcher", "even": "lower"}, "--d 6 --construction batcher --even lower"),
        ({"d": 9, "quantile": [0.25, 0.75], "method": "lower"}, "--d 9 --quantile .25 --quantile .75 --method lower"),
        ({"d": 64, "construction": "depth3", "certificate": True}, "--d 64 --construction depth3 --certificate"),
        ({"d": 9, "construction": "radix", "optimize_for": "latency"}, "--d 9 --construction radix --tune latency"),
        ({"d": 64, "construction": "depth5", "failure": 0.05}, "--d 64 --construction depth5 --failure 5e-2"),
        ({"d": 20, **sampled}, "--d 20 --construction compact --failure 0.2 --seed 3 --depth 7"),
        ({"d": np.int64(5), **signed}, "--d 5 --construction radix --op max --domain -1e6 1E+6 --bits 12"),
        ({"d": 5, "profile": None, "certificate": False}, "--d 5"),
    ]
    for i, (given, words) in enumerate(cases):
        path = export_model(out=tmp_path / f"{i}", **given)
        named = [] if "--construction" in words else ["--construction", "batcher", "--profile", "minmax"]
        assert main([*words.split(), *named, "--out", str(tmp_path / f"{i}-cli")]) == 0
        assert (tmp_path / f"{i}-cli" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("lo", "hi"), [("-1e6", "1e6"), ("-1.5e-3", "-1e-3"), ("-.5", "-2.5e-1"), ("-3.", "-1E+0")])
def test_negative_numbers_in_every_spelling(tmp_path: Path, lo: str, hi: str) -> None:
    assert main(f"--d 5 --construction batcher --bits 12 --domain {lo} {hi} --out {tmp_path}".split()) == 0
    (path,) = tmp_path.glob("*.onnx")
    x = np.linspace(float(lo), float(hi), 5)[None].astype(np.float32)
    got = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    assert abs(got[0, 0] - np.median(x)) <= (float(hi) - float(lo)) / 2**10


def test_without_names_an_option_is_for_those_that_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--d", "16", "--failure", "0.2", "--optimize-for", "latency", "--out", str(tmp_path)]) == 0
    assert {p.stem for p in tmp_path.glob("*.onnx")} == {
        "median-radix-d16-latency", "median-depth3-d16", "median-batcher-d16",
        *(f"median-{name}-d16-p0.2" for name in ("depth5", "linear46", "linear18", "compact")),
    }  # fmt: skip


@pytest.mark.parametrize(
    "options", ["--d 5 --failure 0.01", "--d 64 --width 10", "--d 5 --seed 0", "--d 9 --op max --epsilon 0.5 --bits 8"]
)
def test_without_names_an_option_that_nothing_takes_is_refused(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options.split(), "--out", str(tmp_path / "out")]) == 2
    assert "nothing that can be built here takes --" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_refusals_say_which_step_needs_how_many_bits() -> None:
    task = question(64, {})
    for spec, parts in (
        (
            Spec(task, "depth3", dtype="float32"),
            ("layer ", "adds up ", "takes 30 bits", "float32 has 24", "dtype='float64'"),
        ),
        (Spec(task, "compact", dtype="float32"), ("adds up", "bits to be exact", "is the most that works")),
        (Spec(task, "depth3", dtype="float32", profile="dense"), ("in one Gemm", "bits=")),
    ):
        with pytest.raises(ContractError) as caught:
            build(spec)
        for part in parts:
            assert part in str(caught.value)
