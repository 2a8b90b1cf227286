"""What lies with a run for those who follow its controller: a token that it asks them for, and where it is.

The token is made once for a run, and read by who may read the run. The rest is rewritten by each controller.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec

from paceline._core.errors import StorageError
from paceline._storage.slots import linked
from paceline._storage.store import Store

_TOKEN, _NOTE = "token", "controller.json"


class Ended(msgspec.Struct, frozen=True):
    """What came of a detached run, as its controller last saw it."""

    code: int
    """That a script would exit with."""
    text: str


class Note(msgspec.Struct, frozen=True):
    """What a controller leaves for others."""

    address: str
    """Of its cluster."""
    ended: Ended | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


class Desk(Protocol):
    def token(self) -> str | None:
        """None where no controller was ever detached."""
        ...

    def made_token(self) -> str:
        """The run's token; a new one where it has none yet."""
        ...

    def note(self) -> Note | None: ...
    def leave(self, note: Note) -> None: ...


class DiskDesk:
    """Files for their owner alone, in a directory of the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def token(self) -> str | None:
        data = self._read(_TOKEN)
        return None if data is None else data.decode()

    def made_token(self) -> str:
        if (token := self.token()) is not None:
            return token
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = os.urandom(16).hex()
        part = self._written(_TOKEN, token.encode())
        try:
            linked(part, self._directory / _TOKEN)
        except FileExistsError:
            pass  # Another script was faster, and made the one that counts.
        finally:
            part.unlink()
        return _known(self.token(), self._directory / _TOKEN)

    def note(self) -> Note | None:
        data = self._read(_NOTE)
        return None if data is None else _decode(data)

    def leave(self, note: Note) -> None:
        self._written(_NOTE, _encode(note)).rename(self._directory / _NOTE)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def _written(self, name: str, data: bytes) -> Path:
        part = self._directory / f"{name}.{os.urandom(4).hex()}.part"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        return part


class StoreDesk:
    """Objects beside the run's other ones."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def token(self) -> str | None:
        data = self._read(_TOKEN)
        return None if data is None else data.decode()

    def made_token(self) -> str:
        if (token := self.token()) is not None:
            return token
        self._store.create(_key(_TOKEN), os.urandom(16).hex().encode())
        return _known(self.token(), f"{self._store.uri}/{_key(_TOKEN)}")

    def note(self) -> Note | None:
        data = self._read(_NOTE)
        return None if data is None else _decode(data)

    def leave(self, note: Note) -> None:
        self._store.write(_key(_NOTE), _encode(note))

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(_key(name))
        except FileNotFoundError:
            return None


def _key(name: str) -> str:
    return f".controller/{name}"


def _known(token: str | None, where: object) -> str:
    if not token:
        raise StorageError(f"{where} did not give back what was written to it")
    return token
