"""How long does the command `paceline` take to answer?

The best of twenty wall-clock times of `paceline --version`, `ls`, `show` and `logs` over a few small runs, and of
`python -c pass`, which is part of each. All modules are compiled to bytecode, as in an installation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from _measure import Bar, Bench, Measure, Report, check, main

from paceline._core import settings

RUNS = """
import sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig

def function():
    for step in range(20):
        print(step)
        kept = Checkpoint.from_dict({"step": step}) if step % 5 == 0 else None
        train.report({"loss": 1 / (step + 1)}, checkpoint=kept)

if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        DataParallelTrainer(function, run_config=RunConfig(name=f"run_{number}", storage_path=sys.argv[1])).fit()
"""

PROGRAM = "import sys; from paceline.cli import main; sys.exit(main())"
"""What the installed command does."""

COMMANDS = {
    "paceline --version": ["-c", PROGRAM, "--version"],
    "paceline ls": ["-c", PROGRAM, "ls"],
    "paceline show": ["-c", PROGRAM, "show", "run_0"],
    "paceline logs": ["-c", PROGRAM, "logs", "run_0"],
}
BARE = ["-c", "pass"]


def measure(bench: Bench) -> Report:
    directory = bench.directory("runs")
    (directory / "runs.py").write_text(RUNS)
    bench.run([sys.executable, str(directory / "runs.py"), str(directory / "kept"), str(bench.options.runs)], directory)
    took: dict[str, list[float]] = defaultdict(list)
    variables = {
        "PACELINE_STORAGE_PATH": str(directory / "kept"),
        "PYTHONPYCACHEPREFIX": str(directory / "compiled"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    with settings.override_environment(variables):
        for number in bench.rounds(warm_up=1):
            for name, arguments in (*COMMANDS.items(), ("python -c pass", BARE)):
                best = min(_seconds(arguments, directory) for _ in range(bench.options.times if number >= 0 else 1))
                if number >= 0:
                    took[name].append(best * 1000)
    bare = {"python -c pass": took.pop("python -c pass")}
    return Report([Measure(name, "ms", times, bare, Bar("<", 100)) for name, times in took.items()], {})


def _seconds(arguments: Sequence[str], directory: Path) -> float:
    began = time.perf_counter()
    ended = subprocess.run([sys.executable, *arguments], cwd=directory, capture_output=True)
    seconds = time.perf_counter() - began
    check(ended.returncode == 0, f"{' '.join(arguments)} ended with {ended.returncode}: {ended.stderr.decode()}")
    return seconds


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=10, help="how many runs to list")
    parser.add_argument("--times", type=int, default=20, help="repetitions, of which the best counts")


if __name__ == "__main__":
    main("how long the command takes to answer", measure, repeats=3, add_arguments=_options)
