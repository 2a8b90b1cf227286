"""Exchange the addresses of the workers' TensorFlow servers before any server starts.

Each worker holds a port chosen by the system while its function runs. Its server listens on the same port, which
`SO_REUSEPORT` allows only for sockets of the same user. The driver sends the addresses to all workers.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext


@contextlib.contextmanager
def exchange_addresses(context: WorkerContext) -> Iterator[list[str]]:
    """Yield the server address of each rank, in rank order, while holding this rank's port."""
    begin = context.begin
    host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
    with _reserve_port() as port:
        mine = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield [address.decode() for address in context.gather(mine.encode())]


@contextlib.contextmanager
def _reserve_port() -> Iterator[int]:
    """Reserve a port that only this user can listen on and the system gives to nobody else. Accepts no connections."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
