"""Keyed randomness: a draw depends only on its key, not on earlier draws, the process or the order.

The numbers come from a hash of the key, so they are the same in every process and every version of Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Iterator

_BITS = 52
"""The number of bits for which a float is never 0 or 1."""


class KeyedRandom:
    """A stream of random numbers identified by a key: the same key gives the same stream."""

    def __init__(self, *key: int | str) -> None:
        self._key = json.dumps(key).encode()
        self._num_drawn = 0

    def draw_unit(self) -> float:
        """Draw uniformly between 0 and 1, both excluded."""
        return ((self._draw_integer(8) >> (64 - _BITS)) + 0.5) / (1 << _BITS)

    def draw_below(self, count: int) -> int:
        """Draw uniformly from 0, 1, ..., `count` - 1; any `count`."""
        # With 64 extra bits, the bias of the modulo is negligible.
        return self._draw_integer(count.bit_length() // 8 + 9) % count

    def _draw_integer(self, num_bytes: int) -> int:
        self._num_drawn += 1
        return int.from_bytes(hashlib.shake_256(b"%s#%d" % (self._key, self._num_drawn)).digest(num_bytes))


@contextlib.contextmanager
def seed_global_generators(chance: KeyedRandom) -> Iterator[None]:
    """Seed `random` and `numpy.random` from `chance` inside the block, and restore their state afterwards."""
    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(chance.draw_below(1 << 64))
    np.random.seed(chance.draw_below(1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
