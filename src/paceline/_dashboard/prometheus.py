"""Formats runs as Prometheus text. Ended runs keep their last values."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from paceline._dashboard.answers import get_detail
from paceline._view.model import ENDED, RunSnapshot, State, Summary, Value

if TYPE_CHECKING:
    from paceline._view.listing import Listing

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_RUNS = 2000
"""The most recently written runs."""
MAX_METRICS = 500
"""Limit per run: some runs invent a new name for each report."""
_STATES: tuple[State, ...] = get_args(State)


@dataclass
class MetricFamily:
    name: str
    kind: str
    help: str
    samples: list[str] = field(default_factory=list)

    def add(self, value: float | int | None, **labels: object) -> None:
        if value is not None:
            text = ",".join(f'{name}="{escape_label(str(label))}"' for name, label in labels.items())
            self.samples.append(f"{self.name}{{{text}}} {_format_number(value)}\n")

    def lines(self) -> Iterator[str]:
        if self.samples:
            yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
            yield from self.samples


def render_exposition(listing: Listing) -> str:
    summaries = sorted(listing.summaries(), key=lambda summary: summary.updated_at, reverse=True)[:MAX_RUNS]
    going_on = {
        summary.id: get_detail(listing, summary.id)
        for summary in summaries
        if summary.kind != "search" and summary.state not in ENDED
    }
    return format_families(summaries, going_on, time.time())


def format_families(summaries: list[Summary], going_on: dict[str, RunSnapshot], now: float) -> str:
    """`going_on`: details of some of the runs, by id."""
    families = [*_build_summary_families(summaries), *_build_detail_families(going_on, now)]
    return "".join(line for family in families for line in family.lines())


_SUMMARY_FIELDS = {
    "began_at": ("start_time_seconds", "When a run started, since the epoch."),
    "updated_at": ("update_time_seconds", "When a run was last updated, since the epoch."),
    "num_reports": ("reports_total", "Reports; of a search, trials that have ended."),
    "steps_per_s": ("steps_per_second", "Recent reports per second."),
    "epochs_per_s": ("epochs_per_second", "Recent epochs per second."),
    "progress": ("progress_ratio", "Progress from 0 to 1."),
    "left_s": ("left_seconds", "Estimated remaining time, if known."),
    "attempt": ("attempt", "The current or last attempt."),
    "num_failures": ("failures_total", "Attempts that failed."),
    "num_checkpoints": ("checkpoints", "Checkpoints that were committed."),
    "num_workers": ("workers", "Workers."),
}
"""Field of a summary -> (the family `paceline_run_...`, its help)."""


def _build_summary_families(summaries: list[Summary]) -> list[MetricFamily]:
    info = MetricFamily("paceline_run_info", "gauge", "What a run is.")
    state = MetricFamily("paceline_run_state", "gauge", "1 for the state that a run is in.")
    by_attribute = {
        attribute: MetricFamily(f"paceline_run_{name}", "counter" if name.endswith("_total") else "gauge", about)
        for attribute, (name, about) in _SUMMARY_FIELDS.items()
    }
    metric = MetricFamily("paceline_metric", "gauge", "Latest value of a metric.")
    for summary in summaries:
        run = summary.id
        info.add(1, run=run, name=summary.name, kind=summary.kind, state=summary.state, search=summary.search or "")
        for known in _STATES:
            state.add(int(known == summary.state), run=run, state=known)
        for attribute, family in by_attribute.items():
            family.add(getattr(summary, attribute), run=run)
        for name, value in itertools.islice(summary.metrics.items(), MAX_METRICS):
            metric.add(to_number(value), run=run, name=name)
    return [info, state, *by_attribute.values(), metric]


def _build_detail_families(details: dict[str, RunSnapshot], now: float) -> list[MetricFamily]:
    about = "Time since the last checkpoint was committed."
    age = MetricFamily("paceline_run_last_checkpoint_age_seconds", "gauge", about)
    spent = MetricFamily("paceline_run_time_seconds", "gauge", "Time spent so far; all others add up to wall.")
    cpu = MetricFamily("paceline_worker_cpu_cores", "gauge", "CPU cores in use by a worker.")
    memory = MetricFamily("paceline_worker_memory_bytes", "gauge", "Resident memory of a worker.")
    gpu_memory = MetricFamily("paceline_worker_gpu_memory_bytes", "gauge", "GPU memory in use by a worker.")
    gpu_busy = MetricFamily("paceline_worker_gpu_busy_ratio", "gauge", "How much of the time a worker's GPU was busy.")
    for run, detail in details.items():
        if detail.checkpoints:
            age.add(max(now - max(checkpoint.at for checkpoint in detail.checkpoints), 0.0), run=run)
        for part in detail.spent.__struct_fields__:
            spent.add(getattr(detail.spent, part), run=run, where=part.removesuffix("_s"))
        for worker in detail.attempts[-1].workers if detail.attempts else ():
            cpu.add(worker.cpu, run=run, rank=worker.rank)
            memory.add(worker.rss_bytes, run=run, rank=worker.rank)
            for gpu in worker.gpus:
                gpu_memory.add(gpu.used_bytes, run=run, rank=worker.rank, gpu=gpu.index)
                gpu_busy.add(gpu.busy, run=run, rank=worker.rank, gpu=gpu.index)
    return [age, spent, cpu, memory, gpu_memory, gpu_busy]


def to_number(value: Value) -> float | int | None:
    """Return None for text."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return value


def escape_label(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float | int) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    return repr(float(value)) if isinstance(value, float) else str(int(value))
