"""The addresses of all workers' TensorFlow servers, known to each of them before any is started.

Each worker holds a port of the system's choice for as long as its function runs; its server takes the same one, which
`SO_REUSEPORT` allows to this user's sockets alone. The driver gives the addresses of all to everybody.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline._worker.context import Context


@contextlib.contextmanager
def addresses(context: Context) -> Iterator[list[str]]:
    """Where the server of each rank will be, in the order of ranks. This rank's port is held meanwhile."""
    begin = context.begin
    host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
    with _held_port() as port:
        mine = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield [address.decode() for address in context.gather(mine.encode())]


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """A port on which nobody but this user can listen, and nobody is offered by the system. It accepts nothing."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
