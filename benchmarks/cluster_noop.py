"""How long does `fit()` of an empty function take in a warm session of a Ray cluster?

Two torch workers that do nothing, ours and Ray Train's in turns, on one local Ray cluster and from one driver process,
each after a first one that is not counted.
"""

from __future__ import annotations

from _cluster import run_session
from _measure import Bar, Bench, Measure, Report, main, note


def measure(bench: Bench) -> Report:
    bench.log(f"{bench.repeats} rounds in one session")
    results = run_session(bench, "both/cluster_noop.py", timeout_s=600 + 300 * bench.repeats)
    peers = {"Ray Train": results["ray"]} if results["ray"] else {}
    bar = Bar("<=", 0.25, ratio=True) if peers else None
    return Report(
        [Measure("fit() of nothing, on Ray", "s", results["ours"], peers, bar)],
        {f"first of {name}": note([seconds], "s") for name, seconds in results["first"].items()},
    )


if __name__ == "__main__":
    main("cluster noop", measure, repeats=5)
