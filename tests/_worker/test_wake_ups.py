"""Paceline's own threads in a worker leave the cores to training."""

import os
import threading
import time

import pytest

from paceline.train import DataParallelTrainer, RunConfig

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="counts come from /proc")

WINDOW_S = 4.0


def count_wake_ups():
    """How often threads other than this one gave up a core voluntarily, which each does once per wake-up."""
    counts = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        counts[task] = int(fields["voluntary_ctxt_switches"])
    counts.pop(str(threading.get_native_id()))
    return sum(counts.values())


@pytest.mark.slow
def test_threads_of_a_worker_wake_at_most_twice_a_second(tmp_path):
    def function():
        # Waiting instead of computing: a thread that waits for the GIL gives up its core more than once per wake-up.
        before, began = count_wake_ups(), time.monotonic()
        threading.Event().wait(WINDOW_S)
        return (count_wake_ups() - before) / (time.monotonic() - began)

    result = DataParallelTrainer(function, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert result.return_value <= 2
