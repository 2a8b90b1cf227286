"""The JAX backend: connects the workers as the processes of one JAX program before it calls the user's function.

Rank 0 holds a port chosen by the system until JAX's coordination service listens on it, so nobody else can take it. A
single worker is not connected: JAX behaves as in a plain script.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import inspect
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._core import system
from paceline._core.arguments import check_choice, check_int
from paceline.train.backend import BackendConfig

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext


@dataclass(frozen=True)
class JaxConfig(BackendConfig):
    """Configuration of JAX in the workers.

    `platform`: `cpu`, `cuda`, `rocm` or `tpu`; by default `cuda` if workers have GPUs, else `cpu`.
    `initialization_timeout_s` is how long workers wait for each other when they start, `shutdown_timeout_s` when they
    exit. If a worker sends no heartbeat for `heartbeat_timeout_s`, JAX terminates all of them.
    """

    platform: str | None = None
    initialization_timeout_s: int = 300
    shutdown_timeout_s: int = 60
    heartbeat_timeout_s: int = 100

    requires: ClassVar[tuple[str, ...]] = ("jax",)
    extra: ClassVar[str] = "jax"
    preload: ClassVar[tuple[str, ...]] = ("jax", "paceline.train.jax.config")
    preload_later: ClassVar[tuple[str, ...]] = ("orbax.checkpoint", "paceline.train.jax.checkpoint")
    # JAX starts threads on import, and a process with threads must not fork.
    start_method: ClassVar[str] = "spawn"

    def __post_init__(self) -> None:
        check_choice("platform", self.platform, ("cpu", "cuda", "rocm", "tpu", None))
        for name in ("initialization_timeout_s", "shutdown_timeout_s", "heartbeat_timeout_s"):
            check_int(name, getattr(self, name), at_least=1)

    def check(self, num_workers: int, use_gpu: bool) -> None:
        super().check(num_workers, use_gpu)
        if use_gpu and self.platform in ("cpu", "tpu"):
            raise ValueError(
                f"platform={self.platform!r} cannot use the GPUs of ScalingConfig(use_gpu=True)\n\n"
                "hint: leave platform out, or set use_gpu=False"
            )

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        if not system.in_worker:  # `num_workers=0`: the driver's process may already use JAX.
            yield
            return
        import jax

        begin = context.begin
        # JAX sizes its CPU thread pool by this. The user's settings take precedence, here and below.
        os.environ.setdefault("PJRT_NPROC", str(begin.num_threads))
        if self.platform is not None or not jax.config.jax_platforms:
            platform = self.platform or ("cuda" if begin.devices else "cpu")
            jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")
        if jax.config.jax_traceback_filtering == "auto":
            # Removes the same frames, but without a note in every message.
            jax.config.update("jax_traceback_filtering", "quiet_remove_frames")
        if begin.world_size > 1:
            self._connect(context)
            # At exit, because it waits until all workers have returned. Skipped after a failure.
            atexit.register(jax.distributed.shutdown)
        yield

    def _connect(self, context: WorkerContext) -> None:
        import jax

        begin = context.begin
        host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _set_gloo_host(host)
        # It would replace our SIGTERM handler, which receives preemption notices: see `get_preemption_info`.
        with contextlib.suppress(AttributeError):  # JAX version without this setting.
            jax.config.update("jax_enable_preemption_service", False)
        with contextlib.ExitStack() as until_connected:
            address = b""
            if begin.rank == 0:
                port = until_connected.enter_context(_reserve_port(host))
                address = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
            coordinator = context.join(address).decode()
            timeouts = {
                "initialization_timeout": self.initialization_timeout_s,
                "heartbeat_timeout_seconds": self.heartbeat_timeout_s,
                "shutdown_timeout_seconds": self.shutdown_timeout_s,
            }
            supported = inspect.signature(jax.distributed.initialize).parameters  # Older versions lack some.
            jax.distributed.initialize(
                coordinator,
                num_processes=begin.world_size,
                process_id=begin.rank,
                local_device_ids=list(begin.devices) or None,
                cluster_detection_method="deactivate",
                # Listen only where the other workers connect; by default it listens on all addresses.
                coordinator_bind_address=coordinator,
                **{name: seconds for name, seconds in timeouts.items() if name in supported},
            )


@contextlib.contextmanager
def _reserve_port(host: str) -> Iterator[int]:
    """Reserve a free port that only a listener with `SO_REUSEPORT` can take, such as JAX's gRPC service."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        if hasattr(socket, "SO_REUSEPORT"):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, 0))
        port = holder.getsockname()[1]
        if not hasattr(socket, "SO_REUSEPORT"):
            holder.close()
        yield port


def _set_gloo_host(host: str) -> None:
    """Make gloo use our address instead of looking up the host name, which often fails or hangs.

    JAX has no setting for it, only an argument of the function it calls. In versions that have neither, the host name
    must be resolvable.
    """
    for name in ("jaxlib._jax", "jaxlib.xla_extension"):
        with contextlib.suppress(ImportError):
            module: Any = importlib.import_module(name)
            make = getattr(module, "make_gloo_tcp_collectives", None)
            if make is not None:
                module.make_gloo_tcp_collectives = functools.partial(make, hostname=host)
                return
