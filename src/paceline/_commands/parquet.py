"""Rows of metrics as a Parquet file, some thousands at a time. The one place of the commands that needs pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any


def written(rows: Iterable[dict[str, Any]], columns: Sequence[str], path: Path, at_once: int) -> None:
    """A metric is a column of numbers where all its values are, of texts otherwise. There whole, or not at all."""
    import pyarrow
    import pyarrow.parquet

    kept = list(_in_parts(rows, at_once))
    kinds = {name: _kind({type(row.get(name)) for part in kept for row in part}) for name in columns}
    schema = pyarrow.schema([(name, _OF[kind]()) for name, kind in kinds.items()])
    part = path.with_name(f".{path.name}.part")
    try:
        with pyarrow.parquet.ParquetWriter(part, schema) as writer:
            for each in kept:
                values = {name: [_as(kinds[name], row.get(name)) for row in each] for name in columns}
                writer.write_table(pyarrow.table(values, schema))
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _in_parts(rows: Iterable[dict[str, Any]], at_once: int) -> Iterator[list[dict[str, Any]]]:
    ahead = iter(rows)
    while part := list(islice(ahead, at_once)):
        yield part


def _kind(types: set[type]) -> str:
    types = types - {type(None)}
    if types == {bool}:
        return "bool"
    if types == {int}:
        return "int"
    return "float" if types <= {int, float} else "text"


def _as(kind: str, value: Any) -> Any:
    if value is None or kind in ("bool", "int"):
        return value
    if kind == "float":
        return float(value)
    return value if isinstance(value, str) else json.dumps(value)


def _type(name: str) -> Any:
    import pyarrow

    return getattr(pyarrow, name)()


_OF = {
    "bool": lambda: _type("bool_"),
    "int": lambda: _type("int64"),
    "float": lambda: _type("float64"),
    "text": lambda: _type("string"),
}
