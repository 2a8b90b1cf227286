"""Objects in the store of a Ray cluster, which workers of many runs share."""

from __future__ import annotations

from typing import Any

from paceline._engine.ray.connect import connected, imported


def put(value: Any, address: str | None = None) -> Any:
    """A reference to a value, which is put there once and stays for as long as this process has the reference."""
    return connected(address).put(value)


def got(reference: Any) -> Any:
    """The value; large arrays in it are views of the store, which cannot be written to."""
    return imported().get(reference)
