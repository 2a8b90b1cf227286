"""Which costs grow with the length of a run? Journals of 10^3 to 10^6 reports with four metrics each.

Each in a new process: `fit()` with the same name resumes the run, which reads the whole journal, and reports 20,000
times more; `Result.from_path`; its `metrics_dataframe`; the commands `paceline ls` and `paceline show`, their start
included. The floor is reading the file's bytes. The journal is written anew for the resumed run, whose driver was
lost, and listed before, as it would be in progress; the others have ended, so their long journals are compressed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from _journals import write_run
from _measure import Bar, Bench, Curve, Measure, Report, check, main, python

NUM_METRICS = 4
PROGRAM = "import sys; from paceline.cli import main; sys.exit(main())"
"""What the installed command does."""
READS = {"bytes": "read the bytes", "from_path": "Result.from_path", "dataframe": "metrics_dataframe"}
LIVE = "paceline ls, in progress"
COMMANDS = {"paceline ls": ("runs", ("ls",)), "paceline show": ("runs", ("show", "run")), LIVE: ("lost", ("ls",))}
TIMEOUT_S = 240.0
MOST_AGAIN = 100_000
"""Longer journals are measured in the first round only: they take long and vary little."""

Line = dict[float, list[float]]


def measure(bench: Bench) -> Report:
    values: dict[str, Line] = defaultdict(lambda: defaultdict(list))
    sizes = sorted(bench.options.reports)
    for number in bench.rounds():
        for num_reports in sizes:
            if number > 0 and num_reports > MOST_AGAIN:
                continue
            for name, value in _measure_size(bench, num_reports).items():
                values[name][num_reports].append(value)
    # Ten times as many reports may cost ten times as much, with some room for noise.
    linear = Bar("<=", 1.5 * sizes[-1] / sizes[0])
    floor = {"the file's bytes": dict(values["read the bytes"])}

    def curve(name: str, unit: str = "s", bar: Bar | str | None = None, floor: dict[str, Line] | None = None) -> Curve:
        return Curve(name, unit, "reports", dict(values[name]), {}, floor or {}, bar)

    longest = {name: line[sizes[-1]] for name, line in values.items()}
    bars = {"go on with the run": 1.5, "Result.from_path": 1.5, "metrics_dataframe": 2.0}
    bars |= {"paceline ls": 0.15, LIVE: 0.15}
    return Report(
        [
            *(Measure(f"{name}, longest", "s", longest[name], {}, Bar("<=", most)) for name, most in bars.items()),
            Measure(
                "memory of metrics_dataframe, longest", "MB", longest["memory of metrics_dataframe"], {}, Bar("<=", 300)
            ),
        ],
        {
            "processor time of the longest, s": ", ".join(
                f"{name.removeprefix('CPU of ')} {min(line[sizes[-1]]):.3g}"
                for name, line in values.items()
                if name.startswith("CPU of ")
            )
        },
        [
            curve("journal", "MB"),
            curve("report()", "us", Bar("<=", 1.5)),
            curve("reports that arrive", "/s"),
            curve("go on with the run", "s", linear, floor),
            curve("memory to go on", "MB"),
            curve("Result.from_path", "s", linear, floor),
            curve("metrics_dataframe", "s", linear, floor),
            curve("memory of metrics_dataframe", "MB"),
            *(curve(name, "s", linear, floor) for name in COMMANDS),
        ],
    )


def _measure_size(bench: Bench, num_reports: int) -> dict[str, float]:
    directory = bench.directory(f"reports-{num_reports}")
    home = directory / "runs"
    home.mkdir()
    write_run(home / "run", num_reports, NUM_METRICS)
    bench.log(f"{num_reports:,} reports")
    values = {"journal": sum(path.stat().st_size for path in (home / "run").glob("journal*")) / 1e6}
    for kind, name in READS.items():
        result = _run_script(bench, kind, home / "run")
        values[name], values[f"CPU of {name}"] = result["seconds"], result["cpu_s"]
        values[f"memory of {name}"] = result["peak_mb"]
        if kind == "dataframe":
            check(result["rows"] == num_reports, f"{result['rows']:,} of {num_reports:,} reports are in the dataframe")
    lost = directory / "lost"
    lost.mkdir()
    write_run(lost / "run", num_reports, NUM_METRICS, ended=False)
    for name, (where, words) in COMMANDS.items():
        home = directory / where
        tries = [
            bench.run(
                [sys.executable, "-c", PROGRAM, *words],
                bench.directory("command"),
                # With bytecode, as in an installation.
                {
                    "PACELINE_STORAGE_PATH": str(home),
                    "PYTHONPYCACHEPREFIX": str(home / "compiled"),
                    "PYTHONDONTWRITEBYTECODE": "",
                },
                timeout_s=TIMEOUT_S,
            )
            for _ in range(2)  # The first one compiles.
        ]
        values[name] = min(ended.seconds for ended in tries)
        values[f"CPU of {name}"] = min(ended.cpu_s for ended in tries)
    result = _run_script(bench, "continue", lost / "run")
    values |= {
        "go on with the run": result["seconds"],
        "CPU of go on with the run": result["cpu_s"],
        "memory to go on": result["peak_mb"],
        "report()": result["report_us"],
        "reports that arrive": result["arrived"],
    }
    return values


def _run_script(bench: Bench, what: str, run: Path) -> dict[str, Any]:
    directory = bench.directory(what)
    result_path = directory / "result.json"
    bench.run(python("ours/growth_journal.py", what, run, result_path), directory, timeout_s=TIMEOUT_S)
    check(result_path.exists(), f"{what} wrote no result, so it did not finish")
    result: dict[str, Any] = json.loads(result_path.read_text())
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    parser.add_argument(
        "--reports", type=int, nargs="+", default=sizes, help="reports in the journal (default 10^3 to 10^6)"
    )


if __name__ == "__main__":
    main("as the journal grows", measure, repeats=2, add_arguments=add_arguments)
