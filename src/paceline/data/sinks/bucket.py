"""An object store, or any other filesystem of pyarrow or fsspec, as a place to put files in.

There is no rename of many objects at once, so files are staged on this machine and uploaded once all are there. An
object appears whole or not at all, never in place of one that was there; after a failure those of this write are
deleted. A process that is killed while it uploads leaves those that it had uploaded.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline._storage.retrying import RetryingStore
from paceline._storage.transfer import in_parallel
from paceline.data.context import DataContext
from paceline.data.sinks.local import FILES, names_of
from paceline.data.sinks.sink import Written
from paceline.data.sinks.staging import abandoned, free_numbers, removed, staging

_PREFIX = f".paceline-{os.getuid()}-writing-"


@dataclass(frozen=True)
class BucketPlace:
    store: RetryingStore

    @property
    def shown(self) -> str:
        return self.store.uri

    def holds_something(self) -> bool:
        return any(not _is_hidden(key) for key in self._keys())

    def sweep(self) -> None:
        """Remove what writers of this user that died have left in the directory for staging."""
        for path in abandoned(_local(), _PREFIX):
            removed(path)

    @contextlib.contextmanager
    def staging(self, overwrite: bool) -> Iterator[Path]:
        with staging(_local(), _PREFIX) as path:
            (path / FILES).mkdir()
            yield path

    def publish(self, path: Path, files: Sequence[Written], *, overwrite: bool, only_new: bool) -> None:
        there = self._keys()
        if only_new and not all(map(_is_hidden, there)):
            raise FileExistsError(f"{self.shown} has been written to by another process meanwhile")
        names = names_of(files, {})
        if not overwrite or not set(there).isdisjoint(names):
            names = names_of(files, free_numbers(there))
        uploads = [
            partial(self.store.upload, path / FILES / file.file, name) for file, name in zip(files, names, strict=True)
        ]
        try:
            in_parallel(uploads)
        except BaseException:
            in_parallel([partial(self.store.delete, name) for name in names])
            raise
        if overwrite:
            in_parallel([partial(self.store.delete, key) for key in there])

    def _keys(self) -> list[str]:
        return [entry.key for entry in self.store.entries()]


def _local() -> Path:
    return Path(DataContext.get_current().spill_path or tempfile.gettempdir())


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))
