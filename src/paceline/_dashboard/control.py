"""Requests from the page to a run's driver: which bodies are allowed, and how they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paceline._core.arguments import check_int, check_number
from paceline._dashboard.query_fields import RequestRefusedError

if TYPE_CHECKING:
    from paceline._control.requests import RankStacks
    from paceline._storage.run_location import RunLocation

MAX_BODY_BYTES = 4096
MAX_PROFILE_S = 300.0
STOP_TIMEOUT_S = 15.0
"""How long to wait for a stopped run to end; after that the page notices by itself."""


class StopBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    now: bool = False


class StacksBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ProfileBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: float = 10.0
    rank: int | None = None


ControlBody = StopBody | StacksBody | ProfileBody
BODY_TYPES: dict[str, type[ControlBody]] = {"stop": StopBody, "stacks": StacksBody, "profile": ProfileBody}


def parse_control_body(name: str, data: bytes) -> ControlBody:
    try:
        body = msgspec.json.decode(data or b"{}", type=BODY_TYPES[name])
        if isinstance(body, ProfileBody):
            check_number("seconds", body.seconds, above=0, at_most=MAX_PROFILE_S)
            check_int("rank", body.rank, at_least=0, optional=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise RequestRefusedError(400, f"invalid request: {problem}") from None
    return body


def request(location: RunLocation, body: ControlBody) -> dict[str, Any]:
    """Send a request to the driver of a run; return its answer as JSON values, or raise `RequestRefusedError`."""
    from paceline._control import requests

    match body:
        case StopBody(now):
            answer = requests.send_request(location, requests.StopRequest(now), STOP_TIMEOUT_S)
        case StacksBody():
            answer = requests.send_request(location, requests.StacksRequest())
        case ProfileBody(seconds, rank):
            ranks = () if rank is None else (rank,)
            answer = requests.send_request(location, requests.ProfileRequest(seconds, ranks))
    if answer.state not in ("done", "taken"):
        raise RequestRefusedError(409, answer.text)
    if isinstance(body, StacksBody):
        return {"text": "\n".join(map(_format_stacks, answer.stacks)) or answer.text}
    return {"text": answer.text, "state": answer.state, "files": answer.files, "problems": answer.problems}


def _format_stacks(stacks: RankStacks) -> str:
    """Format the stacks of one rank as text, innermost call last."""
    title = stacks.title + ("" if stacks.answers else ", which does not answer")
    lines = [f"{title}: {stacks.condition}" if stacks.condition else title]
    for thread in stacks.threads:
        lines.append(f"  thread {thread.name}")
        lines += [f"    {'>' if line.own else ' '} {line.function}  {line.where}" for line in thread.lines]
        if thread.calls:
            lines.append(f"      {thread.calls}")
    return "\n".join(lines) + "\n"
