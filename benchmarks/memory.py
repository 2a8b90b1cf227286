"""How much memory do all processes of a run hold for themselves while a small DDP model trains?

The unique set size (what would be free if the process ended) of the driver, the process that workers fork from, and
two workers, against that of torchrun and its two workers. Sampled several times while they train.
"""

from __future__ import annotations

import statistics
import time

import psutil
from _measure import Bar, Bench, BenchmarkError, Measure, Report, check, main
from _turns import trainee

WARM_UP, STEPS = 100, 20
SAMPLES = 5
ROLES = {"ours": (("driver",), ("zygote",), ("worker", "worker")), "torchrun": (("agent",), ("worker", "worker"))}
"""Who is there, generation by generation."""


def measured(bench: Bench) -> Report:
    held: dict[str, list[dict[str, float]]] = {"ours": [], "torchrun": []}
    for _ in bench.rounds():
        for name, samples in held.items():
            samples.append(_held(bench, name))
    sums = {name: [sum(one.values()) for one in samples] for name, samples in held.items()}
    return Report(
        [Measure("unique set size", "MB", sums["ours"], {"torchrun": sums["torchrun"]}, Bar("<", 700))],
        {name: _each(samples) for name, samples in held.items()},
    )


def _held(bench: Bench, name: str) -> dict[str, float]:
    """Megabytes by process: the median of some samples, the highest sum being noise of one step."""
    found: list[dict[str, float]] = []
    with trainee(bench, name) as one:
        one.train(WARM_UP)
        processes = _processes(name, one.process.pid)
        for _ in range(SAMPLES):
            one.begin(STEPS)
            time.sleep(0.02)
            found.append({role: p.memory_full_info().uss / 1e6 for role, p in processes.items()})
            one.took()
    return {role: statistics.median(sample[role] for sample in found) for role in found[0]}


def _processes(name: str, pid: int) -> dict[str, psutil.Process]:
    found: dict[str, psutil.Process] = {}
    generation = [psutil.Process(pid)]
    for roles in ROLES[name]:
        tree = [" ".join(p.cmdline())[:60] for p in generation]
        check(len(generation) == len(roles), f"{name}: {len(roles)} processes expected ({roles}), found {tree}")
        for i, (role, process) in enumerate(zip(roles, generation, strict=True)):
            found[f"{role} {i}" if len(roles) > 1 else role] = process
        generation = [child for process in generation for child in process.children()]
    if generation:
        raise BenchmarkError(f"{name}: workers have children of their own: {generation}")
    return found


def _each(samples: list[dict[str, float]]) -> str:
    return ", ".join(f"{role} {statistics.median(s[role] for s in samples):.0f}" for role in samples[0]) + " MB"


if __name__ == "__main__":
    main("memory", measured, repeats=3)
