"""How long does the smallest run take, from `python script.py` to its exit?

Two workers, one all-reduce, one report. The floor is `python -c "import torch"`, which every process of every
contestant has to do.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from _measure import Bar, Bench, Measure, Report, check, main, note, python, read_rank_results
from _peers import PEERS

from paceline.train import Result


def measure(bench: Bench) -> Report:
    took: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    for number in bench.rounds(warm_up=1):
        for name in ("ours", "floor", *(["sorted"] if number < 2 else []), *PEERS):
            if name in PEERS and not bench.takes_part(name, number):
                continue
            directory = bench.directory(name)
            ended = bench.run(_command(bench, name, directory), directory)
            _check_it_ran(name, directory)
            if number >= 0:
                took[name].append(ended.seconds)
                cpu[name].append(ended.cpu_s)
    peers = {peer.title: took[name] for name, peer in PEERS.items() if took[name]}
    used = [f"{name} {note(cpu[name], 's')}" for name in ("ours", *PEERS) if cpu[name]]
    return Report(
        [
            Measure(
                "cold start",
                "s",
                took["ours"],
                peers,
                Bar("<=", 0.6, ratio=True),
                floor={"import torch": took["floor"]},
            )
        ],
        {"with torch imported first": note(took["sorted"], "s"), "processor time": ", ".join(used)},
    )


def _command(bench: Bench, name: str, directory: Path) -> list[str]:
    match name:
        case "ours":
            return python("ours/cold_start.py", directory)
        case "sorted":
            return python("ours/cold_start_sorted.py", directory)
        case "torchrun":
            return bench.torchrun("peers/torchrun_cold_start.py", directory)
        case "accelerate":
            return bench.accelerate("peers/accelerate_cold_start.py", directory)
        case "lightning" | "ray":
            return bench.peer(name, f"peers/{name}_cold_start.py", directory)
    return [sys.executable, "-c", "import torch"]


def _check_it_ran(name: str, directory: Path) -> None:
    if name in ("ours", "sorted"):
        metrics = Result.from_path(directory / "run").metrics
        check(metrics == {"total": 2.0}, f"the run reported {metrics}; expected a total of 2 from two workers")
    elif name != "floor":
        for result in read_rank_results(directory):
            check(result == {"total": 2.0}, f"{name} wrote {result}; expected a total of 2 from two workers")


if __name__ == "__main__":
    main("cold start", measure, peers=tuple(PEERS), repeats=5)
