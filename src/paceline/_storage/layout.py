"""Where things lie in a run's directory. Paths only; nothing is touched.

<storage_path>/<name>/
    journal.jsonl                               every event of the run
    result.json  progress.csv  events.out...    what loggers make of it
    checkpoint_000012/                          a committed checkpoint, .manifest.json inside
    logs/attempt_1/rank_0.log                   all that a worker printed
    logs/validation/checkpoint_000012.log       all that the validation of a checkpoint printed
    logs/attempt_1/stacks.txt                   where all threads of all workers stood, when they hung
    reports/attempt_1/rank_0.jsonl              what a worker reported, written before it was sent
    .staging/attempt_1/checkpoint_000012/...    files that are not yet a checkpoint
    .trash/                                     on its way out
    .lease/000003.json                          who writes the run: the highest number does
    .requests/5f1e....json                      what a person asks of the driver, and its answer
    profiles/...-rank_0.trace.json.gz           what workers did, for those who asked
    .controller/token                           what the controller of a detached run asks of those who follow it
"""

from dataclasses import dataclass
from pathlib import Path

from paceline._core.errors import StorageError

MANIFEST = ".manifest.json"
METADATA = ".metadata.json"
"""Notes that may be changed after the commit, so the manifest does not cover them."""


RESERVED = ("journal.jsonl", "journal.jsonl.torn", "logs", "reports", "profiles", "result.json", "progress.csv")
LOGGED = ("result.json", "progress.csv", "events.out.tfevents.*.paceline")
"""What loggers write beside the journal, in the driver."""
_MAX_NAME = 255
"""Bytes in the name of a file, on the filesystems there are."""


SAVED = "saved_"
"""How the name of a checkpoint begins that was saved by itself, and not reported with metrics."""


def checkpoint_name(seq: int) -> str:
    return f"checkpoint_{seq:06d}"


def names_checkpoint(name: str) -> bool:
    """Whether a checkpoint may have this name: one directory right below the run's own, and not one of the run's."""
    if not name or name.startswith(".") or name in RESERVED or "/" in name or "\0" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME


@dataclass(frozen=True)
class Layout:
    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def lease(self) -> Path:
        return self.root / ".lease"

    @property
    def controller(self) -> Path:
        return self.root / ".controller"

    @property
    def requests(self) -> Path:
        return self.root / ".requests"

    @property
    def profiles(self) -> Path:
        return self.root / "profiles"

    @property
    def trash(self) -> Path:
        return self.root / ".trash"

    @property
    def staging(self) -> Path:
        return self.root / ".staging"

    @property
    def broken(self) -> Path:
        """Checkpoints that failed their check, kept for a person to look at."""
        return self.root / ".broken"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def checkpoint(self, name: str) -> Path:
        """A name that leads elsewhere is refused: names come from journals, which anybody may have written."""
        if not names_checkpoint(name):
            raise StorageError(
                f"{self.root}: {name[:300]!r} is not the name of a checkpoint; nothing is read or removed there"
            )
        return self.root / name

    def staged(self, attempt: int, seq: int) -> Path:
        return self.staging / f"attempt_{attempt}" / checkpoint_name(seq)

    def staged_rank(self, attempt: int, seq: int, rank: int) -> Path:
        return self.staged(attempt, seq) / f"rank_{rank}"

    def scratch(self, attempt: int, rank: int) -> Path:
        """Directories handed out to the user's code to write a checkpoint into."""
        return self.staging / f"attempt_{attempt}" / "scratch" / f"rank_{rank}"

    def log(self, attempt: int, rank: int) -> Path:
        return self.logs / f"attempt_{attempt}" / f"rank_{rank}.log"

    def validation_log(self, name: str) -> Path:
        return self.logs / "validation" / f"{name}.log"

    def stacks(self, attempt: int) -> Path:
        return self.logs / f"attempt_{attempt}" / "stacks.txt"

    def reports(self, attempt: int, rank: int) -> Path:
        return self.root / "reports" / f"attempt_{attempt}" / f"rank_{rank}.jsonl"
