"""The most memory that Python allocates while each of the attacks is answered.

    python -m tests.service.peaks SIZE

A program of its own, which never stops tracemalloc: before Python 3.12.9, stopping it while another thread allocates may
end the process (cpython issue 128679).
"""

from __future__ import annotations

import json
import sys
import tempfile
import tracemalloc
from pathlib import Path

from exporter.library import export_model
from service.app import create_app
from service.process.settings import Settings
from tests.service.attacks import ATTACKS
from tests.service.conftest import InProcess


def main(size: int) -> None:
    """Print, for each attack, its name, the status, the peak in bytes, and whether the service answers afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        model = export_model(d=64, construction="batcher", out=folder).stem
        client = InProcess(create_app(Settings(models=Path(folder), log_level="error", build=False)))
        tracemalloc.start()
        for name, attack in ATTACKS.items():
            path, headers = attack.path.format(model=model), {"Content-Type": attack.kind}
            client.post(path, content=attack.make(1000), headers=headers)  # imports are not counted
            body = attack.make(size)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            status = client.post(path, content=body, headers=headers).status_code
            _, peak = tracemalloc.get_traced_memory()
            alive = client.get("/healthz").status_code == 200
            print(json.dumps([name, status, peak - before, alive]), flush=True)
        client.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
