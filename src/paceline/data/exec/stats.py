"""Statistics of a stream: rows, bytes, busy time and wait time per stage, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from paceline.data.planning.plan import SkippedRows

_SKIPPED_SHOWN = 5


class StageMeter(msgspec.Struct):
    """What one process did for one stage."""

    num_rows: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    waited_for_input_s: float = 0.0
    waited_for_room_s: float = 0.0
    num_units: int = 0

    def finish(self, elapsed_s: float) -> StageMeter:
        """Finish after `elapsed_s` of work."""
        self.busy_s = max(0.0, elapsed_s - self.waited_for_input_s - self.waited_for_room_s)
        self.num_units = 1
        return self

    def add(self, other: StageMeter) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class StageStats(StageMeter, kw_only=True):
    """What all processes did for one stage."""

    name: str

    @property
    def busy_share(self) -> float:
        total = self.busy_s + self.waited_for_input_s + self.waited_for_room_s
        return self.busy_s / total if total else 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.num_rows} rows, {format_bytes(self.num_bytes)}, {self.num_units} units; "
            f"{self.busy_s:.2f} s at work, {self.waited_for_input_s:.2f} s waiting for input, "
            f"{self.waited_for_room_s:.2f} s for room"
        )


@dataclass(frozen=True)
class StreamStats:
    stages: tuple[StageStats, ...] = ()
    peak_bytes: int = 0
    """The most bytes in flight at a time, over all streams of the process."""
    limit_bytes: int = 0
    consumer_waited_s: float = 0.0
    """How long the consumers waited for rows, in total."""
    skipped: tuple[SkippedRows, ...] = ()

    @property
    def limited_by(self) -> str:
        """The stage that the others wait for; `the consumer` if they all wait for room."""
        if not self.stages:
            return "nothing yet"
        last = self.stages[-1]
        if last.waited_for_room_s > last.busy_s + last.waited_for_input_s:
            return "the consumer"
        return max(self.stages, key=lambda stage: stage.busy_share).name

    def __str__(self) -> str:
        lines = [str(stage) for stage in self.stages]
        if self.stages:
            lines.append(f"limited by: {self.limited_by}; the consumer waited {self.consumer_waited_s:.2f} s")
        if self.limit_bytes:
            lines.append(f"in flight at most: {format_bytes(self.peak_bytes)} of {format_bytes(self.limit_bytes)}")
        if self.skipped:
            lines.append(f"skipped: {sum(skipped.num_rows for skipped in self.skipped)} rows")
            lines += [f"  {each.unit}, row {each.row}: {each.error}" for each in self.skipped[:_SKIPPED_SHOWN]]
        return "\n".join(lines)


@dataclass
class StatsRecorder:
    """The statistics of a dataset while they are collected."""

    meters: dict[tuple[int, str], StageMeter] = field(default_factory=dict)
    """By stage number and name."""
    consumer_waited_s: float = 0.0
    skipped: list[SkippedRows] = field(default_factory=list)

    def meter(self, stage: int, name: str) -> StageMeter:
        return self.meters.setdefault((stage, name), StageMeter())

    def to_stats(self, peak_bytes: int = 0, limit_bytes: int = 0) -> StreamStats:
        return StreamStats(
            tuple(
                StageStats(name=name, **msgspec.structs.asdict(meter))
                for (_, name), meter in sorted(self.meters.items())
            ),
            peak_bytes,
            limit_bytes,
            self.consumer_waited_s,
            tuple(self.skipped),
        )


def format_bytes(num_bytes: int) -> str:
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}" if units[0] != "B" else f"{num_bytes} B"
