"""How a stream went: per stage the rows, the bytes, the time at work and the time spent waiting, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from paceline.data.transform import Skipped

_SKIPPED_SHOWN = 5


class Meter(msgspec.Struct):
    """What one process did for one stage."""

    num_rows: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    waited_for_input: float = 0.0
    waited_for_room: float = 0.0
    num_units: int = 0

    def closed(self, elapsed_s: float) -> Meter:
        """Once the work is over, after so long."""
        self.busy_s = max(0.0, elapsed_s - self.waited_for_input - self.waited_for_room)
        self.num_units = 1
        return self

    def add(self, other: Meter) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class StageStats:
    name: str
    num_units: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    waited_for_input_s: float = 0.0
    waited_for_room_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.num_rows} rows, {_amount(self.num_bytes)}, {self.num_units} units; "
            f"{self.busy_s:.2f} s at work, {self.waited_for_input_s:.2f} s waiting for input, "
            f"{self.waited_for_room_s:.2f} s for room"
        )


@dataclass(frozen=True)
class StreamStats:
    stages: tuple[StageStats, ...] = ()
    peak_bytes: int = 0
    """In flight at a time, over all streams of the process."""
    limit_bytes: int = 0
    consumer_waited_s: float = 0.0
    """How long those who take the rows had none to take, all together."""
    skipped: tuple[Skipped, ...] = ()

    @property
    def limited_by(self) -> str:
        """The stage that the others wait for; `the consumer` where they all wait for room."""
        return limiting(self.stages)

    def __str__(self) -> str:
        lines = [str(stage) for stage in self.stages]
        if self.stages:
            lines.append(f"limited by: {self.limited_by}; the consumer waited {self.consumer_waited_s:.2f} s")
        if self.limit_bytes:
            lines.append(f"in flight at most: {_amount(self.peak_bytes)} of {_amount(self.limit_bytes)}")
        if self.skipped:
            lines.append(f"skipped: {sum(skipped.num_rows for skipped in self.skipped)} rows")
            lines += [f"  {each.unit}, row {each.row}: {each.error}" for each in self.skipped[:_SKIPPED_SHOWN]]
        return "\n".join(lines)


@dataclass
class Record:
    """The statistics of a dataset while they are being taken."""

    meters: dict[tuple[int, str], Meter] = field(default_factory=dict)
    """By the number of a stage and its name."""
    consumer_waited_s: float = 0.0
    skipped: list[Skipped] = field(default_factory=list)

    def meter(self, stage: int, name: str) -> Meter:
        return self.meters.setdefault((stage, name), Meter())

    def seen(self, peak_bytes: int = 0, limit_bytes: int = 0) -> StreamStats:
        return StreamStats(
            tuple(
                StageStats(
                    name,
                    meter.num_units,
                    meter.num_rows,
                    meter.num_bytes,
                    meter.busy_s,
                    meter.waited_for_input,
                    meter.waited_for_room,
                )
                for (_, name), meter in sorted(self.meters.items())
            ),
            peak_bytes,
            limit_bytes,
            self.consumer_waited_s,
            tuple(self.skipped),
        )


def limiting(stages: Sequence[StageStats]) -> str:
    if not stages:
        return "nothing yet"
    last = stages[-1]
    if last.waited_for_room_s > last.busy_s + last.waited_for_input_s:
        return "the consumer"
    return max(stages, key=_share_at_work).name


def _share_at_work(stage: StageStats) -> float:
    total = stage.busy_s + stage.waited_for_input_s + stage.waited_for_room_s
    return stage.busy_s / total if total else 0.0


def _amount(num_bytes: int) -> str:
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}" if units[0] != "B" else f"{num_bytes} B"
