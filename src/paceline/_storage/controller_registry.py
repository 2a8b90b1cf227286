"""What a detached run stores for its clients: its controller's address and the token they authenticate with.

The token is created once per run; whoever may read the run may read it. Each controller rewrites the rest.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

import msgspec

from paceline._core.errors import StorageError
from paceline._storage.files import read_file_if_exists, write_private_file
from paceline._storage.lease_stores import link_new_file
from paceline._storage.store import Store, read_if_exists

_TOKEN, _NOTE = "token", "controller.json"


class DetachedOutcome(msgspec.Struct, frozen=True):
    """The outcome of a detached run, as its controller last saw it."""

    code: int
    text: str


class ControllerNote(msgspec.Struct, frozen=True):
    """What a controller publishes for its clients."""

    address: str
    ended: DetachedOutcome | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ControllerNote).decode


class ControllerRegistry(ABC):
    def read_token(self) -> str | None:
        """Return the token; None if no controller was ever detached."""
        data = self._read(_TOKEN)
        return None if data is None else data.decode()

    def get_or_create_token(self) -> str:
        """Return the run's token; create it if there is none."""
        if (token := self.read_token()) is not None:
            return token
        location = self._create(_TOKEN, os.urandom(16).hex().encode())
        # Read it back: if another script was faster, its token is the valid one.
        if not (token := self.read_token()):
            raise StorageError(f"cannot read back {location} after writing it")
        return token

    def read_note(self) -> ControllerNote | None:
        data = self._read(_NOTE)
        return None if data is None else _decode(data)

    def write_note(self, note: ControllerNote) -> None:
        self._write(_NOTE, _encode(note))

    @abstractmethod
    def _read(self, name: str) -> bytes | None: ...
    @abstractmethod
    def _write(self, name: str, data: bytes) -> None: ...
    @abstractmethod
    def _create(self, name: str, data: bytes) -> object:
        """Write unless it exists, and return its location for messages."""


class DiskControllerRegistry(ControllerRegistry):
    """Files that only their owner can read, in a directory of the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _read(self, name: str) -> bytes | None:
        return read_file_if_exists(self._directory / name)

    def _write(self, name: str, data: bytes) -> None:
        self._write_part(name, data).rename(self._directory / name)

    def _create(self, name: str, data: bytes) -> object:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._write_part(name, data)
        try:
            link_new_file(part, self._directory / name)
        except FileExistsError:
            pass
        finally:
            part.unlink()
        return self._directory / name

    def _write_part(self, name: str, data: bytes) -> Path:
        part = self._directory / f"{name}.{os.urandom(4).hex()}.part"
        write_private_file(part, data, os.O_EXCL)
        return part


class RemoteControllerRegistry(ControllerRegistry):
    """Objects in the run's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _read(self, name: str) -> bytes | None:
        return read_if_exists(self._store, f".controller/{name}")

    def _write(self, name: str, data: bytes) -> None:
        self._store.write(f".controller/{name}", data)

    def _create(self, name: str, data: bytes) -> object:
        self._store.create(f".controller/{name}", data)
        return f"{self._store.uri}/.controller/{name}"
