"""The outline of a state: the position of each tensor, by name, and all other values.

    {"model": {"weight": <tensor>}, "epoch": 3}
    {"dict": {"model": {"dict": {"weight": {"tensor": "model.weight"}}}, "epoch": {"value": 3}}}

Names are those of `torch.distributed.checkpoint`: the keys of the path, joined by dots. A list or tuple without tensors
is a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline._storage.state_tree import encode_tree

if TYPE_CHECKING:
    import torch

Outline = dict[str, Any]
"""One of `{"dict": {key: outline}}`, `{"list": [outline]}`, `{"tuple": [outline]}`, `{"tensor": name}`, `{"value": x}`.
"""


def make_outline(tree: Any, path: tuple[Any, ...] = (), *, into: dict[str, torch.Tensor]) -> Outline:
    """Return the outline of a tree and collect its tensors in `into`.

    Raises `TypeError` with the path of a value that cannot be stored.
    """
    import torch

    if isinstance(tree, torch.Tensor):
        name = ".".join(map(str, path))
        if name in into:
            raise ValueError(
                f"two tensors of the state have the name {name!r}: names are keys joined by dots\n\n"
                "hint: rename one of the keys"
            )
        into[name] = tree
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {"dict": {key: make_outline(value, (*path, key), into=into) for key, value in tree.items()}}
    if type(tree) in (list, tuple) and _holds_tensor(tree):
        kind = type(tree).__name__
        return {kind: [make_outline(value, (*path, index), into=into) for index, value in enumerate(tree)]}
    # Rejected here, where the path is the user's own.
    encode_tree(tree, path="state" + "".join(f"[{key!r}]" for key in path), allow_pickle=False)
    return {"value": tree}


def rebuild_tree(outline: Outline, tensor: Callable[[str], Any]) -> Any:
    """Rebuild the tree, with `tensor(name)` in place of each tensor."""
    ((kind, content),) = outline.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "dict":
        return {key: rebuild_tree(below, tensor) for key, below in content.items()}
    if kind in ("list", "tuple"):
        items = [rebuild_tree(below, tensor) for below in content]
        return items if kind == "list" else tuple(items)
    if kind == "value":
        return content
    raise ValueError(f"this version of Paceline cannot read values of kind {kind!r}")


def iterate_tensor_names(outline: Outline) -> Iterator[str]:
    """Yield the names of all tensors."""
    ((kind, content),) = outline.items()
    if kind == "tensor":
        yield content
    elif kind in ("dict", "list", "tuple"):
        for below in content.values() if kind == "dict" else content:
            yield from iterate_tensor_names(below)


def iterate_values(outline: Outline, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of everything that is not a tensor."""
    ((kind, content),) = outline.items()
    if kind == "value":
        yield ".".join(map(str, path)), content
    elif kind != "tensor":
        for key, below in content.items() if kind == "dict" else enumerate(content):
            yield from iterate_values(below, (*path, key))


def merge_outlines(one: Outline, other: Outline) -> Outline:
    """Merge two outlines; where they differ, the first wins."""
    if "dict" not in one or "dict" not in other:
        return one
    both = dict(one["dict"])
    for key, below in other["dict"].items():
        both[key] = merge_outlines(both[key], below) if key in both else below
    return {"dict": both}


def _holds_tensor(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    return type(value) in (list, tuple) and any(map(_holds_tensor, value))
