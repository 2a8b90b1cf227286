"""Exceptions cross processes: every one that Paceline defines comes out of a pickle as it went in.

The classes are found by importing every module that defines one; each is made from what its constructor asks for.
"""

import ast
import builtins
import collections.abc
import dataclasses
import importlib
import inspect
import os
import pickle
import types
import typing
import unittest.mock
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from source_trees import PACKAGE, parse_package

PLAIN = {
    str: "loss is nan\n\nhint: lower the rate",
    int: 3,
    float: 0.5,
    bool: True,
    bytes: b"x",
    Any: {"step": 3},
    object: {"step": 3},
    Path: Path("runs/alpha"),
    msgspec.Raw: msgspec.Raw(b'{"step":3}'),
    types.NoneType: None,
}


def exception_classes() -> list[type[BaseException]]:
    found = {
        value
        for module in _modules()
        for value in vars(module).values()
        if _is_exception(value) and value.__module__.startswith("paceline")
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


def _paths() -> list[Path]:
    """The modules that define an exception, by the names of bases: importing all others takes 20 seconds."""
    bases = [
        (node.name, {ast.unparse(base).rpartition(".")[2] for base in node.bases}, path)
        for path, tree in parse_package().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    exceptions = {name for name, value in vars(builtins).items() if _is_exception(value)}
    while added := {name for name, of, _ in bases if of & exceptions} - exceptions:
        exceptions |= added
    return sorted({path for name, _, path in bases if name in exceptions})


def _is_exception(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _modules() -> Iterator[types.ModuleType]:
    for path in _paths():
        parts = ("paceline", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        if name.endswith("__main__"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the libraries that some modules import
                module = importlib.import_module(name)
            yield module
        except ImportError as error:
            if not _lacks_an_optional_package(error):
                raise


def _lacks_an_optional_package(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "paceline").startswith("paceline"):
            return True
        error = error.__cause__ or error.__context__
    return False


def example(cls: type) -> Any:
    """An instance of a class, made from the types its constructor asks for."""
    if issubclass(cls, BaseException) and not inspect.isfunction(cls.__init__):
        return cls(PLAIN[str])
    hints = typing.get_type_hints(cls if _is_record(cls) else cls.__init__)
    parameters = inspect.signature(cls).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return cls(
        *(_value(hints[each.name]) for each in named if each.kind is not each.KEYWORD_ONLY),
        **{each.name: _value(hints[each.name]) for each in named if each.kind is each.KEYWORD_ONLY},
    )


def _value(hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (typing.Union, types.UnionType):
        return _value(args[0])
    if origin is Literal:
        return args[0]
    if origin in (dict, collections.abc.Mapping):
        return {_value(args[0]): _value(args[1])}
    if origin in (list, tuple, set, frozenset):
        return origin([_value(args[0])])
    if origin in (collections.abc.Sequence, collections.abc.Iterable):
        return [_value(args[0])]
    if hint in (BaseException, Exception):
        return ValueError("inner")
    if inspect.isclass(hint):
        return example(hint)
    raise TypeError(f"no example of {hint!r}: add one to PLAIN")


def _is_record(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls)


def find_loss(error: BaseException) -> str | None:
    """What a pickle does not bring back."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception as problem:
        return f"{type(error).__name__} does not pickle: {problem!r}"
    return None if _same(again, error) else f"{error!r} {vars(error)} became {again!r} {vars(again)}"


def _same(one: Any, other: Any) -> bool:
    """Equality that sees into exceptions, which are otherwise equal only to themselves."""
    if type(one) is not type(other):
        return False
    if isinstance(one, BaseException):
        return str(one) == str(other) and _same(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def test_every_exception_survives_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PREWARM", "0")
    with unittest.mock.patch.dict(os.environ):  # Frameworks set variables of their own when they are imported.
        classes = exception_classes()
    assert classes
    losses = [loss for cls in classes if (loss := find_loss(example(cls))) is not None]
    assert not losses, "\n" + "\n".join(losses)
