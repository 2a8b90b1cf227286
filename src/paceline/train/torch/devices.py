"""The devices of this worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.train.session import _require_context

if TYPE_CHECKING:
    import torch


def get_device() -> torch.device:
    """Return the first GPU assigned to this worker, or the CPU if it has none."""
    return _assigned_devices("get_device")[0]


def get_devices() -> list[torch.device]:
    """Return all GPUs assigned to this worker, or only the CPU if it has none."""
    return _assigned_devices("get_devices")


def _assigned_devices(function: str) -> list[torch.device]:
    given = _require_context(function).begin.devices
    import torch

    return [torch.device("cuda", index) for index in given] or [torch.device("cpu")]
