"""How long does `fit()` of nothing take on a Ray cluster, in a session that is warm?

Two torch workers that do nothing, ours and Ray Train's in turns, on one local Ray cluster and from one driver process,
each after a first one that does not count.
"""

from __future__ import annotations

from _cluster import session
from _measure import Bar, Bench, Measure, Report, main, note


def measured(bench: Bench) -> Report:
    bench.say(f"{bench.repeats} rounds in one session")
    found = session(bench, "both/cluster_noop.py", timeout_s=600 + 300 * bench.repeats)
    peers = {"Ray Train": found["ray"]} if found["ray"] else {}
    bar = Bar("<=", 0.5, ratio=True) if peers else None
    return Report(
        [Measure("fit() of nothing, on Ray", "s", found["ours"], peers, bar)],
        {f"first of {name}": note([seconds], "s") for name, seconds in found["first"].items()},
    )


if __name__ == "__main__":
    main("cluster noop", measured, repeats=5)
