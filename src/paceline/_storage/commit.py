"""How a checkpoint is created, verified and deleted, and which ones are kept.

Each rank stages its files under a name that belongs to the attempt. A commit gathers them into one directory, writes
the manifest with size and hash of every file, and renames the directory into place. That rename is the single atomic
act that creates the checkpoint. Readers accept a directory as a checkpoint only if it holds a manifest.

A checkpoint costs two waits for the disk. Staging syncs the files of a rank, then their directories. After the rename
the manifest is synced, then its directory and the run's: whatever a power cut leaves of these three, the manifest is
missing or its checksum is wrong, or the checkpoint is whole. A checkpoint that replaces one of the same name is synced
before the rename, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from paceline._core.arguments import is_number
from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles
from paceline._core.errors import StorageError
from paceline._core.plain_values import from_plain, get_metric
from paceline._storage.files import Files, hash_file
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.replacement import prepared_path, remove_prepared, replace_file
from paceline._storage.run_layout import MANIFEST, METADATA, RunLayout, is_checkpoint_name

MANIFEST_VERSION = 1

_CHECKSUM_KEY = b',\n "crc32": "'
"""Start of the last line of a manifest, which holds the checksum of everything before it."""

_DEFAULT_NAME = re.compile(r"checkpoint_\d{6,}")
_DELETED_PREFIX = "deleted-"
"""In `.trash` and in staging: what is not to be restored."""
_DELETED_NAME = re.compile(_DELETED_PREFIX + r"\d+-(\d+)-(\d+)")
"""Lease number of the driver; attempt and number of the checkpoint that it deletes."""

log = logging.getLogger("paceline")


class Manifest(msgspec.Struct, frozen=True):
    record: CheckpointRecord
    world_size: int
    files: tuple[FileEntry, ...]
    created_at: float
    version: int = MANIFEST_VERSION
    lease: int = 0
    """Lease number of the driver that committed the checkpoint; 0 where no second driver was possible."""
    keys: dict[str, str] = {}
    """In a store: the key of a file below the checkpoint, where it differs from the file's path."""


class ManifestError(StorageError):
    """A manifest cannot be read or trusted."""


class ManifestVersionError(StorageError):
    """A newer version of Paceline wrote the manifest. No damage: nothing is quarantined, replaced or deleted."""


def list_files(directory: Path) -> list[str]:
    """Return the sorted relative paths of all regular files. Follows links and refuses anything else."""
    paths = []
    for parent, below, names in os.walk(directory, followlinks=True):
        for name in below:
            path = Path(parent, name)
            if path.is_symlink() and directory.resolve().is_relative_to(path.resolve()):
                raise StorageError(f"{path} links to a directory that contains it")
        for name in names:
            path = Path(parent, name)
            if not path.is_file():
                raise StorageError(f"{path} is not a regular file; a checkpoint holds only files and directories")
            paths.append(path.relative_to(directory).as_posix())
    return sorted(paths)


def has_links(directory: Path) -> bool:
    """Whether a directory is, or contains, a symbolic link."""
    return directory.is_symlink() or any(
        Path(parent, name).is_symlink() for parent, below, names in os.walk(directory) for name in (*below, *names)
    )


def stage_copy(files: Files, source: Path, target: Path) -> tuple[FileEntry, ...]:
    """Copy a user's directory into staging."""
    names = [name for name in list_files(source) if name != MANIFEST and not _is_prepared_manifest(name)]
    for parent in _parent_directories(names):
        files.make_dir(target / parent)
    entries = tuple(files.copy(source / name, target / name, name) for name in names)
    _sync_directories(files, target, names)
    return entries


def stage_move(files: Files, source: Path, target: Path) -> tuple[FileEntry, ...]:
    """Move a directory on the same filesystem into staging, without copying bytes."""
    names = list_files(source)
    entries = tuple(files.seal(source / name, name) for name in names)
    _sync_directories(files, source, names)
    files.make_dir(target.parent)
    files.rename(source, target)
    return entries


def stage_in_place(files: Files, directory: Path) -> tuple[FileEntry, ...]:
    """Hash a directory that is already in its final place and make it durable."""
    if has_links(directory):
        raise StorageError(f"{directory} contains symbolic links, which NO_UPLOAD does not allow")
    own = (MANIFEST, METADATA)
    names = [name for name in list_files(directory) if name not in own and not _is_prepared_manifest(name)]
    entries = tuple(files.seal(directory / name, name) for name in names)
    _sync_directories(files, directory, names)
    return entries


def commit_checkpoint(
    files: Files,
    layout: RunLayout,
    record: CheckpointRecord,
    parts: Sequence[StagedFiles],
    *,
    world_size: int,
    created_at: float,
    fence: Fence = UNFENCED,
) -> list[str]:
    """Commit a checkpoint, and return the files that several ranks wrote with different contents.

    May be called again after a crash at any point: files that were already moved are taken from where they are.
    `remove_replaced` removes what it leaves behind: staged copies, and an older checkpoint of the same name.
    """
    chosen, differing = merge_parts(parts)
    entries = tuple(entry for _, entry in chosen if entry.path != METADATA)
    manifest = Manifest(record, world_size, entries, created_at, lease=fence.number)
    final = layout.checkpoint(record.name)
    current = _read_valid_manifest(final)
    if current is not None and _commit_order(current.record) >= _commit_order(record):
        # Committed before a crash, maybe before it was synced; or, during recovery, the name has been used again since.
        sync_checkpoint(files, layout, final)
        return differing
    if any(part.in_place for part in parts):
        if not all(part.in_place for part in parts):
            raise StorageError(f"{record.name}: only some ranks reported with NO_UPLOAD; use one mode on all ranks")
        # Readers look here already: the manifest appears in one act.
        _write_manifest(files, final, manifest, fence)
        files.sync_dir(final)
        files.sync_dir(layout.root)
        return differing

    staged = layout.staged_checkpoint(record.attempt, record.seq)
    gathered = staged / "gathered"
    _gather_files(files, layout, record, chosen, gathered)
    _write_manifest(files, gathered, manifest, fence, sync=False)
    fence.check()
    # The name is unique to this driver, so no other driver restores or removes it by mistake.
    aside = layout.trash / f"{fence.number}-{record.name}"
    replaces = final.exists()
    if replaces and (final.is_symlink() or not final.is_dir()):
        raise StorageError(f"{final} exists and is not a checkpoint; not overwritten")
    if replaces:
        # The user reused a name: move the older checkpoint aside. It is restored if we die before the next line, but
        # not if a directory has its name by then. So that one must be whole.
        files.sync_file(gathered / MANIFEST)
        files.sync_dir(gathered)
        files.make_dir(layout.trash)
        files.remove_tree(aside)
        files.rename(final, aside)
    try:
        files.rename(gathered, final)
    except OSError:
        if replaces:
            files.rename(aside, final)
        raise
    try:
        sync_checkpoint(files, layout, final)
    except OSError:
        # It may be whole in the page cache only. The manifest goes first and durably: a power cut could bring the name
        # back without the files, which are removed next.
        files.remove(final / MANIFEST)
        files.sync_dir(final)
        files.rename(final, gathered)
        if replaces:
            files.rename(aside, final)
        raise
    if replaces:
        _discard_aside(files, layout, aside, current.record if current is not None else record, fence)
    return differing


def _discard_aside(files: Files, layout: RunLayout, aside: Path, record: CheckpointRecord, fence: Fence) -> None:
    """Give up an older checkpoint once the newer one exists: a failure here must not make the commit fail."""
    deleted = _deleted_path(layout, record, fence)
    _try_remove_tree(files, deleted)
    try:
        files.rename(aside, deleted)
    except OSError as error:
        log.warning("cannot remove %s: %s", aside, error)


def remove_replaced(
    files: Files,
    layout: RunLayout,
    record: CheckpointRecord,
    fence: Fence = UNFENCED,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Remove what a commit has left behind; calls `pause` before each file."""
    for path in (layout.staged_checkpoint(record.attempt, record.seq), *_list_deleted(layout, fence)):
        try:
            remove_gently(files, path, pause)
        except OSError as error:
            log.warning("cannot remove %s: %s", path, error)
    _remove_if_empty(layout.trash)


def sync_checkpoint(files: Files, layout: RunLayout, directory: Path) -> None:
    """Make the manifest and the name of a checkpoint durable; its other files are."""
    files.sync_file(directory / MANIFEST)
    files.sync_dir(directory)
    files.sync_dir(layout.root)


def discard_staged(files: Files, layout: RunLayout, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
    """Delete the staged files of a checkpoint whose commit failed: they may be what fills the disk."""
    staged = layout.staged_checkpoint(record.attempt, record.seq)
    try:
        _remove_staged(files, layout, staged, fence)
    except OSError as error:
        log.warning("cannot remove %s: %s", staged, error)


def delete_checkpoint(files: Files, layout: RunLayout, record: CheckpointRecord, fence: Fence = UNFENCED) -> None:
    """Delete a checkpoint: one rename takes it out of the run, so it is whole or gone, whenever a crash comes."""
    if set_aside(files, layout, record, fence):
        remove_deleted(files, layout, record, fence)


def set_aside(files: Files, layout: RunLayout, record: CheckpointRecord, fence: Fence = UNFENCED) -> bool:
    """Take a checkpoint out of the run, for `remove_deleted`; return whether it was there.

    The name may have been used again since: a newer checkpoint in its place stays.
    """
    directory = layout.checkpoint(record.name)
    fence.check()
    if directory.is_symlink():
        raise StorageError(f"{directory} is a symbolic link; not deleted")
    current = _read_valid_manifest(directory)
    if current is not None and _commit_order(current.record) != _commit_order(record):
        return False
    if not directory.exists():
        return False
    deleted = _deleted_path(layout, record, fence)
    files.make_dir(layout.trash)
    files.remove_tree(deleted)
    files.rename(directory, deleted)
    moved = _read_valid_manifest(deleted)
    if moved is not None and _commit_order(moved.record) != _commit_order(record):
        _put_back(files, deleted, directory, fence)
        return False
    files.sync_dir(layout.root)  # Or a power cut could bring the name back and lose files.
    return True


def remove_deleted(
    files: Files,
    layout: RunLayout,
    record: CheckpointRecord,
    fence: Fence = UNFENCED,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Free the space of a checkpoint that was set aside; calls `pause` before each file."""
    remove_gently(files, _deleted_path(layout, record, fence), pause)
    _remove_if_empty(layout.trash)


def remove_gently(files: Files, directory: Path, pause: Callable[[], None]) -> None:
    """Remove a directory, and call `pause` before each of its files.

    A file is unlinked as a whole. Shortened in steps it would be gentler still, but whoever has it mapped into memory,
    as `Checkpoint.to_dict` does, would crash.
    """
    for parent, _, names in os.walk(directory):
        for name in names:
            pause()
            files.remove(Path(parent, name))
    files.remove_tree(directory)


def _deleted_path(layout: RunLayout, record: CheckpointRecord, fence: Fence) -> Path:
    return layout.trash / f"{_DELETED_PREFIX}{fence.number}-{record.attempt}-{record.seq}"


def _list_deleted(layout: RunLayout, fence: Fence) -> list[Path]:
    """What this driver deletes: another one may be about to put back what it has moved away by mistake."""
    try:
        return [path for path in layout.trash.iterdir() if path.name.startswith(f"{_DELETED_PREFIX}{fence.number}-")]
    except FileNotFoundError:
        return []


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # Something else is in it, or it is gone.
        directory.rmdir()


def quarantine_checkpoint(files: Files, layout: RunLayout, name: str, fence: Fence = UNFENCED) -> Path:
    """Move a checkpoint that cannot be trusted to where no reader looks."""
    source = layout.checkpoint(name)  # Before anything is removed: refuses a name that leads outside the run.
    judged = _read_manifest_bytes(source)
    fence.check()
    files.make_dir(layout.quarantine)
    target = layout.quarantine / name
    files.remove_tree(target)
    files.rename(source, target)
    if _read_manifest_bytes(target) != judged:
        _put_back(files, target, source, fence)
    files.sync_dir(layout.quarantine)
    files.sync_dir(layout.root)
    return target


def find_problem(directory: Path) -> str | None:
    """Return the first difference between a checkpoint's files and its manifest; None if there is none."""
    return next(find_problems(directory), None)


def find_problems(directory: Path) -> Iterator[str]:
    """Yield every problem, one line per file. Each file is read only when the iterator reaches it."""
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
    root = directory.resolve()
    for entry in manifest.files:
        problem = _find_file_problem(directory / entry.path, entry, root)
        if problem is not None:
            yield problem


def _find_file_problem(path: Path, entry: FileEntry, root: Path) -> str | None:
    try:
        if not path.resolve(strict=True).is_relative_to(root):
            return f"{path} is a link that leads out of the checkpoint"
        actual = hash_file(path, entry.path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of links, before Python 3.13
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    if actual.size != entry.size:
        return f"{path} has {actual.size} bytes, expected {entry.size}"
    if entry.hash and actual.hash != entry.hash:
        return f"{path} has a wrong hash"
    return None


def has_manifest(directory: Path) -> bool:
    return not directory.is_symlink() and (directory / MANIFEST).exists()


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a checkpoint; None if there is none. Paths in it never lead out of the directory."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    return decode_manifest(data, str(path))


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest, with its own checksum at the end."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1).removesuffix(b"\n}")
    return b'%b%b%08x"\n}' % (body, _CHECKSUM_KEY, zlib.crc32(body))


def decode_manifest(data: bytes, location: str) -> Manifest:
    """Decode a manifest; `location` is its location, for error messages."""
    body, seal, rest = data.rpartition(_CHECKSUM_KEY)
    if seal and not rest.startswith(b"%08x" % zlib.crc32(body)):
        raise ManifestError(f"cannot read {location}: wrong checksum")
    try:
        # Checked first: a newer version may have changed the format of everything else.
        version = _decode_version(data).version
        if version > MANIFEST_VERSION:
            raise ManifestVersionError(
                f"{location} has manifest version {version}; this Paceline reads versions up to {MANIFEST_VERSION}\n\n"
                "hint: open the run with the version of Paceline that wrote it, or a newer one"
            )
        manifest = _decode_manifest(data)
        # Strip the manifest's whitespace: a line of the journal has none.
        record = replace(manifest.record, metrics=_compact_json(manifest.record.metrics))
        if record.validation is not None:
            kwargs = _compact_json(record.validation.kwargs)
            record = replace(record, validation=replace(record.validation, kwargs=kwargs))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ManifestError(f"cannot read {location}: {error}") from None
    for name in (*(entry.path for entry in manifest.files), *manifest.keys.values()):
        if not _can_list_file(name):
            raise ManifestError(f"{location} lists {name[:300]!r}, which is not a file of the checkpoint")
    return replace(manifest, record=record)


def _compact_json(raw: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(raw, indent=-1))


def iter_manifests(layout: RunLayout) -> Iterator[Manifest]:
    """Yield the manifest of every checkpoint in the run, oldest first. Skips damaged ones; raises for newer ones."""
    found = ((directory, _read_valid_manifest(directory)) for directory in _checkpoint_directories(layout))
    manifests = [manifest for directory, manifest in found if manifest and manifest.record.name == directory.name]
    yield from sorted(manifests, key=lambda manifest: manifest.record.seq)


def find_damaged(layout: RunLayout) -> list[str]:
    """Return the directories that look like checkpoints and have no valid manifest; others are the user's own."""
    return [
        directory.name
        for directory in _checkpoint_directories(layout)
        if (_DEFAULT_NAME.fullmatch(directory.name) or has_manifest(directory)) and not _read_valid_manifest(directory)
    ]


def _checkpoint_directories(layout: RunLayout) -> list[Path]:
    """Links are left out: their target is not ours, so it could not be deleted, and may change."""
    paths = sorted(layout.root.iterdir()) if layout.root.exists() else []
    return [path for path in paths if is_checkpoint_name(path.name) and not path.is_symlink() and path.is_dir()]


def recover_commits(files: Files, layout: RunLayout, fence: Fence = UNFENCED) -> None:
    """Recover from a crash in the middle of a commit: restore checkpoints that were moved aside for it."""
    if not layout.trash.exists():
        return
    moved = list(layout.trash.iterdir())
    asides = [(aside, _read_valid_manifest(aside)) for aside in moved]
    readable = [(a, manifest.record) for a, manifest in asides if manifest and not _is_deleted(a.name, manifest.record)]
    # After the listing: what a later driver moves aside is never in it.
    fence.check()
    for aside, record in sorted(readable, key=lambda pair: _commit_order(pair[1]), reverse=True):
        final = layout.checkpoint(record.name)
        if not final.exists():
            try:
                files.rename(aside, final)
            except OSError:
                if not final.exists():
                    raise
                # A driver that was only paused has finished its commit meanwhile.
            files.sync_dir(layout.root)
    for path in moved:
        files.remove_tree(path)
    with contextlib.suppress(OSError):  # Somebody moves something aside again: the directory is theirs.
        layout.trash.rmdir()


def clear_staging(files: Files, layout: RunLayout, fence: Fence = UNFENCED) -> None:
    """Delete files that were staged but never committed."""
    if not layout.staging.exists():
        return
    directories = sorted(layout.staging.iterdir())
    # After the listing: files staged by a later driver are never in it.
    fence.check()
    for directory in directories:
        _remove_staged(files, layout, directory, fence)
    with contextlib.suppress(OSError):  # Somebody stages again: the directory is theirs.
        layout.staging.rmdir()


def _remove_staged(files: Files, layout: RunLayout, path: Path, fence: Fence) -> None:
    """Remove staged files. Those that another driver is about to commit it finds whole, or not at all."""
    below = "-".join(path.relative_to(layout.staging).parts)
    if not below.startswith(_DELETED_PREFIX):
        removed = layout.staging / f"{_DELETED_PREFIX}{fence.number}-{below}"
        files.remove_tree(removed)
        try:
            files.rename(path, removed)
        except FileNotFoundError:
            return
        path = removed
    files.remove_tree(path)


def _put_back(files: Files, moved: Path, final: Path, fence: Fence) -> None:
    """Put back what another driver, which has taken over, has committed under this name just before it was moved.

    If this one dies before that, the next driver does it.
    """
    try:
        files.rename(moved, final)
    except OSError:
        if not final.exists():
            raise
        # There is an even newer one by now, or the next driver was faster.
    files.sync_dir(final.parent)
    fence.check()


def _is_deleted(name: str, record: CheckpointRecord) -> bool:
    """Whether something in `.trash` is the checkpoint to be deleted, and not a later one of the same name."""
    match = _DELETED_NAME.fullmatch(name)
    return match is not None and (int(match[1]), int(match[2])) == _commit_order(record)


def _read_manifest_bytes(directory: Path) -> bytes | None:
    try:
        return (directory / MANIFEST).read_bytes()
    except OSError:
        return None


def _is_prepared_manifest(name: str) -> bool:
    """Whether a commit that was not finished has left this file."""
    return name.startswith(f"{MANIFEST}.") and name.endswith(".part")


def _read_valid_manifest(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except ManifestVersionError:
        raise
    except StorageError:
        return None


def _commit_order(record: CheckpointRecord) -> tuple[int, int]:
    return record.attempt, record.seq


def _gather_files(
    files: Files,
    layout: RunLayout,
    record: CheckpointRecord,
    chosen: Sequence[tuple[int, FileEntry]],
    gathered: Path,
) -> None:
    ranks = {rank for rank, _ in chosen}
    if len(ranks) == 1 and not gathered.exists():
        files.rename(layout.staged_rank(record.attempt, record.seq, ranks.pop()), gathered)
        return
    files.make_dir(gathered)
    for parent in _parent_directories(entry.path for _, entry in chosen):
        files.make_dir(gathered / parent)
    for rank, entry in chosen:
        source = layout.staged_rank(record.attempt, record.seq, rank) / entry.path
        if source.exists() or not (gathered / entry.path).exists():
            files.rename(source, gathered / entry.path)
    _sync_directories(files, gathered, [entry.path for _, entry in chosen])


def merge_parts(parts: Sequence[StagedFiles]) -> tuple[list[tuple[int, FileEntry]], list[str]]:
    """Choose the file for each path (the lowest rank's), and return the paths on which ranks differ."""
    chosen: dict[str, tuple[int, FileEntry]] = {}
    differing = []
    for part in sorted(parts, key=lambda part: part.rank):
        for entry in part.files:
            first = chosen.setdefault(entry.path, (part.rank, entry))
            if first[1].hash != entry.hash and entry.path not in differing:
                differing.append(entry.path)
    return [chosen[path] for path in sorted(chosen)], differing


def _write_manifest(files: Files, directory: Path, manifest: Manifest, fence: Fence, *, sync: bool = True) -> None:
    remove_prepared(files, directory, MANIFEST, fence)
    target = directory / MANIFEST
    files.write(prepared_path(target, fence), encode_manifest(manifest), sync=sync)
    replace_file(files, target, fence)


def _parent_directories(names: Iterable[str]) -> list[str]:
    """Return every directory that contains these files, at any depth."""
    return sorted({parent.as_posix() for name in names for parent in PurePosixPath(name).parents} | {"."})


def _can_list_file(name: str) -> bool:
    """Whether a manifest may list this file: it is inside the checkpoint and is not the manifest itself."""
    path = PurePosixPath(name)
    if "\0" in name or not path.parts or path.is_absolute() or ".." in path.parts:
        return False
    return path.as_posix() not in (MANIFEST, METADATA)


def _try_remove_tree(files: Files, path: Path) -> None:
    try:
        files.remove_tree(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)


def _sync_directories(files: Files, root: Path, names: Iterable[str]) -> None:
    """Sync the directories of these files, from the root down."""
    for parent in _parent_directories(names):
        files.sync_dir(root / parent)


class _ManifestVersion(msgspec.Struct, frozen=True):
    version: int = MANIFEST_VERSION


_decode_version = msgspec.json.Decoder(_ManifestVersion).decode
_decode_manifest = msgspec.json.Decoder(Manifest).decode


def rank_checkpoints(
    records: Sequence[CheckpointRecord], score_attribute: str | None, score_order: str
) -> list[CheckpointRecord]:
    """Sort the records from worst to best; without a score attribute, from oldest to newest.

    A score that is missing, not a number or nan ranks last in either order. Of equal scores the later report is better.
    """
    if score_attribute is None:
        return sorted(records, key=lambda record: record.seq)
    sign = 1 if score_order == "max" else -1

    def sort_key(record: CheckpointRecord) -> tuple[bool, float, int]:
        score = checkpoint_score(record, score_attribute)
        return score is not None, sign * score if score is not None else 0, record.seq

    return sorted(records, key=sort_key)


def select_kept(
    records: Sequence[CheckpointRecord],
    num_to_keep: int | None,
    score_attribute: str | None = None,
    score_order: str = "max",
    pinned: Collection[int] = (),
) -> tuple[CheckpointRecord, ...]:
    """Return the records to keep.

    These are the best `num_to_keep`, the newest (a restart resumes from it), those whose score is still to come, and
    those whose number is in `pinned` (others start from them).
    """
    if num_to_keep is None or len(records) <= num_to_keep:
        return tuple(records)
    stay = {record.seq for record in rank_checkpoints(records, score_attribute, score_order)[-num_to_keep:]}
    stay.add(max(record.seq for record in records))
    stay |= {record.seq for record in records if record.status == "PENDING_VALIDATION"}
    stay.update(pinned)
    return tuple(record for record in records if record.seq in stay)


def checkpoint_score(record: CheckpointRecord, attribute: str) -> float | None:
    """Return the score; None if missing, not a number or nan. Integers stay exact: they may exceed any float."""
    score = get_metric(from_plain(msgspec.json.decode(record.metrics)), attribute)
    return score if is_number(score) and score == score else None  # nan is not equal to itself
