"""Usage of ranks over time and the time breakdown, from the measurements in the journal. Pure.

Seconds are rounded to about a millionth, as multiples of a power of two, so that they add up to the total exactly in
any order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline._control.events import UsageMeasured
from paceline._engine.messages import RankUsage
from paceline._view.model import TimeBreakdown, UsageSeries

_GRAIN = 1 << 20
_LONGEST_S = 3e10
_TIMES = ("wall_s", "setup_s", "data_s", "report_s", "checkpoint_s")


@dataclass
class _RankSeries:
    ats: array[float] = field(default_factory=lambda: array("d"))
    cpu_s: array[float] = field(default_factory=lambda: array("d"))
    rss: array[int] = field(default_factory=lambda: array("q"))
    gpus: list[tuple[array[int], array[float]]] = field(default_factory=list)
    """Per GPU: bytes in use, and how busy it was; the first measurements may have had no GPU."""


class UsageHistory:
    def __init__(self) -> None:
        self._series: dict[tuple[int, int], _RankSeries] = {}
        """By attempt and rank."""

    def add_measurement(self, event: UsageMeasured) -> None:
        for use in event.ranks:
            series = self._series.setdefault((event.attempt, use.rank), _RankSeries())
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

    def series(self, attempt: int | None = None) -> list[UsageSeries]:
        return [
            UsageSeries(
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
    """Return the rate since the previous measurement for each one; the first copies the second, if there is one."""
    rates = [
        max(0.0, (sums[i] - sums[i - 1]) / (ats[i] - ats[i - 1])) if ats[i] > ats[i - 1] else 0.0
        for i in range(1, len(ats))
    ]
    return [rates[0] if rates else 0.0, *rates] if len(ats) else []


@dataclass(frozen=True)
class AttemptWork:
    """When the workers of one attempt existed, and what they reported doing."""

    began: float
    """When they were requested."""
    until: float
    """When the first failed or the last returned, or the last known moment."""
    measured: float | None = None
    ready: float | None = None
    uses: tuple[RankUsage, ...] = ()


def compute_time_breakdown(began: float, until: float, attempts: Iterable[AttemptWork]) -> TimeBreakdown:
    """Compute where the time between two moments went. Attempts are in order; overlaps count once."""
    wall = _round_seconds(max(0.0, until - began))
    sums = {"starting_s": 0.0, "data_s": 0.0, "compute_s": 0.0, "report_s": 0.0, "checkpoint_s": 0.0}
    remaining, edge = wall, began
    for work in attempts:
        first, last = max(work.began, edge), min(work.until, until)
        if not last > first:
            continue
        edge = last
        share = min(_round_seconds(last - first), remaining)
        remaining -= share
        parts = _split_time(work, last - first)
        for name in ("data_s", "report_s", "checkpoint_s", "starting_s"):
            amount = min(_round_seconds(parts[name]), share)
            sums[name] += amount
            share -= amount
        sums["compute_s"] += share
    return TimeBreakdown(wall_s=wall, between_s=remaining, **sums)


def mean_usage(usages: Sequence[RankUsage]) -> RankUsage | None:
    """Return the mean of what the time breakdown uses; None of no usage."""
    if not usages:
        return None
    return RankUsage(0, **{name: sum(getattr(usage, name) for usage in usages) / len(usages) for name in _TIMES})


def _split_time(work: AttemptWork, total: float) -> dict[str, float]:
    """Return everything except the time in the user's code, which is the remainder."""
    usage = mean_usage(work.uses)
    if usage is None or work.measured is None:
        starting = work.ready - work.began if work.ready is not None else total
        return {"starting_s": min(max(0.0, starting), total), "data_s": 0.0, "report_s": 0.0, "checkpoint_s": 0.0}
    mean = {name: max(0.0, getattr(usage, name)) for name in _TIMES}
    reported = mean["data_s"] + mean["report_s"] + mean["checkpoint_s"]
    scale = min(1.0, total / reported) if reported > 0 else 1.0
    before = max(0.0, min(work.measured - work.began, total) - mean["wall_s"])  # Before they received their ranks.
    scaled = {name: mean[name] * scale for name in ("data_s", "report_s", "checkpoint_s")}
    return {"starting_s": before + mean["setup_s"], **scaled}


def _round_seconds(seconds: float) -> float:
    # Anybody may have written the journal: no run takes a thousand years.
    return round(min(seconds, _LONGEST_S) * _GRAIN) / _GRAIN if seconds == seconds else 0.0
