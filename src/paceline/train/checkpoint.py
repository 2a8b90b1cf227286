"""A checkpoint: a directory on some filesystem, or a state in memory that becomes a directory when it is reported."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline._core.errors import CheckpointCorruptError, StorageError
from paceline._storage.address import open_store_at, to_arrow_filesystem
from paceline._storage.commit import encode_manifest, find_problem, has_manifest
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import MANIFEST, METADATA
from paceline._storage.run_store import read_store_manifest
from paceline._storage.state import STEM, has_state, read_state, write_state
from paceline._storage.store import download_all
from paceline.train.older.portable_checkpoint import PortableCheckpointMixin

if TYPE_CHECKING:
    from paceline.data.preprocessor import Preprocessor


_PREPROCESSOR = "preprocessor"
"""The key of a preprocessor in the metadata."""


@functools.cache
def local_filesystem() -> Any:
    """The `pyarrow.fs.FileSystem` of this machine."""
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


class Checkpoint(PortableCheckpointMixin):
    """A directory of files, local or remote.

        Checkpoint.from_directory(path)     files that you wrote
        Checkpoint.from_dict(state)         a tree of tensors, arrays and numbers, stored without pickle

    `filesystem` is a `pyarrow.fs.FileSystem`; without one the path is on this machine.
    """

    _metadata_json = b""
    """The JSON metadata of a state that is only in memory, as it will be written."""
    _is_verified = False
    """Whether the files of a local directory were compared with its manifest before."""

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        # A worker may have another working directory than the process that makes this.
        self._path: str | None = os.fspath(path) if filesystem is not None else os.path.abspath(path)
        is_fsspec = filesystem is not None and not hasattr(filesystem, "type_name")
        self._filesystem = to_arrow_filesystem(filesystem, "filesystem") if is_fsspec else filesystem
        self.state: Any = None
        """The tree passed to `from_dict`, as long as it is only in memory."""
        self.allow_pickle = False

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Self:
        """Create a checkpoint from a directory on this machine."""
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a path, got {path!r}")
        return cls(Path(path).absolute())

    @classmethod
    def from_dict(cls, state: dict[str, Any], *, allow_pickle: bool = False) -> Self:
        """Create a checkpoint from a state of tensors, arrays, numbers, strings, lists and dicts.

        With `CheckpointUploadMode.ASYNC`, `report` copies the state at once and writes it in the background. Any other
        type raises an error that names its path in the state, unless `allow_pickle`.
        """
        if not isinstance(state, dict):
            raise TypeError(f"state must be a dict, got a {type(state).__name__}")
        checkpoint = cls.__new__(cls)
        checkpoint._path = None
        checkpoint._filesystem = None
        checkpoint.state = state
        checkpoint.allow_pickle = allow_pickle
        return checkpoint

    @classmethod
    def from_checkpoint(cls, other: Checkpoint) -> Self:
        """Create a checkpoint of this class from another one, with the same files or the same state in memory."""
        if not isinstance(other, Checkpoint):
            raise TypeError(f"other must be a paceline.train.Checkpoint, got {other!r:.200}")
        if other._path is not None:
            checkpoint = cls(other._path, other._filesystem)
            checkpoint._is_verified = other._is_verified
            return checkpoint
        checkpoint = cls.from_dict(other.state, allow_pickle=other.allow_pickle)
        checkpoint._metadata_json = other._metadata_json
        return checkpoint

    @property
    def path(self) -> str:
        """The directory. A state that is only in memory is first written to one that lasts as long as this process."""
        if self._path is None:
            directory = tempfile.mkdtemp(prefix="paceline-checkpoint-")
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            self._write_state(Path(directory))
            self._path = directory
        return self._path

    @property
    def filesystem(self) -> Any:
        return self._filesystem if self._filesystem is not None else local_filesystem()

    def to_dict(self, *, allow_pickle: bool = False, map_location: Any = None, verify: bool = True) -> dict[str, Any]:
        """Return the state passed to `from_dict`. Tensors are loaded to the CPU, or to `map_location`."""
        if self.state is not None:
            return dict(self.state)
        with self.as_directory(verify=verify) as directory:
            if not has_state(Path(directory)):
                raise ValueError(f"{self} was not made with Checkpoint.from_dict: read its files with as_directory()")
            state: dict[str, Any] = read_state(Path(directory), allow_pickle=allow_pickle, map_location=map_location)
            return state

    def holds_dict(self) -> bool:
        """Whether `to_dict` can read it, that is, `from_dict` created it."""
        if self.state is not None:
            return True
        with self.as_directory(verify=False) as directory:
            return has_state(Path(directory))

    def to_directory(self, path: str | os.PathLike[str] | None = None, *, verify: bool = True) -> str:
        """Copy the files to a directory, by default a new temporary one, and return its path.

        If several processes of this machine copy to the same directory at once, one does, and the others wait for it.
        """
        if verify:
            self._verify_once()
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="paceline-checkpoint-"))
        target.mkdir(parents=True, exist_ok=True)
        with _lock_directory(target) as had_to_wait:
            if self._path is None:
                self._write_state(target)
            elif had_to_wait and self._is_copied_to(target):
                pass
            elif self.is_local:
                shutil.copytree(self.path, target, dirs_exist_ok=True)
            else:
                self._download(target)
        return str(target)

    def _is_copied_to(self, target: Path) -> bool:
        """Whether a directory has all the files, with their sizes."""
        if self.is_local:
            source = Path(self.path)
            files = {path.relative_to(source): path.stat().st_size for path in source.rglob("*") if path.is_file()}
        else:
            store = open_store_at(self.path, self.filesystem)
            manifest = read_store_manifest(store)
            if manifest is not None:
                files = {Path(entry.path): entry.size for entry in manifest.files}
            else:
                files = {Path(entry.key): entry.size for entry in store.list_entries()}
        return all((target / path).is_file() and (target / path).stat().st_size == files[path] for path in files)

    @contextlib.contextmanager
    def as_directory(self, *, verify: bool = True) -> Iterator[str]:
        """Provide the files as a local directory for the duration of the `with` block. Do not change them.

        The first read of a checkpoint compares the hash of every file with the manifest and raises
        `CheckpointCorruptError` if one differs; `verify=False` skips that.
        """
        if self._path is not None and self.is_local:
            if not os.path.isdir(self._path):
                raise StorageError(f"cannot read the checkpoint {self._path}: not a directory")
            if verify:
                self._verify_once()
            yield self._path
            return
        directory = self.to_directory(verify=verify)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def verify(self) -> None:
        """Check the size and hash of every file against the manifest; raise `CheckpointCorruptError` on a mismatch."""
        with self.as_directory(verify=False) as directory:
            problem = find_problem(Path(directory))
        if problem is not None:
            raise CheckpointCorruptError(problem)

    def _verify_once(self) -> None:
        """Compare local files with the manifest, unless that was done before; downloads are always compared."""
        if self._path is None or self._is_verified or not self.is_local:
            return
        directory = Path(self._path)
        if has_manifest(directory) and (problem := find_problem(directory)) is not None:
            raise CheckpointCorruptError(
                f"the checkpoint is damaged: {problem}\n\n"
                "hint: use an older checkpoint (result.best_checkpoints), or read it as it is with verify=False"
            )
        self._is_verified = True

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata stored with the checkpoint; empty if there is none."""
        if self.state is not None:
            return dict(json.loads(self._metadata_json or b"{}"))
        with self.as_directory(verify=False) as directory:
            try:
                metadata: dict[str, Any] = json.loads((Path(directory) / METADATA).read_text())
            except FileNotFoundError:
                return {}
            except (ValueError, RecursionError) as problem:
                raise StorageError(f"cannot read {METADATA} of {self}: {problem!s:.200}") from None
            return metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata with a dict of JSON values."""
        text = json.dumps(metadata)
        if self.state is not None:
            self._metadata_json = text.encode()
            if self._path is None:
                return
        if not self.is_local:
            with self.filesystem.open_output_stream(f"{self.path}/{METADATA}") as stream:
                stream.write(text.encode())
            return
        part = Path(self.path) / f"{METADATA}.part"
        LocalFiles().write(part, text.encode())
        part.rename(Path(self.path) / METADATA)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def set_preprocessor(self, preprocessor: Preprocessor) -> None:
        """Store a fitted preprocessor in the metadata, as JSON."""
        self.update_metadata({_PREPROCESSOR: preprocessor.to_dict()})

    def get_preprocessor(self, *, allowed_functions: Iterable[Callable[..., Any]] = ()) -> Preprocessor | None:
        """Return the preprocessor that was stored with the checkpoint; None if there is none.

        Your own functions and classes are stored by name, and loaded only if they are in `allowed_functions`.
        """
        stored = self.get_metadata().get(_PREPROCESSOR)
        if stored is None:
            return None
        from paceline.data.preprocessor import Preprocessor

        return Preprocessor.from_dict(stored, allowed_functions=allowed_functions)

    def _state_for_rank(self) -> tuple[Any, str]:
        """For a state that is only in memory: the tree that this rank writes, and the name of its files."""
        return self.state, STEM

    def _write_state(self, directory: Path) -> None:
        tree, stem = self._state_for_rank()
        write_state(tree, directory, allow_pickle=self.allow_pickle, stem=stem)
        if self._metadata_json:
            (directory / METADATA).write_bytes(self._metadata_json)

    def _wait_until_complete(self) -> None:
        """Wait until all files are written: some kinds of checkpoints are created before their files are complete."""

    def _download(self, target: Path, wanted_path: Callable[[str], bool] = lambda path: True) -> None:
        """Download the files of the manifest and check their hashes; without a manifest, download every file.

        `wanted_path` selects files by path.
        """
        store = open_store_at(self.path, self.filesystem)
        manifest = read_store_manifest(store)
        if manifest is None:
            entries = [entry for entry in store.list_entries() if wanted_path(entry.key)]
            download_all(store, [(entry.key, target / entry.key) for entry in entries])
            return
        files = [entry for entry in manifest.files if wanted_path(entry.path)]
        keys = {entry.path: manifest.keys.get(entry.path, entry.path) for entry in files}
        try:
            files_here = download_all(store, [(key, target / path) for path, key in keys.items()])
        except FileNotFoundError as error:
            raise CheckpointCorruptError(f"{self}: {error}") from error
        for entry, file in zip(files, files_here, strict=True):
            if file.size != entry.size or (entry.hash and file.hash != entry.hash):
                raise CheckpointCorruptError(f"{store.uri}/{file.path} does not match its manifest")
        (target / MANIFEST).write_bytes(encode_manifest(manifest))
        with contextlib.suppress(FileNotFoundError):
            (target / METADATA).write_bytes(store.read(manifest.keys.get(METADATA, METADATA)))

    @property
    def is_local(self) -> bool:
        """Whether the path is on this machine."""
        return self._filesystem is None or self._filesystem.type_name == "local"

    def __fspath__(self) -> str:
        raise TypeError("a Checkpoint is not a path: use checkpoint.as_directory() or checkpoint.path")

    def __repr__(self) -> str:
        if self._path is None:
            return f"{type(self).__name__}(in memory)"
        kind = "local" if self._filesystem is None else self._filesystem.type_name
        return f"{type(self).__name__}(filesystem={kind}, path={self._path})"


@contextlib.contextmanager
def _lock_directory(path: Path) -> Iterator[bool]:
    """Let one process at a time write a directory; yield whether another one did so meanwhile."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        had_to_wait = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            had_to_wait = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # A filesystem without locks.
        yield had_to_wait
    finally:
        os.close(descriptor)
