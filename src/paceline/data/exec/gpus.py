"""Which GPUs the processes of a pool see. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.data.transform import PoolSpec


def check_gpus(name: str, pool: PoolSpec | None, num_gpus: int) -> None:
    """Reject a request that this machine can never satisfy."""
    if pool is not None and pool.num_gpus > num_gpus:
        there = f"there are {num_gpus}" if num_gpus else "there is none"
        raise ValueError(
            f"{name} asks for num_gpus={pool.num_gpus:g} for each of its processes, and {there} here\n\n"
            "hint: CUDA_VISIBLE_DEVICES says which GPUs may be used"
        )


def visible_devices(gpus: Sequence[str], each: float, slot: int) -> str:
    """`CUDA_VISIBLE_DEVICES` for the process in a slot of its pool; fractions share a GPU.

    Counts from the last GPU down, because training workers get theirs from the first up.
    """
    last_first = list(reversed(gpus))
    if each >= 1:
        num = int(each)
        return ",".join(last_first[(slot * num + index) % len(gpus)] for index in range(num))
    return last_first[int(slot * each + 1e-9) % len(gpus)]
