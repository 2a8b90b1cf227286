"""The shape of a state: where in it each tensor stands, by name, and every other value itself.

    {"model": {"weight": <tensor>}, "epoch": 3}
    {"dict": {"model": {"dict": {"weight": {"tensor": "model.weight"}}}, "epoch": {"value": 3}}}

Names are those that `torch.distributed.checkpoint` gives: the keys on the way, joined by dots. A list or tuple that
holds no tensor is a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline._storage.tree import encoded

if TYPE_CHECKING:
    import torch

Outline = dict[str, Any]
"""One of `{"dict": {key: outline}}`, `{"list": [outline]}`, `{"tuple": [outline]}`, `{"tensor": name}`, `{"value": x}`.
"""


def outlined(tree: Any, path: tuple[Any, ...] = (), *, into: dict[str, torch.Tensor]) -> Outline:
    """The outline of a tree; its tensors are put into `into`. A value that cannot be stored is a TypeError by path."""
    import torch

    if isinstance(tree, torch.Tensor):
        name = ".".join(map(str, path))
        if name in into:
            raise ValueError(
                f"two tensors of the state are both called {name!r}, for names are keys joined by dots\n\n"
                "hint: rename one of the keys"
            )
        into[name] = tree
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {"dict": {key: outlined(value, (*path, key), into=into) for key, value in tree.items()}}
    if type(tree) in (list, tuple) and _holds_tensor(tree):
        kind = type(tree).__name__
        return {kind: [outlined(value, (*path, index), into=into) for index, value in enumerate(tree)]}
    # Refused here, where the path is the user's own.
    encoded(tree, path="state" + "".join(f"[{key!r}]" for key in path), allow_pickle=False)
    return {"value": tree}


def rebuilt(outline: Outline, tensor: Callable[[str], Any]) -> Any:
    """The tree again, with `tensor(name)` in the place of each tensor."""
    ((kind, content),) = outline.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "dict":
        return {key: rebuilt(below, tensor) for key, below in content.items()}
    if kind in ("list", "tuple"):
        items = [rebuilt(below, tensor) for below in content]
        return items if kind == "list" else tuple(items)
    if kind == "value":
        return content
    raise ValueError(f"{kind!r} is no kind of value that this version of Paceline knows")


def names_in(outline: Outline) -> Iterator[str]:
    """Of all tensors."""
    ((kind, content),) = outline.items()
    if kind == "tensor":
        yield content
    elif kind in ("dict", "list", "tuple"):
        for below in content.values() if kind == "dict" else content:
            yield from names_in(below)


def values_in(outline: Outline, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The name and value of everything else."""
    ((kind, content),) = outline.items()
    if kind == "value":
        yield ".".join(map(str, path)), content
    elif kind != "tensor":
        for key, below in content.items() if kind == "dict" else enumerate(content):
            yield from values_in(below, (*path, key))


def merged(one: Outline, other: Outline) -> Outline:
    """Both together; where they differ, the first counts."""
    if "dict" not in one or "dict" not in other:
        return one
    both = dict(one["dict"])
    for key, below in other["dict"].items():
        both[key] = merged(both[key], below) if key in both else below
    return {"dict": both}


def _holds_tensor(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    return type(value) in (list, tuple) and any(map(_holds_tensor, value))
