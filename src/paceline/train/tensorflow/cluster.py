"""The addresses of all workers' TensorFlow servers, known to each of them before any is started.

Each worker holds a port of the system's choice for as long as its function runs; its server takes the same one, which
`SO_REUSEPORT` allows to this user's sockets alone. Rank 0 gathers the addresses over a socket of its own, whose place
the driver tells the others, and gives all of them to everybody.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline._worker.context import Context

_PATIENCE_S = 60.0
"""All workers stand at the barrier already: only a network that lets nothing through takes longer."""
_LINE_S = 10.0
"""How long who has connected may take to say who it is."""
_MOST_BYTES = 1 << 16


@contextlib.contextmanager
def addresses(context: Context) -> Iterator[list[str]]:
    """Where the server of each rank will be, in the order of ranks. This rank's port is held meanwhile."""
    begin = context.begin
    host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
    with _held_port() as port:
        mine = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield _gathered(context, host, mine) if begin.world_size > 1 else [mine]


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """A port on which nobody but this user can listen, and nobody is offered by the system. It accepts nothing."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


def _gathered(context: Context, host: str, mine: str) -> list[str]:
    begin = context.begin
    if begin.rank != 0:
        return _told_by(json.loads(context.join(b"")), begin.rank, mine)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=begin.world_size) as server:
        word = secrets.token_hex(16)
        context.join(json.dumps([host, server.getsockname()[1], word]).encode())
        return _collected(server, word, begin.world_size, mine)


def _collected(server: socket.socket, word: str, world_size: int, mine: str) -> list[str]:
    """On rank 0: hear all others, then tell each of them what all have said."""
    found = {0: mine}
    deadline = time.monotonic() + _PATIENCE_S
    with contextlib.ExitStack() as open_until_told:
        lines = []
        while len(found) < world_size:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                end, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(world_size)) - found.keys())
                raise TimeoutError(
                    f"the TensorFlow address of rank {missing[0]} did not come within {_PATIENCE_S:g} s\n\n"
                    "hint: the workers have to reach each other on any port, in both directions"
                ) from None
            open_until_told.enter_context(end)
            end.settimeout(_LINE_S)
            said = _received(end)
            # Whoever does not know the word is no worker of this run.
            if isinstance(said, list) and len(said) == 3 and hmac.compare_digest(str(said[0]).encode(), word.encode()):
                found[said[1]] = said[2]
                lines.append(end)
        whole = [found[rank] for rank in range(world_size)]
        for end in lines:
            end.sendall(json.dumps(whole).encode() + b"\n")
        return whole


def _told_by(first: tuple[str, int, str], rank: int, mine: str) -> list[str]:
    """On any other rank: say where this one is, and hear where all are."""
    host, port, word = first
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE_S) as end:
            end.sendall(json.dumps([word, rank, mine]).encode() + b"\n")
            whole: list[str] | None = _received(end)
    except OSError as error:
        raise OSError(
            f"rank {rank} cannot reach rank 0 at {host}:{port}: {error}\n\n"
            "hint: the workers have to reach each other on any port, in both directions"
        ) from error
    if whole is None:
        raise ConnectionResetError(f"rank 0 at {host}:{port}: connection reset by peer")
    return whole


def _received(end: socket.socket) -> Any:
    """One line of JSON; None where there comes none."""
    data = b""
    try:
        while not data.endswith(b"\n") and len(data) < _MOST_BYTES:
            part = end.recv(_MOST_BYTES)
            if not part:
                return None
            data += part
        return json.loads(data)
    except (TimeoutError, ConnectionError, ValueError):
        return None
