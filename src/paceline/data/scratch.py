"""Memory for arrays that are put together from others, used again.

To get pages from the system takes as long as to fill them, and large arrays get theirs anew every time. What is made
here gives its memory back when the last view of it is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

_WORTH_KEEPING = 1 << 20
_MOST_KEPT = 512 << 20
"""Bytes that nobody uses and that are still held."""


class _Scratch:
    def __init__(self) -> None:
        # Protects what is below. Reentrant: the garbage collector may give memory back while some is taken.
        self._lock = threading.RLock()
        self._free: list[mmap.mmap] = []
        self._num_free = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> np.ndarray[Any, Any]:
        memory = self._taken(nbytes)
        base: Any = (ctypes.c_char * nbytes).from_buffer(memory)
        weakref.finalize(base, self._give_back, memory).atexit = False
        return np.ndarray(shape, dtype, base)

    def _taken(self, nbytes: int) -> mmap.mmap:
        with self._lock:
            fitting = [memory for memory in self._free if nbytes <= len(memory) <= 2 * nbytes]
            if fitting:
                memory = min(fitting, key=len)
                self._free.remove(memory)
                self._num_free -= len(memory)
                return memory
        return mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _give_back(self, memory: mmap.mmap) -> None:
        with self._lock:
            self._free.append(memory)
            self._num_free += len(memory)
            while self._num_free > _MOST_KEPT:
                self._num_free -= len(self._free.pop(0))


_scratch = _Scratch()


def concatenated(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The same as `numpy.concatenate`, of arrays whose rows have one shape."""
    dtype = np.result_type(*arrays)
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if nbytes < _WORTH_KEEPING or dtype.hasobject:
        return np.concatenate(arrays)
    made = _scratch.array(shape, dtype, nbytes)
    np.concatenate(arrays, out=made)
    return made
