"""The torch backend: sets up the process group, threads and device around the user's function."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._core.arguments import check_choice, check_instance, check_number
from paceline._core.settings import override_environment
from paceline.train.backend import BackendConfig
from paceline.train.torch import process_group
from paceline.train.torch.pinning import prepare_for_saves

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext

_NUM_SET_UP, _ALL_SET_UP = "paceline/num_set_up", "paceline/all_set_up"
"""Keys in the process group's store."""


@dataclass(frozen=True)
class TorchConfig(BackendConfig):
    """Configuration of the torch process group.

    `backend`: `nccl`, `gloo` or a string such as `cpu:gloo,cuda:nccl`; by default `nccl` on GPUs, else `gloo`.
    `init_method`: `env` and `tcp` are equivalent here, since rank 0 opens the port and sends it to the others; the
    environment variables for calling `init_process_group` yourself are set either way. `timeout_s` limits each
    collective, and also the time to leave the group.
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

    # DDP and the optimizers import it on first use, which would add two seconds to a restart.
    preload_later: ClassVar[tuple[str, ...]] = ("torch._dynamo",)

    teardown_s: ClassVar[float] = 30
    """How long an exiting worker tries to leave the group before it exits anyway."""

    def __post_init__(self) -> None:
        check_choice("init_method", self.init_method, ("env", "tcp"))
        check_instance("backend", self.backend, str, "the name of a backend such as 'gloo'", optional=True)
        check_number("timeout_s", self.timeout_s, above=0)

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        import torch
        import torch.distributed as dist

        begin = context.begin
        num_threads = torch.get_num_threads()
        torch.set_num_threads(begin.num_threads)
        if begin.devices and torch.cuda.is_available():
            torch.cuda.set_device(begin.devices[0])
        host, port, store = self._rendezvous(context)
        # Restored at the end, for functions that run in the driver's process (`num_workers=0`).
        with override_environment(_environment(context, host, port)):
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
                with (
                    prepare_for_saves(context.uploader.prepare_gpu_memory)
                    if begin.devices
                    else contextlib.nullcontext()
                ):
                    yield
            except Exception as error:
                # Leave the group as it is: peers may be gone, and waiting for them would hide the cause.
                if begin.world_size == 1:  # It may be in the driver's process, where the next attempt makes a new one.
                    process_group.destroy_process_group(min(self.timeout_s, self.teardown_s))
                elif process_group.is_collective_error(error):
                    process_group.announce_collective_failure(
                        error, store, begin.rank, begin.world_size, self.timeout_s
                    )
                raise
            finally:
                torch.set_num_threads(num_threads)
            if begin.rank == 0:
                # The store dies with this rank, and a function that does nothing may end while others still set up.
                store.wait([_ALL_SET_UP])
            process_group.destroy_process_group(
                min(self.timeout_s, self.teardown_s), begin.devices[0] if begin.devices else None
            )

    def _rendezvous(self, context: WorkerContext) -> tuple[str, int, Any]:
        """Rank 0 opens a store on a port chosen by the system and sends it to the others, so nobody guesses a port."""
        import torch.distributed as dist

        begin = context.begin
        timeout = datetime.timedelta(seconds=self.timeout_s)
        host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
        store = process_group.open_tcp_store(host, timeout)[0] if begin.rank == 0 else None
        address = context.join(f"{host} {store.port}".encode() if store is not None else b"")
        host, number = address.decode().split()
        port = int(number)
        if store is None:
            store = dist.TCPStore(host, port, world_size=None, is_master=False, timeout=timeout, wait_for_workers=False)
        return host, port, store


def _environment(context: WorkerContext, host: str, port: int) -> dict[str, str]:
    """The variables that torchrun sets; other libraries read them."""
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
        # Without this, Accelerate assumes that a worker on a CPU is alone.
        "ACCELERATE_USE_CPU": "false" if begin.devices else "true",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # Set explicitly, because looking up the host name often hangs.
        "GLOO_SOCKET_IFNAME": process_group.find_network_interface(begin),
    }
