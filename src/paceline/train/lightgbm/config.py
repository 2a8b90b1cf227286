"""The LightGBM backend: the addresses of its network, which is closed when the function returns.

Each LightGBM process needs the addresses of all others. So every worker chooses a port, and the driver sends the whole
list to all. A network serves one training: its ports cannot be bound again at once, so every call creates a new one.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from paceline._core.arguments import bad_value, check_choice, check_number, is_int
from paceline.train.backend import BackendConfig
from paceline.train.session import _require_context

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext

TreeLearner = Literal["data", "voting"]


@dataclass(frozen=True)
class LightGBMConfig(BackendConfig):
    """Configuration of LightGBM's network.

    `tree_learner`: how workers, each with its own rows, share the work: `data` or, for very many features, `voting`.
    `timeout_s` is how long a worker waits for the others to connect and in each exchange; LightGBM rounds it up to
    minutes. Each worker listens on a port in the range `ports`. The default lies below the ephemeral ports: LightGBM
    binds its port only when training starts, and no other process should have taken it by then.
    """

    tree_learner: TreeLearner = "data"
    timeout_s: float = 1800
    ports: tuple[int, int] = (20000, 32000)

    requires: ClassVar[tuple[str, ...]] = ("lightgbm",)
    extra: ClassVar[str] = "lightgbm"
    # Importing it starts no threads and no parallel region, so workers may fork afterwards.
    preload: ClassVar[tuple[str, ...]] = ("lightgbm", "paceline.train.lightgbm.model")

    def __post_init__(self) -> None:
        check_choice("tree_learner", self.tree_learner, get_args(TreeLearner))
        check_number("timeout_s", self.timeout_s, above=0)
        ports: Any = self.ports
        is_pair = isinstance(ports, tuple | list) and len(ports) == 2 and all(map(is_int, ports))
        if not is_pair or not 1 <= ports[0] <= ports[1] <= 65535:
            raise bad_value("ports", "the first and last port of a range from 1 to 65535", ports)

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        with use_network_config(self):
            yield
        # Not in a `finally`: after a failure, closing connections would only make the other ranks fail too.
        free_network()


_MAX_TRIES = 1000

_config = LightGBMConfig()
"""The configuration of networks created now."""


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
