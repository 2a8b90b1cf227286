"""Columns from the directories of a path, in Ray Data's words: `year=2024/month=5`, or `2024/5` with names."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

from paceline._core.arguments import bad_value, check_instance, check_names, join_or
from paceline._core.lazy_imports import explain_module

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class PartitionStyle(enum.StrEnum):
    """How directory names encode their values."""

    HIVE = "hive"
    """Directories are `name=value`."""
    DIRECTORY = "dir"
    """Directories are values; `field_names` names them."""


@dataclass(frozen=True)
class Partitioning:
    """How directories become columns."""

    style: PartitionStyle | Literal["hive", "dir"] = PartitionStyle.HIVE
    base_dir: str | None = None
    """Only directories below it count. Required for "dir", unless one directory is read: then that is it."""
    field_names: Sequence[str] | None = None
    """The names of the directories, from the outermost to the innermost. Required for "dir"; "hive" checks them."""
    field_types: Mapping[str, type] | None = field(default_factory=dict)
    """Converts values: `{"year": int}`. Types are int, float, str and bool."""
    filesystem: Any = None
    """Accepted, and not needed: paths are compared as text."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "style", PartitionStyle(self.style))
        except ValueError:
            raise bad_value("style", join_or(repr(each.value) for each in PartitionStyle), self.style) from None
        check_instance("base_dir", self.base_dir, str, "the path of a directory", optional=True)
        if self.field_names is not None:
            object.__setattr__(self, "field_names", tuple(check_names("field_names", self.field_names)))
        elif self.style is PartitionStyle.DIRECTORY:
            raise bad_value("field_names", "the names of the directories, with style='dir'", self.field_names)
        types = dict(check_instance("field_types", self.field_types, Mapping, "a dict of types", optional=True) or {})
        for name, kind in types.items():
            if kind not in (int, float, str, bool):
                raise bad_value(f"field_types[{name!r}]", "int, float, str or bool", kind)
        object.__setattr__(self, "field_types", types)

    @property
    def normalized_base_dir(self) -> str:
        return (self.base_dir or "").partition("://")[2].strip("/") or (self.base_dir or "").strip("/")


class PathPartitionParser:
    """Parses the values that a path has according to a `Partitioning`."""

    def __init__(self, partitioning: Partitioning) -> None:
        check_instance("partitioning", partitioning, Partitioning, "a Partitioning")
        self._partitioning = partitioning

    @staticmethod
    def of(
        style: PartitionStyle | Literal["hive", "dir"] = PartitionStyle.HIVE,
        base_dir: str | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, type] | None = None,
        filesystem: Any = None,
    ) -> PathPartitionParser:
        return PathPartitionParser(Partitioning(style, base_dir, field_names, field_types, filesystem))

    @property
    def scheme(self) -> Partitioning:
        return self._partitioning

    def __call__(self, path: str) -> dict[str, Any]:
        """Return the values by name; {} if the path has none."""
        return {name: self._convert(path, name, text) for name, text in self.parse_texts(path).items()}

    def parse_texts(self, path: str) -> dict[str, str | None]:
        """Return the values before they are converted."""
        how = self._partitioning
        directory = posixpath.dirname(path.partition("://")[2] or path).strip("/")
        base = how.normalized_base_dir
        if base:
            if directory != base and not directory.startswith(f"{base}/"):
                return {}
            directory = directory[len(base) :].strip("/")
        parts = [part for part in directory.split("/") if part]
        if how.style is PartitionStyle.DIRECTORY:
            names = how.field_names or ()
            if parts and len(parts) != len(names):
                raise ValueError(
                    f"field_names must name every directory of {path!r} below base_dir, got {list(names)} for {parts}"
                )
            return dict(zip(names, map(unquote, parts), strict=False))
        pairs = [part.partition("=") for part in parts if "=" in part]
        texts = {unquote(name): None if text == NULL_PARTITION else unquote(text) for name, _, text in pairs if name}
        if how.field_names is not None and texts and tuple(texts) != how.field_names:
            raise ValueError(f"field_names must be {list(texts)}, as in {path!r}, got {list(how.field_names)}")
        return texts

    def _convert(self, path: str, name: str, text: str | None) -> Any:
        kind = (self._partitioning.field_types or {}).get(name, str)
        if text is None or kind is str:
            return text
        try:
            if kind is bool:
                return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
            return kind(text)
        except (ValueError, KeyError):
            raise ValueError(
                f"{name}={text!r} of {path!r} must be of the type {kind.__name__} in field_types"
            ) from None


class PathPartitionFilter:
    """Keeps the paths for whose values a function is true, before anything of them is read."""

    def __init__(self, path_partition_parser: PathPartitionParser, filter_fn: Callable[[dict[str, Any]], bool]) -> None:
        self._parser: PathPartitionParser = check_instance(
            "path_partition_parser", path_partition_parser, PathPartitionParser, "a PathPartitionParser"
        )
        if not callable(filter_fn):
            raise bad_value("filter_fn", "a function of a dict of values", filter_fn)
        self._filter_fn = filter_fn

    @staticmethod
    def of(
        filter_fn: Callable[[dict[str, Any]], bool],
        style: PartitionStyle | Literal["hive", "dir"] = PartitionStyle.HIVE,
        base_dir: str | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, type] | None = None,
        filesystem: Any = None,
    ) -> PathPartitionFilter:
        parser = PathPartitionParser.of(style, base_dir, field_names, field_types, filesystem)
        return PathPartitionFilter(parser, filter_fn)

    @property
    def parser(self) -> PathPartitionParser:
        return self._parser

    def apply(self, path: str) -> bool:
        """Whether the function is true for the values of a path, which are {} if it has none."""
        return bool(self._filter_fn(self._parser(path)))

    def __call__(self, paths: Sequence[str]) -> list[str]:
        return [path for path in paths if self.apply(path)]


explain_module(__name__)
