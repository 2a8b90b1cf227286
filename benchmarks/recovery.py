"""How long after the SIGKILL of a worker has the restored group done its first step, and from where does it resume?

Two torch workers save at every step. Some seconds into the run one records the time and kills itself, right after a
`report()` with a checkpoint returned; both record when they have restored and done one step. A step is either one
all-reduce or one step of a DDP model with an optimizer, which takes longer to set up. Rounds alternate between killing
rank 0 and rank 1. torchrun restarts its workers too (`--max-restarts`), with `torch.save` and `torch.load` in the
script. The floor is two forks of a process that has imported torch, with one all-reduce.

A second question is that of guarantee G5: how long after the SIGKILL of a driver are all processes, shared memory and
temporary files of its run gone?
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from _measure import Bar, Bench, Measure, Report, check, main, note, python, read_rank_results, read_times
from _processes import living_descendants

from paceline._control import journal
from paceline._engine.messages import Reported

LOST_AT, LAST = 5, 10
FORKS = 5
SHM = Path("/dev/shm")

FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun keeps one store over restarts, and a restarted group may connect to the addresses of the dead one
(github.com/pytorch/pytorch/issues/135712): it then fails or hangs."""


@dataclass(frozen=True)
class Recovery:
    seconds: float
    steps_lost: int


def measure(bench: Bench) -> Report:
    took: dict[str, list[float]] = defaultdict(list)
    by_victim: dict[int, list[float]] = defaultdict(list)
    floor: list[float] = []
    cleared: list[float] = []
    notes: dict[str, str] = {}
    for number in bench.rounds():
        victim, after_s = number % 2, bench.options.after
        for what in ("tensor", "ddp"):
            directory = bench.directory(f"ours-{what}")
            bench.run(python("ours/recovery.py", directory, victim, after_s, what), directory)
            seconds = _check_exact_recovery("ours", directory)
            _check_journal(directory / "run" / "journal.jsonl")
            took[f"ours {what}"].append(seconds)
            if what == "tensor":
                by_victim[victim].append(seconds)
            if bench.takes_part("torchrun", number):
                directory = bench.directory(f"torchrun-{what}")
                arguments = (directory, victim, after_s, what)
                command = bench.torchrun("peers/torchrun_recovery.py", *arguments, options=("--max-restarts=1",))
                bench.run(command, directory, FRESH_STORE, timeout_s=120)
                took[f"torchrun {what}"].append(_check_exact_recovery("torchrun", directory))
        cleared.append(_time_killed_driver(bench))
        directory = bench.directory("floor")
        bench.run(python("floors/forked_group.py", directory, FORKS), directory)
        floor += read_times(directory, FORKS)[1:]
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            bench.run(bench.peer("ray", "peers/ray_recovery.py", directory, victim), directory)
            recovery = _read_recovery("Ray Train", directory)
            took["ray"].append(recovery.seconds)
            notes["Ray Train lost"] = f"{recovery.steps_lost} step(s) whose report had returned"
    by_title = {"torchrun": took["torchrun tensor"], "Ray Train": took["ray"]}
    peers = {title: samples for title, samples in by_title.items() if samples}
    ddp = {"torchrun": took["torchrun ddp"]} if took["torchrun ddp"] else {}
    meet = {"fork and meet": floor}
    for victim, samples in sorted(by_victim.items()):
        notes[f"rank {victim} killed"] = note(samples, "s")
    return Report(
        [
            Measure("recovery, kill to first step", "s", took["ours tensor"], peers, Bar("<", 0.5), meet),
            Measure("recovery with DDP and Adam", "s", took["ours ddp"], ddp, Bar("<", 0.5), meet),
            Measure("SIGKILL of a driver until nothing of its run is left", "s", cleared, bar=Bar("<", 2)),
        ],
        notes,
    )


def _time_killed_driver(bench: Bench) -> float:
    """Seconds from the SIGKILL of a driver with two busy workers to the end of all that its run had on the machine."""
    directory = bench.directory("killed-driver")
    temporary = directory / "tmp"
    temporary.mkdir()
    shared_memory = set(os.listdir(SHM))

    def find_left() -> list[str]:
        left = [f"process {process.pid}" for process in living_descendants(())]
        left += [f"{SHM / name}" for name in set(os.listdir(SHM)) - shared_memory if "paceline" in name]
        return left + [f"{temporary / name}" for name in os.listdir(temporary)]

    command = python("ours/recovery.py", directory, 0, 600, "tensor")  # The workers sleep in step `LOST_AT`.
    with bench.start(command, directory, {"TMPDIR": str(temporary)}) as process:
        path, began = directory / "run" / "journal.jsonl", time.monotonic()
        while not path.exists() or len(_count_reports(path)) < 2 * (LOST_AT - 1):
            check(time.monotonic() < began + 60, "the run did not come to its last step within 60 s")
            time.sleep(0.05)
        began = time.monotonic()
        process.kill()
        while left := find_left():
            check(time.monotonic() < began + 60, f"left 60 s after the driver was killed: {', '.join(left)}")
            time.sleep(0.005)
        return time.monotonic() - began


def _count_reports(path: Path) -> Counter[tuple[int, int, int]]:
    """How often the journal has each report, by attempt, rank and number."""
    return Counter((e.attempt, e.rank, e.seq) for e in journal.read_events(path) if isinstance(e, Reported))


def _read_recovery(name: str, directory: Path) -> Recovery:
    check((directory / "lost.json").exists(), f"{name}: no worker was killed")
    lost = json.loads((directory / "lost.json").read_text())
    restored = read_rank_results(directory, "restored_{}.json")
    check(restored[0]["from"] == restored[1]["from"], f"{name}: the ranks resumed from different steps: {restored}")
    read_rank_results(directory)
    return Recovery(max(one["at"] for one in restored) - lost["at"], lost["step"] - restored[0]["from"])


def _check_exact_recovery(name: str, directory: Path) -> float:
    recovery = _read_recovery(name, directory)
    check(recovery.steps_lost == 0, f"{name} resumed {recovery.steps_lost} steps before the last saved one")
    for result in read_rank_results(directory):
        check(
            result["weight"] == 2 * LAST, f"{name} ended with weight {result['weight']}, not {2 * LAST}: steps differ"
        )
    return recovery.seconds


def _check_journal(path: Path) -> None:
    """Check that the journal has every report of every rank once, in the right attempt."""
    counts = _count_reports(path)
    expected = {(1, rank, seq) for rank in range(2) for seq in range(1, LOST_AT + 1)}
    expected |= {(2, rank, seq) for rank in range(2) for seq in range(LOST_AT + 1, LAST + 1)}
    missing = expected - counts.keys()
    check(not missing, f"reports that had returned are not in the journal: {sorted(missing)}")
    twice = [key for key, count in counts.items() if count > 1]
    check(not twice, f"reports are in the journal more than once: {sorted(twice)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after", type=float, default=6, help="seconds into the run when the worker dies (default 6)")


if __name__ == "__main__":
    main("recovery", measure, peers=("torchrun", "ray"), repeats=2, add_arguments=add_arguments)
