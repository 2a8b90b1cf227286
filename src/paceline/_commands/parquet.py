"""Write rows of metrics to a Parquet file in batches. The only command module that needs pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any


def write_parquet(rows: Iterable[dict[str, Any]], columns: Sequence[str], path: Path, at_once: int) -> None:
    """Write rows to a Parquet file, atomically.

    A column is numeric if all its values are; otherwise it holds text.
    """
    import pyarrow
    import pyarrow.parquet

    kept = list(_split_rows(rows, at_once))
    kinds = {name: _column_kind({type(row.get(name)) for part in kept for row in part}) for name in columns}
    schema = pyarrow.schema([(name, _ARROW_TYPES[kind]()) for name, kind in kinds.items()])
    part = path.with_name(f".{path.name}.part")
    try:
        with pyarrow.parquet.ParquetWriter(part, schema) as writer:
            for each in kept:
                values = {name: [_convert_value(kinds[name], row.get(name)) for row in each] for name in columns}
                writer.write_table(pyarrow.table(values, schema))
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _split_rows(rows: Iterable[dict[str, Any]], at_once: int) -> Iterator[list[dict[str, Any]]]:
    ahead = iter(rows)
    while part := list(islice(ahead, at_once)):
        yield part


def _column_kind(types: set[type]) -> str:
    types = types - {type(None)}
    if types == {bool}:
        return "bool"
    if types == {int}:
        return "int"
    return "float" if types <= {int, float} else "text"


def _convert_value(kind: str, value: Any) -> Any:
    if value is None or kind in ("bool", "int"):
        return value
    if kind == "float":
        return float(value)
    return value if isinstance(value, str) else json.dumps(value)


def _arrow_type(name: str) -> Any:
    import pyarrow

    return getattr(pyarrow, name)()


_ARROW_TYPES = {
    "bool": lambda: _arrow_type("bool_"),
    "int": lambda: _arrow_type("int64"),
    "float": lambda: _arrow_type("float64"),
    "text": lambda: _arrow_type("string"),
}
