"""Trains and reports in turns. Arguments: a directory, the port of the benchmark, reports a second to aim at."""

import socket
import sys
import time

from paceline import train
from paceline.train.data_parallel_trainer import DataParallelTrainer

SOME_WORK = 500


def train_func(config):
    report, now = train.report, time.perf_counter

    def steps(first, count, work):
        """Each step is an empty loop, which needs no memory and no lock, and a report."""
        began = now()
        for step in range(first, first + count):
            for _ in range(work):
                pass
            report({"step": step, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3})
        return now() - began

    # The minimum of several, to exclude warm-up and other load.
    done, took, loop_s = 0, [], []
    for _ in range(8):
        took.append(steps(done, 2000, SOME_WORK) / 2000)
        loop_s.append(_time_empty_loop())
        done += 2000
    work = max(1, int(SOME_WORK + (1 / config["rate"] - min(took)) / min(loop_s)))
    with socket.create_connection(("127.0.0.1", config["port"])) as end, end.makefile("rw") as line:
        line.write(f"{work}\n")
        line.flush()
        while count := int(line.readline()):
            seconds = steps(done, count, work)
            done += count
            line.write(f"{seconds}\n")
            line.flush()


def _time_empty_loop():
    began = time.perf_counter()
    for _ in range(100_000):
        pass
    return (time.perf_counter() - began) / 100_000


directory, port, rate = sys.argv[1:]
DataParallelTrainer(
    train_func,
    train_loop_config={"port": int(port), "rate": float(rate)},
    scaling_config=train.ScalingConfig(num_workers=1),
    run_config=train.RunConfig(name="live", storage_path=directory),
).fit()
