"""What a detached run stores for its clients: its controller's address and the token they authenticate with.

The token is created once per run; whoever may read the run may read it. Each controller rewrites the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec

from paceline._core.errors import StorageError
from paceline._storage.lease_stores import link_new_file
from paceline._storage.store import Store

_TOKEN, _NOTE = "token", "controller.json"


class DetachedOutcome(msgspec.Struct, frozen=True):
    """The outcome of a detached run, as its controller last saw it."""

    code: int
    """Exit code for a script."""
    text: str


class ControllerNote(msgspec.Struct, frozen=True):
    """What a controller publishes for its clients."""

    address: str
    """Address of its cluster."""
    ended: DetachedOutcome | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ControllerNote).decode


class ControllerRegistry(Protocol):
    def read_token(self) -> str | None:
        """Return the token; None if no controller was ever detached."""
        ...

    def get_or_create_token(self) -> str:
        """Return the run's token; create it if there is none."""
        ...

    def read_note(self) -> ControllerNote | None: ...
    def write_note(self, note: ControllerNote) -> None: ...


class DiskControllerRegistry:
    """Files that only their owner can read, in a directory of the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read_token(self) -> str | None:
        data = self._read(_TOKEN)
        return None if data is None else data.decode()

    def get_or_create_token(self) -> str:
        if (token := self.read_token()) is not None:
            return token
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = os.urandom(16).hex()
        part = self._write_part(_TOKEN, token.encode())
        try:
            link_new_file(part, self._directory / _TOKEN)
        except FileExistsError:
            pass  # Another script was faster; its token is the valid one.
        finally:
            part.unlink()
        return _require_token(self.read_token(), self._directory / _TOKEN)

    def read_note(self) -> ControllerNote | None:
        data = self._read(_NOTE)
        return None if data is None else _decode(data)

    def write_note(self, note: ControllerNote) -> None:
        self._write_part(_NOTE, _encode(note)).rename(self._directory / _NOTE)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write_part(self, name: str, data: bytes) -> Path:
        part = self._directory / f"{name}.{os.urandom(4).hex()}.part"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        return part


class RemoteControllerRegistry:
    """Objects in the run's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read_token(self) -> str | None:
        data = self._read(_TOKEN)
        return None if data is None else data.decode()

    def get_or_create_token(self) -> str:
        if (token := self.read_token()) is not None:
            return token
        self._store.create(_object_key(_TOKEN), os.urandom(16).hex().encode())
        return _require_token(self.read_token(), f"{self._store.uri}/{_object_key(_TOKEN)}")

    def read_note(self) -> ControllerNote | None:
        data = self._read(_NOTE)
        return None if data is None else _decode(data)

    def write_note(self, note: ControllerNote) -> None:
        self._store.write(_object_key(_NOTE), _encode(note))

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(_object_key(name))
        except FileNotFoundError:
            return None


def _object_key(name: str) -> str:
    return f".controller/{name}"


def _require_token(token: str | None, where: object) -> str:
    if not token:
        raise StorageError(f"{where} did not give back what was written to it")
    return token
