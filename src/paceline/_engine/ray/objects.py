"""Objects in the store of a Ray cluster, which workers of many runs share."""

from __future__ import annotations

from typing import Any

from paceline._engine.ray.connect import connected, imported


def put(value: Any, address: str | None = None) -> tuple[Any, bytes]:
    """Put a value there, once: a reference, for as long as which is held here it stays, and the same to be sent."""
    ray = connected(address)
    reference = ray.put(value)
    return reference, ray.cloudpickle.dumps(reference)


def got(packed: bytes) -> Any:
    """The value, in a worker of the cluster; large arrays in it are views of the store that cannot be written to."""
    ray = imported()
    if not ray.is_initialized():
        ray.init()  # As a guest of the cluster: see `guest`.
    return ray.get(ray.cloudpickle.loads(packed))
