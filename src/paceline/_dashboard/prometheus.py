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
    summaries = sorted(listing.summaries(), key=lambda one: one.updated_at, reverse=True)[:MAX_RUNS]
    going_on = {
        one.id: get_detail(listing, one.id) for one in summaries if one.kind != "search" and one.state not in ENDED
    }
    return format_families(summaries, going_on, time.time())


def format_families(summaries: list[Summary], going_on: dict[str, Detail], now: float) -> str:
    """`going_on`: details of some of the runs, by id."""
    families = [*_build_summary_families(summaries), *_build_detail_families(going_on, now)]
    return "".join(line for family in families for line in family.lines())


def _build_summary_families(summaries: list[Summary]) -> list[MetricFamily]:
    info = MetricFamily("paceline_run_info", "gauge", "What a run is.")
    state = MetricFamily("paceline_run_state", "gauge", "1 for the state that a run is in.")
    began = MetricFamily("paceline_run_start_time_seconds", "gauge", "When a run began, since the epoch.")
    updated = MetricFamily("paceline_run_update_time_seconds", "gauge", "When a run was written last, since the epoch.")
    reports = MetricFamily("paceline_run_reports_total", "counter", "Reports; of a search, trials that have ended.")
    steps = MetricFamily("paceline_run_steps_per_second", "gauge", "Reports a second, over the last while.")
    epochs = MetricFamily("paceline_run_epochs_per_second", "gauge", "Epochs a second, over the last while.")
    progress = MetricFamily("paceline_run_progress_ratio", "gauge", "How much of it is done, from 0 to 1.")
    left = MetricFamily("paceline_run_left_seconds", "gauge", "How long it will yet take, where that can be known.")
    attempt = MetricFamily("paceline_run_attempt", "gauge", "The attempt that is under way, or was the last.")
    failures = MetricFamily("paceline_run_failures_total", "counter", "Attempts that failed.")
    checkpoints = MetricFamily("paceline_run_checkpoints", "gauge", "Checkpoints that were committed.")
    workers = MetricFamily("paceline_run_workers", "gauge", "Workers.")
    metric = MetricFamily("paceline_metric", "gauge", "A metric as it was reported last.")
    for one in summaries:
        run = one.id
        info.add(1, run=run, name=one.name, kind=one.kind, state=one.state, search=one.search or "")
        for known in _STATES:
            state.add(int(known == one.state), run=run, state=known)
        began.add(one.began_at, run=run)
        updated.add(one.updated_at, run=run)
        reports.add(one.num_reports, run=run)
        steps.add(one.steps_per_s, run=run)
        epochs.add(one.epochs_per_s, run=run)
        progress.add(one.progress, run=run)
        left.add(one.left_s, run=run)
        attempt.add(one.attempt, run=run)
        failures.add(one.num_failures, run=run)
        checkpoints.add(one.num_checkpoints, run=run)
        workers.add(one.num_workers, run=run)
        for name, value in itertools.islice(one.metrics.items(), MAX_METRICS):
            metric.add(to_number(value), run=run, name=name)
    return [
        info, state, began, updated, reports, steps, epochs, progress, left, attempt, failures, checkpoints, workers,
        metric,
    ]  # fmt: skip


def _build_detail_families(details: dict[str, Detail], now: float) -> list[MetricFamily]:
    age = MetricFamily("paceline_run_last_checkpoint_age_seconds", "gauge", "Since the last checkpoint was committed.")
    spent = MetricFamily("paceline_run_time_seconds", "gauge", "Where the time went so far; all but wall sum to wall.")
    cpu = MetricFamily("paceline_worker_cpu_cores", "gauge", "Cores that a worker keeps busy.")
    memory = MetricFamily("paceline_worker_memory_bytes", "gauge", "Resident memory of a worker.")
    gpu_memory = MetricFamily("paceline_worker_gpu_memory_bytes", "gauge", "Memory in use of a worker's GPU.")
    gpu_busy = MetricFamily("paceline_worker_gpu_busy_ratio", "gauge", "How much of the time a worker's GPU was busy.")
    for run, detail in details.items():
        if detail.checkpoints:
            age.add(max(now - max(one.at for one in detail.checkpoints), 0.0), run=run)
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
