"""LightGBM's own network between the workers: who listens where, told to all.

LightGBM has to be given the addresses of all machines by each of them. So every worker chooses a port, rank 0 collects
the addresses over a connection of the moment, and gives each the whole list. A network serves one training: its ports
cannot be bound again at once, so every call makes a new one.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

from paceline._worker.context import Context
from paceline.train.lightgbm.config import LightGBMConfig
from paceline.train.session import _context

_MAX_LINE = 1 << 20
_MAX_TRIES = 1000
_HELLO_S = 10.0
"""How long one that has connected may take to say who it is."""

_config = LightGBMConfig()


def get_network_params() -> dict[str, Any]:
    """The parameters that make a training of LightGBM one of all workers, each on its own rows.

        booster = lightgbm.train({**params, **get_network_params()}, dataset)

    All ranks call it equally often, right before they train: each call is for one training, and waits for all ranks.
    With one worker there is no network, and only the number of threads is set.
    """
    context = _context("get_network_params")
    begin = context.begin
    free_network()
    threads = {"num_threads": begin.num_threads}
    if begin.world_size == 1:
        return threads
    config = _config
    host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
    # Held until all have one, so that no two workers on a machine choose the same.
    with _free_port(config.ports) as mine:
        port = mine.getsockname()[1]
        machines = gathered(context, host, f"{host}:{port}", config.timeout_s)
    return {
        "machines": ",".join(machines),
        "num_machines": begin.world_size,
        "local_listen_port": port,
        "time_out": max(1, math.ceil(config.timeout_s / 60)),
        "tree_learner": config.tree_learner,
        "pre_partition": True,
        **threads,
    }


@contextlib.contextmanager
def configured(config: LightGBMConfig) -> Iterator[None]:
    """Networks are made with this configuration for as long as the block lasts."""
    global _config
    before, _config = _config, config
    try:
        yield
    finally:
        _config = before


def free_network() -> None:
    """Close what connections LightGBM has open in this process, whichever booster opened them."""
    import lightgbm

    # The network is the process's own; the method looks at nothing of a booster.
    lightgbm.Booster.__new__(lightgbm.Booster).free_network()


def gathered(context: Context, host: str, mine: str, timeout_s: float) -> list[str]:
    """What every rank brought, by rank, given to all: over connections to rank 0, who tells where by the barrier."""
    begin = context.begin
    deadline = time.monotonic() + timeout_s
    if begin.rank == 0:
        with socket.create_server((host, 0), backlog=begin.world_size) as server:
            token = secrets.token_hex(16)
            context.join(json.dumps([host, server.getsockname()[1], token]).encode())
            return _collected(server, token, mine, begin.world_size, deadline)
    address, port, token = json.loads(context.join(b""))
    with socket.create_connection((address, port), timeout=_left(deadline)) as connection:
        _say(connection, [token, begin.rank, mine])
        connection.settimeout(_left(deadline))
        everybody: list[str] = json.loads(_heard(connection, "rank 0"))
        return everybody


def _collected(server: socket.socket, token: str, mine: str, world_size: int, deadline: float) -> list[str]:
    found = {0: mine}
    with contextlib.ExitStack() as connections:
        told: list[socket.socket] = []
        while len(found) < world_size:
            server.settimeout(_left(deadline))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(world_size) if rank not in found)
                raise TimeoutError(f"LightGBM's network: rank {missing} did not come within timeout_s") from None
            connections.enter_context(connection)
            connection.settimeout(min(_HELLO_S, _left(deadline)))
            said = _hello(connection, token)
            if said is not None:
                found[said[0]] = said[1]
                told.append(connection)
        everybody = [found[rank] for rank in range(world_size)]
        for connection in told:
            connection.settimeout(_left(deadline))
            _say(connection, everybody)
    return everybody


def _hello(connection: socket.socket, token: str) -> tuple[int, str] | None:
    """The rank and the address of one that has connected; None where it is not one of us."""
    try:
        said, rank, address = json.loads(_heard(connection, "one that connected"))
    except (OSError, ValueError, TypeError):
        return None
    known = isinstance(said, str) and secrets.compare_digest(said.encode(), token.encode())
    return (rank, address) if known else None


def _say(connection: socket.socket, message: Any) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _heard(connection: socket.socket, who: str) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(line) > _MAX_LINE:
            raise ConnectionError(f"connection closed by peer: {who} left before LightGBM's network was made")
        line += part
    return bytes(line)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _free_port(ports: tuple[int, int]) -> socket.socket:
    """A socket bound to a free port of a range, as LightGBM will bind it: on all addresses, nobody else on it."""
    low, high = ports
    # Of the system: workers forked from one process may have been seeded alike by the user's own code.
    chosen = random.SystemRandom().sample(range(low, high + 1), min(_MAX_TRIES, high + 1 - low))
    for port in chosen:
        bound = socket.socket()
        try:
            bound.bind(("", port))
        except OSError:
            bound.close()
            continue
        return bound
    raise OSError(
        f"no free port among {len(chosen)} tried of ports={ports}\n\nhint: LightGBMConfig(ports=(first, last))"
    )
