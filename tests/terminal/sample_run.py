"""A run that is told event by event, as a controller tells its observers."""

import json

import msgspec

from paceline._control import events
from paceline._control.run import Run
from paceline._control.step import step
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.plain_values import to_plain
from paceline._engine import messages


class RunEvents:
    """Each method is something that happens, at `self.at` by the wall clock."""

    def __init__(self, *observers, size=2, max_failures=0, at=1000.0):
        self.observers = observers
        self.run = Run()
        self.at = at
        self.happens(events.DriverStarted(size, max_failures, at=at))

    def happens(self, event):
        after, _ = step(self.run, event, self.at)
        self.run = after
        for observe in self.observers:
            observe(event, after, self.at)

    def ready(self, *ranks):
        for rank in ranks or range(self.run.size):
            self.happens(events.WorkerReady(self.run.attempt, rank, 100 + rank))

    def reported(self, seq, rank=0, **metrics):
        raw = msgspec.Raw(json.dumps(to_plain(metrics, keep_types=True)).encode())
        self.happens(messages.Reported(self.run.attempt, rank, seq, raw, self.at, "train.py:41"))

    def committed(self, seq, num_bytes=1000):
        checkpoint = f"checkpoint_{seq:06d}", self.run.attempt, msgspec.Raw(b"{}"), num_bytes
        self.happens(events.Committed(CheckpointRecord(seq, *checkpoint)))

    def measured(self, wall_s, *, stages=(), gpus=0, **seconds):
        """By every rank alike; each uses a core and a half."""
        uses = tuple(
            messages.RankUsage(
                rank,
                cpu_s=1.5 * wall_s,
                rss_bytes=(rank + 1) * 10**9,
                gpus=tuple(messages.GpuUsage(index, 30 * 10**9, 80 * 10**9, 0.9) for index in range(gpus)),
                wall_s=wall_s,
                host=f"node-{rank // 4}",
                device=f"cuda:{rank % 4}" if gpus else "cpu",
                **seconds,
            )
            for rank in range(self.run.size)
        )
        self.happens(events.UsageMeasured(self.run.attempt, self.at, uses, tuple(stages), bool(stages)))

    def limited(self, name):
        return events.StageUse("train", name, limits=True)

    def hangs(self, rank, message):
        self.happens(events.HangSuspected(self.run.attempt, messages.WorkerFailure(rank, "hang", message)))

    def moves(self, rank):
        self.happens(events.HangCleared(self.run.attempt, rank, 5.0))

    def failed(self, rank, message="ValueError: shapes do not fit", **failure):
        failure = messages.WorkerFailure(rank, "user", message, **failure)
        self.happens(events.WorkerFailed(self.run.attempt, rank, failure))

    def returned(self, rank, num_reports):
        self.happens(events.WorkerReturned(self.run.attempt, rank, num_reports))

    def stopped(self):
        self.happens(events.WorkersStopped(self.run.attempt))
