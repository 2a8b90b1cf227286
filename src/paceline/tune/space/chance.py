"""Randomness by name: what is drawn depends on a key alone, not on what was drawn before, where, or in which order.

The numbers come from a hash of the key, so that they are the same in every process and every version of Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Iterator

_BITS = 52
"""As many as leave a float that is neither 0 nor 1."""


class Chance:
    """A stream of random numbers that is named by a key: the same key gives the same stream."""

    def __init__(self, *key: int | str) -> None:
        self._key = json.dumps(key).encode()
        self._num_drawn = 0

    def unit(self) -> float:
        """Uniform between 0 and 1, and never either of them."""
        return ((self._integer(8) >> (64 - _BITS)) + 0.5) / (1 << _BITS)

    def below(self, count: int) -> int:
        """Uniform of 0, 1, ..., `count` - 1; any `count`."""
        # With 64 bits more than needed, what is left over by the division is too rare to be seen.
        return self._integer(count.bit_length() // 8 + 9) % count

    def _integer(self, num_bytes: int) -> int:
        self._num_drawn += 1
        return int.from_bytes(hashlib.shake_256(b"%s#%d" % (self._key, self._num_drawn)).digest(num_bytes))


@contextlib.contextmanager
def global_generators(chance: Chance) -> Iterator[None]:
    """`random` and `numpy.random` seeded by `chance` inside the block, and as they were after it."""
    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(chance.below(1 << 64))
    np.random.seed(chance.below(1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
