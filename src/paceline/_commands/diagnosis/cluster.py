"""Check the Ray cluster, if one is configured: whether it answers, its version and its resources.

The check runs in a subprocess, so it can time out.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from paceline._commands.diagnosis import DiagnosisLine
from paceline._commands.diagnosis.packages import installed_version
from paceline._core import settings

_line = partial(DiagnosisLine, "cluster")

PATIENCE_S = 60.0
KNOCK_S = 5.0

_ASK = """
import json, sys
import paceline
paceline.init(engine="ray", address=sys.argv[1] or None)
import ray
from paceline._engine.ray import authentication
exposure = authentication.find_exposure(ray.get_runtime_context().gcs_address)
print()
nodes = sum(node["Alive"] for node in ray.nodes())
print(json.dumps([nodes, ray.cluster_resources(), exposure, authentication.ADVICE]))
"""


_VERSIONS = re.compile(r"started with:\s+Ray: (\S+)\s+Python: (\S+)")
"""In Ray's error for versions that differ: of the cluster, then of this process."""


def check_cluster() -> Iterator[DiagnosisLine]:
    chosen = settings.load()
    address = chosen.ray_address
    if address is None and chosen.engine != "ray":
        return
    setting = f"RAY_ADDRESS={address}" if address is not None else "PACELINE_ENGINE=ray"
    if find_spec("ray") is None:
        yield _line("Ray", "fail", f"{setting}, and Ray is not installed", 'pip install "paceline[ray]"')
        return
    if address is not None and (problem := _connection_problem(address)):
        hint = "is the head running, and its port open from here? check with `ray status` there"
        yield _line("Ray", "fail", f"{setting} does not answer: {problem}", hint)
        return
    command = [sys.executable, "-c", _ASK, address or ""]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        text = f"{setting}: no answer for {PATIENCE_S:.0f} s"
        yield _line("Ray", "fail", text, "look at the head's own logs, in /tmp/ray/session_latest/logs")
        return
    if result.returncode:
        if mismatch := _VERSIONS.findall(result.stderr):
            yield _describe_mismatch(setting, *mismatch[:2])
            return
        said, _, hint = result.stderr.strip().partition("\nhint: ")
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "no output")
        yield _line("Ray", "fail", f"{setting}: {last.strip()}", hint or "look at the head's own logs")
        return
    nodes, resources, exposure, advice = json.loads(result.stdout.rstrip().rpartition("\n")[2])
    text = f"{nodes} node{'s' * (nodes != 1)}, {resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
    yield _line("Ray", "ok", f"{installed_version('ray')}; {setting}: {text}")
    if exposure is not None:
        yield _line("Ray's token", "warn", exposure, advice)


def _describe_mismatch(setting: str, cluster: tuple[str, str], here: tuple[str, str]) -> DiagnosisLine:
    text = f"{setting} has Ray {cluster[0]} with Python {cluster[1]}, here are Ray {here[0]} and Python {here[1]}"
    hint = f'pip install "ray=={cluster[0]}"'
    if cluster[1] != here[1]:
        hint = f"use an environment with Python {cluster[1]}, and there: {hint}"
    return _line("Ray", "fail", text, hint)


def _connection_problem(address: str) -> str | None:
    """Return why nothing listens at the address; None if something does, or if the address has no host and port."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()
    except OSError as problem:
        return str(problem)
    return None
