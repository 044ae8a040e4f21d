"""Workers count in files that they share: the sum is that of all, dead or alive, and no file is left over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

WORKER = """
import sys
from service.process import metrics
metrics.REQUESTS.labels('/a"b', 200).inc(3)
metrics.WAITING_ROWS.set(7)
metrics.QUEUE_SECONDS.labels("m").observe(0.0003)
print(metrics.exposition()[0].decode(), end="end\\n", flush=True)
sys.stdin.read()
"""


class Worker:
    """A process that counts three requests, and its metrics."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        text = "".join(iter(self.process.stdout.readline, "end\n"))
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self.seen = {" ".join([sample.name, *sorted(sample.labels.values())]): sample.value for sample in samples}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_metrics_are_those_of_all_and_the_dead_count_on(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    first.kill()
    third = Worker(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == files, "it has the place of the first"
    for number, worker in enumerate((first, second, third), 1):
        assert worker.seen['median_requests_total /a"b 200'] == 3 * number
        assert worker.seen["median_queue_seconds_count m"] == number
        assert worker.seen["median_queue_seconds_bucket 0.0005 m"] == number
        assert worker.seen["median_queue_rows"] == 7 * min(number, 2), "nothing waits in a worker that is gone"
        assert not [name for name in worker.seen if "created" in name or "process" in name]
    second.kill()
    third.kill()


def test_a_worker_opens_its_files_when_it_starts(tmp_path: Path) -> None:
    """A worker that opens a file at its first request may lack the descriptors for the file."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    script = """
import os
from service.process import metrics
def opened():
    links = (os.readlink(entry) for entry in os.scandir("/proc/self/fd") if os.path.exists(entry))
    return sorted(link for link in links if link.endswith(".db"))
before = opened()
metrics.REQUESTS.labels("/median", 200).inc()
metrics.REQUEST_SECONDS.labels("/median").observe(0.1)
metrics.ModelMetrics("m").queue(0.1)
assert before == opened(), before
"""
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
