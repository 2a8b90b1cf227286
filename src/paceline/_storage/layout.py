"""Where things lie in a run's directory. Paths only; nothing is touched.

<storage_path>/<name>/
    journal.jsonl                               every event of the run
    checkpoint_000012/                          a committed checkpoint, .manifest.json inside
    logs/attempt_1/rank_0.log                   all that a worker printed
    reports/attempt_1/rank_0.jsonl              what a worker reported, written before it was sent
    .staging/attempt_1/checkpoint_000012/...    files that are not yet a checkpoint
    .trash/                                     on its way out
    .lease/000003.json                          who writes the run: the highest number does
"""

from dataclasses import dataclass
from pathlib import Path

MANIFEST = ".manifest.json"
METADATA = ".metadata.json"
"""Notes that may be changed after the commit, so the manifest does not cover them."""


def checkpoint_name(seq: int) -> str:
    return f"checkpoint_{seq:06d}"


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

    def reports(self, attempt: int, rank: int) -> Path:
        return self.root / "reports" / f"attempt_{attempt}" / f"rank_{rank}.jsonl"
