"""OpenTelemetry: the spans of a run, sent by its SDK to a small collector over HTTP."""

import collections
import contextlib
import http.server
import os
import signal
import threading

import pytest

from paceline import train
from paceline.train import Checkpoint, TrainingFailedError
from paceline.train.loggers import OpenTelemetryCallback

pytest.importorskip("opentelemetry.trace")


@pytest.fixture
def fit(fit):
    def fit_traced(provider, function, num_workers=2, **options):
        callback = OpenTelemetryCallback(provider, {"team": "vision"})
        return fit(function, num_workers, config={"lr": 0.5}, callbacks=[callback], **options)

    return fit_traced


def save_two_of_three(config):
    for i in range(3):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}) if i == 1 else None)


def die_once(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 1, 4):
        if i == 3 and last is None and train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))


class Collector(http.server.ThreadingHTTPServer):
    """Answers what it is told to, 200 after that, and keeps what it was sent."""

    def __init__(self, *statuses):
        super().__init__(("127.0.0.1", 0), Receiver)
        self.statuses = collections.deque(statuses)
        self.spans = []
        self.resources = []
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def took(self, body):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(told(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                assert of_scope.scope.name in ("paceline", "mine")
                self.spans += of_scope.spans


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.set()
        self.server.may_answer.wait()
        status = self.server.statuses.popleft() if self.server.statuses else 200
        if status == 200:
            self.server.took(body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(collector):
    thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        collector.may_answer.set()
        collector.shutdown()
        thread.join()
        collector.server_close()


@contextlib.contextmanager
def sending(address, **options):
    """A provider that sends spans to a collector, as scripts set it up."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is not installed: no span was looked at")
    reason = "the exporter is not installed: no span was sent"
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=reason)
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = sdk.TracerProvider(resource=Resource({"service.name": "training"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter.OTLPSpanExporter(address), **options))
    try:
        yield provider
    finally:
        provider.shutdown()


def told(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def sent(spans, name):
    return sorted(
        (span for span in spans if span.name == f"paceline.{name}"), key=lambda span: span.start_time_unix_nano
    )


def test_a_collector_gets_every_span_with_its_parents_its_errors_and_a_worker_that_was_killed(fit):
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    # One that cannot take them at first is asked again.
    with serving(Collector(503)) as collector, sending(collector.address) as provider:
        fit(provider, die_once, max_failures=1)
        provider.force_flush()
    assert collector.resources[0]["service.name"] == "training"
    (run,) = sent(collector.spans, "run")
    first, second = sent(collector.spans, "attempt")
    checkpoints = sent(collector.spans, "checkpoint")
    assert len({span.trace_id for span in collector.spans}) == 1
    assert not run.parent_span_id
    assert first.parent_span_id == second.parent_span_id == run.span_id
    # Where rank 0 was faster than the death of the other, its third report is one of the first attempt, too.
    ended = [(told(span.attributes)["paceline.step"], span.parent_span_id, span.status.code) for span in checkpoints]
    assert [one for one in ended if one != (3, first.span_id, Status.STATUS_CODE_ERROR)] == [
        (1, first.span_id, Status.STATUS_CODE_OK),
        (2, first.span_id, Status.STATUS_CODE_OK),
        (3, second.span_id, Status.STATUS_CODE_OK),
    ]
    about = told(run.attributes)
    assert (about["team"], about["paceline.config.lr"], about["paceline.attempts"]) == ("vision", 0.5, 2)
    assert told(second.attributes)["paceline.resumed_from"] == "checkpoint_000002"
    codes = [span.status.code for span in (run, first, second)]
    assert codes == [Status.STATUS_CODE_OK, Status.STATUS_CODE_ERROR, Status.STATUS_CODE_OK]
    (event,) = first.events
    assert event.name == "exception"
    failure = told(event.attributes)
    assert (failure["rank"], failure["kind"]) == (1, "killed")
    assert "SIGKILL" in failure["exception.message"]


def test_the_span_that_is_current_becomes_the_parent_and_a_run_that_fails_is_an_error(fit):
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    def function(config):
        raise ValueError("no such thing")

    with serving(Collector()) as collector, sending(collector.address) as provider:
        with provider.get_tracer("mine").start_as_current_span("mine") as outer, pytest.raises(TrainingFailedError):
            fit(provider, function, 1)
        provider.force_flush()
    (run,), (attempt,) = sent(collector.spans, "run"), sent(collector.spans, "attempt")
    assert run.parent_span_id == outer.get_span_context().span_id.to_bytes(8, "big")
    assert run.status.code == attempt.status.code == Status.STATUS_CODE_ERROR
    failure = told(attempt.events[0].attributes)
    assert failure["exception.type"] == "ValueError"
    assert "no such thing" in failure["exception.stacktrace"]


def test_a_collector_that_does_not_answer_holds_up_nothing_and_gets_all_when_it_does(tmp_path, fit):
    collector = Collector()
    collector.may_answer.clear()
    # Each span is sent as it ends: the first waits for its answer while the run goes on.
    with serving(collector), sending(collector.address, max_export_batch_size=1) as provider:
        result = fit(provider, save_two_of_three)
        assert collector.asked.wait(60)
        assert not collector.spans, "none was answered"
        assert result.metrics == {"i": 2}
        collector.may_answer.set()
        provider.force_flush()
    (run,), (attempt,), (checkpoint,) = (sent(collector.spans, name) for name in ("run", "attempt", "checkpoint"))
    assert len(collector.spans) == 3, "reports are none"
    about = told(run.attributes)
    assert (about["paceline.run"], about["paceline.uri"]) == ("run", str(tmp_path / "run"))
    assert (about["paceline.workers"], about["paceline.reports"]) == (2, 3)
    assert told(checkpoint.attributes)["paceline.name"] == "checkpoint_000002"
    assert told(checkpoint.attributes)["paceline.bytes"] > 0
    assert run.start_time_unix_nano <= attempt.start_time_unix_nano <= checkpoint.start_time_unix_nano
    assert checkpoint.end_time_unix_nano <= attempt.end_time_unix_nano <= run.end_time_unix_nano


def test_an_attribute_that_is_none_is_refused_by_name():
    with pytest.raises(ValueError, match=r"attributes\['of'\] must be a string, a number or a bool by name, got \[1\]"):
        OpenTelemetryCallback(attributes={"of": [1]})
