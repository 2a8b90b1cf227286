"""Identifies the code of a function by hashes, so that a run that is asked for again with other code is noticed.

Hashed are the bytecode of the user's functions and classes that it uses, and the plain values that it was made with.
Not hashed, because it is no change or cannot be judged: lines and comments, libraries, globals, and other objects.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import os
import sys
import types
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline._core.frames import is_library_file
from paceline._core.masking import is_secret_name, parse_python
from paceline.train.driver.job import iter_global_names

_MAX_PARTS = 1000
_ROOT = "function"
_CLASS_LINE = "__firstlineno__"
"""From Python 3.13 on, the code of a class sets this to its line."""


def fingerprint_code(function: Any) -> dict[str, Any]:
    """Return a hash for each part of the code: `{"python": ..., "parts": {"function": ..., "build_model": ...}}`."""
    fingerprint = _CodeFingerprint()
    with contextlib.suppress(Exception):  # A user's object may raise anywhere: what is not hashed is not compared.
        fingerprint.add_callable(_ROOT, function)
    # Bytecode can be compared only between interpreters that compile alike.
    return {"python": f"{sys.implementation.cache_tag}-{sys.flags.optimize}", "parts": fingerprint.parts}


def find_changed_parts(was: Any, now: Any) -> list[str]:
    """Return the parts that differ, with the function itself as an empty name. Empty if they cannot be compared."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping) or was.get("python") != now.get("python"):
        return []
    parts, others = was.get("parts"), now.get("parts")
    if not isinstance(parts, Mapping) or not isinstance(others, Mapping):
        return []
    changed = [name for name in others if name in parts and parts[name] != others[name]]
    return ["" if name == _ROOT else name for name in changed]


class _CodeFingerprint:
    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self._visited: set[int] = set()
        self._kept: list[Any] = []
        """Keeps what was visited alive, so that no other object gets its id."""

    def add_callable(self, name: str, value: Any) -> None:
        if id(value) in self._visited or len(self.parts) >= _MAX_PARTS:
            return
        self._visited.add(id(value))
        self._kept.append(value)
        if isinstance(value, functools.partial):
            self._add_values(name, value.keywords)  # First, because they replace the function's defaults.
            self._add_values(name, {f"argument {at}": each for at, each in enumerate(value.args)})
            self.add_callable(name, value.func)
        elif isinstance(value, types.MethodType):
            self.add_callable(name, value.__func__)
            self._add_fields(value.__self__)
        elif isinstance(value, types.FunctionType):
            self._add_function(name, value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(getattr(value, "target", None), str):  # from `paceline run`
            self._add_script(value)
        elif callable(value):
            self.add_callable(name, inspect.getattr_static(type(value), "__call__", None))
            self._add_fields(value)

    def _add_function(self, name: str, function: types.FunctionType) -> None:
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            self.add_callable(f"{name} (wrapped)" if name == _ROOT else name, wrapped)
        if is_library_file(function.__code__.co_filename):
            return
        self._add_part(name, _hash_code(function.__code__))
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        self._add_values(name, dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)))
        self._add_values(name, function.__kwdefaults__ or {})
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # It has no value yet.
                if self._is_code(cell.cell_contents):
                    self._add_named(cell.cell_contents)
                else:
                    self._add_values(name, {variable: cell.cell_contents})
        names = tuple(iter_global_names(code))
        for used in names:
            value = function.__globals__.get(used)
            if isinstance(value, types.ModuleType) and not is_library_file(
                getattr(value, "__file__", None) or "<frozen"
            ):
                for attribute in names:
                    self._add_named(vars(value).get(attribute))
            else:
                self._add_named(value)

    def _is_code(self, value: Any) -> bool:
        return isinstance(value, types.FunctionType | type | types.MethodType | functools.partial)

    def _add_named(self, value: Any) -> None:
        if self._is_code(value):
            self.add_callable(getattr(value, "__qualname__", "a function").replace("<locals>.", ""), value)

    def _add_class(self, kind: type) -> None:
        module = sys.modules.get(kind.__module__)
        if module is None or is_library_file(getattr(module, "__file__", None) or "a prompt"):
            return
        for base in kind.__bases__:
            self.add_callable(base.__qualname__, base)
        for member in vars(kind).values():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(member, types.FunctionType):
                self._add_named(member)
        constants = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
        self._add_values(kind.__qualname__, constants)

    def _add_script(self, script: Any) -> None:
        self._add_values(_ROOT, {"arguments": script.arguments})
        path = Path(script.target)
        if path.is_file():
            text = path.read_bytes()
            with contextlib.suppress(SyntaxError, ValueError):
                text = ast.dump(parse_python(text)).encode()
            self._add_part(_ROOT, _hash(text))

    def _add_fields(self, owner: Any, prefix: str = "") -> None:
        """Add the fields of an object that was made for the run, such as a callable dataclass."""
        fields = vars(owner) if not isinstance(owner, type | types.ModuleType) and hasattr(owner, "__dict__") else {}
        for name, value in fields.items():
            if self._is_code(value):
                self._add_named(value)
            elif dataclasses.is_dataclass(value):
                self._add_fields(value, f"{prefix}{name}.")
            else:
                self._add_values(_ROOT, {f"{prefix}{name}": value}, may_be_mutable=True)

    def _add_values(self, owner: str, values: Mapping[str, Any], *, may_be_mutable: bool = False) -> None:
        for name, value in values.items():
            text = _describe_value(value, may_be_mutable) if not is_secret_name(name) else None
            if text is not None:
                part = f"the value of {name}{f' in {owner}' if owner != _ROOT else ''}"
                self.parts.setdefault(part, _hash(text.encode(errors="surrogatepass")))

    def _add_part(self, name: str, text: str) -> None:
        number, unique = 2, name
        while unique in self.parts:
            unique, number = f"{name} ({number})", number + 1
        self.parts[unique] = text


def _describe_value(value: Any, may_be_mutable: bool) -> str | None:
    """Return a text that differs for different values; None if there is none. A list in a closure may be a log."""
    if isinstance(value, str) and os.sep in value:
        return None  # A path says where something is, such as a log, not what is computed.
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__} {value!r}" if type(value).__module__ == "builtins" else None
    items: Iterable[Any]
    if isinstance(value, tuple) or (may_be_mutable and isinstance(value, list)):
        items = value
    elif may_be_mutable and isinstance(value, Mapping):
        items = sorted(value.items(), key=repr)
    else:
        return None
    texts = [_describe_value(each, may_be_mutable) for each in items]
    return f"({', '.join(text for text in texts if text is not None)})" if None not in texts else None


def _hash_code(code: types.CodeType) -> str:
    return _hash(repr(_describe_code(code)).encode(errors="surrogatepass"))


def _describe_code(code: types.CodeType) -> list[Any]:
    """Describe the instructions, without what only traces lines, and with names and constants instead of indexes."""
    listed = [each for each in dis.get_instructions(code) if each.opname not in ("NOP", "RESUME", "EXTENDED_ARG")]
    offsets = [each.offset for each in listed]
    described: list[Any] = []
    for each in listed:
        if each.opcode in dis.hasconst:
            is_line = _CLASS_LINE in code.co_names and each.argval == code.co_firstlineno
            described.append((each.opname, None if is_line else _describe_constant(each.argval)))
        elif each.opcode in dis.hasname:
            described.append((each.opname, each.argval, each.arg is not None and each.arg & 1))
        elif each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            described.append((each.opname, bisect_left(offsets, each.argval)))
        else:
            described.append((each.opname, each.arg))
    return described


def _describe_constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _describe_code(constant)
    if isinstance(constant, frozenset):  # Its order differs from process to process.
        return sorted(map(repr, map(_describe_constant, constant)))
    if isinstance(constant, tuple):
        return tuple(map(_describe_constant, constant))
    return type(constant).__name__, repr(constant)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
