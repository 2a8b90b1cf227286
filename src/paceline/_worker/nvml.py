"""Reads GPU usage through the NVIDIA driver's own C library: needs no package, and does not initialise CUDA."""

from __future__ import annotations

import ctypes
from typing import Any

from paceline._engine.messages import GpuUsage

_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: dict[str, ctypes.c_void_p | None] = {}

    @classmethod
    def open(cls) -> Nvml | None:
        """Return None if there is no such driver."""
        try:
            library: Any = ctypes.CDLL(_LIBRARY)
            return cls(library) if library.nvmlInit_v2() == 0 else None
        except (OSError, AttributeError):
            return None

    def use(self, name: str) -> GpuUsage | None:
        """Usage of a GPU as named in `CUDA_VISIBLE_DEVICES`; None if the driver does not tell."""
        handle = self._find_handle(name)
        memory, busy, index = _Memory(), _Utilization(), ctypes.c_uint()
        if handle is None or self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        if self._library.nvmlDeviceGetIndex(handle, ctypes.byref(index)):
            return None
        unknown = self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
        return GpuUsage(index.value, memory.used, memory.total, -1.0 if unknown else busy.gpu / 100)

    def _find_handle(self, name: str) -> ctypes.c_void_p | None:
        if name not in self._handles:
            handle = ctypes.c_void_p()
            if name.isdigit():
                problem = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                problem = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            self._handles[name] = None if problem else handle
        return self._handles[name]
