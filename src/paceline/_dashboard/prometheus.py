"""Formats runs as Prometheus text. Ended runs keep their last values."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from paceline._dashboard.answers import get_detail
from paceline._view.model import ENDED, Detail, State, Summary, Value

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


def format_families(summaries: list[Summary], going_on: dict[str, Detail], now: float) -> str:
    """`going_on`: details of some of the runs, by id."""
    families = [*_build_summary_families(summaries), *_build_detail_families(going_on, now)]
    return "".join(line for family in families for line in family.lines())


def _build_summary_families(summaries: list[Summary]) -> list[MetricFamily]:
    info = MetricFamily("paceline_run_info", "gauge", "What a run is.")
    state = MetricFamily("paceline_run_state", "gauge", "1 for the state that a run is in.")
    began = MetricFamily("paceline_run_start_time_seconds", "gauge", "When a run started, since the epoch.")
    updated = MetricFamily("paceline_run_update_time_seconds", "gauge", "When a run was last updated, since the epoch.")
    reports = MetricFamily("paceline_run_reports_total", "counter", "Reports; of a search, trials that have ended.")
    steps = MetricFamily("paceline_run_steps_per_second", "gauge", "Recent reports per second.")
    epochs = MetricFamily("paceline_run_epochs_per_second", "gauge", "Recent epochs per second.")
    progress = MetricFamily("paceline_run_progress_ratio", "gauge", "Progress from 0 to 1.")
    left = MetricFamily("paceline_run_left_seconds", "gauge", "Estimated remaining time, if known.")
    attempt = MetricFamily("paceline_run_attempt", "gauge", "The current or last attempt.")
    failures = MetricFamily("paceline_run_failures_total", "counter", "Attempts that failed.")
    checkpoints = MetricFamily("paceline_run_checkpoints", "gauge", "Checkpoints that were committed.")
    workers = MetricFamily("paceline_run_workers", "gauge", "Workers.")
    metric = MetricFamily("paceline_metric", "gauge", "Latest value of a metric.")
    for summary in summaries:
        run = summary.id
        info.add(1, run=run, name=summary.name, kind=summary.kind, state=summary.state, search=summary.search or "")
        for known in _STATES:
            state.add(int(known == summary.state), run=run, state=known)
        began.add(summary.began_at, run=run)
        updated.add(summary.updated_at, run=run)
        reports.add(summary.num_reports, run=run)
        steps.add(summary.steps_per_s, run=run)
        epochs.add(summary.epochs_per_s, run=run)
        progress.add(summary.progress, run=run)
        left.add(summary.left_s, run=run)
        attempt.add(summary.attempt, run=run)
        failures.add(summary.num_failures, run=run)
        checkpoints.add(summary.num_checkpoints, run=run)
        workers.add(summary.num_workers, run=run)
        for name, value in itertools.islice(summary.metrics.items(), MAX_METRICS):
            metric.add(to_number(value), run=run, name=name)
    return [
        info, state, began, updated, reports, steps, epochs, progress, left, attempt, failures, checkpoints, workers,
        metric,
    ]  # fmt: skip


def _build_detail_families(details: dict[str, Detail], now: float) -> list[MetricFamily]:
    age = MetricFamily(
        "paceline_run_last_checkpoint_age_seconds", "gauge", "Time since the last checkpoint was committed."
    )
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
