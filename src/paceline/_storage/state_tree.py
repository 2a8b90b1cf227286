"""Converts a state to a tree of plain JSON nodes and back. Knows neither files nor memory.

JSON's own types are written as themselves. Every other value is an object with one key that starts with `$`, such as
`{"$tuple": [1, 2]}`; a dict that would look like one is written as `{"$dict": [[key, value], ...]}`. Tensors, arrays
and bytes become `{"$leaf": 3}`, the number of a leaf that the caller stores and restores.
"""

import base64
import enum
import math
import reprlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NoReturn

from paceline._core.plain_values import with_article
from paceline._storage.state_leaves import (
    Leaf,
    UnsupportedValueError,
    encode_small_value,
    make_leaf,
    make_pickle_leaf,
    restore_scalar,
)

MAX_DEPTH = 64
"""Limit for nested containers: reading takes up to five frames for each, and the interpreter allows 1000 in all."""

_INT_LIMIT = 1 << 63
_SETS: dict[type, str] = {set: "$set", frozenset: "$frozenset"}
_MAPPINGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
_CONTAINERS = frozenset((list, tuple, *_SETS, *_MAPPINGS))
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_SUPPORTED_TYPES = "numbers, strings, bytes, None, lists, tuples, dicts, sets, numpy arrays and torch tensors"
_SUPPORTED_KEYS = "numbers, strings, bytes, None, and tuples of these"


class _Attribute(str):
    """A path element that is an attribute and not a key."""


class _Missing:
    """Sentinel for "no node", where None is a valid node."""


def encode_tree(tree: Any, *, path: str, allow_pickle: bool) -> tuple[Any, list[Leaf]]:
    """Return the tree in JSON and its leaves by number. Refuses unsupported values, naming their path."""
    encoding = _TreeEncoder(path, allow_pickle)
    return encoding.encode(tree), encoding.leaves


def decode_tree(node: Any, *, path: str, makers: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Decode a tree. `makers` maps a `$` key to the function that restores values other than Python's own."""
    return _TreeDecoder(path, makers).decode(node)


class _TreeEncoder:
    def __init__(self, path: str, allow_pickle: bool) -> None:
        self.leaves: list[Leaf] = []
        self._path = path
        self._allow_pickle = allow_pickle
        # Keys on the way to the current value: the path is formatted only when it is needed.
        self._trail: list[Any] = []
        self._open: set[int] = set()
        self._numbers: dict[Hashable, int] = {}

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in _CONTAINERS:
            return self._encode_container(value, kind)
        if kind is not bytes and (atom := _encode_atom(value)) is not _Missing:
            return atom
        try:
            node = encode_small_value(value)
            if node is not None:
                return node
            keyed = make_leaf(value)
            if keyed is None:
                raise _make_unsupported_error(value)
            return self._encode_leaf(*keyed)
        except UnsupportedValueError as objection:
            return self._encode_pickle(value, objection)

    def _encode_container(self, value: Any, kind: type) -> Any:
        if id(value) in self._open:
            self._reject(UnsupportedValueError("contains itself", "a state must be a tree: break the cycle"))
        if len(self._trail) >= MAX_DEPTH:
            self._reject(UnsupportedValueError(f"is nested deeper than {MAX_DEPTH} levels", "flatten it"))
        self._open.add(id(value))
        self._trail.append(None)
        node: Any
        if kind in _MAPPINGS:
            node = self._encode_mapping(value, kind)
        elif kind in _SETS:
            node = {_SETS[kind]: self._encode_elements(value)}
        else:
            node = self._encode_items(value) if kind is list else {"$tuple": self._encode_items(value)}
        self._trail.pop()
        self._open.remove(id(value))
        return node

    def _encode_items(self, value: Iterable[Any]) -> list[Any]:
        nodes = []
        for index, item in enumerate(value):
            self._trail[-1] = index
            nodes.append(self.encode(item))
        return nodes

    def _encode_mapping(self, value: Any, kind: type) -> Any:
        keys, nodes = [], []
        simple = kind is dict
        for key, item in value.items():
            self._trail[-1] = key
            simple = simple and type(key) is str and key[:1] != "$"
            keys.append(self._encode_key(key, "key"))
            nodes.append(self.encode(item))
        pairs = zip(keys, nodes, strict=True)
        if simple:
            return dict(pairs)
        return {_MAPPINGS[kind]: [list(pairs), self._metadata(value)] if kind is OrderedDict else list(pairs)}

    def _metadata(self, value: Any) -> Any:
        """Return the `_metadata` of a module's state_dict: the versions that load_state_dict checks."""
        for name in vars(value):
            self._trail[-1] = _Attribute(name)
            if name != "_metadata":
                self._reject(UnsupportedValueError("is an attribute of an OrderedDict", "store it as an item"))
        return self.encode(vars(value).get("_metadata"))

    def _encode_elements(self, value: Iterable[Any]) -> list[Any]:
        # The order of a set differs between processes, and equal states must have equal bytes.
        return sorted((self._encode_key(item, "element") for item in value), key=repr)

    def _encode_key(self, value: Any, role: str) -> Any:
        if (atom := _encode_atom(value)) is not _Missing:
            return atom
        if type(value) is tuple:
            return {"$tuple": [self._encode_key(item, role) for item in value]}
        if type(value) is frozenset:
            return {"$frozenset": self._encode_elements(value)}
        hint = f"use {_SUPPORTED_KEYS}"
        try:
            node = encode_small_value(value)
        except UnsupportedValueError as objection:
            node, hint = None, objection.hint
        if node is not None:
            return node
        step = self._trail.pop()
        node = self._encode_pickle(
            value, UnsupportedValueError(f"has the {role} {reprlib.repr(value)}, {_describe_type(value)}", hint)
        )
        self._trail.append(step)
        return node

    def _encode_leaf(self, key: Hashable, leaf: Leaf) -> dict[str, int]:
        number = self._numbers.setdefault(key, len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(leaf)
        return {"$leaf": number}

    def _encode_pickle(self, value: Any, objection: UnsupportedValueError) -> dict[str, int]:
        if not self._allow_pickle:
            objection.hint += ", or pass allow_pickle=True to save and load it with pickle"
            self._reject(objection)
        try:
            return self._encode_leaf(*make_pickle_leaf(value))
        except UnsupportedValueError as unpicklable:
            self._reject(unpicklable)

    def _reject(self, objection: UnsupportedValueError) -> NoReturn:
        path = _format_path(self._path, self._trail)
        raise TypeError(f"{path} {objection.reason}\n\nhint: {objection.hint}") from objection.__cause__


class _UnreadableNodeError(ValueError):
    """Its message already names the path."""


class _TreeDecoder:
    def __init__(self, path: str, makers: Mapping[str, Callable[[Any], Any]]) -> None:
        self._path = path
        self._makers = makers
        self._trail: list[Any] = []

    def decode(self, node: Any) -> Any:
        kind = type(node)
        if kind is list:
            return self.decode_list(node)
        if kind is not dict:
            return node
        tag = next(iter(node), "")
        if tag[:1] != "$":
            return self.decode_mapping(node.items())
        if len(node) != 1 or (tag not in _DECODERS and tag not in self._makers):
            self._fail(f"has the unknown encoding {reprlib.repr(node)}; a newer Paceline may have written it")
        try:
            return _DECODERS[tag](self, node[tag]) if tag in _DECODERS else self._makers[tag](node[tag])
        except _UnreadableNodeError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            self._fail(f"cannot be read: {error}", error)

    def decode_list(self, nodes: Any) -> list[Any]:
        if type(nodes) is not list:
            raise ValueError(f"{reprlib.repr(nodes)} is not a list")
        values = []
        self._trail.append(None)
        for index, node in enumerate(nodes):
            self._trail[-1] = index
            values.append(self.decode(node))
        self._trail.pop()
        return values

    def decode_mapping(self, pairs: Iterable[Any]) -> dict[Any, Any]:
        mapping = {}
        self._trail.append(None)
        for key_node, node in pairs:
            key = self.decode(key_node)
            self._trail[-1] = key
            mapping[key] = self.decode(node)
        self._trail.pop()
        return mapping

    def decode_ordered_dict(self, payload: Any) -> OrderedDict[Any, Any]:
        pairs, metadata = payload
        ordered = OrderedDict(self.decode_mapping(pairs))
        if metadata is not None:
            vars(ordered)["_metadata"] = self.decode(metadata)
        return ordered

    def _fail(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise _UnreadableNodeError(f"{_format_path(self._path, self._trail)} {reason}") from cause


_DECODERS: dict[str, Callable[[_TreeDecoder, Any], Any]] = {
    "$int": lambda _, text: int(text, 16),
    "$float": lambda _, text: _SPECIAL_FLOATS[text],
    "$complex": lambda decoding, parts: complex(*decoding.decode_list(parts)),
    "$bytes": lambda _, text: base64.b64decode(text),
    "$scalar": lambda _, payload: restore_scalar(payload),
    "$tuple": lambda decoding, nodes: tuple(decoding.decode_list(nodes)),
    "$set": lambda decoding, nodes: set(decoding.decode_list(nodes)),
    "$frozenset": lambda decoding, nodes: frozenset(decoding.decode_list(nodes)),
    "$dict": _TreeDecoder.decode_mapping,
    "$ordered": _TreeDecoder.decode_ordered_dict,
    "$counter": lambda decoding, pairs: Counter(decoding.decode_mapping(pairs)),
}


def _encode_atom(value: Any) -> Any:
    """Return the node of a Python value that has no parts; `_Missing` for any other."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is int:
        # Not in decimal: the interpreter refuses to parse more than a few thousand digits.
        return value if -_INT_LIMIT <= value < _INT_LIMIT else {"$int": hex(value)}
    if kind is complex:
        return {"$complex": [_encode_atom(value.real), _encode_atom(value.imag)]}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    return _Missing


def _make_unsupported_error(value: Any) -> UnsupportedValueError:
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
    return UnsupportedValueError(f"is {_describe_type(value)}: a state is made of {_SUPPORTED_TYPES}", hint)


def _describe_type(value: Any) -> str:
    return with_article(type(value).__name__)


def _format_path(path: str, trail: list[Any]) -> str:
    return path + "".join(f".{step}" if type(step) is _Attribute else f"[{step!r}]" for step in trail)
