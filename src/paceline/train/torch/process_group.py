"""The process group: its key-value store, its network interface, its teardown and the explanation of its timeouts.

Nothing here waits long for peers. After a failure they may be gone, and a worker exits without leaving the group.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._core import system

if TYPE_CHECKING:
    from paceline._engine.messages import WorkerInit

_TIMEOUT = datetime.timedelta(minutes=30)


def open_tcp_store(host: str, timeout: datetime.timedelta = _TIMEOUT) -> tuple[Any, int]:
    """Open a store served by this process while the object lives; return it and the port chosen by the system.

    It listens on `host` only: torch's own socket would listen on every address of the machine, without a password.
    """
    import torch.distributed as dist

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=socket.SOMAXCONN) as listener:
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            host,
            port,
            world_size=None,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    return store, port


def find_network_interface(begin: WorkerInit) -> str:
    """Return the interface through which other workers reach this one: the user's setting, or loopback on one machine.

    It is set explicitly, because looking up the host name often hangs.
    """
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return interface
    if begin.num_nodes > 1:
        import psutil

        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address == begin.node_address for each in addresses):
                return str(name)
    return "lo" if sys.platform == "linux" else "lo0"


_GLOO_COLLECTIVE_THREAD = "pt_gloo_runloop\n"
"""The name that torch gives to them."""
_POLL_S = 0.001
_GRACE_S = 1.0
"""How long the other ranks in the same collective may take to announce themselves after the first one did."""

log = logging.getLogger("paceline")


def destroy_process_group(limit_s: float, device: int | None = None) -> None:
    """Leave the default group and all others. A pending collective must not block this forever.

    User code may already have done so, as torchrun scripts do at their end. In a worker, which exits soon, gloo's last
    thread is left to the exit: it looks only every ten milliseconds whether it should end.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    ends_with_process = system.in_worker and device is None and _has_gloo_collective_threads()
    raised: list[BaseException] = []

    def destroy() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=destroy, name="paceline-teardown", daemon=True)
    thread.start()
    deadline = time.monotonic() + limit_s
    while ends_with_process and thread.is_alive() and time.monotonic() < deadline:
        thread.join(_POLL_S)
        if not _has_gloo_collective_threads():
            return
    thread.join(max(0.0, deadline - time.monotonic()))
    if thread.is_alive():
        log.warning(
            "cannot tear down the process group within %g s: a collective is still running. This process exits anyway"
            "\n\nhint: on all ranks, wait for collectives with async_op=True before the function returns",
            limit_s,
        )
    elif raised:
        raise raised[0]


def _has_gloo_collective_threads() -> bool:
    """Whether a gloo group of this process has the threads that run its collectives. They end with the last one."""
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # It has just ended.
            if task.read_text() == _GLOO_COLLECTIVE_THREAD:
                return True
    return False


def is_collective_error(error: BaseException) -> bool:
    """Return whether an exception came from a collective: it timed out, or a peer left during it."""
    import torch.distributed as dist

    text = str(error).lower()
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text))


def announce_collective_failure(error: Exception, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
    """Announce to the other ranks that this one was in a collective; after a timeout, note on the error who was not."""
    try:
        store.set(_rank_key(rank), b"")
    except RuntimeError:
        return  # The store died with rank 0.
    text = str(error).lower()
    if "timed out" not in text and "timeout" not in text:
        return
    note = f"a collective took longer than timeout_s={timeout_s:g}"
    absent = _absent_ranks(store, rank, world_size)
    if absent:
        ranks = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
        note += f": {ranks} did not reach it"
    elif absent is not None:
        note += ": the ranks were in different collectives, or the network between them is stuck"
    error.add_note(note)


def _absent_ranks(store: Any, rank: int, world_size: int) -> list[int] | None:
    """Return the ranks that do not announce themselves in time; None if the store died with rank 0."""
    peers = [peer for peer in range(world_size) if peer != rank]
    deadline = time.monotonic() + _GRACE_S
    try:
        while not store.check([_rank_key(peer) for peer in peers]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [peer for peer in peers if not store.check([_rank_key(peer)])]
    except RuntimeError:
        return None


def _rank_key(rank: int) -> str:
    return f"paceline/in_collective/{rank}"
