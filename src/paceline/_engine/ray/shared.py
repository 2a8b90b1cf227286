"""Whether the nodes see the storage of a run: tried before a worker starts, once for each node.

The driver writes a probe into the run's own directory, or its store; a node reads it and writes an answer beside it,
which the driver reads. A directory that is there under the same name on each machine, and is not the same, is found.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline._core.system import make_private_dirs

_PROBES = ".probe"
_QUESTION = "driver"
_PATIENCE_S = 20.0
"""With a store that does not answer."""


@dataclass(frozen=True)
class Storage:
    """Where a run is kept."""

    uri: str
    """For people."""
    run_path: str
    store: str | None = None
    filesystem: bytes | None = None
    """A pickle of the user's own."""


class Asked(msgspec.Struct, frozen=True):
    """What a node is asked to find."""

    run_path: str
    store: str | None
    filesystem: bytes | None
    name: str
    """Of this question, in the directory of probes."""
    word: str
    """What it will find there."""


class Probe:
    """The driver's side: what is `asked` is sent to a node, its answer looked at by `problem`; `close` clears up."""

    def __init__(self, storage: Storage) -> None:
        name, word = secrets.token_hex(8), secrets.token_hex(16)
        self.asked = Asked(storage.run_path, storage.store, storage.filesystem, name, word)
        self._place = _place(self.asked)

    def begin(self) -> None:
        self._place.write(_QUESTION, self.asked.word.encode())

    def problem(self, node_id: str, told: str) -> str:
        """What is wrong with a node's view; empty where all is well. `told`: what it found wrong itself."""
        if told:
            return told
        try:
            answer = self._place.read(node_id)
        except FileNotFoundError:
            return "what it wrote there did not appear here"
        return "" if answer == self.asked.word[::-1].encode() else "what it wrote there is not what is found here"

    def close(self) -> None:
        self._place.clear()


def answered(asked: Asked, node_id: str) -> str:
    """On the node: read the probe and write an answer. What is wrong; empty where all is well."""
    try:
        place = _place(asked)
        found = place.read(_QUESTION)
        if found != asked.word.encode():
            return "what the driver wrote there is not what is found here"
        place.write(node_id, asked.word[::-1].encode())
    except FileNotFoundError:
        return "what the driver wrote there is not to be seen"
    except (OSError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def not_shared(storage: Storage, nodes: dict[str, str]) -> str:
    """The error: `nodes` from how each is called to what is wrong there."""
    told = "; ".join(f"node {node}: {problem}" for node, problem in sorted(nodes.items()))
    if storage.store is not None:
        return (
            f"the run is kept in {storage.uri}, which cannot be reached from all nodes: {told}\n\n"
            "hint: the nodes need the address and the credentials of the store, in their own environment or by "
            "RunConfig(worker_runtime_env={'env_vars': {...}})"
        )
    return (
        f"the run is kept in {storage.uri}, which is not the same directory on all nodes: {told}\n\n"
        "hint: set RunConfig(storage_path=...) to a directory that the driver and all nodes share, such as one on NFS, "
        "or to a store such as s3://bucket/runs"
    )


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, data: bytes) -> None:
        if name == _QUESTION:
            # No other driver is here: what lies there is of one that was killed over it.
            shutil.rmtree(self._path.parent, ignore_errors=True)
            make_private_dirs(self._path)
        fd = os.open(self._path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)

    def read(self, name: str) -> bytes:
        # Listed first: a network filesystem may remember that there was no such file.
        if name not in os.listdir(self._path):
            raise FileNotFoundError(name)
        return (self._path / name).read_bytes()

    def clear(self) -> None:
        shutil.rmtree(self._path.parent)


class _Store:
    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def write(self, name: str, data: bytes) -> None:
        self._store.write(f"{self._prefix}/{name}", data)

    def read(self, name: str) -> bytes:
        data: bytes = self._store.read(f"{self._prefix}/{name}")
        return data

    def clear(self) -> None:
        self._store.delete_all(_PROBES)


def _place(asked: Asked) -> _Directory | _Store:
    prefix = f"{_PROBES}/{asked.name}"
    if asked.store is None:
        return _Directory(Path(asked.run_path, prefix))
    import cloudpickle

    from paceline._storage.address import store_at
    from paceline._storage.retrying import Patience

    filesystem = cloudpickle.loads(asked.filesystem) if asked.filesystem is not None else None
    return _Store(store_at(asked.store, filesystem, Patience(num_tries=3, no_progress_s=_PATIENCE_S)), prefix)
