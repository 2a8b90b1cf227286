"""Where the ranks of a torch process group meet: its key-value store, and the network interface they talk by."""

from __future__ import annotations

import datetime
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline._engine.messages import Begin

_TIMEOUT = datetime.timedelta(minutes=30)


def opened(host: str, timeout: datetime.timedelta = _TIMEOUT) -> tuple[Any, int]:
    """A store that this process serves, for as long as the object lives, and the port that the system chose for it."""
    import torch.distributed as dist

    store = dist.TCPStore(host, 0, world_size=None, is_master=True, timeout=timeout, wait_for_workers=False)
    return store, store.port


def interface(begin: Begin) -> str:
    """The one at which the other workers reach this one: what the user has set, or the loopback on one machine.

    It is named, as looking the host name up is the classic way to hang.
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
