"""Lease stores: a directory of numbered files, or one object of a store.

On a filesystem, `link` acquires a number: it succeeds for one driver only, on NFS too. File locks are not used, since
some network filesystems keep them local to one machine. In a store, a conditional put acquires it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from paceline._core.errors import StorageError
from paceline._storage.files import LocalFiles, write_private_file
from paceline._storage.lease import LeaseHolder, LeaseObservation
from paceline._storage.store import Store

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LeaseHolder).decode

_NO_LINK_ERRORS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class DiskLeaseStore:
    """Files `000007.json` and so on in a directory of the run; the highest number is in force."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.run = directory.parent.name

    def read(self) -> LeaseObservation | None:
        while (number := self._highest_number()) > 0:
            path = self._path(number)
            try:
                data = path.read_bytes()
                changed = path.stat().st_mtime
            except FileNotFoundError:
                continue  # It is removed only once there is a higher one.
            try:
                return LeaseObservation(msgspec.structs.replace(_decode(data), number=number), "")
            except (msgspec.MsgspecError, RecursionError, ValueError):
                # Still being written, where there are no links, or left so by a power cut: it holds until it lapses.
                return LeaseObservation(LeaseHolder(number, renewed_at=changed), "")
        return None

    def try_acquire(self, holder: LeaseHolder, after: LeaseObservation | None) -> str | None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(holder.number)
        part = self._write_part(holder, sync=True)
        try:
            link_new_file(part, path)
        except (FileExistsError, FileNotFoundError):
            if self._read_token(path) != holder.token:  # A network filesystem may report this to its creator.
                return None
        finally:
            part.unlink(missing_ok=True)
        # A delayed driver may find its number free again: the higher numbers decide.
        if self._highest_number() > holder.number:
            return None
        LocalFiles().sync_dir(self._directory)
        self._remove_old(holder.number)
        return ""

    def renew(self, holder: LeaseHolder, tag: str) -> str | None:
        try:
            os.rename(self._write_part(holder, sync=False), self._path(holder.number))
        except FileNotFoundError:
            if self._highest_number() <= holder.number:
                raise
        return "" if self._highest_number() <= holder.number else None

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}.json"

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]

    def _highest_number(self) -> int:
        return max(self._numbers(), default=0)

    def _read_token(self, path: Path) -> str | None:
        try:
            return _decode(path.read_bytes()).token
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _write_part(self, holder: LeaseHolder, *, sync: bool) -> Path:
        part = self._directory / f"{holder.token}.part"
        write_private_file(part, _encode(holder), sync=sync)
        return part

    def _remove_old(self, number: int) -> None:
        """Keep the previous holder, for people to inspect, and remove older ones."""
        for old in self._numbers():
            if old < number - 1:
                self._path(old).unlink(missing_ok=True)
        for part in self._directory.glob("*.part"):
            part.unlink(missing_ok=True)


class RemoteLeaseStore:
    """One object, which only a driver that has read the current version can replace."""

    def __init__(self, store: Store, run: str, key: str = "lease.json") -> None:
        self._store = store
        self._key = key
        self.run = run

    def read(self) -> LeaseObservation | None:
        try:
            data, tag = self._store.read_tagged(self._key)
        except FileNotFoundError:
            return None
        try:
            return LeaseObservation(_decode(data), tag)
        except msgspec.MsgspecError as problem:
            raise StorageError(
                f"cannot read {self._key} of run {self.run!r}: {problem}\n\n"
                "hint: remove it if you are sure that no driver writes the run"
            ) from None

    def try_acquire(self, holder: LeaseHolder, after: LeaseObservation | None) -> str | None:
        if after is None:
            self._store.create(self._key, _encode(holder))
            return self._read_own_tag(holder)
        tag = self._store.replace(self._key, _encode(holder), after.tag)
        return tag if tag is not None else self._read_own_tag(holder)

    def renew(self, holder: LeaseHolder, tag: str) -> str | None:
        while (new := self._store.replace(self._key, _encode(holder), tag)) is None:
            current = self._read_own_tag(holder)
            if current is None:
                return None
            tag = current
        return new

    def _read_own_tag(self, holder: LeaseHolder) -> str | None:
        """Return the tag if the object is this holder's after all: a put may succeed and its reply be lost."""
        observation = self.read()
        return observation.tag if observation is not None and observation.holder.token == holder.token else None


def link_new_file(source: Path, target: Path) -> None:
    """Hard-link a file under a new name; fails if the name exists."""
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in _NO_LINK_ERRORS:
            raise
        with target.open("xb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
