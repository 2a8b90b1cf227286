"""How batches get to a device: their tensors are moved, and on a GPU the next batch travels while one is used."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """The batch with its tensors on the device: in dicts, lists, tuples, named tuples and dataclasses, however deep.

    An object with a `to` method is asked to move itself; anything else is passed on as it is.
    """
    to = getattr(type(batch), "to", None)
    if callable(to):
        if non_blocking and _takes_non_blocking(to):
            return batch.to(device, non_blocking=True)
        return batch.to(device)

    def move(item: Any) -> Any:
        return moved(item, device, non_blocking=non_blocking)

    if isinstance(batch, Mapping):
        return _mapping(batch, {name: move(item) for name, item in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(move, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(move, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _dataclass(batch, move)
    return batch


def moved_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Hands out batches on a GPU. While one is used, the next one is copied, on a stream beside the current one."""
    import torch

    beside = _stream_beside(device)
    on_the_way: list[Any] = []
    for batch in batches:
        current = torch.cuda.current_stream(device)
        if on_the_way:
            # Before the next copy is begun, or we would wait for that one too.
            current.wait_stream(beside)
        # The copy may land in the memory of a batch that Python has let go of: the work that was begun on it comes
        # first. It is the work of the step before, so there is all of the coming step left to copy in. Unlike
        # `record_stream`, this also covers tensors inside objects that we cannot look into.
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            on_the_way.append(moved(batch, device, non_blocking=True))
        if len(on_the_way) > 1:
            yield on_the_way.pop(0)
    if on_the_way:
        torch.cuda.current_stream(device).wait_stream(beside)
        yield on_the_way.pop()


@functools.cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    """One for all loaders of the process: memory that a stream has used is kept for that stream."""
    import torch

    return torch.cuda.Stream(device)


@functools.cache
def _takes_non_blocking(to: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(to).parameters.values()
    except ValueError:
        # Written in C, as that of a tensor is.
        return True
    return any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in parameters)


def _mapping(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return items
    if isinstance(batch, MutableMapping):
        # A copy keeps what the type has beside its items, such as the factory of a defaultdict.
        clone = copy.copy(batch)
        clone.update(items)
        return clone
    return type(batch)(items)  # type: ignore[call-arg]


def _dataclass(batch: Any, move: Callable[[Any], Any]) -> Any:
    clone = copy.copy(batch)
    for field in dataclasses.fields(batch):
        if hasattr(batch, field.name):
            object.__setattr__(clone, field.name, move(getattr(batch, field.name)))
    return clone
