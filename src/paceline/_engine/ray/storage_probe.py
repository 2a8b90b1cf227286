"""Check each node once before its workers start: whether it sees the storage of the run, and whether its clock agrees.

The driver writes a probe into the run's directory or store; a node reads it and writes an answer beside it, which the
driver reads. This detects a directory that has the same path on each machine but is not shared. The answer has the time
of the node, which lies between question and answer unless a clock is wrong.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline._core.system import make_private_dirs
from paceline._storage.files import write_private_file
from paceline._storage.lease import MAX_CLOCK_SKEW_S

_PROBES_DIRECTORY = ".probe"
_QUESTION = "driver"
_NO_PROGRESS_S = 20.0
"""How long to wait for a store that does not answer."""


@dataclass(frozen=True)
class RunStorage:
    uri: str
    """For messages."""
    run_path: str
    store: str | None = None
    filesystem: bytes | None = None
    """A pickle of the user's own filesystem."""


@dataclass(frozen=True)
class ProbeQuestion:
    """What a node is asked to find."""

    storage: RunStorage
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """Names this question in the probe directory."""
    content: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class NodeReport:
    """What the probe says about one node."""

    problem: str = ""
    """What is wrong with its view of the storage; empty if nothing is."""
    clock_lead_s: float = 0.0
    """How far its clock is ahead of the driver's, at least; negative if it is behind."""


class StorageProbe:
    """The driver's side: `question` goes to a node, `read_report` checks its answer, `close` cleans up."""

    def __init__(self, storage: RunStorage) -> None:
        self.question = ProbeQuestion(storage)
        self._location = _open_probe_location(self.question)
        self._asked_at = time.time()

    def write_question(self) -> None:
        self._asked_at = time.time()
        self._location.write(_QUESTION, self.question.content.encode())

    def read_report(self, node_id: str, node_problem: str) -> NodeReport:
        """Report on a node that has answered. `node_problem`: what the node itself found."""
        if node_problem:
            return NodeReport(node_problem)
        try:
            echo, _, answered_at = self._location.read(node_id).decode(errors="replace").partition(" ")
        except FileNotFoundError:
            return NodeReport("a file written there did not appear here")
        if echo != self.question.content[::-1]:
            return NodeReport("a file written there has other contents here")
        return NodeReport(clock_lead_s=compute_clock_lead(float(answered_at), self._asked_at, time.time()))

    def close(self) -> None:
        self._location.clear()


def answer_probe(question: ProbeQuestion, node_id: str) -> str:
    """Read the probe and write an answer, on the node. Return what is wrong; empty if nothing is."""
    try:
        location = _open_probe_location(question)
        content = location.read(_QUESTION)
        if content != question.content.encode():
            return "the driver's file has other contents here"
        location.write(node_id, f"{question.content[::-1]} {time.time()!r}".encode())
    except FileNotFoundError:
        return "the driver's file is missing here"
    except (OSError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def compute_clock_lead(there: float, asked_at: float, received_at: float) -> float:
    """Return how far another clock is ahead at least, if it showed `there` between two times of this one."""
    return max(there - received_at, 0.0) + min(there - asked_at, 0.0)


def format_clock_warning(node: str, lead_s: float) -> str:
    return (
        f"the clock of node {node} is {abs(lead_s):,.0f} s {'ahead of' if lead_s > 0 else 'behind'} this machine's; "
        f"clocks must agree to {MAX_CLOCK_SKEW_S:.0f} s, or a driver on one of the two may take over the other's run "
        "while it is alive. Use NTP on all machines"
    )


def format_unshared_error(storage: RunStorage, nodes: dict[str, str]) -> str:
    """Format the error; `nodes` maps each node's display name to its problem."""
    problems = "; ".join(f"node {node}: {problem}" for node, problem in sorted(nodes.items()))
    if storage.store is not None:
        return (
            f"not all nodes can reach {storage.uri}, where the run is stored: {problems}\n\n"
            "hint: give the nodes the store's address and credentials, in their own environment or with "
            "RunConfig(worker_runtime_env={'env_vars': {...}})"
        )
    return (
        f"{storage.uri}, where the run is stored, is not the same directory on all nodes: {problems}\n\n"
        "hint: set RunConfig(storage_path=...) to a directory that the driver and all nodes share, such as one on NFS, "
        "or to a store such as s3://bucket/runs"
    )


class _ProbeDirectory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, data: bytes) -> None:
        if name == _QUESTION:
            # No other driver is here: the files are from one that was killed while probing.
            shutil.rmtree(self._path.parent, ignore_errors=True)
            make_private_dirs(self._path)
        write_private_file(self._path / name, data)

    def read(self, name: str) -> bytes:
        # Listed first: a network filesystem may have cached that the file does not exist.
        if name not in os.listdir(self._path):
            raise FileNotFoundError(name)
        return (self._path / name).read_bytes()

    def clear(self) -> None:
        shutil.rmtree(self._path.parent)


@dataclass(frozen=True)
class _ProbeStore:
    _store: Any
    _prefix: str

    def write(self, name: str, data: bytes) -> None:
        self._store.write(f"{self._prefix}/{name}", data)

    def read(self, name: str) -> bytes:
        data: bytes = self._store.read(f"{self._prefix}/{name}")
        return data

    def clear(self) -> None:
        self._store.delete_all(_PROBES_DIRECTORY)


def _open_probe_location(question: ProbeQuestion) -> _ProbeDirectory | _ProbeStore:
    prefix, storage = f"{_PROBES_DIRECTORY}/{question.name}", question.storage
    if storage.store is None:
        return _ProbeDirectory(Path(storage.run_path, prefix))
    import cloudpickle

    from paceline._storage.address import open_store_at
    from paceline._storage.retrying_store import StoreRetryPolicy

    filesystem = cloudpickle.loads(storage.filesystem) if storage.filesystem is not None else None
    retry_policy = StoreRetryPolicy(num_tries=3, stall_timeout_s=_NO_PROGRESS_S)
    return _ProbeStore(open_store_at(storage.store, filesystem, retry_policy), prefix)
