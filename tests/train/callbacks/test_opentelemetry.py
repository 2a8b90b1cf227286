"""OpenTelemetry: the spans of a run, as its SDK hands them to an exporter."""

import os
import signal

import pytest

from paceline import train
from paceline.train import Checkpoint, TrainingFailedError
from paceline.train.loggers import OpenTelemetryCallback

pytest.importorskip("opentelemetry.trace")


@pytest.fixture
def provider():
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is not installed: no span was looked at")
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider):
    """Finds the spans that have ended, by name, in the order in which they began."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def find(name):
        found = [span for span in exporter.get_finished_spans() if span.name == f"paceline.{name}"]
        assert all(span.instrumentation_scope.name == "paceline" for span in found)
        return sorted(found, key=lambda span: span.start_time)

    return find


@pytest.fixture
def fit(fit, provider):
    def fit_traced(function, num_workers=2, **options):
        callback = OpenTelemetryCallback(provider, {"team": "vision"})
        return fit(function, num_workers, config={"lr": 0.5}, callbacks=[callback], **options)

    return fit_traced


def die_once(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 1, 4):
        if i == 3 and last is None and train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))


def test_a_run_its_attempts_and_its_checkpoints_are_spans_with_parents_and_errors(fit, spans, tmp_path):
    from opentelemetry.trace import StatusCode

    fit(die_once, max_failures=1)
    (run,), (first, second), checkpoints = spans("run"), spans("attempt"), spans("checkpoint")
    assert len({span.context.trace_id for span in (run, first, second, *checkpoints)}) == 1
    assert run.parent is None
    assert first.parent.span_id == second.parent.span_id == run.context.span_id
    # Where rank 0 was faster than the death of the other, its third report is one of the first attempt, too.
    first_id, second_id = first.context.span_id, second.context.span_id
    ended = [(span.attributes["paceline.step"], span.parent.span_id, span.status.status_code) for span in checkpoints]
    assert [one for one in ended if one != (3, first_id, StatusCode.ERROR)] == [
        (1, first_id, StatusCode.OK),
        (2, first_id, StatusCode.OK),
        (3, second_id, StatusCode.OK),
    ]
    told = {"team": "vision", "paceline.config.lr": 0.5, "paceline.attempts": 2, "paceline.workers": 2}
    told |= {"paceline.run": "run", "paceline.uri": str(tmp_path / "run"), "paceline.reports": 3}
    assert told.items() <= run.attributes.items()
    assert second.attributes["paceline.resumed_from"] == "checkpoint_000002"
    assert checkpoints[0].attributes["paceline.name"] == "checkpoint_000001"
    assert checkpoints[0].attributes["paceline.bytes"] > 0
    assert [span.status.status_code for span in (run, first, second)] == [
        StatusCode.OK,
        StatusCode.ERROR,
        StatusCode.OK,
    ]
    (event,) = first.events
    assert (event.name, event.attributes["rank"], event.attributes["kind"]) == ("exception", 1, "killed")
    assert "SIGKILL" in event.attributes["exception.message"]
    assert run.start_time <= second.start_time <= checkpoints[-1].start_time
    assert checkpoints[-1].end_time <= second.end_time <= run.end_time


def test_the_span_that_is_current_becomes_the_parent_and_a_run_that_fails_is_an_error(fit, spans, provider):
    from opentelemetry.trace import StatusCode

    def function(config):
        raise ValueError("no such thing")

    with provider.get_tracer("mine").start_as_current_span("mine") as outer, pytest.raises(TrainingFailedError):
        fit(function, 1)
    (run,), (attempt,) = spans("run"), spans("attempt")
    assert run.parent.span_id == outer.get_span_context().span_id
    assert run.status.status_code == attempt.status.status_code == StatusCode.ERROR
    failure = attempt.events[0].attributes
    assert failure["exception.type"] == "ValueError"
    assert "no such thing" in failure["exception.stacktrace"]


def test_an_attribute_that_is_none_is_refused_by_name():
    with pytest.raises(ValueError, match=r"attributes\['of'\] must be a string, a number or a bool by name, got \[1\]"):
        OpenTelemetryCallback(attributes={"of": [1]})
