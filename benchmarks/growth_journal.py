"""What becomes dearer as a run gets longer? Journals of 10^3 to 10^6 reports with four metrics each.

Written by what writes them in a run. Then, each in a fresh process: `fit()` of the same name goes on with it, which
has to read all of it first, and reports 20,000 times more; `Result.from_path`; its `metrics_dataframe`; `paceline ls`
and `paceline show`, whole commands, their start included. The floor is to read the file's bytes. One repeat copies
nothing: a run that is continued is written again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from _journals import write_run
from _measure import Bar, Bench, Curve, Report, check, main, python

NUM_METRICS = 4
PROGRAM = "import sys; from paceline.cli import main; sys.exit(main())"
"""What the command that is installed does."""
LOOKS = {"bytes": "read the bytes", "from_path": "Result.from_path", "dataframe": "metrics_dataframe"}
COMMANDS = {"paceline ls": ("ls",), "paceline show": ("show", "run")}
TIMEOUT_S = 240.0
MOST_AGAIN = 100_000
"""More reports than that are measured in the first round only: it takes its time, and what is long varies little."""

Line = dict[float, list[float]]


def measured(bench: Bench) -> Report:
    found: dict[str, Line] = defaultdict(lambda: defaultdict(list))
    sizes = sorted(bench.options.reports)
    for number in bench.rounds():
        for num_reports in sizes:
            if number > 0 and num_reports > MOST_AGAIN:
                continue
            for name, value in _measured(bench, num_reports).items():
                found[name][num_reports].append(value)
    # Ten times as many reports are to cost ten times as much, with some room for noise: nothing grows faster.
    linear = Bar("<=", 1.5 * sizes[-1] / sizes[0])
    floor = {"the file's bytes": dict(found["read the bytes"])}

    def curve(name: str, unit: str = "s", bar: Bar | str | None = None, floor: dict[str, Line] | None = None) -> Curve:
        return Curve(name, unit, "reports", dict(found[name]), {}, floor or {}, bar)

    return Report(
        (),
        {
            "processor time of the longest, s": ", ".join(
                f"{name.removeprefix('CPU of ')} {min(line[sizes[-1]]):.3g}"
                for name, line in found.items()
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


def _measured(bench: Bench, num_reports: int) -> dict[str, float]:
    directory = bench.directory(f"reports-{num_reports}")
    home = directory / "runs"
    home.mkdir()
    write_run(home / "run", num_reports, NUM_METRICS)
    bench.say(f"{num_reports:,} reports")
    found = {"journal": (home / "run" / "journal.jsonl").stat().st_size / 1e6}
    for look, name in LOOKS.items():
        said = _looked(bench, look, home / "run")
        found[name], found[f"CPU of {name}"] = said["seconds"], said["cpu_s"]
        found[f"memory of {name}"] = said["peak_mb"]
        if look == "dataframe":
            check(said["rows"] == num_reports, f"{said['rows']:,} of {num_reports:,} reports are in the dataframe")
    for name, words in COMMANDS.items():
        ended = bench.run(
            [sys.executable, "-c", PROGRAM, *words],
            bench.directory("command"),
            {"PACELINE_STORAGE_PATH": str(home)},
            timeout_s=TIMEOUT_S,
        )
        found[name], found[f"CPU of {name}"] = ended.seconds, ended.cpu_s
    lost = directory / "lost"
    lost.mkdir()
    write_run(lost / "run", num_reports, NUM_METRICS, ended=False)
    said = _looked(bench, "continue", lost / "run")
    found |= {
        "go on with the run": said["seconds"],
        "CPU of go on with the run": said["cpu_s"],
        "memory to go on": said["peak_mb"],
        "report()": said["report_us"],
        "reports that arrive": said["arrived"],
    }
    return found


def _looked(bench: Bench, what: str, run: Path) -> dict[str, Any]:
    directory = bench.directory(what)
    told = directory / "told.json"
    bench.run(python("ours/growth_journal.py", what, run, told), directory, timeout_s=TIMEOUT_S)
    check(told.exists(), f"{what} told nothing: it did not run to its end")
    said: dict[str, Any] = json.loads(told.read_text())
    return said


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    parser.add_argument("--reports", type=int, nargs="+", default=sizes, help="in the journal (default 10^3 to 10^6)")


if __name__ == "__main__":
    main("as the journal grows", measured, repeats=2, add_arguments=add_arguments)
