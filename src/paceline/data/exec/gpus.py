"""Which GPUs the processes of a pool see. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.data.transform import Pool


def check_gpus(name: str, pool: Pool | None, num_gpus: int) -> None:
    """Refuse what this machine cannot ever give."""
    if pool is not None and pool.num_gpus > num_gpus:
        there = f"there are {num_gpus}" if num_gpus else "there is none"
        raise ValueError(
            f"{name} asks for num_gpus={pool.num_gpus:g} for each of its processes, and {there} here\n\n"
            "hint: CUDA_VISIBLE_DEVICES says which GPUs may be used"
        )


def visible(gpus: Sequence[str], each: float, slot: int) -> str:
    """What `CUDA_VISIBLE_DEVICES` is for the process in a slot of its pool: GPUs from the last on, shared by fractions.

    Training workers are given theirs from the first on.
    """
    last_first = list(reversed(gpus))
    if each >= 1:
        num = int(each)
        return ",".join(last_first[(slot * num + index) % len(gpus)] for index in range(num))
    return last_first[int(slot * each + 1e-9) % len(gpus)]
