"""How a checkpoint comes to exist, is checked, and goes away.

Each rank stages its files under a name that belongs to the attempt. A commit gathers them into one directory, writes
the manifest with size and hash of every file, and renames the directory into place: that rename is the single act by
which the checkpoint exists. Readers take a directory for a checkpoint only if it holds a manifest.

Before that rename every file is synced where it is written, every directory below the checkpoint when its files are in
it, and the checkpoint's own directory once, with the manifest. Nothing that is only staged has to survive the power.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from paceline._core.errors import StorageError
from paceline._engine.messages import CheckpointRecord, FileEntry, Staged
from paceline._storage.files import Files, hash_file
from paceline._storage.layout import MANIFEST, METADATA, Layout, names_checkpoint
from paceline._storage.lease import UNFENCED, Fence

MANIFEST_VERSION = 1

_SEAL = b',\n "crc32": "'
"""What begins the last line of a manifest: the checksum of all before it."""

log = logging.getLogger("paceline")


class Manifest(msgspec.Struct, frozen=True):
    record: CheckpointRecord
    world_size: int
    files: tuple[FileEntry, ...]
    created_at: float
    version: int = MANIFEST_VERSION
    lease: int = 0
    """The number under which a driver made it a checkpoint; 0 where nobody else could have."""
    keys: dict[str, str] = {}
    """In a store: where the file of a path lies below the checkpoint, if not under its own path."""


class ManifestError(StorageError):
    """A manifest that cannot be read or trusted."""


class ManifestVersionError(StorageError):
    """A manifest that a newer version of Paceline wrote. It is no damage: nothing is set aside, replaced or deleted."""


def files_below(directory: Path) -> list[str]:
    """The relative paths of all regular files, in order; links are followed, anything else is refused."""
    found = []
    for parent, below, names in os.walk(directory, followlinks=True):
        for name in below:
            path = Path(parent, name)
            if path.is_symlink() and directory.resolve().is_relative_to(path.resolve()):
                raise StorageError(f"{path} links to a directory that it lies in: the checkpoint would have no end")
        for name in names:
            path = Path(parent, name)
            if not path.is_file():
                raise StorageError(f"{path} is not a regular file: a checkpoint holds files and directories only")
            found.append(path.relative_to(directory).as_posix())
    return sorted(found)


def has_links(directory: Path) -> bool:
    """Whether anything in a directory is a symbolic link, or the directory itself."""
    if directory.is_symlink():
        return True
    return any(
        Path(parent, name).is_symlink() for parent, below, names in os.walk(directory) for name in (*below, *names)
    )


def staged_copy(files: Files, source: Path, target: Path) -> tuple[FileEntry, ...]:
    """Copy a directory of the user's into staging."""
    names = [name for name in files_below(source) if name != MANIFEST]
    for parent in _parents(names):
        files.make_dir(target / parent)
    entries = tuple(files.copy(source / name, target / name, name) for name in names)
    _sync_below(files, target, names)
    return entries


def staged_move(files: Files, source: Path, target: Path) -> tuple[FileEntry, ...]:
    """Move a directory of this same filesystem into staging: no byte is copied."""
    names = files_below(source)
    entries = tuple(files.seal(source / name, name) for name in names)
    _sync_below(files, source, names)
    files.make_dir(target.parent)
    files.rename(source, target)
    return entries


def sealed_in_place(files: Files, directory: Path) -> tuple[FileEntry, ...]:
    """Make a directory that already lies where it belongs durable, and hash it."""
    if has_links(directory):
        raise StorageError(
            f"{directory} holds symbolic links: files that are committed where they lie are files themselves"
        )
    names = [name for name in files_below(directory) if name not in (MANIFEST, METADATA)]
    entries = tuple(files.seal(directory / name, name) for name in names)
    _sync_below(files, directory, names)
    return entries


def commit(
    files: Files,
    layout: Layout,
    record: CheckpointRecord,
    parts: Sequence[Staged],
    *,
    world_size: int,
    created_at: float,
    fence: Fence = UNFENCED,
) -> list[str]:
    """Bring a checkpoint into existence, and name the files that several ranks wrote differently.

    May be called again after a crash at any point: whatever was already moved is taken from where it is.
    """
    chosen, differing = merged(parts)
    entries = tuple(entry for _, entry in chosen if entry.path != METADATA)
    manifest = Manifest(record, world_size, entries, created_at, lease=fence.number)
    final = layout.checkpoint(record.name)
    there = _readable_manifest(final)
    if there is not None and _age(there.record) >= _age(record):
        return differing  # Done before a crash; or, when a crash is recovered from, its name was used again since.
    if any(part.in_place for part in parts):
        if not all(part.in_place for part in parts):
            raise StorageError(
                f"{record.name}: some ranks reported with NO_UPLOAD and others not; use one mode on all ranks"
            )
        fence.check()
        _write_manifest(files, final, manifest)
        files.sync_dir(layout.root)
        return differing

    staged = layout.staged(record.attempt, record.seq)
    gathered = staged / "gathered"
    _gather(files, layout, record, chosen, gathered)
    _write_manifest(files, gathered, manifest)
    fence.check()
    # Under a name of this driver's own: another one neither puts it back nor removes it by mistake.
    aside = layout.trash / f"{fence.number}-{record.name}"
    replaces = final.exists()
    if replaces and (final.is_symlink() or not final.is_dir()):
        raise StorageError(f"{final} stands in the way: it is no checkpoint, and is left as it is")
    if replaces:
        # A name that the user chose again: the older one steps aside and is restored if we die before the next line.
        files.make_dir(layout.trash)
        files.remove_tree(aside)
        files.rename(final, aside)
    try:
        files.rename(gathered, final)
    except OSError:
        if replaces:
            files.rename(aside, final)
        raise
    files.sync_dir(layout.root)
    # It exists: what cannot be cleared away now is no reason to call it failed.
    for path in (aside, staged):
        _cleared(files, path)
    return differing


def discard(files: Files, layout: Layout, record: CheckpointRecord) -> None:
    """Free what was staged for a checkpoint whose commit failed: the disk may be full of it."""
    _cleared(files, layout.staged(record.attempt, record.seq))


def delete(files: Files, layout: Layout, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
    """Remove a checkpoint, its manifest first, so that half of one is never taken for a whole.

    A name may have been used again since: a newer checkpoint in its place stays.
    """
    directory = layout.checkpoint(record.name)
    fence.check()
    if directory.is_symlink():
        raise StorageError(f"{directory} is a link to elsewhere, where nothing is ours to delete")
    there = _readable_manifest(directory)
    if there is not None and _age(there.record) != _age(record):
        return
    if directory.exists():
        files.remove(directory / MANIFEST)
        files.sync_dir(directory)  # Or a power cut could keep the manifest and lose files.
    files.remove_tree(directory)


def set_aside(files: Files, layout: Layout, name: str, fence: Fence = UNFENCED) -> Path:
    """Move a checkpoint that cannot be trusted to where no reader looks."""
    fence.check()
    source = layout.checkpoint(name)  # Before anything is removed: a name that leads elsewhere is refused here.
    files.make_dir(layout.broken)
    target = layout.broken / name
    files.remove_tree(target)
    files.rename(source, target)
    files.sync_dir(layout.broken)
    files.sync_dir(layout.root)
    return target


def problem_with(directory: Path) -> str | None:
    """What is wrong with a checkpoint's files, checked against the manifest; None where all is well."""
    return next(problems_with(directory), None)


def problems_with(directory: Path) -> Iterator[str]:
    """All that is wrong, one line for each file; each is read only as it is asked for."""
    try:
        manifest = read_manifest(directory)
    except ManifestVersionError:
        raise
    except StorageError as error:
        yield str(error)
        return
    if manifest is None:
        yield f"{directory / MANIFEST} is missing"
        return
    inside = directory.resolve()
    for entry in manifest.files:
        problem = _problem_with_file(directory / entry.path, entry, inside)
        if problem is not None:
            yield problem


def _problem_with_file(path: Path, entry: FileEntry, inside: Path) -> str | None:
    try:
        if not path.resolve(strict=True).is_relative_to(inside):
            return f"{path} is a link that leads out of the checkpoint"
        found = hash_file(path, entry.path)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        if not isinstance(error, OSError):
            return f"{path}: {error}"
        return f"{path}: {error.strerror or error}"
    if found.size != entry.size:
        return f"{path} has {found.size} bytes where {entry.size} were written"
    if entry.hash and found.hash != entry.hash:
        return f"{path} does not hash to what was written"
    return None


def has_manifest(directory: Path) -> bool:
    return not directory.is_symlink() and (directory / MANIFEST).exists()


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a checkpoint; None where there is none. A path in it never leads out of the directory."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    return decoded_manifest(data, str(path))


def encoded_manifest(manifest: Manifest) -> bytes:
    """With a checksum of itself at its end."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1).removesuffix(b"\n}")
    return b'%b%b%08x"\n}' % (body, _SEAL, zlib.crc32(body))


def decoded_manifest(data: bytes, where: str) -> Manifest:
    """A manifest from its bytes; `where` they were is for people."""
    body, seal, rest = data.rpartition(_SEAL)
    if seal and not rest.startswith(b"%08x" % zlib.crc32(body)):
        raise ManifestError(f"{where} cannot be read: its checksum is not that of what it says")
    try:
        # Before all else: the rest may be of a form that is not known here.
        version = _decode_version(data).version
        if version > MANIFEST_VERSION:
            raise ManifestVersionError(
                f"{where} has the version {version}, and this version of Paceline knows manifests up to "
                f"{MANIFEST_VERSION}\n\nhint: open the run with the version of Paceline that wrote it, or a newer one"
            )
        manifest = _decode_manifest(data)
        # As it was reported, without the manifest's own spaces and line ends: a line of the journal has none.
        record = replace(manifest.record, metrics=_on_one_line(manifest.record.metrics))
        if record.validation is not None:
            kwargs = _on_one_line(record.validation.kwargs)
            record = replace(record, validation=replace(record.validation, kwargs=kwargs))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ManifestError(f"{where} cannot be read: {error}") from None
    for name in (*(entry.path for entry in manifest.files), *manifest.keys.values()):
        if not _is_inside(name):
            raise ManifestError(f"{where} names {name[:300]!r}, outside of the checkpoint or no file of it")
    return replace(manifest, record=record)


def _on_one_line(raw: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(raw, indent=-1))


def manifests(layout: Layout) -> Iterator[Manifest]:
    """The manifest of every checkpoint in the run, oldest first. One that cannot be read is passed over.

    `ManifestVersionError` where one is of a newer version.
    """
    found = []
    for directory in sorted(layout.root.iterdir()) if layout.root.exists() else ():
        # What a link leads to is not ours: it could not be deleted, and may change.
        if not names_checkpoint(directory.name) or directory.is_symlink() or not directory.is_dir():
            continue
        manifest = _readable_manifest(directory)
        if manifest is not None and manifest.record.name == directory.name:
            found.append(manifest)
    yield from sorted(found, key=lambda manifest: manifest.record.seq)


def without_manifest(layout: Layout) -> set[str]:
    """The names of directories that may be what is left of a checkpoint, or are somebody's own."""
    return {
        directory.name
        for directory in layout.root.iterdir()
        if names_checkpoint(directory.name) and not directory.is_symlink() and directory.is_dir()
        if not has_manifest(directory)
    }


def recover(files: Files, layout: Layout, fence: Fence = UNFENCED) -> None:
    """Undo what a crash left half done: put back what stepped aside for a commit that never came."""
    if not layout.trash.exists():
        return
    asides = [(aside, _readable_manifest(aside)) for aside in layout.trash.iterdir()]
    known = [(aside, manifest.record) for aside, manifest in asides if manifest is not None]
    fence.check()
    for aside, record in sorted(known, key=lambda pair: _age(pair[1]), reverse=True):
        final = layout.checkpoint(record.name)
        if not final.exists():
            try:
                files.rename(aside, final)
            except OSError:
                if not final.exists():
                    raise
                # A driver that was only paused has finished its commit meanwhile.
            files.sync_dir(layout.root)
    files.remove_tree(layout.trash)


def clear_staging(files: Files, layout: Layout, fence: Fence = UNFENCED) -> None:
    """Remove what was staged and never committed.

    Looked for before the check: what a driver after this one stages is never among it.
    """
    if not layout.staging.exists():
        return
    found = sorted(layout.staging.iterdir())
    fence.check()
    for directory in found:
        files.remove_tree(directory)
    with contextlib.suppress(OSError):  # Somebody stages again: the directory is theirs.
        layout.staging.rmdir()


def _readable_manifest(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except ManifestVersionError:
        raise
    except StorageError:
        return None


def _age(record: CheckpointRecord) -> tuple[int, int]:
    return record.attempt, record.seq


def _gather(
    files: Files,
    layout: Layout,
    record: CheckpointRecord,
    chosen: Sequence[tuple[int, FileEntry]],
    gathered: Path,
) -> None:
    ranks = {rank for rank, _ in chosen}
    if len(ranks) == 1 and not gathered.exists():
        own = layout.staged_rank(record.attempt, record.seq, ranks.pop())
        files.rename(own, gathered)
        return
    files.make_dir(gathered)
    for parent in _parents(entry.path for _, entry in chosen):
        files.make_dir(gathered / parent)
    for rank, entry in chosen:
        source = layout.staged_rank(record.attempt, record.seq, rank) / entry.path
        if source.exists() or not (gathered / entry.path).exists():
            files.rename(source, gathered / entry.path)
    _sync_below(files, gathered, [entry.path for _, entry in chosen])


def merged(parts: Sequence[Staged]) -> tuple[list[tuple[int, FileEntry]], list[str]]:
    """Which rank's file stands for each path: the lowest rank's. And the paths on which ranks differ."""
    chosen: dict[str, tuple[int, FileEntry]] = {}
    differing = []
    for part in sorted(parts, key=lambda part: part.rank):
        for entry in part.files:
            first = chosen.setdefault(entry.path, (part.rank, entry))
            if first[1].hash != entry.hash and entry.path not in differing:
                differing.append(entry.path)
    return [chosen[path] for path in sorted(chosen)], differing


def _write_manifest(files: Files, directory: Path, manifest: Manifest) -> None:
    part = directory / f"{MANIFEST}.part"
    files.write(part, encoded_manifest(manifest))
    files.rename(part, directory / MANIFEST)
    files.sync_dir(directory)


def _parents(names: Iterable[str]) -> list[str]:
    """Every directory that files of these names lie in, at any depth."""
    return sorted({parent.as_posix() for name in names for parent in PurePosixPath(name).parents} | {"."})


def _is_inside(name: str) -> bool:
    """Whether a manifest may list this file: it lies in the checkpoint, and is not the manifest."""
    path = PurePosixPath(name)
    if "\0" in name or not path.parts or path.is_absolute() or ".." in path.parts:
        return False
    return path.as_posix() not in (MANIFEST, METADATA)


def _cleared(files: Files, path: Path) -> None:
    try:
        files.remove_tree(path)
    except OSError as error:
        log.warning("%s could not be removed: %s", path, error)


def _sync_below(files: Files, root: Path, names: Iterable[str]) -> None:
    """The directories that these files lie in, but for the one on top, which is synced with the manifest."""
    for parent in _parents(names):
        if parent != ".":
            files.sync_dir(root / parent)


class _Versioned(msgspec.Struct, frozen=True):
    version: int = MANIFEST_VERSION


_decode_version = msgspec.json.Decoder(_Versioned).decode
_decode_manifest = msgspec.json.Decoder(Manifest).decode
