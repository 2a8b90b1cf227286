"""Batches as torch tensors, and their transfer to a device: a GPU receives the next batch while one is used.

Number columns become tensors without a copy if NumPy's memory is writable.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from paceline._core.arguments import bad_value
from paceline.data.batches import dtype_of

if TYPE_CHECKING:
    import torch

    Dtypes: TypeAlias = torch.dtype | Mapping[str, torch.dtype] | None

Array = np.ndarray[Any, Any]

_SHARED = frozenset(map(np.dtype, ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")))
"""The types of which torch and NumPy can share the memory."""
_WIDENED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
"""Torch supports these types in name only: few operations accept them."""


def resolve_device(device: Any) -> torch.device:
    """Resolve the `device` argument. A function is called."""
    import torch

    if callable(device) and not isinstance(device, torch.device):  # a torch.device is callable too
        device = device()
    try:
        return torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must be 'auto', a name such as 'cpu' or 'cuda:0', a torch.device or None, got {device!r} ({error})"
        ) from None


def check_dtypes(dtypes: Any) -> None:
    import torch

    for dtype in dtypes.values() if isinstance(dtypes, Mapping) else (dtypes,):
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise bad_value("dtypes", "a torch.dtype or a dict from columns to torch.dtypes", dtypes)


def check_pinning(pin_memory: bool) -> None:
    import torch

    if pin_memory and not torch.cuda.is_available():
        raise ValueError("pin_memory=True needs a GPU: torch.cuda.is_available() is False here\n\nhint: leave it out")


def make_tensors(batch: Mapping[str, Array], dtypes: Dtypes = None) -> dict[str, torch.Tensor]:
    """Create a tensor for each column. `dtypes` applies to all columns, or to those it names."""
    if dtypes is None:
        return {name: make_tensor(name, values) for name, values in batch.items()}
    return {name: make_tensor(name, values, dtype_of(dtypes, name)) for name, values in batch.items()}


def make_tensor(name: str, values: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Convert one column. Raises with the column's name if torch has no such type."""
    import torch

    flags = values.flags
    if values.dtype in _SHARED and flags.writeable and flags.c_contiguous:
        tensor = torch.from_numpy(values)
        return tensor if dtype is None else tensor.to(dtype)
    _check_numbers(name, values)
    if values.dtype in _WIDENED:
        values = values.astype(_WIDENED[values.dtype])
    elif not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    elif not values.flags.writeable or (not values.flags.c_contiguous and min(values.strides) < 0):
        values = values.copy()
    try:
        tensor = torch.from_numpy(values)
    except TypeError as error:
        raise TypeError(f"cannot convert the column {name!r} of type {values.dtype} to a tensor") from error
    return tensor if dtype is None else tensor.to(dtype)


def _check_numbers(name: str, values: Array) -> None:
    if values.dtype.kind not in "biufc":
        raise TypeError(f"the column {name!r} {_why_no_tensor(values)}")


def _why_no_tensor(values: Array) -> str:
    if values.dtype.kind in "mM":
        return f"has {values.dtype} values, and torch has no dates\n\nhint: convert it to numbers in map_batches"
    shapes = {value.shape for value in values.flat if isinstance(value, np.ndarray)} if values.dtype == object else ()
    if shapes:
        return _explain_shapes(shapes)
    first = next((value for value in values.flat if value is not None), None)
    hint = "drop it with drop_columns, or convert it in a collate_fn"
    return f"has values of type {type(first).__name__}, which cannot be a tensor\n\nhint: {hint}"


def _explain_shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    examples = " and ".join(map(str, sorted(shapes)[:2]))
    return (
        f"has arrays of different shapes, such as {examples}, which cannot be a tensor\n\n"
        "hint: pad them to one shape in map_batches or in a collate_fn, or drop the column"
    )


# Transfer to a device


def move_batch(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Move the tensors of a batch to the device: in dicts, lists, tuples, named tuples and dataclasses, at any depth.

    An object with a `to` method moves itself; anything else is passed on unchanged.
    """

    def move(item: Any, to: Callable[..., Any]) -> Any:
        if non_blocking and _takes_non_blocking(to):
            return item.to(device, non_blocking=True)
        return item.to(device)

    return _map_items(batch, "to", move)


def pin_batch(batch: Any, device: torch.device) -> Any:
    """Copy a batch to pinned memory, from which a GPU copies asynchronously."""
    import torch

    def pin(item: Any, method: Callable[..., Any]) -> Any:
        if not isinstance(item, torch.Tensor):
            return item.pin_memory()
        if item.device.type != "cpu" or item.layout is not torch.strided:
            return item  # already on a GPU, or of a kind that cannot be pinned
        if type(item) is not torch.Tensor or item.requires_grad or (values := _as_array(item)) is None:
            return method(item)
        target = torch.empty_like(item, pin_memory=True)
        _copy(values, target)
        return target

    # In a separate thread the current GPU is the first one, whichever one the worker uses.
    with torch.cuda.device(device if device.type == "cuda" else None):
        return _map_items(batch, "pin_memory", pin)


def concat_parts(parts: Sequence[Mapping[str, Array]], dtypes: Dtypes, *, pin_memory: bool) -> dict[str, torch.Tensor]:
    """Concatenate the parts to one tensor per column, of the requested dtype or one that holds all parts.

    Torch manages and reuses pinned memory. Allocating it for each batch would take longer than the copy.
    """
    return {
        name: _concat_column(name, [part[name] for part in parts], dtype_of(dtypes, name), pin_memory)
        for name in parts[0]
    }


def _concat_column(name: str, parts: Sequence[Array], dtype: torch.dtype | None, pin_memory: bool) -> torch.Tensor:
    import torch

    for part in parts:
        _check_numbers(name, part)
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise TypeError(f"the column {name!r} {_explain_shapes(shapes)}")
    dtype = make_tensor(name, np.empty(0, np.result_type(*parts)), dtype).dtype
    target = torch.empty((sum(map(len, parts)), *shapes.pop()), dtype=dtype, pin_memory=pin_memory)
    begin = 0
    for part in parts:
        _copy(part, target[begin : begin + len(part)])
        begin += len(part)
    return target


def _copy(values: Array, target: torch.Tensor) -> None:
    """Copy with NumPy, in this thread only.

    Torch would start a thread on each core, which then spins while waiting for more work: on 16 cores these took a
    quarter of the CPU time of the processes that decode images.
    """
    memory = _as_array(target)
    if memory is None:
        target.copy_(make_tensor("", values))
        return
    with np.errstate(invalid="ignore"):
        np.copyto(memory, values, casting="unsafe")


def _as_array(tensor: torch.Tensor) -> Array | None:
    """Return the memory of a tensor as an array; None if NumPy lacks its dtype or the tensor is conjugated."""
    try:
        array: Array = tensor.numpy()
    except (TypeError, RuntimeError):
        return None
    return array


def move_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a GPU. While one is used, the next is copied on a second stream."""
    import torch

    copy_stream = _copy_stream(device)
    in_transfer: list[Any] = []
    for batch in batches:
        current = torch.cuda.current_stream(device)
        if in_transfer:
            # Before the next copy starts, or this would wait for that one too.
            current.wait_stream(copy_stream)
        # The copy may reuse the memory of a batch that Python has released, so work queued on that batch must finish
        # first. That is the work of the previous step, which leaves the whole coming step for the copy. Unlike
        # `record_stream`, this also covers tensors inside objects that we cannot inspect.
        copy_stream.wait_stream(current)
        with torch.cuda.stream(copy_stream):
            in_transfer.append(move_batch(batch, device, non_blocking=True))
        if len(in_transfer) > 1:
            yield in_transfer.pop(0)
    if in_transfer:
        torch.cuda.current_stream(device).wait_stream(copy_stream)
        yield in_transfer.pop()


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the copy stream, shared by all loaders: memory that a stream has used is cached for that stream."""
    import torch

    return torch.cuda.Stream(device)


@functools.cache
def _takes_non_blocking(to: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(to).parameters.values()
    except ValueError:
        # Implemented in C, like that of a tensor.
        return True
    return any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in parameters)


def _map_items(batch: Any, method: str, change: Callable[[Any, Callable[..., Any]], Any]) -> Any:
    """Apply `change` to everything in a batch that has the method. It receives the object and its type's method."""
    function = getattr(type(batch), method, None)
    if callable(function):
        return change(batch, function)

    def map_item(item: Any) -> Any:
        return _map_items(item, method, change)

    if isinstance(batch, Mapping):
        return _rebuild_mapping(batch, {name: map_item(item) for name, item in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(map_item, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(map_item, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _rebuild_dataclass(batch, map_item)
    return batch


def _rebuild_mapping(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return items
    if isinstance(batch, MutableMapping):
        # A copy keeps what the type has besides its items, such as the factory of a defaultdict.
        clone = copy.copy(batch)
        clone.update(items)
        return clone
    return type(batch)(items)  # type: ignore[call-arg]


def _rebuild_dataclass(batch: Any, change: Callable[[Any], Any]) -> Any:
    clone = copy.copy(batch)
    for field in dataclasses.fields(batch):
        if hasattr(batch, field.name):
            object.__setattr__(clone, field.name, change(getattr(batch, field.name)))
    return clone
