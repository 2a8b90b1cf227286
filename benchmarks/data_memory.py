"""Does memory grow with the dataset? Peak memory of all processes, for some rows and for 50 times as many.

The unique set size of the driver, the data processes and two slow workers, so that readers without a limit would run
far ahead. That count omits shared memory, so a second one counts every page once.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

import psutil
from _data import NUM_COLUMNS, write_tabular
from _measure import Bar, Bench, Measure, Report, main, note, python

FILE_ROWS = 15_625


def measure(bench: Bench) -> Report:
    options = bench.options
    larger = options.times
    files = {}
    for times in (1, larger):
        num = options.files * times
        files[times] = bench.storage / f"rows-{times}"
        write_tabular(files[times], num * FILE_ROWS, num, FILE_ROWS)
    peaks: dict[int, list[tuple[float, float]]] = {times: [] for times in files}
    for _ in bench.rounds():
        for times, path in files.items():
            peaks[times].append(_peaks(bench, path, larger // times))
    growth = [(large[0] - small[0], large[1] - small[1]) for small, large in zip(peaks[1], peaks[larger], strict=True)]
    dataset_mb = options.files * larger * FILE_ROWS * NUM_COLUMNS * 4 / 1e6
    bar = Bar("<", options.budget_mb)
    return Report(
        [
            Measure("growth of unique set size", "MB", [unique for unique, _ in growth], {}, bar),
            Measure("growth with shared memory", "MB", [whole for _, whole in growth], {}, bar),
        ],
        {
            "peak": ", then ".join(note([unique for unique, _ in samples], "MB") for samples in peaks.values()),
            "with shared memory": ", then ".join(
                note([whole for _, whole in samples], "MB") for samples in peaks.values()
            ),
            "rows": f"{dataset_mb / larger:.0f} MB, then {dataset_mb:.0f} MB",
        },
    )


def _peaks(bench: Bench, files: Path, epochs: int) -> tuple[float, float]:
    directory = bench.directory("ours")
    options = bench.options
    command = python("ours/data_memory.py", directory, files, epochs, options.budget_mb, options.step_ms)
    return measure_peaks(bench, command, directory)


def measure_peaks(bench: Bench, command: list[str], directory: Path) -> tuple[float, float]:
    """Run a command; return the peak MB of unique pages, and of all pages, of all its processes together."""
    most_unique = most_whole = 0.0
    with bench.start(command, directory, {"OMP_NUM_THREADS": "1"}) as process:
        first = psutil.Process(process.pid)
        while first.is_running() and first.status() != psutil.STATUS_ZOMBIE:
            unique = whole = 0.0
            for one in [first, *first.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                    own, part = _unique_and_part(one.pid)
                    unique, whole = unique + own, whole + part
            most_unique, most_whole = max(most_unique, unique), max(most_whole, whole)
            time.sleep(0.02)
        process.wait(30)
    return most_unique, most_whole


def _unique_and_part(pid: int) -> tuple[float, float]:
    """MB of pages that only this process has, and of those plus its part of shared pages."""
    sizes_mb: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        sizes_mb[name.rstrip(":")] = float(value) * 1024 / 1e6
    return sizes_mb["Private_Clean"] + sizes_mb["Private_Dirty"], sizes_mb["Pss"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=int, default=4, help=f"of {FILE_ROWS:,} rows each (default 4)")
    parser.add_argument("--times", type=int, default=50, help="how much larger the second dataset is (default 50)")
    parser.add_argument("--budget-mb", type=float, default=64, help="limit of data in flight (default 64)")
    parser.add_argument("--step-ms", type=float, default=5, help="milliseconds a worker spends on a batch (default 5)")


if __name__ == "__main__":
    main("memory of data", measure, repeats=2, add_arguments=add_arguments)
