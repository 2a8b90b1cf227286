"""How long after the SIGKILL of a worker on a Ray cluster does the restored group make its next report?

Two torch workers save at every step; one kills itself right after a `report()` with a checkpoint returned. Ours and Ray
Train's in turns, on one local Ray cluster, with the same function; the rounds kill rank 0 and rank 1 in turn.
"""

from __future__ import annotations

from _cluster import run_session
from _measure import Bar, Bench, Measure, Report, check, main


def measure(bench: Bench) -> Report:
    bench.log(f"{bench.repeats} rounds in one session")
    results = run_session(bench, "both/cluster_recovery.py", timeout_s=600 + 300 * bench.repeats)
    lost = {name: [one["lost"] for one in rounds] for name, rounds in results.items()}
    check(not any(lost["ours"]), f"ours resumed {max(lost['ours'])} steps before the last saved one")
    took = {name: [one["seconds"] for one in rounds] for name, rounds in results.items()}
    peers = {"Ray Train": took["ray"]} if took["ray"] else {}
    bar = Bar("<=", 0.5, ratio=True) if peers else None
    notes = {"Ray Train lost": f"{max(lost['ray'])} step(s) whose report had returned"} if peers else {}
    return Report([Measure("kill to next report, on Ray", "s", took["ours"], peers, bar)], notes)


if __name__ == "__main__":
    main("cluster recovery", measure, repeats=4)
