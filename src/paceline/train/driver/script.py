"""Run a whole script in each worker, with the environment that torchrun provides: see `paceline run`.

The script is unchanged: it reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and so on and sets up what it needs. Like any
train function, it may also call `paceline.train.report` and `get_checkpoint`.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline._core.settings import override_environment
from paceline.train.backend import BackendConfig, is_installed

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext


@dataclass(frozen=True)
class Script:
    """Runs a script in a worker, like `python script.py arguments...`, or a module, like `python -m`."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False

    def __call__(self) -> None:
        sys.argv[:] = [self.target, *self.arguments]
        # As Python does: the script's directory comes first, or the current directory for a module.
        sys.path.insert(0, os.getcwd() if self.is_module else os.path.dirname(os.path.abspath(self.target)))
        try:
            if self.is_module:
                runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.target, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@dataclass(frozen=True)
class ScriptConfig(BackendConfig):
    """Sets torchrun's variables. If torch is installed, its store is open before any rank connects."""

    run_name: str = ""
    max_restarts: int = 0

    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed")

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        begin = context.begin
        host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
        store, port = _open_store(host) if begin.rank == 0 else (None, 0)
        host, number, has_store = context.join(f"{host} {port} {store is not None}".encode()).decode().split()
        variables = self._variables(context, host, number)
        if has_store == "True":
            from paceline.train.torch.process_group import find_network_interface

            variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            variables["GLOO_SOCKET_IFNAME"] = find_network_interface(begin)
        with override_environment(variables):
            yield
            # The store ends with rank 0 while others may still use it. Not after a failure: nobody would join.
            context.join(b"")
            del store

    def _variables(self, context: WorkerContext, host: str, port: str) -> dict[str, str]:
        begin = context.begin
        return {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "RANK": str(begin.rank),
            "WORLD_SIZE": str(begin.world_size),
            "LOCAL_RANK": str(begin.local_rank),
            "LOCAL_WORLD_SIZE": str(begin.local_world_size),
            "GROUP_RANK": str(begin.node_rank),
            "GROUP_WORLD_SIZE": str(begin.num_nodes),
            "NODE_RANK": str(begin.node_rank),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(begin.rank),
            "ROLE_WORLD_SIZE": str(begin.world_size),
            "TORCHELASTIC_RUN_ID": self.run_name,
            "TORCHELASTIC_RESTART_COUNT": str(begin.attempt - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }


def _open_store(host: str) -> tuple[object | None, int]:
    """Open a torch store on a port that the system chooses; without torch, return a port that was free just now."""
    if is_installed("torch"):
        from paceline.train.torch.process_group import open_tcp_store

        return open_tcp_store(host)
    with socket.create_server((host, 0)) as server:
        return None, server.getsockname()[1]
