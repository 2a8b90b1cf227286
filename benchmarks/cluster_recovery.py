"""How long after the SIGKILL of a worker on a Ray cluster does the restored group make its next report?

Two torch workers save at every step; one kills itself right after a `report()` with a checkpoint returned. Ours and Ray
Train's in turns, on one local Ray cluster, with the same function; the rounds kill rank 0 and rank 1 in turn. Then ours
alone on a cluster of several local nodes, one of which is killed: from when Ray lists it as dead to the next report.
"""

from __future__ import annotations

from _cluster import run_session
from _measure import Bar, Bench, Measure, Report, check, main, note


def measure(bench: Bench) -> Report:
    bench.log(f"{bench.repeats} rounds in one session")
    results = run_session(bench, "both/cluster_recovery.py", timeout_s=600 + 300 * bench.repeats)
    lost = {name: [one["lost"] for one in rounds] for name, rounds in results.items()}
    check(not any(lost["ours"]), f"ours resumed {max(lost['ours'])} steps before the last saved one")
    took = {name: [one["seconds"] for one in rounds] for name, rounds in results.items()}
    peers = {"Ray Train": took["ray"]} if took["ray"] else {}
    notes = {"Ray Train lost": f"{max(lost['ray'])} step(s) whose report had returned"} if peers else {}
    bench.log("rounds with a killed node")
    nodes = run_session(bench, "ours/cluster_node_recovery.py", timeout_s=600 + 150 * bench.repeats)
    notes["kill of a node until Ray lists it as dead"] = note(nodes["noticed"], "s")
    return Report(
        [
            Measure("kill to next report, on Ray", "s", took["ours"], peers, Bar("<=", 0.2)),
            Measure("node listed as dead to next report, on Ray", "s", nodes["ours"], {}, Bar("<=", 5.0)),
        ],
        notes,
    )


if __name__ == "__main__":
    main("cluster recovery", measure, repeats=4)
