"""Where a lease lies: in a directory of numbered files, or in one object of a store.

On a filesystem a number is taken by `link`, which succeeds for one driver only, on NFS too; file locks, which some
network filesystems keep to one machine, are not used. In a store it is taken by a conditional put.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

import msgspec

from paceline._core.errors import StorageError
from paceline._storage.lease import Holder, Seen

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Holder).decode

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class DiskSlot:
    """`000007.json` and so on in a directory of the run; the highest number is in force."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.run = directory.parent.name

    def read(self) -> Seen | None:
        while (number := self._highest()) > 0:
            path = self._path(number)
            try:
                data = path.read_bytes()
                changed = path.stat().st_mtime
            except FileNotFoundError:
                continue  # It is removed only once there is a higher one.
            try:
                return Seen(msgspec.structs.replace(_decode(data), number=number), "")
            except (msgspec.MsgspecError, RecursionError, ValueError):
                # Being written, where there are no links, or left so by a power cut: it holds until it lapses.
                return Seen(Holder(number, renewed_at=changed), "")
        return None

    def take(self, holder: Holder, after: Seen | None) -> str | None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(holder.number)
        part = self._written(holder, sync=True)
        try:
            linked(part, path)
        except (FileExistsError, FileNotFoundError):
            if self._token(path) != holder.token:  # A network filesystem may answer so to the one who did it.
                return None
        finally:
            part.unlink(missing_ok=True)
        # A driver that was long on its way may find its number free again: the ones above it decide.
        if self._highest() > holder.number:
            return None
        self._sync()
        self._tidy(holder.number)
        return ""

    def renew(self, holder: Holder, tag: str) -> str | None:
        try:
            self._written(holder, sync=False).rename(self._path(holder.number))
        except FileNotFoundError:
            if self._highest() <= holder.number:
                raise
        return "" if self._highest() <= holder.number else None

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}.json"

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]

    def _highest(self) -> int:
        return max(self._numbers(), default=0)

    def _token(self, path: Path) -> str | None:
        try:
            return _decode(path.read_bytes()).token
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _written(self, holder: Holder, *, sync: bool) -> Path:
        part = self._directory / f"{holder.token}.part"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(_encode(holder))
            file.flush()
            if sync:
                os.fsync(fd)
        return part

    def _sync(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _tidy(self, number: int) -> None:
        """Keep the holder before, for people to see, and remove what lies further back."""
        for old in self._numbers():
            if old < number - 1:
                self._path(old).unlink(missing_ok=True)
        for part in self._directory.glob("*.part"):
            part.unlink(missing_ok=True)


class TaggedStore(Protocol):
    """What a lease needs of a store: conditional puts."""

    def read_tagged(self, key: str) -> tuple[bytes, str]: ...
    def create(self, key: str, data: bytes) -> bool: ...
    def replace(self, key: str, data: bytes, tag: str) -> str | None: ...


class StoreSlot:
    """One object, which is replaced only by who has seen what it replaces."""

    def __init__(self, store: TaggedStore, run: str, key: str = "lease.json") -> None:
        self._store = store
        self._key = key
        self.run = run

    def read(self) -> Seen | None:
        try:
            data, tag = self._store.read_tagged(self._key)
        except FileNotFoundError:
            return None
        try:
            return Seen(_decode(data), tag)
        except msgspec.MsgspecError as problem:
            raise StorageError(
                f"{self._key} of run {self.run!r} cannot be read: {problem}\n\n"
                "hint: remove it if you are sure that no driver writes the run"
            ) from None

    def take(self, holder: Holder, after: Seen | None) -> str | None:
        if after is None:
            self._store.create(self._key, _encode(holder))
            return self._tag_of(holder)
        tag = self._store.replace(self._key, _encode(holder), after.tag)
        return tag if tag is not None else self._tag_of(holder)

    def renew(self, holder: Holder, tag: str) -> str | None:
        while (new := self._store.replace(self._key, _encode(holder), tag)) is None:
            there = self._tag_of(holder)
            if there is None:
                return None
            tag = there
        return new

    def _tag_of(self, holder: Holder) -> str | None:
        """The tag, where the object is this holder's all the same: a put may succeed and its answer be lost."""
        seen = self.read()
        return seen.tag if seen is not None and seen.holder.token == holder.token else None


def linked(source: Path, target: Path) -> None:
    """Give a file a second name, which nobody has yet."""
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        with target.open("xb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
