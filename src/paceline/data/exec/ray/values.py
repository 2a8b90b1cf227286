"""Blocks as Ray objects, from where they are read without a copy."""

from __future__ import annotations

from typing import Any

from paceline.data.block import Block


def packed(block: Block) -> Any:
    """What to `ray.put`, or to return from a task, for a block."""
    raise NotImplementedError


def unpacked(value: Any) -> Block:
    """The block of what `ray.get` gave for a reference of `blocks_of`, or for what was `packed`."""
    raise NotImplementedError
