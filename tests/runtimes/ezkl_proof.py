"""A zero-knowledge proof of one median with ezkl: `python -m tests.runtimes.ezkl_proof MODEL.onnx X1 X2 ...`.

The common reference string is made here (`gen_srs`), so nothing is downloaded. Whoever makes such a string can forge proofs:
it shows that the circuit can be proved, and is not for use. Prints a line of JSON with the answer in the proof, seconds and
sizes; status 1 if the proof does not verify, or verifies with another answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import ezkl
import onnx


def prove(model: Path, x: list[float], folder: Path) -> dict[str, object]:
    proto = onnx.load(model)
    bits = int({p.key: p.value for p in proto.metadata_props}["bits"])
    dims = [dim.dim_param for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    args = ezkl.PyRunArgs()
    args.input_scale = args.param_scale = bits
    args.input_visibility = args.output_visibility = "public"
    args.param_visibility = "fixed"
    args.logrows = 12
    args.variables = [(dim, 1) for dim in dims if dim]
    names = ("settings", "data", "circuit", "witness", "srs", "vk", "pk", "proof", "forged")
    settings, data, circuit, witness, srs, vk, pk, proof, forged = (str(folder / name) for name in names)
    Path(data).write_text(json.dumps({"input_data": [x]}))
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
    answer = made["instances"][0][-1]
    (scale,) = about["model_output_scales"]
    other = json.loads(Path(proof).read_text())
    other["instances"][0][-1] = made["instances"][0][0] if made["instances"][0][0] != answer else "01" + "00" * 31
    Path(forged).write_text(json.dumps(other))
    try:
        accepted = bool(ezkl.verify(forged, settings, vk, srs))
    except RuntimeError:
        accepted = False
    return {
        "median": ezkl.felt_to_float(answer, scale), "verified": bool(verified), "another_answer_verified": accepted,
        "logrows": rows, "rows": about["num_rows"], "proof_bytes": len(bytes.fromhex(made["hex_proof"].removeprefix("0x"))),
        "seconds": seconds,
    }  # fmt: skip


def main(argv: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = prove(Path(argv[0]), [float(v) for v in argv[1:]], Path(folder))
    print(json.dumps(found))
    return 0 if found["verified"] and not found["another_answer_verified"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
