"""Objects in the store of a Ray cluster, shared by the workers of many runs."""

from __future__ import annotations

from typing import Any

from paceline._engine.ray.connection import connect_to_cluster, import_ray


def put_object(value: Any, address: str | None = None) -> tuple[Any, bytes]:
    """Put a value into the store. Return a reference, which keeps it there while held, and its pickle for sending."""
    ray = connect_to_cluster(address)
    reference = ray.put(value)
    return reference, ray.cloudpickle.dumps(reference)


def get_object(packed: bytes) -> Any:
    """Return the value, in a worker of the cluster; large arrays in it are read-only views of the store."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init()  # Patched to find the cluster: see `ray_in_worker`.
    return ray.get(ray.cloudpickle.loads(packed))
