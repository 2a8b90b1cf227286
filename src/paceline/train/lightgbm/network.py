"""LightGBM's own network between the workers: who listens where, told to all.

LightGBM has to be given the addresses of all machines by each of them. So every worker chooses a port, and the driver
gives all of them the whole list. A network serves one training: its ports cannot be bound again at once, so every call
makes a new one.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
from collections.abc import Iterator
from typing import Any

from paceline.train.lightgbm.config import LightGBMConfig
from paceline.train.session import _context

_MAX_TRIES = 1000

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
