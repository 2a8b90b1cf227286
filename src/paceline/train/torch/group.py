"""How a process group ends: torn down within a time of ours, and a collective that timed out told with who was missing.

Nothing here waits for peers for long. After a failure they may be gone, and a worker's process ends without the group.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

_GRACE_S = 1.0
"""How long ranks that waited in the same collective may take to say so, after the first of them did."""

log = logging.getLogger("paceline")


def torn_down(limit_s: float, device: int | None = None) -> None:
    """Leave the default group, and all made beside it. A collective still under way must not hold this up for ever.

    Code of the user's may have done it already, as a script for torchrun does at its end.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    raised: list[BaseException] = []

    def leave() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001  raised again below, in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=leave, name="paceline-teardown", daemon=True)
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


def in_collective(error: BaseException) -> bool:
    """Whether an exception came from a collective: it timed out, or a peer left in the middle of it."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text or _is_of_torch(error))


def say_so(error: Exception, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
    """Tell the other ranks that this one was in a collective; if it timed out, note on the exception who was not."""
    try:
        store.set(_key(rank), b"")
    except RuntimeError:
        return  # The store is rank 0's, and gone with it.
    text = str(error).lower()
    if "timed out" not in text and "timeout" not in text:
        return
    told = f"a collective waited for longer than timeout_s={timeout_s:g}"
    absent = _absent(store, rank, world_size)
    if absent:
        named = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
        told += f": {named} had not come to it"
    elif absent is not None:
        told += ": all ranks were in one, but not in the same, or the network between them is stuck"
    error.add_note(told)


def _absent(store: Any, rank: int, world_size: int) -> list[int] | None:
    """The ranks that do not say so within the time of grace; None where the store, which is rank 0's, is gone."""
    others = [other for other in range(world_size) if other != rank]
    deadline = time.monotonic() + _GRACE_S
    try:
        while not store.check([_key(other) for other in others]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [other for other in others if not store.check([_key(other)])]
    except RuntimeError:
        return None


def _is_of_torch(error: BaseException) -> bool:
    import torch.distributed as dist

    return isinstance(error, dist.DistError)


def _key(rank: int) -> str:
    return f"paceline/in_collective/{rank}"
