"""Which devices this worker computes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.train.session import _context

if TYPE_CHECKING:
    import torch


def get_device() -> torch.device:
    """The GPU that this worker was given, the first of several; the CPU where it was given none."""
    return _devices("get_device")[0]


def get_devices() -> list[torch.device]:
    """All GPUs that this worker was given; the CPU alone where it was given none."""
    return _devices("get_devices")


def _devices(function: str) -> list[torch.device]:
    given = _context(function).begin.devices
    import torch

    return [torch.device("cuda", index) for index in given] or [torch.device("cpu")]
