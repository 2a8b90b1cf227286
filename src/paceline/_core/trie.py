"""An immutable mapping from non-negative integers to values: `put` and `without` return a new one.

The two share what did not change, so an update copies only the nodes from the root to one leaf, with at most 32 entries
each: the cost is about the same for ten entries or ten thousand. No node is ever modified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

V = TypeVar("V")
D = TypeVar("D")

_BITS = 5
_MASK = (1 << _BITS) - 1
_MISSING: Any = object()

_Node = dict[int, Any]
"""By the bits of the key for its level: nodes of the level below, and values at the lowest level."""


class Trie(Generic[V]):
    """Keys are 0 or more. Iterates in key order."""

    __slots__ = ("_len", "_root", "_top")

    def __init__(self) -> None:
        self._root: _Node = {}
        self._top = 0
        """By how many bits a key is shifted at the root."""
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: int) -> bool:
        return self._lookup(key) is not _MISSING

    def __getitem__(self, key: int) -> V:
        value = self._lookup(key)
        if value is _MISSING:
            raise KeyError(key)
        return cast(V, value)

    def get(self, key: int, default: D) -> V | D:
        value = self._lookup(key)
        return default if value is _MISSING else cast(V, value)

    def put(self, key: int, value: V) -> Trie[V]:
        root, top = self._root, self._top
        while key >> top > _MASK:
            root, top = {0: root} if root else {}, top + _BITS
        is_new = self._lookup(key) is _MISSING
        return _build_trie(_insert(root, top, key, value), top, self._len + is_new)

    def without(self, key: int) -> Trie[V]:
        if self._lookup(key) is _MISSING:
            return self
        return _build_trie(_remove(self._root, self._top, key), self._top, self._len - 1)

    def items(self) -> Iterator[tuple[int, V]]:
        return _entries(self._root, self._top, 0)

    def __iter__(self) -> Iterator[int]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        return (value for _, value in self.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trie):
            return NotImplemented
        return self is other or (len(self) == len(other) and list(self.items()) == list(other.items()))

    __hash__ = None  # type: ignore[assignment]  # As of a dict: its values need not have one.

    def __repr__(self) -> str:
        return f"Trie({dict(self.items())})"

    def _lookup(self, key: int) -> Any:
        node, shift = self._root, self._top
        if key >> shift > _MASK:
            return _MISSING
        while shift:
            child = node.get((key >> shift) & _MASK)
            if child is None:
                return _MISSING
            node, shift = child, shift - _BITS
        return node.get(key & _MASK, _MISSING)


def _build_trie(root: _Node, top: int, length: int) -> Trie[Any]:
    trie: Trie[Any] = Trie()
    trie._root, trie._top, trie._len = root, top, length
    return trie


def _insert(node: _Node, shift: int, key: int, value: Any) -> _Node:
    at = (key >> shift) & _MASK
    return {**node, at: _insert(node.get(at, {}), shift - _BITS, key, value) if shift else value}


def _remove(node: _Node, shift: int, key: int) -> _Node:
    at = (key >> shift) & _MASK
    below = _remove(node[at], shift - _BITS, key) if shift else {}
    return {**node, at: below} if below else {other: node[other] for other in node if other != at}


def _entries(node: _Node, shift: int, above: int) -> Iterator[tuple[int, Any]]:
    for at in sorted(node):
        if shift:
            yield from _entries(node[at], shift - _BITS, above | at << shift)
        else:
            yield above | at, node[at]
