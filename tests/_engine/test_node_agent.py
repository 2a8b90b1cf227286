"""What an agent on a node of a cluster sends at once, and what may wait; `tests/cluster` runs it for real."""

from pathlib import Path

import msgspec
import pytest

from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.messages import Reported, WorkersStopped
from paceline._engine.ray import node_agent
from paceline._engine.ray.node_agent import NodeAgent, NodeOutput, _NodeAttempt, decode_output

JOINED = messages.Joined(1, 0, 1, "x.py:1")


def report(seq, checkpoint=None):
    return Reported(1, 0, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1", checkpoint)


@pytest.fixture
def forward(monkeypatch):
    """Takes what workers say at one moment, and returns what the agent then sends."""
    monkeypatch.setattr(node_agent, "detach_zygotes", lambda: None)
    monkeypatch.setattr(node_agent, "prewarm", lambda *_: None)
    monkeypatch.setattr(node_agent, "apply_environment", lambda _: None)
    agent, sent = NodeAgent("token", ()), []
    monkeypatch.setattr(agent, "_enqueue_output", lambda data: sent.append(decode_output(data)))

    def start(*, waits_in_reports=False):
        begin = messages.WorkerInit(
            "run", ".", 1, 0, 1, 0, 1, 0, first_seq=0, num_threads=1, waits_in_reports=waits_in_reports
        )
        group = WorkerGroupSpec(1, (WorkerSpec(begin, Path()),), b"")
        attempt = _NodeAttempt(group, 1e6, {})

        def forward_and_take(*output):
            sent.clear()
            agent._forward(attempt, [*output])
            return [*sent]

        return forward_and_take

    yield start
    agent._engine.close()


def outputs(*payloads, stopped=None):
    return [NodeOutput(tuple(map(messages.encode_message, payloads)), stopped_attempt=stopped)]


def test_plain_reports_wait_and_all_else_takes_them_along_in_order(forward):
    say = forward()
    assert say(report(1)) == say(report(2), report(3)) == []
    assert say(JOINED, report(4)) == outputs(report(1), report(2), report(3), JOINED, report(4))
    assert say(report(5)) == []
    assert say(report(6, "checkpoint_000006")) == outputs(report(5), report(6, "checkpoint_000006"))
    assert say(report(7)) == []
    assert say(WorkersStopped(1)) == outputs(report(7), stopped=1)


def test_reports_that_wait_for_an_answer_go_at_once(forward):
    say = forward(waits_in_reports=True)
    assert say(report(1)) == outputs(report(1))
