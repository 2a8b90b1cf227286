"""What ranks use, over time, and where the time went: from the measurements in the journal. Pure.

Seconds are rounded to about a millionth, as multiples of a power of two: so they add up to the whole exactly, in
whichever order they are added.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline._control.events import Measured
from paceline._engine.messages import RankUse
from paceline._view.model import Spent, UseSeries

_GRAIN = 1 << 20
_LONGEST_S = 3e10


@dataclass
class _Series:
    ats: array[float] = field(default_factory=lambda: array("d"))
    cpu_s: array[float] = field(default_factory=lambda: array("d"))
    rss: array[int] = field(default_factory=lambda: array("q"))
    gpus: list[tuple[array[int], array[float]]] = field(default_factory=list)
    """By GPU: bytes in use, and how busy it was; the first measurements may have had none."""


class Usage:
    def __init__(self) -> None:
        self.last: dict[tuple[int, int], RankUse] = {}
        """By attempt and rank."""
        self.measured_at: dict[int, float] = {}
        """By attempt, the last time."""
        self.measured: Measured | None = None
        """The last with stages of datasets."""
        self._series: dict[tuple[int, int], _Series] = {}

    def hear(self, event: Measured) -> None:
        self.measured_at[event.attempt] = event.at
        if event.stages:
            self.measured = event
        for use in event.ranks:
            key = event.attempt, use.rank
            self.last[key] = use
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = _Series()
            series.ats.append(event.at)
            series.cpu_s.append(use.cpu_s)
            series.rss.append(use.rss_bytes)
            while len(series.gpus) < len(use.gpus):
                before = len(series.ats) - 1
                series.gpus.append((array("q", [0] * before), array("d", [-1.0] * before)))
            for at, (used, busy) in enumerate(series.gpus):
                gpu = use.gpus[at] if at < len(use.gpus) else None
                used.append(gpu.used_bytes if gpu is not None else 0)
                busy.append(gpu.busy if gpu is not None else -1.0)

    def cpu(self, attempt: int, rank: int) -> float | None:
        """Cores in use between the last two measurements."""
        series = self._series.get((attempt, rank))
        if series is None:
            return None
        rates = _rates(series.ats[-2:], series.cpu_s[-2:])
        return rates[-1] if len(series.ats) > 1 else None

    def series(self, attempt: int | None = None) -> list[UseSeries]:
        return [
            UseSeries(
                rank=rank,
                attempt=of,
                at=series.ats.tolist(),
                cpu=_rates(series.ats, series.cpu_s),
                rss_bytes=series.rss.tolist(),
                gpu_used_bytes=[used.tolist() for used, _ in series.gpus],
                gpu_busy=[[value if value >= 0 else None for value in busy] for _, busy in series.gpus],
            )
            for (of, rank), series in sorted(self._series.items())
            if attempt is None or of == attempt
        ]


def _rates(ats: array[float], sums: array[float]) -> list[float]:
    """Between each measurement and the one before; the first is what the second tells, where there is one."""
    found = [
        max(0.0, (sums[i] - sums[i - 1]) / (ats[i] - ats[i - 1])) if ats[i] > ats[i - 1] else 0.0
        for i in range(1, len(ats))
    ]
    return [found[0] if found else 0.0, *found] if len(ats) else []


@dataclass(frozen=True)
class Worked:
    """When workers of one attempt were there, and what they said they did."""

    began: float
    """They were asked for."""
    until: float
    """The first failed, the last returned, or this is the last that is known."""
    measured: float | None = None
    """When they were last asked."""
    ready: float | None = None
    uses: tuple[RankUse, ...] = ()


def spent(began: float, until: float, worked: Iterable[Worked]) -> Spent:
    """Where the time from one moment to another went. Attempts come in order; what overlaps counts once."""
    wall = _rounded(max(0.0, until - began))
    sums = {"starting_s": 0.0, "data_s": 0.0, "compute_s": 0.0, "report_s": 0.0, "checkpoint_s": 0.0}
    left, edge = wall, began
    for one in worked:
        first, last = max(one.began, edge), min(one.until, until)
        if not last > first:
            continue
        edge = last
        share = min(_rounded(last - first), left)
        left -= share
        parts = _parts(one, last - first)
        for name in ("data_s", "report_s", "checkpoint_s", "starting_s"):
            amount = min(_rounded(parts[name]), share)
            sums[name] += amount
            share -= amount
        sums["compute_s"] += share
    return Spent(wall_s=wall, between_s=left, **sums)


def _parts(one: Worked, whole: float) -> dict[str, float]:
    """All but what was spent in the user's code, which is the rest."""
    uses = one.uses
    if not uses or one.measured is None:
        starting = one.ready - one.began if one.ready is not None else whole
        return {"starting_s": min(max(0.0, starting), whole), "data_s": 0.0, "report_s": 0.0, "checkpoint_s": 0.0}
    mean = {
        name: max(0.0, sum(getattr(use, name) for use in uses) / len(uses))
        for name in ("wall_s", "setup_s", "data_s", "report_s", "checkpoint_s")
    }
    told = mean["data_s"] + mean["report_s"] + mean["checkpoint_s"]
    scale = min(1.0, whole / told) if told > 0 else 1.0
    before = max(0.0, min(one.measured - one.began, whole) - mean["wall_s"])  # Until they were told who they are.
    return {
        "starting_s": before + mean["setup_s"],
        "data_s": mean["data_s"] * scale,
        "report_s": mean["report_s"] * scale,
        "checkpoint_s": mean["checkpoint_s"] * scale,
    }


def _rounded(seconds: float) -> float:
    # A journal that anybody may have written: no run takes a thousand years.
    return round(min(seconds, _LONGEST_S) * _GRAIN) / _GRAIN if seconds == seconds else 0.0
