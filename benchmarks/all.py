"""Run all benchmarks, print one table, write `benchmarks/out/results.json`.

Arguments that are not known here go to every benchmark: `all.py --repeats 1 --no-ray`. With `--quick` everything is
small: it shows that the benchmarks work, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from _measure import HERE, OUT, Measure, circumstances

BENCHMARKS = (
    "cold_start",
    "second_fit",
    "spawned_fit",
    "report_rate",
    "checkpoint_stall",
    "recovery",
    "memory",
    "ddp_overhead",
    "data_tabular",
    "data_images",
    "data_shuffle",
    "data_resume",
    "data_wait",
    "data_memory",
    "scale",
    "tune_trials",
    "tune_decisions",
    "cluster_noop",
    "cluster_report",
    "cluster_recovery",
)
QUICK = {
    "second_fit": ("--fits", "3"),
    "spawned_fit": ("--fits", "2"),
    "report_rate": ("--seconds", "1"),
    "checkpoint_stall": ("--megabytes", "16"),
    "recovery": ("--after", "1"),
    "memory": ("--after", "1"),
    "ddp_overhead": ("--seconds", "0.5", "--turns", "2"),
    "data_tabular": ("--rows", "40000", "--files", "4"),
    "data_images": ("--rows", "128", "--files", "2"),
    "data_shuffle": ("--rows", "40000", "--files", "4"),
    "data_resume": ("--rows", "200000", "--files", "4", "--times", "2", "--pause-s", "0.1"),
    "data_wait": ("--steps", "20", "--step-ms", "5"),
    "data_memory": ("--files", "1", "--step-ms", "0"),
    "scale": ("--workers", "10", "100", "--seconds", "15", "--events", "0", "--save-every", "10"),
    "tune_trials": ("--trials", "4", "--many", "0"),
    "tune_decisions": ("--trials", "50", "--reports", "500"),
    "cluster_report": ("--reports", "20", "--peer-reports", "2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, help="run these alone")
    parser.add_argument("--quick", action="store_true", help="one small round of each")
    parser.add_argument("--json", type=Path, default=OUT / "results.json", help="where the results go")
    options, passed_on = parser.parse_known_args()
    results: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name in options.only:
        arguments = [*("--repeats", "1", *QUICK.get(name, ())), *passed_on] if options.quick else passed_on
        print(f"== {name} ==", file=sys.stderr, flush=True)
        outcome = _run(name, arguments)
        if isinstance(outcome, str):
            failed[name] = outcome
        else:
            results[name] = outcome
    OUT.mkdir(exist_ok=True)
    document = {**circumstances(OUT), "benchmarks": results, "failed": failed}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    _print(document)
    sys.exit(1 if failed else 0)


def _run(name: str, arguments: list[str]) -> dict[str, Any] | str:
    """What a benchmark found, or why it failed."""
    path = OUT / f"{name}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path), *arguments]
    said = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()
    if process.returncode == 0 and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    problem = "".join(line for line in said if not line.startswith("  "))
    return problem.strip() or f"exited with code {process.returncode}"


def _print(document: dict[str, Any]) -> None:
    machine, versions = document["machine"], document["versions"]
    print()
    print(
        f"{document['date']}, commit {document['commit']}, {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['filesystem']}, {machine['system']}, "
        f"Python {versions['python']}, torch {versions['torch']}"
    )
    rows = [("", "ours", "peer", "ratio", "bar", "")]
    measures = [Measure.from_json(m) for found in document["benchmarks"].values() for m in found["measures"]]
    rows += [(m.name, m.ours_text(), m.peers_text(), m.ratio_text(), m.bar_text(), m.met_text()) for m in measures]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for found in document["benchmarks"].values():
        for name, text in found["notes"].items():
            print(f"{found['question']}, {name}: {text}")
    with_bar = [measure for measure in measures if measure.bar]
    print(f"{sum(bool(m.met) for m in with_bar)} of {len(with_bar)} bars met")
    for name, problem in document["failed"].items():
        print(f"FAILED {name}: {problem.splitlines()[0]}")


if __name__ == "__main__":
    main()
