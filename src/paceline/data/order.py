"""The order of rows, as a pure function of seed and epoch.

Everything that shuffles sorts by a hash of an index. There is no generator whose state would have to be kept, and the
order of rows is the same on every machine and with every release of NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def hashed(indices: Any, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number of 64 bits for each index, in which nothing of the index can be seen."""
    key = np.uint64(mixed(mixed(seed & _MASK) ^ (epoch & _MASK)))
    values = np.asarray(indices).astype(np.uint64)
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(_GOLDEN) ^ key
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def mixed(value: int) -> int:
    """The same for one Python integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permutation(num: int, seed: int, epoch: int = 0) -> np.ndarray[Any, np.dtype[np.intp]]:
    """An order of 0 to num - 1."""
    return np.argsort(hashed(np.arange(num), seed, epoch), kind="stable")
