"""Reproducible runs: the same random numbers and algorithms, as far as torch allows."""

from __future__ import annotations

import os
import random
import sys

from paceline._core.arguments import bad_value

_seed: int | None = None


def enable_reproducibility(seed: int = 0) -> None:
    """Seed `random`, NumPy and torch, the same on every rank, and restrict torch to deterministic algorithms.

    Operations without a deterministic algorithm then raise. The worker processes of loaders prepared afterwards are
    seeded from seed, rank and epoch only: no two draw the same numbers, and a run that resumes at an epoch draws what
    an uninterrupted run would have drawn.
    """
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise bad_value("seed", "an integer from 0 to 2**63 - 1", seed)
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    _seed_numpy(seed)
    # cuBLAS reads this at the first matrix product on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _use_deterministic_algorithms()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    global _seed
    _seed = seed


def enabled_seed() -> int | None:
    """The seed passed to `enable_reproducibility` in this process."""
    return _seed


def derive_seed(seed: int, rank: int, epoch: int) -> int:
    """Return an independent seed for one rank in one epoch."""
    return random.Random(f"{seed} {rank} {epoch}").getrandbits(63)


def _use_deterministic_algorithms() -> None:
    """Like torch's function, which also imports the compiler to configure it: seconds on every worker."""
    import torch

    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_deterministic_debug_mode("error")


def _seed_numpy(seed: int) -> None:
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % (1 << 32))
