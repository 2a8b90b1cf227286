"""How much unique memory do all processes of a run use while a small DDP model trains?

The unique set size (what would be free if the process ended) of the started process, of two workers, and of all other
processes: zygotes that workers fork from, an agent, Ray's daemons. Sampled some seconds into training, after all
imports. The floor is torchrun's two workers without its agent.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections import defaultdict

import psutil
from _measure import Bar, Bench, Measure, Report, check, main
from _peers import PEERS
from _turns import TrainingGroup, start_group

WARM_UP, STEPS = 100, 20
SAMPLES = 5

Memory = dict[str, float]
"""Megabytes by process."""


def measure(bench: Bench) -> Report:
    memory: dict[str, list[Memory]] = defaultdict(list)
    for number in bench.rounds():
        for name in ("ours", *PEERS):
            if name == "ours" or bench.takes_part(name, number):
                bench.log(name)
                memory[name].append(_measure_memory(bench, name))
    sums = {name: [sum(sample.values()) for sample in samples] for name, samples in memory.items()}
    peers = {peer.title: sums[name] for name, peer in PEERS.items() if name in sums}
    floor = {}
    if "torchrun" in memory:
        floor["two bare workers"] = [sample["worker 0"] + sample["worker 1"] for sample in memory["torchrun"]]
    return Report(
        [Measure("memory", "MB", sums["ours"], peers, Bar("<", 700), floor)],
        {f"{name}, each": _describe_processes(samples) for name, samples in memory.items()},
    )


def _measure_memory(bench: Bench, name: str) -> Memory:
    """The median of some samples during training."""
    samples: list[Memory] = []
    with start_group(bench, name) as group:
        settled = time.monotonic() + bench.options.after
        group.train(WARM_UP)
        time.sleep(max(0.0, settled - time.monotonic()))
        processes = _processes(group)
        check(sum(role.startswith("worker") for role in processes) == 2, f"{name}: two workers expected: {processes}")
        for _ in range(SAMPLES):
            group.begin(STEPS)
            time.sleep(0.02)
            samples.append(_sample_memory(processes))
            group.read_seconds()
    lasting = [role for role in processes if all(role in sample for sample in samples)]
    return {role: statistics.median(sample[role] for sample in samples) for role in lasting}


def _sample_memory(processes: dict[str, psutil.Process]) -> Memory:
    memory = {}
    for role, process in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):  # Some of Ray's processes come and go.
            memory[role] = process.memory_full_info().uss / 1e6
    return memory


def _processes(group: TrainingGroup) -> dict[str, psutil.Process]:
    """All processes of a run by role. The started process may be a worker, as with Lightning."""
    first = psutil.Process(group.process.pid)
    processes, others = {}, 0
    for process in (first, *first.children(recursive=True)):
        if process.pid in group.pids:
            processes[f"worker {group.pids.index(process.pid)}"] = process
        elif process is first:
            processes["driver"] = process
        else:
            others += 1
            processes[f"other {others}"] = process
    return processes


def _describe_processes(samples: list[Memory]) -> str:
    roles = [role for role in samples[0] if all(role in sample for sample in samples)]
    each = [
        f"{role} {statistics.median(s[role] for s in samples):.0f}" for role in roles if not role.startswith("other")
    ]
    others = [sum(memory for role, memory in s.items() if role.startswith("other")) for s in samples]
    count = statistics.median(sum(role.startswith("other") for role in s) for s in samples)
    return ", ".join([*each, f"{count:.0f} others {statistics.median(others):.0f}"]) + " MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after", type=float, default=5, help="seconds of training before the samples (default 5)")


if __name__ == "__main__":
    main("memory", measure, peers=tuple(PEERS), repeats=2, peer_repeats=1, add_arguments=add_arguments)
