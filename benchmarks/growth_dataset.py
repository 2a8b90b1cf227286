"""Which costs grow with the dataset? 1 to 50 times 62,500 rows of 32 float32, each in four Parquet files.

One process reads an epoch in batches of 1,024, then resumes at 90 % of it three times: rows a second, time to the
first batch, time to the first batch after a resume, and peak memory of all its processes, shared pages counted once.
The peer is a torch DataLoader of two processes, which resumes by reading the consumed rows again. The floor reads and
prepares the same rows in the process itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from _data import CASES, plain_batches, time_epoch, write_tabular
from _measure import Bar, Bench, Curve, Measure, Report, check, main, python

FILES, FILE_ROWS = 4, 15_625
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TIMEOUT_S = 180.0

Line = dict[float, list[float]]


def measure(bench: Bench) -> Report:
    options = bench.options
    sizes = sorted(options.times)
    files = bench.storage / "rows"
    num_files = FILES * sizes[-1]
    bench.log(f"writing {num_files * options.file_rows:,} rows")
    write_tabular(files, num_files * options.file_rows, num_files, options.file_rows)
    ours: dict[str, Line] = defaultdict(lambda: defaultdict(list))
    loader: dict[str, Line] = defaultdict(lambda: defaultdict(list))
    floor: dict[str, Line] = defaultdict(lambda: defaultdict(list))
    for _ in bench.rounds():
        for times in sizes:
            bench.log(f"{times} times")
            count = FILES * times
            plain = _read_plainly(sorted(files.iterdir())[:count])
            floor["rate"][times].append(plain["rows"] / plain["epoch"])
            floor["first"][times].append(1e3 * plain["first"])
            _record(ours, times, *_run(bench, "ours", files, count), plain)
            if times in options.peer_times:
                _record(loader, times, *_run(bench, "DataLoader", files, count), plain)
    lines: dict[str, dict[str, Line]] = {name: {"DataLoader": dict(line)} for name, line in loader.items()}
    plain_floor = {name: {"in the process itself": dict(line)} for name, line in floor.items()}

    def curve(title: str, unit: str, name: str, bar: Bar) -> Curve:
        return Curve(
            title, unit, "times the rows", dict(ours[name]), lines.get(name, {}), plain_floor.get(name, {}), bar
        )

    megabytes = FILES * options.file_rows * 32 * 4 / 1e6
    largest = max(loader["peak"], default=0)
    both = zip(ours["peak"].get(largest, ()), loader["peak"].get(largest, ()), strict=True)
    beyond = [ours_mb - loader_mb for ours_mb, loader_mb in both]
    return Report(
        [Measure("memory beyond DataLoader's", "MB", beyond, {}, Bar("<=", 100))] if beyond else (),
        {
            "the smallest": f"{FILES * options.file_rows:,} rows, {megabytes:.3g} MB",
            "the largest": f"{sizes[-1]} times",
        },
        [
            curve("rows", "/s", "rate", Bar(">=", 1)),
            curve("first batch", "ms", "first", Bar("<=", 2)),
            curve("first batch at 90 %", "ms", "resume", Bar("<=", 2)),
            # The limit of data in flight does not depend on the dataset; small datasets do not reach it.
            curve("memory", "MB", "peak", Bar("<=", 2)),
            Curve("to open and count", "ms", "times the rows", dict(ours["opened"])),
        ],
    )


def _record(
    lines: dict[str, Line], times: int, result: dict[str, Any], peak_mb: float, plain: dict[str, float]
) -> None:
    right = result["rows"] == plain["rows"] and abs(result["sum"] - plain["sum"]) <= 1e-3 * (plain["rows"] ** 0.5 + 1)
    check(right, f"{result['rows']:,} rows with the sum {result['sum']}, not {plain['rows']:,.0f} with {plain['sum']}")
    lines["rate"][times].append(result["rows"] / result["epoch"])
    lines["first"][times].append(1e3 * result["first"])
    lines["resume"][times] += [1e3 * seconds for seconds in result["resume"]]
    lines["peak"][times].append(peak_mb)
    if "opened" in result:
        lines["opened"][times].append(1e3 * result["opened"])


def _read_plainly(paths: Sequence[Path]) -> dict[str, float]:
    """Read the same rows without a library and without another process."""
    began = time.perf_counter()
    batches = plain_batches(paths, CASES["tabular"], 0, 1)
    first = next(batches)
    first_s = time.perf_counter() - began
    rest = time_epoch(batches)
    epoch_s = time.perf_counter() - began
    total = rest["sum"] + float(first["x"][:, 0].sum())
    return {"rows": rest["rows"] + len(first["x"]), "sum": total, "first": first_s, "epoch": epoch_s}


def _run(bench: Bench, name: str, files: Path, count: int) -> tuple[dict[str, Any], float]:
    """Run a script; return its result and the peak memory of its processes in MB."""
    directory = bench.directory(name)
    result_path = directory / "result.json"
    script = "ours/growth_dataset.py" if name == "ours" else "peers/growth_dataset.py"
    most = 0.0
    with bench.start(python(script, result_path, count, files), directory, ONE_THREAD) as process:
        deadline = time.monotonic() + TIMEOUT_S
        first = psutil.Process(process.pid)
        while first.is_running() and first.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            most = max(most, sum(_memory_mb(one.pid) for one in [first, *first.children(recursive=True)]))
            time.sleep(0.05)
        process.wait(1)
    check(result_path.exists(), f"{name} wrote no result, so it did not finish")
    result: dict[str, Any] = json.loads(result_path.read_text())
    return result, most


def _memory_mb(pid: int) -> float:
    """Pages of this process, plus its part of shared pages."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:"))
    return 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--times",
        type=int,
        nargs="+",
        default=(1, 5, 10, 25, 50),
        help="sizes, as multiples of the smallest (default 1 to 50)",
    )
    parser.add_argument(
        "--peer-times", type=int, nargs="+", default=(1, 10, 50), help="sizes of the peer (default 1 10 50)"
    )
    parser.add_argument("--file-rows", type=int, default=FILE_ROWS, help=f"rows of a file (default {FILE_ROWS:,})")


if __name__ == "__main__":
    main("as the dataset grows", measure, repeats=2, add_arguments=add_arguments)
