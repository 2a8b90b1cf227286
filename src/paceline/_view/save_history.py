"""What the checkpoints of a run took to save, from the parts that ranks and driver measured. Pure.

The ranks of a checkpoint save at the same time: each part is that of the slowest rank, and the disk took the bytes of
all of them. The speed is known of saves that are large enough: a small one only waits for the disk to answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline._control import events
from paceline._core.checkpoint_records import SaveTimes
from paceline._view.model import SaveBreakdown

MIN_BYTES = 8 << 20
"""What a save has to write for its speed to be that of the disk."""
_LONGEST_S, _MOST_BYTES = 3e10, 1 << 62
"""Anybody may have written the journal."""
PARTS = ("copy_s", "write_s", "hash_s", "sync_s", "upload_s")


class SaveHistory:
    def __init__(self) -> None:
        self._staged: dict[tuple[int, int], dict[int, SaveTimes]] = {}
        """Of each rank, by attempt and number of checkpoints that are not committed yet."""
        self._num_saves = 0
        self._sums = dict.fromkeys((*PARTS, "commit_s"), 0.0)
        self._num_bytes = 0
        self._disk_bytes = 0
        self._disk_s = 0.0
        self._fastest: float | None = None

    def add_event(self, event: events.Event) -> None:
        match event:
            case events.CheckpointStaged(attempt, seq, staged) if staged.times is not None:
                self._staged.setdefault((attempt, seq), {})[staged.rank] = staged.times
            case events.Committed(record, took_s):
                now = record.attempt, record.seq
                times = self._staged.get(now)
                # Checkpoints are committed in order: an earlier one that is not never will be.
                self._staged = {key: of for key, of in self._staged.items() if key > now}
                if times:
                    self._add_save(times, took_s)

    def _add_save(self, times: Mapping[int, SaveTimes], commit_s: float) -> None:
        slowest = {part: _limit(max(getattr(each, part) for each in times.values())) for part in PARTS}
        num_bytes = min(max(0, sum(each.num_bytes for each in times.values())), _MOST_BYTES)
        self._num_saves += 1
        self._num_bytes += num_bytes
        for part, seconds in (slowest | {"commit_s": _limit(commit_s)}).items():
            self._sums[part] += seconds
        disk_s = _limit(max(each.write_s + each.sync_s for each in times.values()))
        if num_bytes >= MIN_BYTES and disk_s >= 1e-6:
            self._disk_bytes += num_bytes
            self._disk_s += disk_s
            self._fastest = max(self._fastest or 0.0, num_bytes / disk_s)

    def build(self) -> SaveBreakdown | None:
        """Return the mean of all saves; None if none was measured."""
        if not self._num_saves:
            return None
        return SaveBreakdown(
            num_saves=self._num_saves,
            num_bytes=self._num_bytes // self._num_saves,
            disk_bytes_per_s=self._disk_bytes / self._disk_s if self._disk_s else None,
            best_bytes_per_s=self._fastest,
            **{part: seconds / self._num_saves for part, seconds in self._sums.items()},
        )


def _limit(seconds: float) -> float:
    return min(max(0.0, seconds), _LONGEST_S)
