"""What do 1,000 reports a second of workers on a Ray cluster cost the driver?

Idle workers on a local cluster of several nodes: the processor time of the driver's process, with all its threads,
while each worker reports so often that they make 1,000 reports a second together; and while each reports once a second.
The time that Ray takes in the driver meanwhile is included, that of other processes is not.
"""

from __future__ import annotations

import argparse

from _cluster import run_session
from _measure import Bar, Bench, Measure, Report, main, note


def measure(bench: Bench) -> Report:
    options = bench.options
    size = options.nodes * options.workers
    bench.log(f"{size} workers on {options.nodes} nodes")
    plan = (options.nodes, options.workers, options.seconds, options.reports)
    results = run_session(bench, "ours/cluster_crowd.py", *plan, timeout_s=600 + 4 * bench.repeats * options.seconds)
    what = f"driver, {options.reports:,} reports a second of {size} workers on Ray"
    return Report(
        [Measure(what, "cores", results["ours"]["fast"], {}, Bar("<=", 0.1))],
        {
            "one report a second each": note(results["ours"]["slow"], "cores"),
            "no reports": note(results["ours"]["silent"], "cores"),
            "items of the streams": note(results["ours"]["items_per_s"], "/s"),
        },
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=4, help="of the cluster (default 4)")
    parser.add_argument("--workers", type=int, default=16, help="on each node (default 16)")
    parser.add_argument("--seconds", type=float, default=20, help="of reports in each round (default 20)")
    parser.add_argument("--reports", type=int, default=1000, help="a second, of all together (default 1,000)")


if __name__ == "__main__":
    main("cluster crowd", measure, repeats=3, add_arguments=add_arguments)
