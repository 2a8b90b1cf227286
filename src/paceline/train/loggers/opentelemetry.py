"""Spans of a run for OpenTelemetry: the run, its attempts, and each checkpoint from its first report to its commit.

This uses only OpenTelemetry's API. The SDK that the script sets up, or the environment variables that the SDK reads,
decide where the spans go. Reports are not spans: there may be thousands a second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from paceline._control import events
from paceline._control.run import Run
from paceline._core.arguments import flatten_dict
from paceline._view.history import AttemptHistory
from paceline._view.projection import RunProjection
from paceline.train.backend import require
from paceline.train.callbacks import TracingCallback, TrainRunContext

_ATTRIBUTE_TYPES = (bool, int, float, str)


class OpenTelemetryCallback(TracingCallback):
    """Records runs as spans: `RunConfig(callbacks=[OpenTelemetryCallback()])`.

    `tracer_provider` replaces the global provider; `attributes` are added to the run's span. The current span at the
    call of `fit()` becomes the parent of the run's span.
    """

    def __init__(self, tracer_provider: Any = None, attributes: Mapping[str, Any] | None = None) -> None:
        require("OpenTelemetryCallback", ("opentelemetry.trace",), "opentelemetry")
        for name, value in (attributes or {}).items():
            if not isinstance(name, str) or not isinstance(value, _ATTRIBUTE_TYPES):
                raise ValueError(f"attributes[{name!r}] must be a string, a number or a bool by name, got {value!r}")
        self._provider = tracer_provider
        self._attributes = dict(attributes or {})

    def make_tracer(self, run_context: TrainRunContext, uri: str) -> RunSpans:
        from opentelemetry import trace

        import paceline

        tracer = trace.get_tracer("paceline", paceline.__version__, tracer_provider=self._provider)
        config = run_context.train_loop_config
        flat = flatten_dict(config) if isinstance(config, Mapping) else {}
        about = {f"paceline.config.{key}": value for key, value in flat.items() if isinstance(value, _ATTRIBUTE_TYPES)}
        return RunSpans(tracer, {**about, "paceline.run": run_context.run_id, "paceline.uri": uri, **self._attributes})


class RunSpans:
    """The spans of one run, made by one driver."""

    def __init__(self, tracer: Any, attributes: dict[str, Any]) -> None:
        self._tracer = tracer
        self._attributes = attributes
        self._run_span: Any = None
        self._attempt_span: Any = None
        self._projection = RunProjection(keeps_past=False)
        self._before = Run()
        self._num_attempts = 0
        self._checkpoint_spans: dict[int, Any] = {}
        self._num_reports = 0

    def on_event(self, event: events.Event, run: Run) -> None:
        self._projection.add_event(event, self._before, run, time.time())
        self._before = run
        if isinstance(event, events.Reported):
            self._num_reports = max(self._num_reports, event.seq)
            if event.checkpoint is not None and event.seq not in self._checkpoint_spans:
                about = {"paceline.step": event.seq, "paceline.name": event.checkpoint}
                self._checkpoint_spans[event.seq] = self._start_span("paceline.checkpoint", about, event.at)
            return
        if self._run_span is None:
            self._run_span = self._tracer.start_span("paceline.run", attributes=self._attributes)
        self._record_event(event)
        for attempt in self._projection.history.attempts[-2:]:
            if attempt.number == self._num_attempts and attempt.ending:
                self._end_attempt(attempt.ending)
            elif attempt.number > self._num_attempts and attempt.started_at is not None:
                self._start_attempt(attempt)

    def on_end(self, failed: bool) -> None:
        """The driver has ended; end all open spans."""
        if self._run_span is None:
            return
        self._end_checkpoints()
        self._end_attempt("failed" if failed else "")
        self._run_span.set_attribute("paceline.reports", self._num_reports)
        self._run_span.set_attribute("paceline.attempts", self._num_attempts)
        self._end_span(self._run_span, "the run failed" if failed else "")
        self._run_span = None

    def _record_event(self, event: events.Event) -> None:
        match event:
            case events.DriverStarted(size=size, lease=lease):
                self._run_span.set_attributes({"paceline.workers": size, "paceline.driver": lease})
            case events.Committed(record=record):
                self._end_checkpoint(record.seq, {"paceline.bytes": record.num_bytes, "paceline.name": record.name})
            case events.CommitFailed(seq=seq, error=error) | events.StagingFailed(seq=seq, error=error):
                self._end_checkpoint(seq, problem=error)
            case events.WorkerFailed(failure=failure):
                self._record_failure(failure)
            case events.HangSuspected(failure=failure, action=action):
                about = {"rank": failure.rank, "verdict": failure.message, "action": action}
                self._add_attempt_event("paceline.hang", about)
            case events.HangCleared(rank=rank, after_s=after_s):
                self._add_attempt_event("paceline.hang_passed", {"rank": rank, "after_s": after_s})
            case events.PreemptionNoticeReceived(grace_s=grace_s):
                self._add_attempt_event("paceline.preemption", {"grace_s": grace_s})
            case events.StopRequested(now=now):
                self._add_attempt_event("paceline.stop", {"now": now})
            case events.ValidationEnded(name=name, status=status):
                self._run_span.add_event("paceline.validation", {"name": name, "status": status})

    def _record_failure(self, failure: events.WorkerFailure) -> None:
        about = {
            "exception.type": failure.message.partition(":")[0],
            "exception.message": failure.message,
            "exception.stacktrace": failure.traceback,
            "rank": failure.rank,
            "kind": failure.kind,
            "echo": failure.collateral,
        }
        self._add_attempt_event("exception", about)

    def _add_attempt_event(self, name: str, about: dict[str, Any]) -> None:
        (self._attempt_span or self._run_span).add_event(name, about)

    def _start_attempt(self, attempt: AttemptHistory) -> None:
        # Reports of the previous attempt that not all ranks had made are repeated in this one.
        self._end_checkpoints()
        self._num_attempts = attempt.number
        about: dict[str, Any] = {"paceline.attempt": attempt.number, "paceline.workers": attempt.size}
        if attempt.resumed_from is not None:
            about["paceline.resumed_from"] = attempt.resumed_from
        self._attempt_span = self._start_span("paceline.attempt", about)

    def _end_attempt(self, ending: str) -> None:
        self._end_span(self._attempt_span, "failed" if ending == "failed" else "")
        self._attempt_span = None

    def _end_checkpoint(self, seq: int, about: Mapping[str, Any] | None = None, problem: str = "") -> None:
        span = self._checkpoint_spans.pop(seq, None)
        if span is not None:
            span.set_attributes(dict(about or {}))
            self._end_span(span, problem)

    def _end_checkpoints(self) -> None:
        for seq in list(self._checkpoint_spans):
            self._end_checkpoint(seq, problem="not committed")

    def _start_span(self, name: str, about: dict[str, Any], at: float | None = None) -> Any:
        from opentelemetry import trace

        parent = trace.set_span_in_context(self._attempt_span or self._run_span)
        return self._tracer.start_span(name, parent, attributes=about, start_time=int(at * 1e9) if at else None)

    def _end_span(self, span: Any, problem: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if span is not None:
            span.set_status(Status(StatusCode.ERROR, problem) if problem else Status(StatusCode.OK))
            span.end()
