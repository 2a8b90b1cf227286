"""OpenTelemetry: the spans of a run, through OpenTelemetry's own API.

The provider below implements that API and keeps what it is given; the SDK is tried where it is installed.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass, field

import pytest

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from paceline.train.loggers import OpenTelemetryCallback

trace = pytest.importorskip("opentelemetry.trace")


@dataclass
class Kept(trace.NonRecordingSpan):
    name: str
    parent: "Kept | None"
    attributes: dict
    began: int
    events: list = field(default_factory=list)
    status: object = None
    ended: int | None = None

    def __post_init__(self):
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def set_attribute(self, key, value):
        self.attributes[key] = value

    def set_attributes(self, attributes):
        self.attributes.update(attributes)

    def add_event(self, name, attributes=None, timestamp=None):
        assert self.ended is None, "nothing happens to a span that has ended"
        self.events.append((name, attributes))

    def set_status(self, status, description=None):
        self.status = status

    def end(self, end_time=None):
        assert self.ended is None, "a span ends once"
        self.ended = end_time or time.time_ns()


class Provider(trace.TracerProvider):
    def __init__(self):
        self.spans = []

    def get_tracer(self, name, version=None, *rest, **more):
        assert name == "paceline"
        return Tracer(self.spans)


class Tracer(trace.Tracer):
    def __init__(self, spans):
        self._spans = spans

    def start_span(self, name, context=None, *, attributes=None, start_time=None, **more):
        current = trace.get_current_span(context)
        parent = current if isinstance(current, Kept) else None
        span = Kept(name, parent, dict(attributes or {}), start_time or time.time_ns())
        self._spans.append(span)
        return span

    def start_as_current_span(self, *given, **more):
        raise NotImplementedError


def fitted(path, function, num_workers=2, **run_config):
    provider = Provider()
    config = RunConfig(
        name="run",
        storage_path=path,
        callbacks=[OpenTelemetryCallback(provider, {"team": "vision"})],
        **run_config,
    )
    trainer = DataParallelTrainer(
        function, train_loop_config={"lr": 0.5}, scaling_config=ScalingConfig(num_workers), run_config=config
    )
    try:
        trainer.fit()
    except TrainingFailedError:
        pass
    return provider.spans


def named(spans, name):
    return [span for span in spans if span.name == f"paceline.{name}"]


def is_ok(span):
    return span.status.status_code is trace.StatusCode.OK


def test_a_run_has_a_span_with_its_attempts_and_checkpoints_in_it(tmp_path):
    def function(config):
        for i in range(3):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}) if i == 1 else None)

    spans = fitted(tmp_path, function)
    (run,), (attempt,), (checkpoint,) = (named(spans, name) for name in ("run", "attempt", "checkpoint"))
    assert run.attributes["paceline.config.lr"] == 0.5
    assert run.attributes["team"] == "vision"
    assert run.attributes["paceline.run"] == "run"
    assert run.attributes["paceline.uri"] == str(tmp_path / "run")
    assert (run.attributes["paceline.workers"], run.attributes["paceline.reports"]) == (2, 3)
    assert (attempt.parent, checkpoint.parent) == (run, attempt)
    assert checkpoint.attributes["paceline.name"] == "checkpoint_000002"
    assert checkpoint.attributes["paceline.bytes"] > 0
    assert run.began <= attempt.began <= checkpoint.began <= checkpoint.ended <= attempt.ended <= run.ended
    assert all(map(is_ok, spans))
    assert len(spans) == 3, "reports are none"


def test_a_killed_worker_is_an_event_of_its_attempt_and_the_next_attempt_is_another_span(tmp_path):
    def function(config):
        last = train.get_checkpoint()
        for i in range(last.to_dict()["i"] + 1 if last else 1, 4):
            if i == 3 and last is None and train.get_context().get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

    spans = fitted(tmp_path, function, failure_config=FailureConfig(max_failures=1))
    first, second = named(spans, "attempt")
    ((name, told),) = first.events
    assert name == "exception"
    assert (told["rank"], told["kind"]) == (1, "killed")
    assert "SIGKILL" in told["exception.message"]
    assert not is_ok(first)
    assert is_ok(second)
    assert second.attributes["paceline.resumed_from"] == "checkpoint_000002"
    (run,) = named(spans, "run")
    assert is_ok(run)
    assert run.attributes["paceline.attempts"] == 2
    assert all(span.ended for span in spans)


def test_a_run_that_fails_is_an_error(tmp_path):
    def function(config):
        raise ValueError("no such thing")

    spans = fitted(tmp_path, function, num_workers=1)
    (run,), (attempt,) = named(spans, "run"), named(spans, "attempt")
    assert not is_ok(run)
    assert not is_ok(attempt)
    assert attempt.events[0][1]["exception.type"] == "ValueError"
    assert "no such thing" in attempt.events[0][1]["exception.stacktrace"]


def test_the_span_that_is_current_becomes_the_parent(tmp_path):
    outer = Kept("mine", None, {}, 0)
    with trace.use_span(outer):
        spans = fitted(tmp_path, lambda config: train.report({"i": 1}), num_workers=1)
    (run,) = named(spans, "run")
    assert run.parent is outer


def test_the_sdk_itself_exports_the_spans(tmp_path):
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is not installed: only its API was tried")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    config = RunConfig(name="run", storage_path=tmp_path, callbacks=[OpenTelemetryCallback(provider)])
    DataParallelTrainer(
        lambda: train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1})), run_config=config
    ).fit()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans.keys() == {"paceline.run", "paceline.attempt", "paceline.checkpoint"}
    assert spans["paceline.checkpoint"].parent.span_id == spans["paceline.attempt"].context.span_id
    assert spans["paceline.attempt"].parent.span_id == spans["paceline.run"].context.span_id


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImportError, match=r'hint: pip install "paceline\[opentelemetry\]"'):
        OpenTelemetryCallback()


def test_an_attribute_that_is_none_is_refused_by_name():
    with pytest.raises(ValueError, match=r"attributes\['of'\]=\[1\] is not a text, a number or a bool"):
        OpenTelemetryCallback(attributes={"of": [1]})
