"""What the benchmarks on a Ray cluster share: one local cluster, on which ours and Ray Train take turns."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import Bench, BenchmarkError, check, python

NUM_CPUS = 4
"""Of Ray's counting: two for workers, and room for whatever a trainer needs beside them."""


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine alone, and this process connected to it."""
    import ray

    ray.init(
        address="local",
        num_cpus=NUM_CPUS,
        object_store_memory=150_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


def session(bench: Bench, script: str, *arguments: object, timeout_s: float) -> dict[str, Any]:
    """What a script that has such a cluster to itself found: `ours` and, unless it is left out, `ray`."""
    directory = bench.directory("session")
    # Its sockets lie there, and the path of a socket may have 107 characters.
    env = {"RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"), "RAY_USAGE_STATS_ENABLED": "0"}
    peer_rounds = 0 if "ray" in bench.options.without else bench.repeats
    bench.run(python(script, directory, bench.repeats, peer_rounds, *arguments), directory, env, timeout_s)
    path = directory / "found.json"
    check(path.exists(), "nothing was found: the session did not run to its end")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def emptied(path: Path) -> Path:
    """A new directory for one run."""
    if path.exists():
        raise BenchmarkError(f"{path} was used before")
    path.mkdir(parents=True)
    return path
