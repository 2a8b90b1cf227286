"""How long does the smallest run take, from `python script.py` to its exit?

Two workers, one all-reduce, one report. The floor is what `python -c "import torch"` takes: every process of every
contestant has to do that.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from _measure import Bar, Bench, Measure, Report, check, from_ranks, main, note, python, torchrun

from paceline.train import Result


def measured(bench: Bench) -> Report:
    took: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    for number in bench.rounds(warm_up=1):
        for name in ("ours", "torchrun", "sorted", "floor", *(["ray"] if bench.ray_runs(number) else [])):
            directory = bench.directory(name)
            ended = bench.run(_command(bench, name, directory), directory)
            _check_it_ran(name, directory)
            if number >= 0:
                took[name].append(ended.seconds)
                cpu[name].append(ended.cpu_s)
    peers = {"torchrun": took["torchrun"]} | ({"Ray Train": took["ray"]} if took["ray"] else {})
    return Report(
        [Measure("cold run", "s", took["ours"], peers, Bar("<=", 0.6, ratio=True))],
        {
            "with torch imported first": note(took["sorted"], "s"),
            "import torch alone": note(took["floor"], "s"),
            "processor time": f"ours {note(cpu['ours'], 's')}, torchrun {note(cpu['torchrun'], 's')}",
        },
    )


def _command(bench: Bench, name: str, directory: Path) -> list[str]:
    match name:
        case "ours":
            return python("ours/cold_start.py", directory)
        case "sorted":
            return python("ours/cold_start_sorted.py", directory)
        case "torchrun":
            return torchrun("peers/torchrun_cold_start.py", directory)
        case "ray":
            return bench.ray_python("peers/ray_cold_start.py", directory)
    return [sys.executable, "-c", "import torch"]


def _check_it_ran(name: str, directory: Path) -> None:
    if name in ("ours", "sorted"):
        metrics = Result.from_path(directory / "run").metrics
        check(metrics == {"total": 2.0}, f"the run reported {metrics}: two workers were to sum up to 2")
    elif name != "floor":
        for said in from_ranks(directory):
            check(said == {"total": 2.0}, f"{name} said {said}: two workers were to sum up to 2")


if __name__ == "__main__":
    main("cold start", measured, repeats=7)
