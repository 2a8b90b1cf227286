"""Spans of a run for OpenTelemetry: the run, each attempt in it, each checkpoint from its first report to its commit.

Only OpenTelemetry's API is called; where the spans go is decided by the SDK that the script sets up, or by the
environment variables that the SDK reads. Reports are no spans: there may be thousands a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._control.events import (
    CommitFailed,
    Committed,
    DriverStarted,
    Event,
    Failure,
    HangPassed,
    HangSuspected,
    PreemptionTold,
    Reported,
    StagingFailed,
    StopRequested,
    ValidationEnded,
    WorkerFailed,
)
from paceline._control.run import Finished, Run, Running, Stopping
from paceline.train.backend import require
from paceline.train.callbacks import TracingCallback, TrainRunContext
from paceline.train.result import flat

_PLAIN = (bool, int, float, str)


class OpenTelemetryCallback(TracingCallback):
    """Makes spans of the runs that it is given to: `RunConfig(callbacks=[OpenTelemetryCallback()])`.

    `tracer_provider` is the one to use instead of the global one; `attributes` are added to the span of the run. The
    span that is current when `fit()` is called becomes the parent of the run's.
    """

    def __init__(self, tracer_provider: Any = None, attributes: Mapping[str, Any] | None = None) -> None:
        require("OpenTelemetryCallback", ("opentelemetry.trace",), "opentelemetry")
        for name, value in (attributes or {}).items():
            if not isinstance(name, str) or not isinstance(value, _PLAIN):
                raise ValueError(f"attributes[{name!r}]={value!r} is not a text, a number or a bool by name")
        self._provider = tracer_provider
        self._attributes = dict(attributes or {})

    def watcher(self, run_context: TrainRunContext, uri: str) -> Spans:
        from opentelemetry import trace

        import paceline

        tracer = trace.get_tracer("paceline", paceline.__version__, tracer_provider=self._provider)
        config = run_context.train_loop_config
        known = flat({str(k): v for k, v in config.items()}) if isinstance(config, Mapping) else {}
        about = {f"paceline.config.{name}": value for name, value in known.items() if isinstance(value, _PLAIN)}
        about |= {"paceline.run": run_context.run_id, "paceline.uri": uri}
        return Spans(tracer, {**about, **self._attributes})


class Spans:
    """Those of one run, by one driver."""

    def __init__(self, tracer: Any, attributes: dict[str, Any]) -> None:
        self._tracer = tracer
        self._attributes = attributes
        self._run: Any = None
        self._attempt: Any = None
        self._number = 0
        self._checkpoints: dict[int, Any] = {}
        self._num_reports = 0

    def saw(self, event: Event, run: Run) -> None:
        if isinstance(event, Reported):
            self._num_reports = max(self._num_reports, event.seq)
            if event.checkpoint is not None and event.seq not in self._checkpoints:
                self._checkpoint_began(event)
            return
        if self._run is None:
            self._run = self._tracer.start_span("paceline.run", attributes=self._attributes)
        if isinstance(run.phase, Running) and run.attempt > self._number:
            self._attempt_began(run)
        self._tell(event)
        if not isinstance(run.phase, Running | Stopping):
            self._attempt_ended(run)

    def ended(self, failed: bool) -> None:
        """The driver has ended; whatever is still open is closed."""
        if self._run is None:
            return
        self._end_checkpoints()
        self._end(self._attempt, "" if not failed else "failed")
        self._run.set_attribute("paceline.reports", self._num_reports)
        self._run.set_attribute("paceline.attempts", self._number)
        self._end(self._run, "the run failed" if failed else "")
        self._run = self._attempt = None

    def _tell(self, event: Event) -> None:
        match event:
            case DriverStarted(size=size, lease=lease):
                self._run.set_attributes({"paceline.workers": size, "paceline.driver": lease})
            case Committed(record=record):
                about = {"paceline.bytes": record.num_bytes, "paceline.name": record.name}
                self._checkpoint_ended(record.seq, about)
            case CommitFailed(seq=seq, error=error) | StagingFailed(seq=seq, error=error):
                self._checkpoint_ended(seq, problem=error)
            case WorkerFailed(failure=failure):
                self._failed(failure)
            case HangSuspected(failure=failure, action=action):
                self._on_attempt("paceline.hang", {"rank": failure.rank, "verdict": failure.message, "action": action})
            case HangPassed(rank=rank, after_s=after_s):
                self._on_attempt("paceline.hang_passed", {"rank": rank, "after_s": after_s})
            case PreemptionTold(grace_s=grace_s):
                self._on_attempt("paceline.preemption", {"grace_s": grace_s})
            case StopRequested(now=now):
                self._on_attempt("paceline.stop", {"now": now})
            case ValidationEnded(name=name, status=status):
                self._run.add_event("paceline.validation", {"name": name, "status": status})

    def _failed(self, failure: Failure) -> None:
        about = {
            "exception.type": failure.message.partition(":")[0],
            "exception.message": failure.message,
            "exception.stacktrace": failure.traceback,
            "rank": failure.rank,
            "kind": failure.kind,
            "echo": failure.collateral,
        }
        self._on_attempt("exception", about)

    def _on_attempt(self, name: str, about: dict[str, Any]) -> None:
        (self._attempt or self._run).add_event(name, about)

    def _attempt_began(self, run: Run) -> None:
        # The reports of the attempt before that some rank had not come to are made again, in this one.
        self._end_checkpoints()
        self._number = run.attempt
        about: dict[str, Any] = {"paceline.attempt": run.attempt, "paceline.workers": run.size}
        if run.latest is not None:
            about["paceline.resumed_from"] = run.latest.name
        self._attempt = self._started("paceline.attempt", about)

    def _attempt_ended(self, run: Run) -> None:
        if self._attempt is None:
            return
        phase = run.phase
        failed = isinstance(phase, Finished) and phase.ending == "failed"
        again = not isinstance(phase, Finished) and not run.is_trained
        self._end(self._attempt, "failed" if failed or (again and run.num_failures) else "")
        self._attempt = None

    def _checkpoint_began(self, event: Reported) -> None:
        about = {"paceline.step": event.seq, "paceline.name": event.checkpoint or ""}
        self._checkpoints[event.seq] = self._started("paceline.checkpoint", about, event.at)

    def _checkpoint_ended(self, seq: int, about: Mapping[str, Any] | None = None, problem: str = "") -> None:
        span = self._checkpoints.pop(seq, None)
        if span is not None:
            span.set_attributes(dict(about or {}))
            self._end(span, problem)

    def _end_checkpoints(self) -> None:
        for seq in list(self._checkpoints):
            self._checkpoint_ended(seq, problem="it was not committed")

    def _started(self, name: str, about: dict[str, Any], at: float | None = None) -> Any:
        from opentelemetry import trace

        parent = trace.set_span_in_context(self._attempt or self._run)
        return self._tracer.start_span(name, parent, attributes=about, start_time=int(at * 1e9) if at else None)

    def _end(self, span: Any, problem: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if span is not None:
            span.set_status(Status(StatusCode.ERROR, problem) if problem else Status(StatusCode.OK))
            span.end()
