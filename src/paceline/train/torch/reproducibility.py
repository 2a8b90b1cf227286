"""The same numbers and the same algorithms in every run, as far as torch can promise it."""

from __future__ import annotations

import os
import random
import sys

_seed: int | None = None


def enable_reproducibility(seed: int = 0) -> None:
    """Seed `random`, NumPy and torch, alike on every rank, and let torch use deterministic algorithms only.

    From then on an operation that has no deterministic algorithm raises. The worker processes of loaders that are
    prepared afterwards are seeded from the seed, the rank and the epoch alone, so no two draw the same numbers, and
    a run that continues at an epoch draws what the uninterrupted one would have drawn there.
    """
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ValueError(f"seed={seed!r} is not a whole number from 0 to 2**63 - 1")
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    _seed_numpy(seed)
    # cuBLAS looks at this when a GPU is first used for a matrix product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _use_deterministic_algorithms()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    global _seed
    _seed = seed


def enabled_seed() -> int | None:
    """The seed that `enable_reproducibility` was given in this process."""
    return _seed


def seed_for(seed: int, rank: int, epoch: int) -> int:
    """A seed for one rank in one epoch; neighbours have nothing in common."""
    return random.Random(f"{seed} {rank} {epoch}").getrandbits(63)


def _use_deterministic_algorithms() -> None:
    """What torch's function of this name does, which imports the compiler to tell it: seconds on every worker."""
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
