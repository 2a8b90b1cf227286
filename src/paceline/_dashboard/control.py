"""Requests to a run that is being driven, from the page: what a body may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paceline._dashboard.asked import Refused

if TYPE_CHECKING:
    from paceline._control.requests import RankStacks
    from paceline._storage.home import Home

MOST_BODY_BYTES = 4096
MOST_SECONDS = 300.0
STOP_WAITS_S = 15.0
"""For a run to end that was asked to; after that the page sees for itself when it has."""


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    now: bool = False


class Stacks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: float = 10.0
    rank: int | None = None


Wanted = Stop | Stacks | Profile
REQUESTS: dict[str, type[Stop] | type[Stacks] | type[Profile]] = {"stop": Stop, "stacks": Stacks, "profile": Profile}


def wanted(what: str, body: bytes) -> Wanted:
    try:
        found = msgspec.json.decode(body or b"{}", type=REQUESTS[what])
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise Refused(400, f"this is not what can be asked for: {problem}") from None
    if isinstance(found, Profile) and not 0 < found.seconds <= MOST_SECONDS:
        raise Refused(400, f"`seconds` is {found.seconds:g}; it has to be above 0 and at most {MOST_SECONDS:g}")
    if isinstance(found, Profile) and found.rank is not None and found.rank < 0:
        raise Refused(400, f"`rank` is {found.rank}; it has to be 0 or more")
    return found


def request(home: Home, wanted: Wanted) -> dict[str, Any]:
    """Ask the driver of a run, wait for what it says, and give it as it is sent. `Refused` where nothing came of it."""
    from paceline._control import requests

    ranks: tuple[int, ...] = ()
    match wanted:
        case Stop(now):
            answer = requests.asked(home, requests.Stop(now), STOP_WAITS_S)
        case Stacks():
            answer = requests.asked(home, requests.Stacks())
        case Profile(seconds, rank):
            ranks = () if rank is None else (rank,)
            answer = requests.asked(home, requests.Profile(seconds, ranks))
    if answer.state not in ("done", "taken"):
        raise Refused(409, answer.text)
    if isinstance(wanted, Stacks):
        return {"text": "\n".join(map(_stacks_text, answer.stacks)) or answer.text}
    return {"text": answer.text, "state": answer.state, "files": answer.files, "problems": answer.problems}


def _stacks_text(stacks: RankStacks) -> str:
    """Of one rank, as text: innermost call last."""
    said = f"rank {stacks.rank}" + ("" if stacks.answers else ", which does not answer")
    lines = [f"{said}: {stacks.condition}" if stacks.condition else said]
    for thread in stacks.threads:
        lines.append(f"  thread {thread.name}")
        lines += [f"    {'>' if line.own else ' '} {line.function}  {line.where}" for line in thread.lines]
        if thread.calls:
            lines.append(f"      {thread.calls}")
    return "\n".join(lines) + "\n"
