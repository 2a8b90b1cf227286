"""Tear down a process group within a time limit, and explain which ranks were missing when a collective times out.

Nothing here waits long for peers. After a failure they may be gone, and a worker exits without leaving the group.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

_GRACE_S = 1.0
"""How long the other ranks in the same collective may take to announce themselves after the first one did."""

log = logging.getLogger("paceline")


def destroy_process_group(limit_s: float, device: int | None = None) -> None:
    """Leave the default group and all others. A pending collective must not block this forever.

    User code may already have done so, as torchrun scripts do at their end.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    raised: list[BaseException] = []

    def destroy() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001  raised again below, in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=destroy, name="paceline-teardown", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        log.warning(
            "the process group was not torn down within %g s, for a collective is still under way: this process ends "
            "without it\n\nhint: on all ranks, wait for what async_op=True started before the function returns",
            limit_s,
        )
    elif raised:
        raise raised[0]


def is_collective_error(error: BaseException) -> bool:
    """Return whether an exception came from a collective: it timed out, or a peer left during it."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text or _is_torch_dist_error(error))


def announce_collective_failure(error: Exception, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
    """Announce to the other ranks that this one was in a collective; after a timeout, note on the error who was not."""
    try:
        store.set(_rank_key(rank), b"")
    except RuntimeError:
        return  # The store died with rank 0.
    text = str(error).lower()
    if "timed out" not in text and "timeout" not in text:
        return
    told = f"a collective waited for longer than timeout_s={timeout_s:g}"
    absent = _absent_ranks(store, rank, world_size)
    if absent:
        named = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
        told += f": {named} had not come to it"
    elif absent is not None:
        told += ": all ranks were in one, but not in the same, or the network between them is stuck"
    error.add_note(told)


def _absent_ranks(store: Any, rank: int, world_size: int) -> list[int] | None:
    """Return the ranks that do not announce themselves in time; None if the store died with rank 0."""
    others = [other for other in range(world_size) if other != rank]
    deadline = time.monotonic() + _GRACE_S
    try:
        while not store.check([_rank_key(other) for other in others]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [other for other in others if not store.check([_rank_key(other)])]
    except RuntimeError:
        return None


def _is_torch_dist_error(error: BaseException) -> bool:
    import torch.distributed as dist

    return isinstance(error, dist.DistError)


def _rank_key(rank: int) -> str:
    return f"paceline/in_collective/{rank}"
