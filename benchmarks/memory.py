"""How much memory do all processes of a run hold for themselves while a small DDP model trains?

The unique set size (what would be free if the process ended) of the driver, the zygotes that workers fork from, and two
workers, against that of torchrun and its two workers. Taken some seconds into training, when nothing is imported any
more.
"""

from __future__ import annotations

import argparse
import statistics
import time

import psutil
from _measure import Bar, Bench, Measure, Report, check, main
from _turns import Trainee, trainee

WARM_UP, STEPS = 100, 20
SAMPLES = 5


def measured(bench: Bench) -> Report:
    held: dict[str, list[dict[str, float]]] = {"ours": [], "torchrun": []}
    for _ in bench.rounds():
        for name, samples in held.items():
            samples.append(_held(bench, name))
    sums = {name: [sum(one.values()) for one in samples] for name, samples in held.items()}
    return Report(
        [Measure("unique set size", "MB", sums["ours"], {"torchrun": sums["torchrun"]}, Bar("<", 700))],
        {f"{name}, each": _each(samples) for name, samples in held.items()},
    )


def _held(bench: Bench, name: str) -> dict[str, float]:
    """Megabytes by process, the median of some samples while it trains."""
    found: list[dict[str, float]] = []
    with trainee(bench, name) as one:
        settled = time.monotonic() + bench.options.after
        one.train(WARM_UP)
        time.sleep(max(0.0, settled - time.monotonic()))
        processes = _processes(one)
        check(sum(role.startswith("worker") for role in processes) == 2, f"{name}: two workers expected: {processes}")
        for _ in range(SAMPLES):
            one.begin(STEPS)
            time.sleep(0.02)
            found.append({role: p.memory_full_info().uss / 1e6 for role, p in processes.items()})
            one.took()
    return {role: statistics.median(sample[role] for sample in found) for role in found[0]}


def _processes(one: Trainee) -> dict[str, psutil.Process]:
    """All of a run, by what they are: the one that was started, the workers, and those between."""
    first = psutil.Process(one.process.pid)
    found = {"driver": first}
    others = 0
    for process in first.children(recursive=True):
        if process.pid in one.pids:
            found[f"worker {one.pids.index(process.pid)}"] = process
        else:
            others += 1
            found[f"zygote {others}"] = process
    return found


def _each(samples: list[dict[str, float]]) -> str:
    return ", ".join(f"{role} {statistics.median(s[role] for s in samples):.0f}" for role in samples[0]) + " MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after", type=float, default=6, help="seconds of training before the samples (default 6)")


if __name__ == "__main__":
    main("memory", measured, repeats=3, add_arguments=add_arguments)
