"""Batches as JAX arrays. 64-bit types become 32-bit unless JAX is configured to keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from paceline._core.arguments import check_instance
from paceline.data.batches import dtype_of, import_framework


def check_dtypes(dtypes: Any) -> None:
    for dtype in dtypes.values() if isinstance(dtypes, Mapping) else (dtypes,):
        try:
            np.dtype(dtype)
        except TypeError as error:
            expected = "a type such as jax.numpy.float32, or a dict from columns to types"
            raise ValueError(f"dtypes must be {expected}, got {dtypes!r} ({error})") from None


def check_target(device: Any, sharding: Any) -> Any:
    """Return where arrays go: a device, a sharding, or None for JAX's default."""
    jax = import_framework("JAX")
    if device is not None and sharding is not None:
        raise ValueError("device and sharding cannot be combined: a sharding includes the devices")
    check_instance("device", device, jax.Device, "one of jax.devices()", optional=True)
    check_instance("sharding", sharding, jax.sharding.Sharding, "a jax.sharding.Sharding", optional=True)
    return device if device is not None else sharding


def check_even_batches(target: Any, drop_last: bool) -> None:
    """Require `drop_last` if arrays span several workers: their batches must have the same number of rows."""
    if _spans_workers(target) and not drop_last:
        raise ValueError(
            "drop_last must be True with a sharding over several workers, got False: their last batches may differ in "
            f"size (sharding={target!r})\n\nhint: pass drop_last=True"
        )


def leaves_host(target: Any) -> bool:
    """Whether arrays leave host memory."""
    jax = import_framework("JAX")
    if target is None:
        return bool(jax.default_backend() != "cpu")
    devices = target.device_set if hasattr(target, "device_set") else [target]
    return any(device.platform != "cpu" for device in devices)


def check_arrays(batch: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a batch by column; a single array has the name ""."""
    arrays = dict(batch) if isinstance(batch, Mapping) else {"": batch}
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray):
            of = f" of {name!r}" if name else ""
            raise TypeError(f"collate_fn must return an array or a dict of arrays, got {type(values).__name__}{of}")
    return arrays


def pad_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], paddings: Any, num_rows: int) -> dict[str, Any]:
    """Fill each array up to `num_rows` rows."""
    return {name: _pad_array(name, values, paddings, num_rows) for name, values in arrays.items()}


def _pad_array(name: str, values: np.ndarray[Any, Any], paddings: Any, num_rows: int) -> np.ndarray[Any, Any]:
    if len(values) >= num_rows:
        return values
    padding = dtype_of(paddings, name)
    if padding is None:
        raise ValueError(f"paddings must have a value for each column, got none for {name!r}: {paddings!r}")
    filled = np.full((num_rows - len(values), *values.shape[1:]), padding).astype(values.dtype)
    if not np.array_equal(filled, np.full(filled.shape, padding), equal_nan=values.dtype.kind == "f"):
        raise ValueError(f"paddings must fit the type of each column, got {padding!r} for {name!r} of {values.dtype}")
    return np.concatenate([values, filled])


def compare_shapes(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raise an error if another process of JAX has a batch of other shapes."""
    jax = import_framework("JAX")
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils

    shapes = {name: values.shape for name, values in sorted(arrays.items())}
    digest = xxhash.xxh32_intdigest(repr(shapes).encode()) & 0x7FFFFFFF
    found = multihost_utils.process_allgather(np.array([digest], np.int32)).reshape(-1)
    if (found != digest).any():
        raise ValueError(f"batches must have the same shapes on all workers, got {shapes} here and others elsewhere")


def make_arrays(batch: Mapping[str, np.ndarray[Any, Any]], dtypes: Any = None, target: Any = None) -> dict[str, Any]:
    """Create an array for each column. `dtypes` applies to all columns, or to those it names.

    With a sharding over the devices of several workers, each result is one global array, and this batch is the part of
    this worker.
    """
    jax = import_framework("JAX")
    arrays = {name: _to_array(name, values, dtype_of(dtypes, name)) for name, values in batch.items()}
    if _spans_workers(target):
        return {name: jax.make_array_from_process_local_data(target, values) for name, values in arrays.items()}
    put: dict[str, Any] = jax.device_put(arrays, target)
    return put


def _spans_workers(target: Any) -> bool:
    return isinstance(target, import_framework("JAX").sharding.Sharding) and not target.is_fully_addressable


def _to_array(name: str, values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"cannot convert the column {name!r} of type {values.dtype} to a JAX array\n\n"
            "hint: convert it to numbers of one shape in map_batches, or drop it with drop_columns"
        )
    return values if dtype is None else values.astype(dtype, copy=False)
