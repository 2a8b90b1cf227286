"""What does `report()` of four numbers cost in a worker on a Ray cluster?

Two torch workers that do nothing else, ours and Ray Train's in turns, on one local Ray cluster.
"""

from __future__ import annotations

import argparse

from _cluster import run_session
from _measure import Bar, Bench, Measure, Report, main


def measure(bench: Bench) -> Report:
    options = bench.options
    bench.log(f"{bench.repeats} rounds in one session")
    timeout_s = 600 + bench.repeats * (300 + 5 * options.peer_reports)
    results = run_session(bench, "both/cluster_report.py", options.reports, options.peer_reports, timeout_s=timeout_s)
    in_ms = {name: [1e3 * seconds for took in rounds for seconds in took] for name, rounds in results.items()}
    peers = {"Ray Train": in_ms["ray"]} if in_ms["ray"] else {}
    return Report([Measure("report(), on Ray", "ms", in_ms["ours"], peers, Bar("<", 2.0))])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reports", type=int, default=1000, help="of each worker of ours in a round (default 1000)")
    parser.add_argument("--peer-reports", type=int, default=5, help="of each of Ray Train's (default 5)")


if __name__ == "__main__":
    main("cluster report", measure, repeats=3, add_arguments=add_arguments)
