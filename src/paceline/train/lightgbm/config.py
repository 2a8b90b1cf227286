"""The LightGBM backend: configures its network, and closes it when the function returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from paceline.train.backend import BackendConfig

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
    preload: ClassVar[tuple[str, ...]] = (
        "lightgbm",
        "paceline.train.lightgbm.callback",
        "paceline.train.lightgbm.boosting",
    )

    def __post_init__(self) -> None:
        if self.tree_learner not in get_args(TreeLearner):
            raise ValueError(f"tree_learner={self.tree_learner!r} is neither 'data' nor 'voting'")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s!r} is not a number of seconds above 0")
        given: Any = self.ports
        ports = given if isinstance(given, tuple | list) and all(isinstance(port, int) for port in given) else ()
        if len(ports) != 2 or not 1 <= ports[0] <= ports[1] <= 65535:
            raise ValueError(f"ports={self.ports!r} is not the first and the last of a range of ports, 1 to 65535")

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        from paceline.train.lightgbm.network import free_network, use_network_config

        with use_network_config(self):
            yield
        # Not in a `finally`: after a failure, closing connections would only make the other ranks fail too.
        free_network()
