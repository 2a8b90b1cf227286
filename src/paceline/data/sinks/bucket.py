"""Writes to an object store, or any other pyarrow or fsspec filesystem.

Many objects cannot be renamed at once, so files are staged on this machine and uploaded once all are complete. An
object appears whole or not at all, and never replaces an existing one; after a failure, this write's objects are
deleted. A process killed during the upload leaves the objects it had uploaded.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline._storage.retrying_store import RetryingStore
from paceline._storage.store import run_in_parallel
from paceline.data.context import DataContext
from paceline.data.sinks.local import FILES, final_names
from paceline.data.sinks.sink import StagedFile
from paceline.data.sinks.staging import find_abandoned, next_free_numbers, open_staging_directory, remove_directory

_PREFIX = f".paceline-{os.getuid()}-writing-"


@dataclass(frozen=True)
class BucketSinkTarget:
    store: RetryingStore

    @property
    def display_name(self) -> str:
        return self.store.uri

    def has_files(self) -> bool:
        return any(not _is_hidden(key) for key in self._keys())

    def remove_abandoned(self) -> None:
        """Remove what dead writers of this user have left in the staging directory."""
        for path in find_abandoned(_staging_root(), _PREFIX):
            remove_directory(path)

    @contextlib.contextmanager
    def open_staging(self, overwrite: bool) -> Iterator[Path]:
        with open_staging_directory(_staging_root(), _PREFIX) as path:
            (path / FILES).mkdir()
            yield path

    def publish(self, path: Path, files: Sequence[StagedFile], *, overwrite: bool, only_new: bool) -> None:
        existing = self._keys()
        if only_new and not all(map(_is_hidden, existing)):
            raise FileExistsError(f"{self.display_name} was written to by another process meanwhile")
        names = final_names(files, {})
        if not overwrite or not set(existing).isdisjoint(names):
            names = final_names(files, next_free_numbers(existing))
        uploads = [
            partial(self.store.upload, path / FILES / file.file, name) for file, name in zip(files, names, strict=True)
        ]
        try:
            run_in_parallel(uploads)
        except BaseException:
            run_in_parallel([partial(self.store.delete, name) for name in names])
            raise
        if overwrite:
            run_in_parallel([partial(self.store.delete, key) for key in existing])

    def _keys(self) -> list[str]:
        return [entry.key for entry in self.store.list_entries()]


def _staging_root() -> Path:
    return Path(DataContext.get_current().spill_path or tempfile.gettempdir())


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))
