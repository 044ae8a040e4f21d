"""The commands that read or study networks, such as `python -m exporter describe FILE`; each is an entry of `COMMANDS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from exporter.cli import theory
from exporter.cli.command import Command, Parser, number, show
from exporter.errors import UserError, install


def _describe(parser: Parser, args: Sequence[str]) -> int:
    from exporter.tools.describe import describe, describe_lines

    parser.add_file()
    parser.add_json()
    parsed = parser.parse_args(args)
    about = describe(parsed.file)
    show(about, describe_lines(about), parsed.json)
    return 0


def _verify(parser: Parser, args: Sequence[str]) -> int:
    from exporter.progress import Progress
    from exporter.tools.verify import verify

    parser.add_file()
    parser.add_json()
    parser.add_whole("--trials", 1, "N", "vectors per family (default: 100)", default=100)
    parser.add_whole("--seed", 0, "S", "of the random inputs (default: 0)", default=0)
    parsed = parser.parse_args(args)
    result = verify(parsed.file, parsed.trials, parsed.seed, lambda names: iter(Progress(names, "verifying", "family")))
    show(result.as_dict(), result.lines(), parsed.json)
    return 0 if result.kept else 1


def _prove(parser: Parser, args: Sequence[str]) -> int:
    from exporter.prove import certificate

    parser.add_file(nargs="?", default=None)
    parser.add_argument(
        "--out", type=Path, default=None, metavar="CERT", help="write a certificate if the file is proved"
    )
    parser.add_argument("--check", type=Path, default=None, metavar="CERT", help="prove again what a certificate says")
    parser.add_json()
    parsed = parser.parse_args(args)
    if parsed.check and parsed.out:
        parser.error("--check reads a certificate and --out writes one: leave one of them out")
    if parsed.check:
        verdict = certificate.check(parsed.check, parsed.file)
    elif parsed.file:
        verdict = certificate.certify(parsed.file, parsed.out)
    else:
        parser.error("the following arguments are required: FILE (or --check CERT)")
    show(asdict(verdict), verdict.lines(), parsed.json)
    return verdict.exit_status


def _properties(parser: Parser, args: Sequence[str]) -> int:
    from exporter.tools.properties import write_properties

    parser.add_file("an .onnx file of --profile dense --inputs grid")
    parser.add_out("the folder for the properties")
    parsed = parser.parse_args(args)
    for name, answer in write_properties(parsed.file, parsed.out):
        print(f"{parsed.out / name}  {answer}")
    return 0


def _benchmark(parser: Parser, args: Sequence[str]) -> int:
    from exporter.tools.benchmark import write_benchmark

    parser.add_out("a folder of its own")
    parser.add_whole("--seed", 0, "S", "draws the properties (default: 0)", default=0)
    parsed = parser.parse_args(args)
    print(f"{parsed.out / 'instances.csv'}  {write_benchmark(parsed.out, parsed.seed)} instances")
    return 0


def _rewrite(parser: Parser, args: Sequence[str]) -> int:

    from exporter.frontends.rewriting import OPERATORS
    from exporter.passes.profiles import PROFILES
    from exporter.progress import Progress

    parser.add_argument("file", type=Path, metavar="MODEL", help="an .onnx file, of any origin")
    parser.add_argument("--out", type=Path, metavar="NEW", help="the .onnx file to write")
    parser.add_argument("--dry-run", action="store_true", help="say what would be replaced, and write nothing")
    parser.add_json()
    parser.add_argument(
        "--profile", metavar=f"{{{','.join(PROFILES)}}}",
        help="what the new nodes are made of (default: minmax, Max and Min, which is right on all data as it is; with "
        "--domain structured: values only, by Relu as the only non-linear operator, on a range and a grid)",
    )  # fmt: skip
    parser.add_argument(
        "--domain", type=number, nargs=2, metavar=("LO", "HI"), help="the range of the data, at every node"
    )
    parser.add_argument(
        "--calibrate", type=Path, metavar="DATA.npz",
        help="data of yours, arrays named as the inputs of the model: both models run on them, and they give the range "
        "at each node that the other profiles than minmax need",
    )  # fmt: skip
    parser.add_argument(
        "--bits",
        type=number,
        metavar="B",
        help="the grid of 2^B steps on that range (default: 24, or all of an int8)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=OPERATORS,
        help="replace only these operators, repeatable (default: TopK, and a Gather by its indices that costs little)",
    )
    parser.add_argument("--also", action="append", choices=OPERATORS, help="replace these operators too, repeatable")
    parser.add_argument("--no-check", action="store_true", help="do not run both models")
    parsed = vars(parser.parse_args(args))
    dry, skip = parsed.pop("dry_run", False), parsed.pop("no_check", False)
    file, as_json, out = parsed.pop("file"), parsed.pop("json"), parsed.pop("out", None)
    if out is None and not dry:
        parser.error("the following arguments are required: --out (or --dry-run)")
    try:
        from exporter.frontends.rewriting.rewrite import rewrite
    except ModuleNotFoundError as error:
        raise UserError(f"rewrite needs {error.name}: {install('rewrite')}") from None
    for _ in (bar := Progress([file], "rewriting", "model")):
        found = rewrite(
            file,
            None if dry else out,
            check=not (dry or skip),
            progress=bar.stage,
            **parsed,
        )
    show(found.as_dict(), found.lines(), as_json)
    return found.status


COMMANDS = {
    "describe": Command(
        _describe,
        "FILE: what it computes and promises, its depth and operators",
        "Print what a file says of itself, what its graph proves, and its operators.",
        "  python -m exporter --d 9 --construction batcher --out models/\n"
        "  python -m exporter describe models/median-batcher-d9.onnx",
    ),
    "verify": Command(
        _verify,
        "FILE: run it against numpy; status 1 if a promise is broken",
        "Run a file in onnxruntime against numpy on named families of inputs.",
        "  python -m exporter --d 9 --construction batcher --out models/\n"
        "  python -m exporter verify models/median-batcher-d9.onnx --trials 50",
    ),
    "prove": Command(
        _prove,
        "FILE: prove it right on every input, or refute it",
        "Prove from the bytes of a file that it computes its order statistic on every input, or refute it.\n"
        "Output and exit status: `proved:` 0, `refuted:` 1 with the input, `not proved:` 2 with the reason.\n"
        "docs/verification.md has the methods and what they assume.",
        "  python -m exporter --d 25 --construction batcher --out models/\n"
        "  python -m exporter prove models/median-batcher-d25.onnx --out models/median-batcher-d25.proof.json\n"
        "  python -m exporter prove --check models/median-batcher-d25.proof.json",
    ),
    "properties": Command(
        _properties,
        "FILE: write VNN-LIB properties of it, for verifiers",
        "Write properties of a Gemm/Relu chain for neural network verifiers, in VNN-LIB 1.0 and 2.0 (.v2.vnnlib).\n"
        "Half of them hold (unsat), half are violated (sat), with a counterexample that was run in onnxruntime.",
        "  python -m exporter --d 3 --bits 8 --construction radix --profile dense --inputs grid --out models/\n"
        "  python -m exporter properties models/median-radix-d3-b8-grid-only-dense.onnx --out properties/",
    ),
    "benchmark": Command(
        _benchmark,
        "write networks and properties for verifiers, as VNN-COMP does",
        "Write a benchmark for neural network verifiers: onnx/, vnnlib/, instances.csv and a page that explains the\n"
        "properties. d = 2 to 9 on d - 1 bits, by three constructions; half of the instances hold, half are violated.",
        "  python -m exporter benchmark --seed 1 --out benchmark/",
    ),
    **theory.COMMANDS,
    "rewrite": Command(
        _rewrite,
        "MODEL: replace TopK in any ONNX model by networks of ours",
        "Replace TopK along an axis of known length, which torch writes for sort, msort, argsort, topk and quantile; with\n"
        "--also ReduceMax, ReduceMin, ArgMax, ArgMin and MaxPool too. Both models are run and compared.\n"
        "Exit status 0: all replaced and as right as promised (without a check where --no-check or --dry-run asks for\n"
        "none); 1: something is left as it was, or differs; 2: an error, and nothing is written; 3: all replaced, but\n"
        "nothing was checked, because onnxruntime does not run the model as it was, or not on any input that was drawn.",
        "  python -m exporter --d 64 --construction radix --optimize-for latency --profile fused --out models/\n"
        "  python -m exporter rewrite models/median-radix-d64-latency-fused.onnx --also ReduceMax --out models/new.onnx",
    ),
    "theory": theory.THEORY,
}
