"""The order of rows as a pure function of seed and epoch.

Every shuffle sorts by a hash of an index. There is no generator state to save, and the order is the same on every
machine and with every NumPy release.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def hash_indices(indices: Any, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hash each index to 64 bits that look random."""
    key = np.uint64(mix_bits(mix_bits(seed & _MASK) ^ (epoch & _MASK)))
    values = np.asarray(indices).astype(np.uint64)
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(_GOLDEN) ^ key
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def mix_bits(value: int) -> int:
    """Hash one Python integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permutation(num: int, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return a permutation of 0 to num - 1."""
    return np.argsort(hash_indices(np.arange(num), seed, epoch), kind="stable")
