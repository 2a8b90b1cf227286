"""The paths in a run's directory. Touches no files.

<storage_path>/<name>/
    journal.jsonl                               every event of the run
    journal-000001.jsonl.gz                     its first events, if it has ended and they are many
    result.json  progress.csv  params.json ...  written by loggers
    checkpoint_000012/                          a committed checkpoint, .manifest.json inside
    logs/attempt_1/rank_0.log                   output of a worker
    logs/validation/checkpoint_000012.log       output of the validation of a checkpoint
    logs/attempt_1/stacks.txt                   stacks of all threads of all workers, when they hung
    reports/attempt_1/rank_0.jsonl              reports of a worker, written before they are sent
    .staging/attempt_1/checkpoint_000012/...    files that are not yet a checkpoint
    .snapshot                                   state of a long run, derived from its journal
    .trash/                                     files about to be deleted
    .lease/000003.json                          who writes the run: the highest number does
    .requests/5f1e....json                      a person's request to the driver, and its answer
    profiles/...-rank_0.trace.json.gz           profiles of workers, made on request
    artifacts/                                  the working directory of a trial's workers
    .controller/token                           token that the controller of a detached run requires of clients
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline._core.errors import StorageError

MANIFEST = ".manifest.json"
METADATA = ".metadata.json"
"""Notes that may change after the commit, so the manifest does not cover them."""
LOGGER_FILES = ("result.json", "progress.csv", "params.json", "events.out.tfevents.*.paceline")
"""Files that loggers write in the driver, next to the journal."""
RESERVED_NAMES = ("journal.jsonl", "journal.jsonl.torn", "logs", "reports", "profiles", "artifacts", *LOGGER_FILES)
_MAX_NAME_BYTES = 255
"""The longest file name, in bytes, on common filesystems."""
SAVED_PREFIX = "saved_"
"""Prefix of the names of checkpoints that were saved on their own and not reported with metrics."""


def checkpoint_name(seq: int) -> str:
    return f"checkpoint_{seq:06d}"


def is_checkpoint_name(name: str) -> bool:
    """Whether a checkpoint may have this name: a directory directly in the run's, and not one of the run's own."""
    if not name or name.startswith((".", "journal-")) or name in RESERVED_NAMES or "/" in name or "\0" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME_BYTES


class _Child:
    """A path directly below the run's directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: RunLayout, owner: type[RunLayout]) -> Path:
        return layout.root / self._name


@dataclass(frozen=True)
class RunLayout:
    root: Path
    journal = _Child("journal.jsonl")
    snapshot = _Child(".snapshot")
    lease = _Child(".lease")
    controller = _Child(".controller")
    requests = _Child(".requests")
    profiles = _Child("profiles")
    trash = _Child(".trash")
    staging = _Child(".staging")
    quarantine = _Child(".broken")
    """Checkpoints that failed verification, kept for a person to inspect."""
    logs = _Child("logs")
    artifacts = _Child("artifacts")
    """The working directory of user code. Not the run's own: a user may write a `result.json` or a checkpoint, too."""

    def checkpoint(self, name: str) -> Path:
        """Return a checkpoint's directory. Refuses names that lead elsewhere: a journal may come from anybody."""
        if not is_checkpoint_name(name):
            raise StorageError(f"{self.root}: {name[:300]!r} is not a valid checkpoint name")
        return self.root / name

    def staged_checkpoint(self, attempt: int, seq: int) -> Path:
        return self.staging / f"attempt_{attempt}" / checkpoint_name(seq)

    def staged_rank(self, attempt: int, seq: int, rank: int) -> Path:
        return self.staged_checkpoint(attempt, seq) / f"rank_{rank}"

    def scratch(self, attempt: int, rank: int) -> Path:
        """Directories that user code gets to write a checkpoint into."""
        return self.staging / f"attempt_{attempt}" / "scratch" / f"rank_{rank}"

    def log(self, attempt: int, rank: int) -> Path:
        return self.logs / f"attempt_{attempt}" / f"rank_{rank}.log"

    def validation_log(self, name: str) -> Path:
        return self.logs / "validation" / f"{name}.log"

    def stacks(self, attempt: int) -> Path:
        return self.logs / f"attempt_{attempt}" / "stacks.txt"

    def reports(self, attempt: int, rank: int) -> Path:
        return self.root / "reports" / f"attempt_{attempt}" / f"rank_{rank}.jsonl"
