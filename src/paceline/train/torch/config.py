"""The torch backend: a process group around the user's function, threads and device set."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._core.settings import variables_set
from paceline.train.backend import BackendConfig
from paceline.train.torch.group import in_collective, say_so, torn_down
from paceline.train.torch.store import interface, opened

if TYPE_CHECKING:
    from paceline._worker.context import Context

_NUM_SET_UP, _ALL_SET_UP = "paceline/num_set_up", "paceline/all_set_up"
"""Keys of the process group's store."""


@dataclass(frozen=True)
class TorchConfig(BackendConfig):
    """`backend`: `nccl`, `gloo` or a string such as `cpu:gloo,cuda:nccl`; by default nccl on GPUs, else gloo.

    `init_method`: `env` and `tcp` come to the same here, for rank 0 opens the port and tells the others; code that
    calls `init_process_group` itself finds the variables either way. `timeout_s` is how long a collective may take,
    and leaving the group takes no longer either.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str] = "torch"
    preload: ClassVar[tuple[str, ...]] = (
        "torch",
        "torch.distributed",
        "torch.utils.data",
        "torch.nn.parallel",
        "paceline.train.collective",
        "paceline.train.torch.checkpoint",
        "paceline.train.torch.loader",
        "paceline.train.torch.model",
    )

    # DDP and the optimizers import it when they are first made: two seconds that a restart does not have.
    preload_later: ClassVar[tuple[str, ...]] = ("torch._dynamo",)

    teardown_s: ClassVar[float] = 30
    """How long a worker tries to leave the group at its end, before it ends without."""

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ValueError(f"init_method={self.init_method!r} is neither 'env' nor 'tcp'")
        if not isinstance(self.backend, str | None):
            raise ValueError(f"backend={self.backend!r} is not the name of a backend such as 'gloo', or None")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s!r} is not a number of seconds above 0")

    @contextlib.contextmanager
    def around(self, context: Context) -> Iterator[None]:
        import torch
        import torch.distributed as dist

        begin = context.begin
        num_threads = torch.get_num_threads()
        torch.set_num_threads(begin.num_threads)
        if begin.devices and torch.cuda.is_available():
            torch.cuda.set_device(begin.devices[0])
        host, port, store = self._rendezvous(context)
        # Given back at the end for a function that runs in the driver's own process (`num_workers=0`).
        with variables_set(_environment(context, host, port)):
            dist.init_process_group(
                self.backend or ("nccl" if begin.devices else "gloo"),
                store=store,
                rank=begin.rank,
                world_size=begin.world_size,
                timeout=datetime.timedelta(seconds=self.timeout_s),
            )
            if store.add(_NUM_SET_UP, 1) == begin.world_size:
                store.set(_ALL_SET_UP, b"")
            try:
                yield
            except Exception as error:
                self._failed(error, store, begin.rank, begin.world_size)
                raise
            finally:
                torch.set_num_threads(num_threads)
            if begin.rank == 0:
                # The store goes with this rank: a function that does nothing may end while others still set up.
                store.wait([_ALL_SET_UP])
            torn_down(min(self.timeout_s, self.teardown_s), begin.devices[0] if begin.devices else None)

    def _failed(self, error: Exception, store: Any, rank: int, world_size: int) -> None:
        """After a failure the peers may be gone, and to wait for them would hide the cause: the group is left as it is.

        One without peers may be in the driver's own process (`num_workers=0`), and the next attempt makes a new one.
        """
        if world_size == 1:
            torn_down(min(self.timeout_s, self.teardown_s))
        elif in_collective(error):
            say_so(error, store, rank, world_size, self.timeout_s)

    def _rendezvous(self, context: Context) -> tuple[str, int, Any]:
        """Rank 0 opens a store on a port of the system's choice and the others are told: nobody guesses a port."""
        import torch.distributed as dist

        begin = context.begin
        timeout = datetime.timedelta(seconds=self.timeout_s)
        host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
        store = None
        if begin.rank == 0:
            store, _ = opened(host, timeout)
        told = context.join(f"{host} {store.port}".encode() if store is not None else b"")
        host, number = told.decode().split()
        port = int(number)
        if store is None:
            store = dist.TCPStore(host, port, world_size=None, is_master=False, timeout=timeout, wait_for_workers=False)
        return host, port, store


def _environment(context: Context, host: str, port: int) -> dict[str, str]:
    """What torchrun would have set; other libraries look for it."""
    begin = context.begin
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "RANK": str(begin.rank),
        "WORLD_SIZE": str(begin.world_size),
        "LOCAL_RANK": str(begin.local_rank),
        "LOCAL_WORLD_SIZE": str(begin.local_world_size),
        "NODE_RANK": str(begin.node_rank),
        "ACCELERATE_TORCH_DEVICE": f"cuda:{begin.devices[0]}" if begin.devices else "cpu",
        # Without it Accelerate takes a worker on a CPU to be alone.
        "ACCELERATE_USE_CPU": "false" if begin.devices else "true",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # Named, as looking the host name up is the classic way to hang.
        "GLOO_SOCKET_IFNAME": interface(begin),
    }
