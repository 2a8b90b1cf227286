"""A block: some rows of a dataset, stored as columns. `column.py` creates, joins and converts columns.

Columns are converted only when another form is requested, so data from a reader or a user's function is passed on as it
is. A slice is a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import find_nearest
from paceline._core.lazy_imports import import_extra
from paceline.data.column import Column as Column
from paceline.data.column import TensorType as TensorType
from paceline.data.column import as_arrow as as_arrow
from paceline.data.column import (
    as_column,
    as_nullable,
    as_values,
    concat_columns,
    from_arrow_column,
    from_series,
    is_plain_numbers,
    nbytes_of,
)
from paceline.data.column import as_numpy as as_numpy
from paceline.data.column import column_of as column_of
from paceline.data.column import type_of as type_of

BatchFormat = Literal["numpy", "pandas", "pyarrow"]

ITEM = "item"
"""The column for rows that are not dicts, such as those of `from_items([1, 2])`."""


@dataclass(frozen=True, init=False, repr=False)
class Schema:
    """Names and types of the columns. A type is an Arrow type or a `TensorType`.

    Made from a `pyarrow.Schema`. `data_context` is accepted and ignored.
    """

    names: list[str]
    types: list[Any]

    def __init__(self, base_schema: Any, *, data_context: Any = None) -> None:
        if not isinstance(base_schema, pa.Schema | Schema):
            raise TypeError(f"base_schema must be a pyarrow.Schema, got {base_schema!r}")
        _check_unique(base_schema.names)
        self._set(base_schema.names, map(_to_tensor_type, base_schema.types))

    @classmethod
    def from_columns(cls, names: Iterable[str], types: Iterable[Any]) -> Schema:
        schema = cls.__new__(cls)
        schema._set(names, types)
        return schema

    def _set(self, names: Iterable[str], types: Iterable[Any]) -> None:
        object.__setattr__(self, "names", list(names))
        object.__setattr__(self, "types", list(types))

    @property
    def base_schema(self) -> Any:
        """The columns as a `pyarrow.Schema`. Raises a TypeError if Arrow has no type for a column."""
        return pa.schema([_to_arrow_field(*pair) for pair in zip(self.names, self.types, strict=True)])

    def __str__(self) -> str:
        width = max(map(len, (*self.names, "Column")), default=0)
        rule = f"{'-' * width}  ----"
        lines = (f"{name:<{width}}  {kind}" for name, kind in zip(self.names, self.types, strict=True))
        return "\n".join((f"{'Column':<{width}}  Type", rule, *lines))

    __repr__ = __str__


def _to_tensor_type(kind: Any) -> Any:
    if not isinstance(kind, pa.FixedShapeTensorType):
        return kind
    return TensorType(np.dtype(kind.value_type.to_pandas_dtype()), tuple(kind.shape))


def _to_arrow_field(name: str, kind: Any) -> Any:
    if not isinstance(kind, TensorType):
        return pa.field(name, kind)
    if not kind.shape:
        raise TypeError(f"the column {name!r} has no Arrow type: it is of type {kind}")
    return pa.field(name, pa.fixed_shape_tensor(pa.from_numpy_dtype(kind.dtype), kind.shape))


class Block:
    """Rows stored as columns. Immutable."""

    __slots__ = ("__dict__", "columns", "num_rows")

    def __init__(self, columns: Mapping[str, Column], num_rows: int | None = None) -> None:
        self.columns: dict[str, Column] = {name: as_column(name, values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
            raise ValueError(f"the columns of a batch must have equally many rows, got {sizes}")
        self.num_rows: int = next(iter(lengths.values()), num_rows or 0)

    @classmethod
    def _from_valid_columns(cls, columns: dict[str, Column], num_rows: int) -> Block:
        """Create a block without validation: batches are cut thousands of times a second."""
        block = cls.__new__(cls)
        block.columns, block.num_rows = columns, num_rows
        return block

    # Constructors

    @staticmethod
    def empty() -> Block:
        return Block({})

    @staticmethod
    def from_arrow(table: Any) -> Block:
        """Create a block from a `pyarrow.Table` or `RecordBatch`."""
        names = table.schema.names
        _check_unique(names)
        columns = zip(names, table.columns, strict=True)
        return Block._from_valid_columns({name: from_arrow_column(values) for name, values in columns}, table.num_rows)

    @staticmethod
    def from_pandas(frame: Any) -> Block:
        names = [str(name) for name in frame.columns]
        _check_unique(names)
        columns = {name: from_series(frame.iloc[:, index]) for index, name in enumerate(names)}
        return Block._from_valid_columns(columns, len(frame))

    @staticmethod
    def from_rows(rows: Sequence[Any]) -> Block:
        """Create a block from dicts, or from other values as the column `item`. Missing keys become null."""
        if not rows:
            return Block.empty()
        if not isinstance(rows[0], Mapping):
            return Block({ITEM: column_of(rows)})
        names = list(dict.fromkeys(name for row in rows for name in row))
        return Block({name: column_of([row.get(name) for row in rows]) for name in names}, num_rows=len(rows))

    @staticmethod
    def from_batch(batch: Any) -> Block:
        """Create a block from a user function's result: a dict of arrays or lists, a DataFrame, an Arrow table."""
        if isinstance(batch, Block):
            return batch
        if isinstance(batch, Mapping):
            return Block({str(name): values for name, values in batch.items()})
        if isinstance(batch, pa.Table | pa.RecordBatch):
            return Block.from_arrow(batch)
        library = type(batch).__module__.partition(".")[0]
        if library == "pandas" and hasattr(batch, "columns"):
            return Block.from_pandas(batch)
        if library == "polars" and hasattr(batch, "to_arrow"):
            return Block.from_arrow(batch.to_arrow())
        raise TypeError(
            f"a batch must be a dict of arrays, a pandas.DataFrame or a pyarrow.Table, got {type(batch).__name__}"
        )

    @staticmethod
    def concat(blocks: Iterable[Block]) -> Block:
        """Concatenate blocks. Columns that a block lacks are null there."""
        blocks = list(blocks)
        parts = [block for block in blocks if block.num_rows]
        if len(parts) <= 1:
            return next(iter([*parts, *(block for block in blocks if block.columns), Block.empty()]))
        names = list(dict.fromkeys(name for block in parts for name in block.columns))
        lengths = [block.num_rows for block in parts]
        columns = {name: concat_columns([block.columns.get(name) for block in parts], lengths) for name in names}
        return Block._from_valid_columns(columns, sum(lengths))

    # Selection

    def slice(self, start: int, stop: int | None = None) -> Block:
        """Return rows `start` to `stop` as a view."""
        stop = self.num_rows if stop is None else min(stop, self.num_rows)
        start = min(start, stop)
        if start == 0 and stop == self.num_rows:
            return self
        return Block._from_valid_columns(
            {name: values[start:stop] for name, values in self.columns.items()}, stop - start
        )

    def take(self, indices: Any) -> Block:
        """Return the rows with these indices, in this order."""
        indices = np.asarray(indices, dtype=np.int64)
        columns = {
            name: values[indices] if isinstance(values, np.ndarray) else values.take(pa.array(indices))
            for name, values in self.columns.items()
        }
        return Block._from_valid_columns(columns, len(indices))

    def select(self, names: Iterable[str]) -> Block:
        return Block._from_valid_columns({name: self.column(name) for name in names}, self.num_rows)

    def drop(self, names: Iterable[str]) -> Block:
        dropped = set(names)
        for name in dropped:
            self.column(name)
        columns = {name: values for name, values in self.columns.items() if name not in dropped}
        return Block._from_valid_columns(columns, self.num_rows)

    def rename(self, names: Mapping[str, str]) -> Block:
        for name in names:
            self.column(name)
        renamed = {names.get(name, name): values for name, values in self.columns.items()}
        if len(renamed) < len(self.columns):
            raise ValueError(f"rename_columns({dict(names)!r}) gives two of the columns {self._describe()} one name")
        return Block._from_valid_columns(renamed, self.num_rows)

    def with_column(self, name: str, values: Any) -> Block:
        return Block({**self.columns, name: values})

    def column(self, name: str) -> Column:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"unknown column {name!r}; the columns are: {list_columns(self.columns, name)}") from None

    # Conversion

    def with_numpy_numbers(self) -> Block:
        """Convert Arrow numbers without nulls to arrays: those are sliced and reordered in a tenth of the time."""
        if not any(map(is_plain_numbers, self.columns.values())):
            return self
        columns = {n: as_numpy(values) if is_plain_numbers(values) else values for n, values in self.columns.items()}
        return Block._from_valid_columns(columns, self.num_rows)

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: as_numpy(values) for name, values in self.columns.items()}

    def to_arrow(self) -> Any:
        return pa.table({name: self._arrow(name) for name in self.columns})

    def _arrow(self, name: str) -> Any:
        try:
            return as_arrow(self.columns[name])
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise TypeError(f"cannot convert the column {name!r} to Arrow: {error}") from None

    def to_pandas(self) -> Any:
        pandas = import_extra("pandas", "a pandas batch or frame")
        series = {
            name: (list(values) if values.ndim > 1 else values)
            if isinstance(values, np.ndarray)
            else values.to_pandas()
            for name, values in self.columns.items()
        }
        return pandas.DataFrame(series) if series else pandas.DataFrame(index=range(self.num_rows))

    def to_batch(self, batch_format: BatchFormat) -> Any:
        return {"numpy": self.to_numpy, "pandas": self.to_pandas, "pyarrow": self.to_arrow}[batch_format]()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict of Python values, with arrays for tensors."""
        if not self.columns:
            yield from ({} for _ in range(self.num_rows))
            return
        lists = [as_values(values) for values in self.columns.values()]
        names = list(self.columns)
        for row in zip(*lists, strict=True):
            yield dict(zip(names, row, strict=True))

    @cached_property
    def nbytes(self) -> int:
        return sum(nbytes_of(values) for values in self.columns.values())

    @property
    def schema(self) -> Schema:
        return Schema.from_columns(self.columns, map(type_of, self.columns.values()))

    def _describe(self) -> str:
        return ", ".join(map(repr, self.columns)) or "none"

    def __repr__(self) -> str:
        return f"Block({self.num_rows} rows: {', '.join(self.columns)})"


@dataclass(frozen=True)
class BlockMetadata:
    """What is known about the rows of a task before they are read."""

    num_rows: int | None = None
    """None if unknown. A task that yields another number of rows fails."""
    size_bytes: int | None = None
    """Approximate size in memory."""
    exec_stats: Any = None
    task_exec_stats: Any = None
    input_files: Sequence[str] | None = None
    """Where the rows come from. Names the task if it has no other name."""


class BlockAccessor:
    """Converts and reduces the rows that a sink or an aggregate of one's own is given."""

    def __init__(self, block: Block) -> None:
        self._block = block

    @staticmethod
    def for_block(block: Any) -> BlockAccessor:
        """Create it for a `pyarrow.Table`, a DataFrame or a dict of arrays."""
        return BlockAccessor(Block.from_batch(block))

    @staticmethod
    def batch_to_block(batch: Any) -> Any:
        """Convert a batch to a `pyarrow.Table`."""
        return Block.from_batch(batch).to_arrow()

    def num_rows(self) -> int:
        return self._block.num_rows

    def size_bytes(self) -> int:
        return self._block.nbytes

    def schema(self) -> Any:
        return self.to_arrow().schema

    def to_arrow(self) -> Any:
        return self._block.to_arrow()

    to_block = to_arrow

    def to_pandas(self) -> Any:
        return self._block.to_pandas()

    def to_numpy(self, columns: str | Sequence[str] | None = None) -> Any:
        """Return a dict of arrays by column, or the array of one column."""
        arrays = self._block.to_numpy()
        if isinstance(columns, str):
            return as_numpy(self._block.column(columns))
        return arrays if columns is None else {name: arrays[name] for name in columns}

    def to_batch_format(self, batch_format: BatchFormat) -> Any:
        return self._block.to_batch(batch_format)

    def iter_rows(self, public_row_format: bool = True) -> Iterator[dict[str, Any]]:
        return self._block.rows()

    def slice(self, start: int, end: int, copy: bool = False) -> Any:
        return self._block.slice(start, end).to_arrow()

    def take(self, indices: Sequence[int]) -> Any:
        return self._block.take(indices).to_arrow()

    def select(self, columns: Sequence[str]) -> Any:
        return self._block.select(columns).to_arrow()

    def count(self, on: str, ignore_nulls: bool = False) -> int:
        return int(pc.count(self._values(on), mode="only_valid" if ignore_nulls else "all").as_py())

    def sum(self, on: str, ignore_nulls: bool) -> Any:
        return pc.sum(self._values(on), skip_nulls=ignore_nulls).as_py()

    def min(self, on: str, ignore_nulls: bool) -> Any:
        return pc.min(self._values(on), skip_nulls=ignore_nulls).as_py()

    def max(self, on: str, ignore_nulls: bool) -> Any:
        return pc.max(self._values(on), skip_nulls=ignore_nulls).as_py()

    def mean(self, on: str, ignore_nulls: bool) -> Any:
        return pc.mean(self._values(on), skip_nulls=ignore_nulls).as_py()

    def _values(self, on: str) -> Any:
        return as_nullable(self._block.column(on))


class ConcatenatedBlock(Block):
    """The rows of several blocks that are made one by one.

    A writer that takes them from `stream_parts` copies each while it is in the processor's cache. Any other use makes
    all of them, and copies them together when a column is requested.
    """

    def __init__(self, parts: Iterable[Block], num_expected: int) -> None:
        """`num_expected` is the number of rows that is likely."""
        self._made_later = iter(parts)
        self.num_expected = num_expected

    def stream_parts(self) -> Iterator[Block]:
        """Make the parts, instead of everything else that a block is used for."""
        return self._made_later

    @cached_property
    def parts(self) -> tuple[Block, ...]:
        return tuple(self._made_later)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        return sum(part.num_rows for part in self.parts)

    @cached_property
    def columns(self) -> dict[str, Column]:  # type: ignore[override]
        return Block.concat(self.parts).columns

    @cached_property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def arrays(self) -> dict[str, list[np.ndarray[Any, Any]]] | None:
        """The columns, each as the arrays it consists of; None if those must be converted to be concatenated."""
        names = list(self.parts[0].columns) if self.parts else []
        arrays = {name: [part.columns[name] for part in self.parts if name in part.columns] for name in names}
        is_uniform = all(list(part.columns) == names for part in self.parts) and all(
            isinstance(part, np.ndarray) and (part.dtype, part.shape[1:]) == (parts[0].dtype, parts[0].shape[1:])
            for parts in arrays.values()
            for part in parts
        )
        return arrays if is_uniform else None


def list_columns(names: Iterable[str], wrong: str) -> str:
    """List columns for the error about one that is not there, with the one that may be meant."""
    names = list(names)
    nearest = find_nearest(wrong, names)
    return (", ".join(map(repr, names)) or "none") + (f" (did you mean {nearest!r}?)" if nearest else "")


def _check_unique(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the columns of a batch must have different names, got two of {twice[0]!r}")
