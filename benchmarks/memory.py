"""How much memory do all processes of a run hold for themselves while a small DDP model trains?

The unique set size (what would be free if the process ended) of whatever was started, of two workers, and of all
processes between and beside them: zygotes that workers fork from, an agent, Ray's daemons. Taken some seconds into
training, when nothing is imported any more. The floor is the two workers of torchrun without the one that watches them.
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
from _turns import Trainee, trainee

WARM_UP, STEPS = 100, 20
SAMPLES = 5

Held = dict[str, float]
"""Megabytes, by process."""


def measured(bench: Bench) -> Report:
    held: dict[str, list[Held]] = defaultdict(list)
    for number in bench.rounds():
        for name in ("ours", *PEERS):
            if name == "ours" or bench.takes_part(name, number):
                bench.say(name)
                held[name].append(_held(bench, name))
    sums = {name: [sum(one.values()) for one in samples] for name, samples in held.items()}
    peers = {peer.title: sums[name] for name, peer in PEERS.items() if name in sums}
    floor = {}
    if "torchrun" in held:
        floor["two bare workers"] = [one["worker 0"] + one["worker 1"] for one in held["torchrun"]]
    return Report(
        [Measure("memory", "MB", sums["ours"], peers, Bar("<", 700), floor)],
        {f"{name}, each": _each(samples) for name, samples in held.items()},
    )


def _held(bench: Bench, name: str) -> Held:
    """The median of some samples while it trains."""
    found: list[Held] = []
    with trainee(bench, name) as one:
        settled = time.monotonic() + bench.options.after
        one.train(WARM_UP)
        time.sleep(max(0.0, settled - time.monotonic()))
        processes = _processes(one)
        check(sum(role.startswith("worker") for role in processes) == 2, f"{name}: two workers expected: {processes}")
        for _ in range(SAMPLES):
            one.begin(STEPS)
            time.sleep(0.02)
            found.append(_now(processes))
            one.took()
    lasting = [role for role in processes if all(role in sample for sample in found)]
    return {role: statistics.median(sample[role] for sample in found) for role in lasting}


def _now(processes: dict[str, psutil.Process]) -> Held:
    held = {}
    for role, process in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):  # Of Ray's, some come and go.
            held[role] = process.memory_full_info().uss / 1e6
    return held


def _processes(one: Trainee) -> dict[str, psutil.Process]:
    """All of a run, by what they are. What was started may be a worker itself: with Lightning it is."""
    first = psutil.Process(one.process.pid)
    found, others = {}, 0
    for process in (first, *first.children(recursive=True)):
        if process.pid in one.pids:
            found[f"worker {one.pids.index(process.pid)}"] = process
        elif process is first:
            found["driver"] = process
        else:
            others += 1
            found[f"other {others}"] = process
    return found


def _each(samples: list[Held]) -> str:
    roles = [role for role in samples[0] if all(role in sample for sample in samples)]
    each = [
        f"{role} {statistics.median(s[role] for s in samples):.0f}" for role in roles if not role.startswith("other")
    ]
    others = [sum(held for role, held in s.items() if role.startswith("other")) for s in samples]
    count = statistics.median(sum(role.startswith("other") for role in s) for s in samples)
    return ", ".join([*each, f"{count:.0f} others {statistics.median(others):.0f}"]) + " MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after", type=float, default=5, help="seconds of training before the samples (default 5)")


if __name__ == "__main__":
    main("memory", measured, peers=tuple(PEERS), repeats=2, peer_repeats=1, add_arguments=add_arguments)
