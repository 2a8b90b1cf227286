"""Check whether the nodes see the storage of a run, once per node before its workers start.

The driver writes a probe into the run's directory or store; a node reads it and writes an answer beside it, which the
driver reads. This detects a directory that has the same path on each machine but is not shared.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline._core.system import make_private_dirs
from paceline._storage.files import write_private_file

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


class StorageProbe:
    """The driver's side: `question` goes to a node, `find_problem` checks its answer, `close` cleans up."""

    def __init__(self, storage: RunStorage) -> None:
        self.question = ProbeQuestion(storage)
        self._location = _open_probe_location(self.question)

    def write_question(self) -> None:
        self._location.write(_QUESTION, self.question.content.encode())

    def find_problem(self, node_id: str, node_problem: str) -> str:
        """Return what is wrong with a node's view; empty if nothing is. `node_problem`: what the node itself found."""
        if node_problem:
            return node_problem
        try:
            answer = self._location.read(node_id)
        except FileNotFoundError:
            return "a file written there did not appear here"
        return "" if answer == self.question.content[::-1].encode() else "a file written there has other contents here"

    def close(self) -> None:
        self._location.clear()


def answer_probe(question: ProbeQuestion, node_id: str) -> str:
    """Read the probe and write an answer, on the node. Return what is wrong; empty if nothing is."""
    try:
        location = _open_probe_location(question)
        content = location.read(_QUESTION)
        if content != question.content.encode():
            return "the driver's file has other contents here"
        location.write(node_id, question.content[::-1].encode())
    except FileNotFoundError:
        return "the driver's file is missing here"
    except (OSError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


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
