"""Which idle agents a run may take over, and how many are kept; `tests/cluster` has real ones."""

import asyncio
from types import SimpleNamespace

import pytest

from paceline._engine.ray import node_agent
from paceline._engine.ray.idle_agents import MAX_IDLE_PER_NODE, AgentKey, IdleAgent, IdleAgents
from paceline._engine.ray.node_agent import NodeAgent

KEY = AgentKey("job", "node", b"{}", "{}")


def make_idle(token="secret", **changes):
    idle_tokens = []
    remote = SimpleNamespace(remote=lambda token, _after_s: idle_tokens.append(token))
    actor = SimpleNamespace(end_if_idle=SimpleNamespace(options=lambda num_returns: remote), idle_tokens=idle_tokens)
    return IdleAgent(KEY._replace(**changes), actor, token)


@pytest.mark.parametrize("change", [{"job_id": "x"}, {"node_id": "x"}, {"config": b"x"}, {"options": "x"}])
def test_a_run_takes_over_only_agents_that_were_started_for_the_same(change):
    agents, idle = IdleAgents(), make_idle()
    assert agents.add(idle) == []
    assert idle.actor.idle_tokens == ["secret"]
    assert agents.take(KEY._replace(**change)) is None
    assert agents.take(KEY) is idle
    assert agents.take(KEY) is None


def test_the_newest_of_each_node_are_kept_and_the_others_end():
    agents = IdleAgents()
    here = [make_idle() for _ in range(MAX_IDLE_PER_NODE + 2)]
    there = [make_idle(node_id="other") for _ in here]
    excess = [agents.add(idle) for pair in zip(here, there, strict=True) for idle in pair]
    assert excess[-4:] == [[here[0]], [there[0]], [here[1]], [there[1]]]
    assert not any(excess[:-4])
    assert agents.take(KEY) is here[-1]
    assert agents.take_all() == [
        idle for pair in zip(here[2:], there[2:], strict=True) for idle in pair if idle is not here[-1]
    ]
    assert agents.take_all() == []


def test_those_of_a_connection_that_is_gone_are_dropped_at_the_next_one():
    agents, idle = IdleAgents(), make_idle(job_id="next")
    agents.add(make_idle())
    assert agents.add(idle) == []
    assert agents.take_all() == [idle]


@pytest.fixture
def agent(monkeypatch):
    for name in ("detach_zygotes", "prewarm", "apply_environment"):
        monkeypatch.setattr(node_agent, name, lambda *_: None)
    agent = NodeAgent("first run", ())
    yield agent
    agent._engine.close()


def serve_calls(agent):
    """Do once what the agent's own thread does all the time."""
    while agent._calls:
        agent._calls.popleft()()


def test_an_agent_obeys_the_run_that_it_belongs_to_and_no_earlier_one(agent):
    async def change_runs():
        stream = agent.stream_output("first run")
        reads = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        parking = asyncio.ensure_future(agent.park("first run", "secret"))
        await asyncio.sleep(0)
        serve_calls(agent)
        await parking
        with pytest.raises(StopAsyncIteration):
            await reads
        for token in ("first run", ""):
            with pytest.raises(PermissionError, match="another run"):
                await agent.adopt(token, "second run")
        await agent.adopt("secret", "second run")
        for token in ("first run", "secret"):
            with pytest.raises(PermissionError, match="another run"):
                await agent.ping(token)
        await agent.ping("second run")
        agent._outputs.put_nowait(b"of the second run")
        assert await anext(agent.stream_output("second run")) == b"of the second run"

    asyncio.run(change_runs())


def test_an_agent_with_workers_is_not_parked(agent):
    async def park():
        agent._attempt = object()
        parking = asyncio.ensure_future(agent.park("first run", "secret"))
        await asyncio.sleep(0)
        serve_calls(agent)
        with pytest.raises(RuntimeError, match="its workers have not ended"):
            await parking
        await agent.ping("first run")

    asyncio.run(park())


def test_an_idle_agent_ends_by_itself_unless_it_was_taken_over(agent, monkeypatch):
    ends = []
    ray = SimpleNamespace(actor=SimpleNamespace(exit_actor=lambda: ends.append(agent._token)))
    monkeypatch.setattr(node_agent, "import_ray", lambda: ray)

    async def wait_twice():
        await agent.end_if_idle("a run before", 0)
        assert not ends
        waiting = asyncio.ensure_future(agent.end_if_idle("first run", 1e4))
        await asyncio.sleep(0)
        await agent.adopt("first run", "second run")
        await waiting
        assert not ends
        agent._is_adopted.clear()
        await agent.end_if_idle("second run", 0)
        assert ends == ["second run"]

    asyncio.run(wait_twice())
