"""Run the benchmarks, print one table of ratios, write `benchmarks/out/results.json`.

Without `--more`, only those that compare with peers. Unknown arguments are passed to every benchmark:
`all.py --repeats 1`. `--quick` makes everything small, to check that the benchmarks work; its numbers mean nothing.
A benchmark that hangs is killed: each has its own limit, and all together have `--minutes`. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _circumstances import circumstances
from _figures import BenchmarkError, Report
from _measure import HERE, OUT, add_peer_arguments
from _peers import PEERS, Environments
from _processes import adopt_orphans, end_leftovers
from keep import keep_results
from table import format_terminal


@dataclass(frozen=True)
class Question:
    seconds: float
    """Usual duration on two idle cores. It may take much longer if there is time left."""
    quick: tuple[str, ...] = ()
    """Arguments for `--quick`."""


QUESTIONS = {
    "cold_start": Question(120),
    "second_fit": Question(95, ("--fits", "3")),
    "report_rate": Question(80, ("--seconds", "1")),
    "checkpoint_stall": Question(140, ("--megabytes", "1", "16", "--times", "2")),
    "recovery": Question(160, ("--after", "1")),
    "memory": Question(95, ("--after", "1")),
    "ddp_overhead": Question(160, ("--seconds", "0.5", "--turns", "2", "--steps", "50")),
    "data_tabular": Question(100, ("--rows", "40000", "--files", "4")),
    "data_images": Question(120, ("--rows", "128", "--files", "2")),
    "data_shuffle": Question(80, ("--rows", "40000", "--files", "4")),
    "data_resume": Question(45, ("--rows", "200000", "--files", "4", "--times", "2", "--pause-s", "0.1")),
    "tune_trials": Question(110, ("--trials", "4", "--many", "0")),
    "growth_workers": Question(110, ("--workers", "1", "2", "--fits", "3", "--reports", "2000")),
    "growth_dataset": Question(90, ("--times", "1", "2", "--peer-times", "1", "--file-rows", "5000")),
    "growth_journal": Question(90, ("--reports", "1000", "2000")),
}
MORE = {
    "checkpoint_write": Question(60, ("--megabytes", "1", "16", "--times", "2")),
    "spawned_fit": Question(30, ("--fits", "2")),
    "data_join": Question(60, ("--rows", "40000", "--files", "2")),
    "data_tokens": Question(50, ("--documents", "2000")),
    "data_queries": Question(60, ("--rows", "40000", "--files", "2")),
    "data_wait": Question(40, ("--steps", "20", "--step-ms", "5")),
    "data_memory": Question(150, ("--files", "1", "--step-ms", "0")),
    "data_spill": Question(60, ("--megabytes", "20")),
    "scale": Question(300, ("--workers", "10", "100", "--seconds", "15", "--events", "0", "--save-every", "10")),
    "tune_decisions": Question(60, ("--trials", "50", "--reports", "500")),
    "command_line": Question(60, ("--runs", "2", "--times", "1")),
    "dashboard": Question(180, ("--points", "20000", "--turns", "2", "--seconds", "0.5")),
    "cluster_noop": Question(150),
    "cluster_report": Question(90, ("--reports", "20", "--peer-reports", "2")),
    "cluster_recovery": Question(300),
    "cluster_crowd": Question(180, ("--nodes", "2", "--workers", "4", "--seconds", "5", "--reports", "40")),
    "cluster_data": Question(120, ("--rows", "20000", "--files", "2")),
}
EVERY = QUESTIONS | MORE
MINUTES, MORE_MINUTES = 28.0, 90.0
PATIENCE, LEAST_S = 4, 300.0
"""A benchmark is killed after PATIENCE times its usual duration, but not before LEAST_S."""
IN_ROUNDS = 0.95
"""The share of the time in which rounds may start."""
TO_END_S = 20.0
"""Time for a late benchmark to end its own processes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=EVERY, help="run only these")
    parser.add_argument("--more", action="store_true", help="also run those without a peer and those that take longer")
    parser.add_argument("--quick", action="store_true", help="one small round of each")
    parser.add_argument("--minutes", type=float, help=f"for all (default {MINUTES:g}; {MORE_MINUTES:g} with --more)")
    parser.add_argument("--json", type=Path, default=OUT / "results.json", help="where the results go")
    parser.add_argument("--commit-as", metavar="NAME", help="also write benchmarks/results/DATE-NAME.json")
    add_peer_arguments(parser)
    options, passed_on = parser.parse_known_args()
    names = options.only or list(EVERY if options.more else QUESTIONS)
    minutes = options.minutes or (MORE_MINUTES if options.more else MINUTES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    began = time.monotonic()
    into = options.json.resolve().parent
    into.mkdir(parents=True, exist_ok=True)
    document = {**circumstances(into), "peers": _peers(options), "without": sorted(set(options.without))}
    machine = document["machine"]
    if machine["load_average"][0] > machine["cores"] / 2:
        busy = f"{machine['load_average'][0]:.1f} on {machine['cores']} cores"
        print(f"the machine is busy: load average {busy}. The numbers will be unreliable", file=sys.stderr)
    if options.without:
        print(f"left out: {', '.join(document['without'])}", file=sys.stderr)
        passed_on += ["--without", *document["without"]]
    passed_on += ["--environments", str(options.environments.absolute())]
    results: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    took: dict[str, float] = {}
    for place, name in enumerate(names):
        arguments = ["--repeats", "1", "--peer-repeats", "1", *EVERY[name].quick] if options.quick else []
        print(f"== {name} ==", file=sys.stderr, flush=True)
        started = time.monotonic()
        left_s = began + 60 * minutes - started
        # Its share of the time left: a slow machine runs fewer rounds of each, and reports it.
        share = EVERY[name].seconds / sum(EVERY[later].seconds for later in names[place:])
        arguments += ["--within", f"{max(1.0, IN_ROUNDS * left_s * share):.0f}"]
        limit_s = min(max(LEAST_S, PATIENCE * EVERY[name].seconds), left_s)
        outcome = _run(name, into / f"{name}.json", [*arguments, *passed_on], limit_s)
        took[name] = round(time.monotonic() - started, 1)
        print(f"== {name}: {took[name]:.0f} s ==", file=sys.stderr, flush=True)
        if isinstance(outcome, str):
            failed[name] = outcome
        else:
            results[name] = outcome
            document["peers"] |= outcome["peers"]
    total_s = round(time.monotonic() - began, 1)
    document |= {"took_s": took, "total_s": total_s, "benchmarks": results, "failed": failed}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    _print(document)
    if options.commit_as and not failed:
        print("kept: " + ", ".join(keep_results(options.json, options.commit_as)))
    sys.exit(1 if failed else 0)


def _peers(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Check that the peers can run and return their versions. With `--only`, each benchmark checks its own."""
    environments = Environments(options.environments.absolute(), options.without)
    try:
        return environments.check(() if options.only else PEERS, imports=True)
    except BenchmarkError as problem:
        sys.exit(f"FAILED before anything was measured: {problem}")


def _run(name: str, path: Path, arguments: list[str], limit_s: float) -> dict[str, Any] | str:
    """Run a benchmark and return its results, or why it failed."""
    if limit_s <= 0:
        return "not run: no time left (--minutes)"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path), *arguments]
    output: list[str] = []
    late = threading.Event()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(limit_s, _end, [process, late])
        timer.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                output.append(line)
                sys.stderr.write(line)
                sys.stderr.flush()
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
            end_leftovers(())
    if late.is_set():
        last = output[-1].strip() if output else "nothing"
        return f"killed after {limit_s:.0f} s; its last line: {last}"
    if process.returncode == 0 and path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        report = Report.from_json(document)
        return {"question": document["question"], "peers": document["peers"], **report.as_json()}
    problem = "".join(line for line in output if not line.startswith("  "))
    return problem.strip() or f"exited with code {process.returncode}"


def _end(process: subprocess.Popen[str], late: threading.Event) -> None:
    """Terminate a late benchmark, and kill it if it does not end its processes in time."""
    late.set()
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    try:
        process.wait(TO_END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _print(document: dict[str, Any]) -> None:
    print()
    print(format_terminal(document))
    figures = [m for data in document["benchmarks"].values() for m in (*data["measures"], *data["curves"])]
    with_bar = [one["met"] for one in figures if one["met"] is not None]
    print(f"{sum(with_bar)} of {len(with_bar)} bars met")
    print("seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in document["took_s"].items()), end="; ")
    print(f"all {document['total_s'] / 60:.1f} minutes")
    if document["without"]:
        print(f"LEFT OUT: {', '.join(document['without'])}")
    for name, problem in document["failed"].items():
        lines = problem.splitlines()
        print(f"FAILED {name}: {lines[-1] if lines[0].startswith('Traceback') else lines[0]}")


if __name__ == "__main__":
    main()
