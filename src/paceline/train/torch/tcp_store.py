"""Rendezvous of a torch process group: its key-value store and network interface."""

from __future__ import annotations

import datetime
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline._engine.messages import WorkerInit

_TIMEOUT = datetime.timedelta(minutes=30)


def open_tcp_store(host: str, timeout: datetime.timedelta = _TIMEOUT) -> tuple[Any, int]:
    """Open a store served by this process while the object lives; return it and the port chosen by the system."""
    import torch.distributed as dist

    store = dist.TCPStore(host, 0, world_size=None, is_master=True, timeout=timeout, wait_for_workers=False)
    return store, store.port


def find_network_interface(begin: WorkerInit) -> str:
    """Return the interface through which other workers reach this one: the user's setting, or loopback on one machine.

    It is set explicitly, because looking up the host name often hangs.
    """
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        return chosen
    if begin.num_nodes > 1:
        import psutil

        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address == begin.node_address for each in addresses):
                return str(name)
    return "lo" if sys.platform == "linux" else "lo0"
