"""Read a `torch.save` file as raw leaves, without running code from it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline._storage.state import RawLeaf


def read_raw_weights(path: Path) -> Any:
    """Return the tree in a file, with a `RawLeaf` per tensor; None if torch cannot read it as plain weights."""
    import torch

    try:
        return _to_raw(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _to_raw(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return RawLeaf("tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, Mapping):
        return {key: _to_raw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_raw(item) for item in value]
    return value
