"""A zero-knowledge proof with ezkl: `python -m tests.runtimes.ezkl_proof [--counts] MODEL.onnx X1 X2 ...`.

Without `--counts` the circuit is the network. With `--counts` the circuit checks the answer instead of computing it: its
inputs are the numbers and the answer m, its outputs the sums of sign(x_i - m) and of |sign(x_i - m)|. These sums tell how
many numbers lie below m and how many above, so that a reader sees whether m has the rank that the network claims.

The common reference string is made here (`gen_srs`), so nothing is downloaded. Whoever makes such a string can forge proofs:
the run shows that the circuit can be proved, and is not for use. Prints a line of JSON with the answer in the proof, seconds
and sizes; status 1 if the proof does not verify, or verifies with another answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ezkl
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort


def counts(d: int) -> onnx.ModelProto:
    """The sums of sign(x_i - m) and of |sign(x_i - m)|."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]>
    counts (float[1, {d}] x, float[1, 1] m) => (float[1, 2] y) <int64[1] axis = {{1}}> {{
        away = Sub(x, m)
        sign = Sign(away)
        other = Abs(sign)
        balance = ReduceSum(sign, axis)
        others = ReduceSum(other, axis)
        y = Concat<axis = 1>(balance, others)
    }}""")


def proved(model: Path, inputs: list[list[float]], bits: int, answer_at: int, folder: Path) -> dict[str, Any]:
    """The public numbers of a proof that verifies, and whether the proof verifies with another answer."""
    dims = [dim.dim_param for i in onnx.load(model).graph.input for dim in i.type.tensor_type.shape.dim]
    args = ezkl.PyRunArgs()
    args.input_scale = args.param_scale = bits
    args.input_visibility = args.output_visibility = "public"
    args.param_visibility = "fixed"
    args.logrows = 12
    args.variables = [(dim, 1) for dim in dims if dim]
    names = ("settings", "data", "circuit", "witness", "srs", "vk", "pk", "proof", "forged")
    settings, data, circuit, witness, srs, vk, pk, proof, forged = (str(folder / name) for name in names)
    Path(data).write_text(json.dumps({"input_data": inputs}))
    seconds: dict[str, float] = {}

    def timed(name: str, call: object, *given: object) -> object:
        start = time.perf_counter()
        found = call(*given)  # type: ignore[operator]
        seconds[name] = round(time.perf_counter() - start, 2)
        return found

    ezkl.gen_settings(str(model), settings, py_run_args=args)
    ezkl.compile_circuit(str(model), circuit, settings)
    about = json.loads(Path(settings).read_text())
    rows = about["run_args"]["logrows"]
    timed("srs", ezkl.gen_srs, srs, rows)
    timed("witness", ezkl.gen_witness, data, circuit, witness)
    timed("setup", ezkl.setup, circuit, vk, pk, srs)
    timed("prove", ezkl.prove, witness, circuit, pk, proof, srs)
    verified = timed("verify", ezkl.verify, proof, settings, vk, srs)
    made = json.loads(Path(proof).read_text())
    public = made["instances"][0]
    scales = [bits] * sum(map(len, inputs))
    scales += [about["model_output_scales"][0]] * (len(public) - len(scales))
    other = json.loads(Path(proof).read_text())
    other["instances"][0][answer_at] = next(v for v in [*public, "01" + "00" * 31] if v != public[answer_at])
    Path(forged).write_text(json.dumps(other))
    try:
        accepted = bool(ezkl.verify(forged, settings, vk, srs))
    except RuntimeError:
        accepted = False
    return {
        "public": [ezkl.felt_to_float(v, scale) for v, scale in zip(public, scales, strict=True)],
        "verified": bool(verified), "another_answer_verified": accepted, "logrows": rows, "rows": about["num_rows"],
        "proof_bytes": len(bytes.fromhex(made["hex_proof"].removeprefix("0x"))), "seconds": seconds,
    }  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runtimes.ezkl_proof")
    parser.add_argument("--counts", action="store_true", help="prove that the answer has its rank, not the network")
    parser.add_argument("model", type=Path)
    parser.add_argument("x", type=float, nargs="+")
    parsed = parser.parse_args(argv)
    x, d = parsed.x, len(parsed.x)
    about = {p.key: p.value for p in onnx.load(parsed.model).metadata_props}
    bits, ranks = int(about["bits"]), json.loads(about["ranks"])
    if len(ranks) != 1:
        parser.error(f"{parsed.model} gives ranks {ranks}: counts show one rank, so export an odd d or one --rank")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not parsed.counts:
            found = proved(parsed.model, [x], bits, d, folder)
            print(json.dumps({"answer": found.pop("public")[-1]} | found))
            return 0 if found["verified"] and not found["another_answer_verified"] else 1
        m = float(ort.InferenceSession(parsed.model).run(None, {"x": np.array([x], np.float32)})[0].item())
        onnx.save(counts(d), folder / "counts.onnx")
        found = proved(folder / "counts.onnx", [x, [m]], bits, d, folder)
    *_, balance, others = found.pop("public")
    below, above = (others - balance) / 2, (others + balance) / 2
    right = below < ranks[0] <= d - above
    print(json.dumps({"answer": m, "below": below, "above": above, "has_its_rank": right} | found))
    return 0 if right and found["verified"] and not found["another_answer_verified"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
