"""Detects that the driver hears nothing from an agent, such as when only the link between their two hosts is down.

Ray reports a host that its head cannot reach, after a minute. A link that fails between the driver and a host that the
head still reaches goes unnoticed by it: calls and streams are silent and do not fail. So an agent that sends nothing is
pinged; one that does not answer either is reported, and given up in the end. `AgentEventLoop` acts on what is decided.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Literal

from paceline._engine.ray.node_agent import ActorPlacement

CHECK_INTERVAL_S = 1.0
PING_AFTER_S = 3.0
NOTICE_AFTER_S = 10.0
_CONNECT_TIMEOUT_S = 2.0
_LATE_FACTOR = 2.0
"""A connection that hung resumes with the next packet that TCP repeats: after as long as the link was down."""


Decision = Literal["nothing", "report", "probe", "give up"]


class AgentSilentError(Exception):
    """An agent has not answered for longer than the limit."""


class AwakeClock:
    """Counts the seconds in which this process ran: an agent is not silent because its driver was suspended."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def advance(self, passed_s: float) -> None:
        """Count the time since the last check, of which no more than two intervals."""
        self.elapsed_s += min(passed_s, 2 * CHECK_INTERVAL_S)


@dataclass
class LinkState:
    """What the driver has heard of one agent, in seconds of an `AwakeClock`."""

    heard_at: float = 0.0
    is_reported: bool = False
    """The user has been told that there is no answer."""
    is_pinged: bool = False
    """A ping is under way; likewise `is_probed`, for a connection to its host."""
    is_probed: bool = False

    def hear(self, now: float) -> float | None:
        """Record a sign of life; return the seconds of silence before it if they had been reported."""
        silence_s = now - self.heard_at if self.is_reported else None
        self.heard_at, self.is_reported = now, False
        return silence_s


def decide_next(silence_s: float, limit_s: float, *, is_reported: bool, is_reachable: bool | None) -> Decision:
    """Decide what to do about an agent that is silent.

    `is_reachable`: whether its host accepts connections now; None if that is unknown and should be probed. The link to
    a host that does has come back, and the agent gets twice the time.
    """
    if not is_reported and silence_s >= min(NOTICE_AFTER_S, limit_s):
        return "report"
    if silence_s >= _LATE_FACTOR * limit_s:
        return "give up"
    if silence_s >= limit_s and is_reachable is not True:
        return "probe" if is_reachable is None else "give up"
    return "nothing"


def can_connect(address: str, port: int) -> bool:
    """Try to connect to a host; blocks for at most two seconds."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def format_place(placement: ActorPlacement) -> str:
    """Return a node's name for people."""
    return placement.host if placement.host == placement.address else f"{placement.host} ({placement.address})"


def format_silence(placement: ActorPlacement, ranks: list[int], silence_s: float, limit_s: float) -> str:
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return (
        f"no answer from {format_place(placement)} for {silence_s:.0f} s: the link between the driver and that host "
        f"may be down; {names} will be replaced after {limit_s:g} s (PACELINE_NODE_PATIENCE_S)"
    )


def format_return(placement: ActorPlacement, silence_s: float) -> str:
    return f"{format_place(placement)} answers again, after {silence_s:.0f} s"


def format_given_up(placement: ActorPlacement, silence_s: float) -> str:
    return f"the driver has had no answer from {format_place(placement)} for {silence_s:.0f} s"
