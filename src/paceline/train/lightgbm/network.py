"""LightGBM's network between the workers: exchange addresses.

Each LightGBM process needs the addresses of all others. So every worker chooses a port, and the driver sends the whole
list to all. A network serves one training: its ports cannot be bound again at once, so every call creates a new one.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
from collections.abc import Iterator
from typing import Any

from paceline.train.lightgbm.config import LightGBMConfig
from paceline.train.session import _require_context

_MAX_TRIES = 1000

_config = LightGBMConfig()


def get_network_params() -> dict[str, Any]:
    """Return parameters that connect the LightGBM trainings of all workers, each with its own rows.

        booster = lightgbm.train({**params, **get_network_params()}, dataset)

    All ranks must call it equally often, right before they train: each call is for one training and waits for all
    ranks. With one worker there is no network, and only the number of threads is set.
    """
    context = _require_context("get_network_params")
    begin = context.begin
    free_network()
    threads = {"num_threads": begin.num_threads}
    if begin.world_size == 1:
        return threads
    config = _config
    host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
    # Held until every rank has a port, so that no two workers on a node choose the same one.
    with _bind_free_port(config.ports) as mine:
        port = mine.getsockname()[1]
        machines = [address.decode() for address in context.gather(f"{host}:{port}".encode())]
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
def use_network_config(config: LightGBMConfig) -> Iterator[None]:
    """Use this configuration for networks created within the block."""
    global _config
    before, _config = _config, config
    try:
        yield
    finally:
        _config = before


def free_network() -> None:
    """Close all LightGBM connections of this process, whichever booster opened them."""
    import lightgbm

    # The network is global to the process; the method uses nothing of the booster.
    lightgbm.Booster.__new__(lightgbm.Booster).free_network()


def _bind_free_port(ports: tuple[int, int]) -> socket.socket:
    """Return a socket bound to a free port, the way LightGBM will bind it: on all addresses, exclusively."""
    low, high = ports
    # System randomness: user code may have seeded workers forked from one process identically.
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
