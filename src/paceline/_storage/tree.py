"""A state as a tree of plain JSON nodes, and back. Knows neither files nor memory.

What JSON has is written as itself. Every other value is an object of one key that starts with `$`, such as
`{"$tuple": [1, 2]}`; a dict that would look like one is written as `{"$dict": [[key, value], ...]}`. Tensors,
arrays and bytes stand as `{"$leaf": 3}`, the number of a leaf that the caller stores and restores.
"""

import base64
import enum
import math
import reprlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NoReturn

from paceline._storage.leaves import Leaf, Objection, leaf_of, pickled, restored_scalar, small_node

MAX_DEPTH = 64
"""Of nested containers: reading takes up to five frames for each, and the interpreter allows 1000 in all."""

_INT_LIMIT = 1 << 63
_SETS: dict[type, str] = {set: "$set", frozenset: "$frozenset"}
_MAPPINGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
_CONTAINERS = frozenset((list, tuple, *_SETS, *_MAPPINGS))
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MADE_OF = "numbers, strings, bytes, None, lists, tuples, dicts, sets, numpy arrays and torch tensors"
_PLAIN = "numbers, strings, bytes, None, and tuples of these"


class _Attribute(str):
    """A step in a path that is an attribute and not a key."""


class _Missing:
    """Stands for no node, where None is one."""


def encoded(tree: Any, *, path: str, allow_pickle: bool) -> tuple[Any, list[Leaf]]:
    """The tree in JSON and its leaves by number; a value that has no place in a state is refused by path."""
    encoding = _Encoding(path, allow_pickle)
    return encoding.node(tree), encoding.leaves


def decoded(node: Any, *, path: str, makers: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The tree that was encoded. `makers` make what is not Python's own from what is under its `$` key."""
    return _Decoding(path, makers).value(node)


class _Encoding:
    def __init__(self, path: str, allow_pickle: bool) -> None:
        self.leaves: list[Leaf] = []
        self._path = path
        self._allow_pickle = allow_pickle
        # Keys on the way to the value at hand: a path is put into words only when it is needed.
        self._trail: list[Any] = []
        self._open: set[int] = set()
        self._numbers: dict[Hashable, int] = {}

    def node(self, value: Any) -> Any:
        kind = type(value)
        if kind in _CONTAINERS:
            return self._container(value, kind)
        if kind is not bytes and (atom := _atom(value)) is not _Missing:
            return atom
        try:
            node = small_node(value)
            if node is not None:
                return node
            keyed = leaf_of(value)
            if keyed is None:
                raise _objection(value)
            return self._leaf(*keyed)
        except Objection as objection:
            return self._pickled(value, objection)

    def _container(self, value: Any, kind: type) -> Any:
        if id(value) in self._open:
            self._refuse(Objection("contains itself", "a state is a tree: break the circle"))
        if len(self._trail) >= MAX_DEPTH:
            self._refuse(Objection(f"is nested deeper than {MAX_DEPTH} levels", "flatten it"))
        self._open.add(id(value))
        self._trail.append(None)
        node: Any
        if kind in _MAPPINGS:
            node = self._mapping(value, kind)
        elif kind in _SETS:
            node = {_SETS[kind]: self._elements(value)}
        else:
            node = self._items(value) if kind is list else {"$tuple": self._items(value)}
        self._trail.pop()
        self._open.remove(id(value))
        return node

    def _items(self, value: Iterable[Any]) -> list[Any]:
        nodes = []
        for index, item in enumerate(value):
            self._trail[-1] = index
            nodes.append(self.node(item))
        return nodes

    def _mapping(self, value: Any, kind: type) -> Any:
        keys, nodes = [], []
        simple = kind is dict
        for key, item in value.items():
            self._trail[-1] = key
            simple = simple and type(key) is str and key[:1] != "$"
            keys.append(self._key(key, "key"))
            nodes.append(self.node(item))
        pairs = zip(keys, nodes, strict=True)
        if simple:
            return dict(pairs)
        return {_MAPPINGS[kind]: [list(pairs), self._metadata(value)] if kind is OrderedDict else list(pairs)}

    def _metadata(self, value: Any) -> Any:
        """What a module's state_dict carries beside its items: the versions that load_state_dict looks at."""
        for name in vars(value):
            self._trail[-1] = _Attribute(name)
            if name != "_metadata":
                self._refuse(Objection("is an attribute of an OrderedDict", "store it as an item"))
        return self.node(vars(value).get("_metadata"))

    def _elements(self, value: Iterable[Any]) -> list[Any]:
        # The order of a set differs from process to process; equal states are to have equal bytes.
        return sorted((self._key(item, "element") for item in value), key=repr)

    def _key(self, value: Any, role: str) -> Any:
        if (atom := _atom(value)) is not _Missing:
            return atom
        if type(value) is tuple:
            return {"$tuple": [self._key(item, role) for item in value]}
        if type(value) is frozenset:
            return {"$frozenset": self._elements(value)}
        hint = f"use {_PLAIN}"
        try:
            node = small_node(value)
        except Objection as objection:
            node, hint = None, objection.hint
        if node is not None:
            return node
        step = self._trail.pop()
        node = self._pickled(value, Objection(f"has the {role} {reprlib.repr(value)}, {_kind(value)}", hint))
        self._trail.append(step)
        return node

    def _leaf(self, key: Hashable, leaf: Leaf) -> dict[str, int]:
        number = self._numbers.setdefault(key, len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(leaf)
        return {"$leaf": number}

    def _pickled(self, value: Any, objection: Objection) -> dict[str, int]:
        if not self._allow_pickle:
            objection.hint += ", or say allow_pickle=True to store it, and to load it, with pickle"
            self._refuse(objection)
        try:
            return self._leaf(*pickled(value))
        except Objection as unpicklable:
            self._refuse(unpicklable)

    def _refuse(self, objection: Objection) -> NoReturn:
        path = _told(self._path, self._trail)
        raise TypeError(f"{path} {objection.reason}\n\nhint: {objection.hint}") from objection.__cause__


class _Unreadable(ValueError):
    """Says already at which path."""


class _Decoding:
    def __init__(self, path: str, makers: Mapping[str, Callable[[Any], Any]]) -> None:
        self._path = path
        self._makers = makers
        self._trail: list[Any] = []

    def value(self, node: Any) -> Any:
        kind = type(node)
        if kind is list:
            return self.values(node)
        if kind is not dict:
            return node
        tag = next(iter(node), "")
        if tag[:1] != "$":
            return self.mapping(node.items())
        if len(node) != 1 or (tag not in _MAKERS and tag not in self._makers):
            self._fail(f"is written as {reprlib.repr(node)}, which this version of Paceline does not know")
        try:
            return _MAKERS[tag](self, node[tag]) if tag in _MAKERS else self._makers[tag](node[tag])
        except _Unreadable:
            raise
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            self._fail(f"cannot be read: {error}", error)

    def values(self, nodes: Any) -> list[Any]:
        if type(nodes) is not list:
            raise ValueError(f"{reprlib.repr(nodes)} is not a list")
        values = []
        self._trail.append(None)
        for index, node in enumerate(nodes):
            self._trail[-1] = index
            values.append(self.value(node))
        self._trail.pop()
        return values

    def mapping(self, pairs: Iterable[Any]) -> dict[Any, Any]:
        mapping = {}
        self._trail.append(None)
        for key_node, node in pairs:
            key = self.value(key_node)
            self._trail[-1] = key
            mapping[key] = self.value(node)
        self._trail.pop()
        return mapping

    def ordered(self, payload: Any) -> OrderedDict[Any, Any]:
        pairs, metadata = payload
        ordered = OrderedDict(self.mapping(pairs))
        if metadata is not None:
            vars(ordered)["_metadata"] = self.value(metadata)
        return ordered

    def _fail(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise _Unreadable(f"{_told(self._path, self._trail)} {reason}") from cause


_MAKERS: dict[str, Callable[[_Decoding, Any], Any]] = {
    "$int": lambda _, text: int(text, 16),
    "$float": lambda _, text: _SPECIAL_FLOATS[text],
    "$complex": lambda decoding, parts: complex(*decoding.values(parts)),
    "$bytes": lambda _, text: base64.b64decode(text),
    "$scalar": lambda _, payload: restored_scalar(payload),
    "$tuple": lambda decoding, nodes: tuple(decoding.values(nodes)),
    "$set": lambda decoding, nodes: set(decoding.values(nodes)),
    "$frozenset": lambda decoding, nodes: frozenset(decoding.values(nodes)),
    "$dict": _Decoding.mapping,
    "$ordered": _Decoding.ordered,
    "$counter": lambda decoding, pairs: Counter(decoding.mapping(pairs)),
}


def _atom(value: Any) -> Any:
    """The node of a value of Python's own that has no parts, `_Missing` for any other."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is int:
        # Not in decimal: the interpreter refuses to read more than a few thousand digits.
        return value if -_INT_LIMIT <= value < _INT_LIMIT else {"$int": hex(value)}
    if kind is complex:
        return {"$complex": [_atom(value.real), _atom(value.imag)]}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    return _Missing


def _objection(value: Any) -> Objection:
    kind = type(value)
    bases = [base.__name__ for base in (tuple, list, dict, set, frozenset, str, int, float) if base in kind.__mro__]
    if hasattr(kind, "state_dict"):
        hint = "store its state_dict()"
    elif kind.__module__.startswith(("jax", "tensorflow")):
        hint = "store numpy.asarray(x)"
    elif isinstance(value, enum.Enum):
        hint = "store x.value"
    elif bases:
        hint = f"store {bases[0]}(x)"
    elif isinstance(value, bytearray | memoryview):
        hint = "store bytes(x)"
    else:
        hint = "leave it out, or store the plain values it is made from"
    return Objection(f"is {_kind(value)}: a state is made of {_MADE_OF}", hint)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _told(path: str, trail: list[Any]) -> str:
    return path + "".join(f".{step}" if type(step) is _Attribute else f"[{step!r}]" for step in trail)
