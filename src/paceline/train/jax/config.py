"""The JAX backend: the workers are made the processes of one JAX program before the user's function is called.

Rank 0 holds a port of the system's choice until JAX's coordination service listens on it, so nobody else can take it.
Where there is one worker nothing is connected: JAX is as it would be in a script.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._core import system
from paceline.train.backend import BackendConfig

if TYPE_CHECKING:
    from paceline._worker.context import Context

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True)
class JaxConfig(BackendConfig):
    """`platform`: `cpu`, `cuda`, `rocm` or `tpu`; by default cuda where workers were given GPUs, else cpu.

    `initialization_timeout_s` is how long workers wait for each other when they start, and `shutdown_timeout_s` when
    they end. A worker that JAX has not heard of for `heartbeat_timeout_s` makes it end all of them.
    """

    platform: str | None = None
    initialization_timeout_s: int = 300
    shutdown_timeout_s: int = 60
    heartbeat_timeout_s: int = 100

    requires: ClassVar[tuple[str, ...]] = ("jax",)
    extra: ClassVar[str] = "jax"
    preload: ClassVar[tuple[str, ...]] = ("jax", "paceline.train.jax.config")
    preload_later: ClassVar[tuple[str, ...]] = ("orbax.checkpoint", "paceline.train.jax.checkpoint")
    # Its threads start with the import, and a process with threads must not fork.
    start_method: ClassVar[str] = "spawn"

    def __post_init__(self) -> None:
        if self.platform is not None and self.platform not in _PLATFORMS:
            raise ValueError(f"platform={self.platform!r} is none of {', '.join(map(repr, _PLATFORMS))} and None")
        for name in ("initialization_timeout_s", "shutdown_timeout_s", "heartbeat_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} is not a whole number of seconds of 1 or more")

    def check(self, num_workers: int, use_gpu: bool) -> None:
        super().check(num_workers, use_gpu)
        if use_gpu and self.platform in ("cpu", "tpu"):
            raise ValueError(
                f"platform={self.platform!r}, and ScalingConfig(use_gpu=True) gives workers GPUs\n\n"
                "hint: leave platform out, or set use_gpu=False"
            )

    @contextlib.contextmanager
    def around(self, context: Context) -> Iterator[None]:
        if not system.in_worker:  # `num_workers=0`: in the driver's own process JAX may be in use already.
            yield
            return
        import jax

        begin = context.begin
        # What JAX's own thread pool on the CPU goes by. What the user has set stays, here and below.
        os.environ.setdefault("PJRT_NPROC", str(begin.num_threads))
        if self.platform is not None or not jax.config.jax_platforms:
            jax.config.update("jax_platforms", self._platforms(bool(begin.devices)))
        if jax.config.jax_traceback_filtering == "auto":
            # The same frames are left out, without a note of it in every message.
            jax.config.update("jax_traceback_filtering", "quiet_remove_frames")
        if begin.world_size > 1:
            self._connect(context)
            # After all workers have returned and not before: it waits for all of them. After a failure not at all.
            atexit.register(jax.distributed.shutdown)
        yield

    def _platforms(self, has_gpus: bool) -> str:
        chosen = self.platform or ("cuda" if has_gpus else "cpu")
        return chosen if chosen == "cpu" else f"{chosen},cpu"

    def _connect(self, context: Context) -> None:
        import jax

        begin = context.begin
        host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _name_this_host(host)
        # It would take the handler of SIGTERM, which is a notice to us: see `get_preemption_info`.
        with contextlib.suppress(AttributeError):  # A version of JAX that has no such setting.
            jax.config.update("jax_enable_preemption_service", False)
        with contextlib.ExitStack() as until_connected:
            here = b""
            if begin.rank == 0:
                here = f"{host}:{until_connected.enter_context(_held_port(host))}".encode()
            coordinator = context.join(here).decode()
            jax.distributed.initialize(
                coordinator,
                num_processes=begin.world_size,
                process_id=begin.rank,
                local_device_ids=list(begin.devices) or None,
                cluster_detection_method="deactivate",
                initialization_timeout=self.initialization_timeout_s,
                heartbeat_timeout_seconds=self.heartbeat_timeout_s,
                shutdown_timeout_seconds=self.shutdown_timeout_s,
                # Only where the others come from: by default it would listen at all addresses of the machine.
                coordinator_bind_address=coordinator,
            )


@contextlib.contextmanager
def _held_port(host: str) -> Iterator[int]:
    """A free port that only a listener with `SO_REUSEPORT` can still take: JAX's service, through gRPC, is one."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        if hasattr(socket, "SO_REUSEPORT"):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, 0))
        port = holder.getsockname()[1]
        if not hasattr(socket, "SO_REUSEPORT"):
            holder.close()
        yield port


def _name_this_host(host: str) -> None:
    """Have gloo use an address of ours: it would look the host's name up, which is the classic way to fail or hang.

    JAX has no setting for it, only the argument of the function that it calls. Where another version has neither, the
    host's name has to be known to the machine.
    """
    for name in ("jaxlib._jax", "jaxlib.xla_extension"):
        with contextlib.suppress(ImportError):
            made_by: Any = importlib.import_module(name)
            make = getattr(made_by, "make_gloo_tcp_collectives", None)
            if make is not None:
                made_by.make_gloo_tcp_collectives = functools.partial(make, hostname=host)
                return
