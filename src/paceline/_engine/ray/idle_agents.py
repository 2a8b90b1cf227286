"""Agents that have no run, kept for the next run of this process, as the zygote is on one machine.

An idle agent requests no resources, so all of the cluster can be used by others. If no run takes it over, it ends after
a minute by itself: an autoscaler does not remove a node that has an actor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from paceline._engine.ray.connection import import_ray

IDLE_TIMEOUT_S = 60.0
MAX_IDLE_PER_NODE = 8
"""As many as spare interpreters on one machine: each may have a framework in memory."""


class AgentKey(NamedTuple):
    """What an agent and a run must have in common."""

    job_id: str
    """Ray's, of this process's connection to the cluster."""
    node_id: str
    config: bytes
    """The encoded `ActorConfig`: settings, arguments, working directory and files."""
    options: str
    """Ray's options of the actor: its runtime environment."""


class IdleAgent(NamedTuple):
    actor: Any
    token: str
    """What it expects from the run that takes it over."""


class IdleAgents:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects `_agents`: runs of several threads share them
        self._agents: deque[tuple[AgentKey, IdleAgent]] = deque()
        """Oldest first."""

    def add(self, key: AgentKey, actor: Any, token: str) -> None:
        actor.end_if_idle.options(num_returns=0).remote(token, IDLE_TIMEOUT_S)
        with self._lock:
            # Those of an earlier connection are gone.
            kept = [item for item in self._agents if item[0].job_id == key.job_id]
            on_node = [item for item in kept if item[0].node_id == key.node_id]
            excess = on_node[: max(0, len(on_node) + 1 - MAX_IDLE_PER_NODE)]
            self._agents = deque([*(item for item in kept if item not in excess), (key, IdleAgent(actor, token))])
        _kill_all(agent for _, agent in excess)

    def take(self, key: AgentKey) -> IdleAgent | None:
        """Return the agent that became idle last, if any; it may have ended meanwhile."""
        with self._lock:
            for each, agent in reversed(self._agents):
                if each == key:
                    self._agents.remove((each, agent))
                    return agent
        return None

    def release_all(self) -> None:
        """End all of them now. Ray must be connected as it was when they were added."""
        with self._lock:
            agents, self._agents = self._agents, deque()
        _kill_all(agent for _, agent in agents)


def _kill_all(agents: Iterable[IdleAgent]) -> None:
    for agent in agents:
        import_ray().kill(agent.actor)


idle_agents = IdleAgents()
"""Those of this process."""
