"""What lies in a file of `torch.save`, as raw leaves, read without running any code that it may hold."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline._storage.state import RawLeaf


def raw_weights(path: Path) -> Any:
    """The tree in a file, with a `RawLeaf` for each tensor; None where torch cannot read it as plain weights."""
    import torch

    try:
        return _raw(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _raw(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return RawLeaf("tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, Mapping):
        return {key: _raw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_raw(item) for item in value]
    return value
