"""Agents that have no run, kept for the next run of this process, as the zygote is on one machine.

An idle agent requests no resources, so all of the cluster can be used by others. If no run takes it over, it ends after
a minute by itself: an autoscaler does not remove a node that has an actor.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

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


@dataclass(frozen=True, eq=False)
class IdleAgent:
    key: AgentKey
    actor: Any
    token: str
    """What it expects from the run that takes it over."""


class IdleAgents:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects `_agents`: runs of several threads share them
        self._agents: list[IdleAgent] = []
        """Oldest first."""

    def add(self, agent: IdleAgent) -> list[IdleAgent]:
        """Keep an agent, and return those to end instead: the oldest, if its node has too many."""
        agent.actor.end_if_idle.options(num_returns=0).remote(agent.token, IDLE_TIMEOUT_S)
        with self._lock:
            # Those of an earlier connection are gone.
            kept = [each for each in self._agents if each.key.job_id == agent.key.job_id] + [agent]
            excess = [each for each in kept if each.key.node_id == agent.key.node_id][:-MAX_IDLE_PER_NODE]
            self._agents = [each for each in kept if each not in excess]
        return excess

    def take(self, key: AgentKey) -> IdleAgent | None:
        """Return the agent that became idle last, if any; it may have ended meanwhile."""
        with self._lock:
            found = next((each for each in reversed(self._agents) if each.key == key), None)
            if found is not None:
                self._agents.remove(found)
        return found

    def take_all(self) -> list[IdleAgent]:
        with self._lock:
            agents, self._agents = self._agents, []
        return agents


idle_agents = IdleAgents()
"""Those of this process."""
