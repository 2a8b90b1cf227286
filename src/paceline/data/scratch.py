"""Reusable memory for arrays that are concatenated from others.

Getting pages from the system takes as long as filling them, and large arrays get new pages every time. Arrays created
here return their memory when their last view is gone.
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
"""Maximum number of unused bytes to keep."""


class _ScratchMemory:
    def __init__(self) -> None:
        # Protects the fields below. Reentrant: the garbage collector may return memory while some is being taken.
        self._lock = threading.RLock()
        self._free: list[mmap.mmap] = []
        self._num_free = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> np.ndarray[Any, Any]:
        memory = self._take_memory(nbytes)
        base: Any = (ctypes.c_char * nbytes).from_buffer(memory)
        weakref.finalize(base, self._give_back, memory).atexit = False
        return np.ndarray(shape, dtype, base)

    def _take_memory(self, nbytes: int) -> mmap.mmap:
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


_scratch = _ScratchMemory()


def concatenate_arrays(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Like `numpy.concatenate`, for arrays whose rows have the same shape."""
    dtype = np.result_type(*arrays)
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if nbytes < _WORTH_KEEPING or dtype.hasobject:
        return np.concatenate(arrays)
    return np.concatenate(arrays, out=_scratch.array(shape, dtype, nbytes))
