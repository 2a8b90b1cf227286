"""Shared code of the benchmarks on a Ray cluster: one local cluster on which ours and Ray Train take turns."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import Bench, BenchmarkError, check, python

NUM_CPUS = 4
"""As Ray counts them: two for workers, two for what a trainer needs besides."""


@contextlib.contextmanager
def cluster(num_cpus: int = NUM_CPUS, store_bytes: int = 150_000_000) -> Iterator[None]:
    """Start a local Ray cluster and connect to it."""
    import ray

    ray.init(
        address="local",
        num_cpus=num_cpus,
        object_store_memory=store_bytes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


def run_session(bench: Bench, script: str, *arguments: object, timeout_s: float) -> dict[str, Any]:
    """Run a script with its own cluster and return its results: `ours` and, unless left out, `ray`."""
    directory = bench.directory("session")
    # Ray puts its sockets there, and a socket's path may have 107 characters.
    env = {"RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"), "RAY_USAGE_STATS_ENABLED": "0"}
    peer_rounds = 0 if "ray" in bench.options.without else bench.repeats
    bench.run(python(script, directory, bench.repeats, peer_rounds, *arguments), directory, env, timeout_s)
    path = directory / "result.json"
    check(path.exists(), "the session wrote no results, so it did not finish")
    results: dict[str, Any] = json.loads(path.read_text())
    return results


def make_directory(path: Path) -> Path:
    """Make a new directory for one run."""
    if path.exists():
        raise BenchmarkError(f"{path} was used before")
    path.mkdir(parents=True)
    return path
