"""What storage, journal, driver and workers all know of a checkpoint: its files, its parts and its record."""

from __future__ import annotations

from typing import Literal

import msgspec

from paceline._core.cursor import Cursors

CheckpointStatus = Literal["COMMITTED", "PENDING_VALIDATION", "VALIDATED", "VALIDATION_TIMEOUT", "VALIDATION_FAILED"]


class FileEntry(msgspec.Struct, frozen=True):
    path: str
    size: int
    hash: str


class SaveTimes(msgspec.Struct, frozen=True, array_like=True):
    """What one rank's part of a checkpoint took, in seconds. Only shown; hashing runs beside writing."""

    copy_s: float = 0.0
    """Until training could go on, if the rest is done in the background."""
    write_s: float = 0.0
    """While at least one write was in progress."""
    hash_s: float = 0.0
    """Including the reading of files that somebody else wrote."""
    sync_s: float = 0.0
    upload_s: float = 0.0
    """To a store."""
    num_bytes: int = 0
    """Written to the disk; not those that were moved, or copied by reference."""


class StagedFiles(msgspec.Struct, frozen=True):
    """One rank's part of a checkpoint, durable but not yet visible."""

    rank: int
    files: tuple[FileEntry, ...]
    in_place: bool = False
    """The files are already in the checkpoint's own directory; only the manifest is missing."""
    times: SaveTimes | None = None


class ValidationTask(msgspec.Struct, frozen=True):
    """The arguments for validating one checkpoint. The trainer supplies what is left out."""

    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    timeout_s: float | None = None


class CheckpointRecord(msgspec.Struct, frozen=True):
    """A committed checkpoint, as the journal, the manifest and the workers know it."""

    seq: int
    name: str
    attempt: int
    metrics: msgspec.Raw
    """As reported; after validation, with the validation metrics added. The manifest keeps the reported ones."""
    num_bytes: int = 0
    validation: ValidationTask | None = None
    status: CheckpointStatus = "COMMITTED"
    data: Cursors = ()
    """The positions of the run's datasets."""
