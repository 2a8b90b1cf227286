"""A block: some rows of a dataset, held as columns.

A column is a NumPy array, where it is made of numbers or tensors of one shape, or Arrow data, for everything else.
Neither is converted before somebody asks for the other, so what a reader or a user's function gives is handed on as it
is, and a slice is a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

BatchFormat = Literal["numpy", "pandas", "pyarrow"]

Column = Any
"""A `numpy.ndarray` whose first dimension is the rows, or a `pyarrow.ChunkedArray`."""

ITEM = "item"
"""The column of rows that are no dicts, such as those of `from_items([1, 2])`."""


@dataclass(frozen=True)
class TensorType:
    """The type of a column of tensors: `shape` is that of one row; None where the rows differ."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"numpy.ndarray(shape={self.shape}, dtype={self.dtype})" if self.shape != () else str(self.dtype)


@dataclass(frozen=True)
class Schema:
    """Names and types of the columns; a type is one of Arrow's, or a `TensorType`."""

    names: list[str]
    types: list[Any]

    def __str__(self) -> str:
        width = max(map(len, (*self.names, "Column")), default=0)
        rule = f"{'-' * width}  ----"
        lines = (f"{name:<{width}}  {kind}" for name, kind in zip(self.names, self.types, strict=True))
        return "\n".join((f"{'Column':<{width}}  Type", rule, *lines))

    __repr__ = __str__


class Block:
    """Rows as columns. Never changed once made."""

    __slots__ = ("__dict__", "columns", "num_rows")

    def __init__(self, columns: Mapping[str, Column], num_rows: int | None = None) -> None:
        self.columns: dict[str, Column] = {name: _column(name, values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise ValueError(f"the columns of a batch must have equally many rows, but {shown}")
        self.num_rows: int = next(iter(lengths.values()), num_rows or 0)

    # Made from

    @classmethod
    def _made(cls, columns: dict[str, Column], num_rows: int) -> Block:
        """From columns of another block, which need no second look: batches are cut thousands of times a second."""
        block = cls.__new__(cls)
        block.columns = columns
        block.num_rows = num_rows
        return block

    @staticmethod
    def empty() -> Block:
        return Block({})

    @staticmethod
    def from_arrow(table: Any) -> Block:
        """From a `pyarrow.Table` or `RecordBatch`."""
        columns = zip(table.schema.names, table.columns, strict=True)
        return Block({name: _untensored(values) for name, values in columns}, num_rows=table.num_rows)

    @staticmethod
    def from_pandas(frame: Any) -> Block:
        return Block({str(name): _from_series(frame[name]) for name in frame.columns}, num_rows=len(frame))

    @staticmethod
    def from_rows(rows: Sequence[Any]) -> Block:
        """From dicts, or from other things, which become the column `item`. A key that a row lacks is null there."""
        if not rows:
            return Block.empty()
        if not isinstance(rows[0], Mapping):
            return Block({ITEM: column_of(rows)})
        names = list(dict.fromkeys(name for row in rows for name in row))
        return Block({name: column_of([row.get(name) for row in rows]) for name in names}, num_rows=len(rows))

    @staticmethod
    def from_batch(batch: Any) -> Block:
        """From what a user's function may return: a dict of arrays or lists, a DataFrame, an Arrow table."""
        if isinstance(batch, Block):
            return batch
        if isinstance(batch, Mapping):
            return Block({str(name): values for name, values in batch.items()})
        if isinstance(batch, pa.Table | pa.RecordBatch):
            return Block.from_arrow(batch)
        if type(batch).__module__.partition(".")[0] == "pandas" and hasattr(batch, "columns"):
            return Block.from_pandas(batch)
        if type(batch).__module__.partition(".")[0] == "polars" and hasattr(batch, "to_arrow"):
            return Block.from_arrow(batch.to_arrow())
        raise TypeError(
            f"a batch must be a dict of arrays, a pandas.DataFrame or a pyarrow.Table, not {type(batch).__name__}"
        )

    @staticmethod
    def concat(blocks: Iterable[Block]) -> Block:
        """The rows of all, one after the other; a column that a block lacks is null there."""
        parts = [block for block in blocks if block.num_rows]
        if len(parts) <= 1:
            return parts[0] if parts else Block.empty()
        names = list(dict.fromkeys(name for block in parts for name in block.columns))
        num_rows = sum(block.num_rows for block in parts)
        return Block({name: _joined(name, parts) for name in names}, num_rows=num_rows)

    # Cut from

    def slice(self, start: int, stop: int | None = None) -> Block:
        """Rows `start` to `stop`, as a view."""
        stop = self.num_rows if stop is None else min(stop, self.num_rows)
        start = min(start, stop)
        if start == 0 and stop == self.num_rows:
            return self
        return Block._made({name: values[start:stop] for name, values in self.columns.items()}, stop - start)

    def take(self, indices: Any) -> Block:
        """The rows with these numbers, in this order."""
        indices = np.asarray(indices, dtype=np.int64)
        taken = {
            name: values[indices] if isinstance(values, np.ndarray) else values.take(pa.array(indices))
            for name, values in self.columns.items()
        }
        return Block._made(taken, len(indices))

    def select(self, names: Iterable[str]) -> Block:
        return Block({name: self.column(name) for name in names}, num_rows=self.num_rows)

    def drop(self, names: Iterable[str]) -> Block:
        gone = set(names)
        for name in gone:
            self.column(name)
        kept = {name: values for name, values in self.columns.items() if name not in gone}
        return Block(kept, num_rows=self.num_rows)

    def rename(self, names: Mapping[str, str]) -> Block:
        for name in names:
            self.column(name)
        renamed = {names.get(name, name): values for name, values in self.columns.items()}
        if len(renamed) < len(self.columns):
            raise ValueError(f"rename_columns({dict(names)!r}) gives two columns one name; there are: {self._shown()}")
        return Block(renamed, num_rows=self.num_rows)

    def with_column(self, name: str, values: Any) -> Block:
        return Block({**self.columns, name: values})

    def column(self, name: str) -> Column:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"there is no column {name!r}; there are: {self._shown()}") from None

    # Seen as

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: as_numpy(values) for name, values in self.columns.items()}

    def to_arrow(self) -> Any:
        return pa.table({name: as_arrow(values) for name, values in self.columns.items()})

    def to_pandas(self) -> Any:
        import pandas

        series = {
            name: (list(values) if values.ndim > 1 else values)
            if isinstance(values, np.ndarray)
            else values.to_pandas()
            for name, values in self.columns.items()
        }
        return pandas.DataFrame(series) if series else pandas.DataFrame(index=range(self.num_rows))

    def to_batch(self, batch_format: BatchFormat) -> Any:
        match batch_format:
            case "numpy":
                return self.to_numpy()
            case "pandas":
                return self.to_pandas()
            case "pyarrow":
                return self.to_arrow()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict: numbers of Python, arrays for tensors."""
        lists = [
            (values.tolist() if values.ndim == 1 else list(values))
            if isinstance(values, np.ndarray)
            else values.to_pylist()
            for values in self.columns.values()
        ]
        names = list(self.columns)
        for row in zip(*lists, strict=True):
            yield dict(zip(names, row, strict=True))

    @cached_property
    def nbytes(self) -> int:
        return sum(_nbytes(values) for values in self.columns.values())

    @property
    def schema(self) -> Schema:
        return Schema(list(self.columns), [type_of(values) for values in self.columns.values()])

    def _shown(self) -> str:
        return ", ".join(map(repr, self.columns)) or "none"

    def __repr__(self) -> str:
        return f"Block({self.num_rows} rows: {', '.join(self.columns)})"


def column_of(values: Sequence[Any]) -> Column:
    """A column from one value for each row."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, np.ndarray) or type(first).__module__.partition(".")[0] == "torch":
        arrays = [np.asarray(value) for value in values]
        if len({(array.shape, array.dtype) for array in arrays}) == 1:
            return np.stack(arrays)
        return _objects(arrays)
    if isinstance(first, np.generic):
        return np.asarray(values) if None not in values else _arrowed(list(values))
    if isinstance(first, bool | int | float) and all(type(value) is type(first) for value in values):
        array = np.asarray(values)
        return array if array.dtype != object else _objects(values)
    return _arrowed(list(values))


def as_numpy(values: Column) -> np.ndarray[Any, Any]:
    """A column as one array: without a copy where that can be done."""
    if isinstance(values, np.ndarray):
        return values
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.cast(kind.value_type)
        kind = values.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _nested(values)
    array: np.ndarray[Any, Any] = (
        values.chunk(0).to_numpy(zero_copy_only=False) if values.num_chunks == 1 else values.to_numpy()
    )
    return array


def as_arrow(values: Column) -> Any:
    """A column as Arrow data: tensors as Arrow's own fixed-shape tensors."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype == object:
        if len(values) and isinstance(values[0], np.ndarray):
            return pa.array([value.tolist() for value in values])
        return pa.array(list(values))
    if values.ndim == 1:
        return pa.array(values)
    if not len(values):
        flat = pa.array(values.reshape(-1))
        kind = pa.fixed_shape_tensor(flat.type, values.shape[1:])
        return pa.array([], type=kind)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))


def type_of(values: Column) -> Any:
    if not isinstance(values, np.ndarray):
        return values.type
    if values.dtype == object:
        return TensorType(values.dtype, None)
    return pa.from_numpy_dtype(values.dtype) if values.ndim == 1 else TensorType(values.dtype, values.shape[1:])


def _column(name: str, values: Any) -> Column:
    """What a caller gives as a column, in one of the two forms."""
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise ValueError(f"the column {name!r} of a batch is a single value: it needs one for each row")
        if values.dtype.kind in "US":
            return _chunked(pa.array(values.tolist()))
        return _from_objects(values) if values.dtype == object else values
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return _chunked(values)
    if isinstance(values, list | tuple):
        return column_of(values)
    if hasattr(values, "__array__"):  # a torch tensor, a jax array, a pandas series
        if hasattr(values, "detach"):
            values = values.detach().cpu()
        return _column(name, np.asarray(values))
    raise TypeError(
        f"the column {name!r} of a batch is a {type(values).__name__}: it must be an array or a list, with a value "
        "for each row"
    )


def _chunked(array: Any) -> Any:
    return pa.chunked_array([array])


def _untensored(values: Any) -> Column:
    """Arrow's tensors become NumPy's."""
    if isinstance(values.type, pa.FixedShapeTensorType):
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        arrays = [chunk.to_numpy_ndarray() for chunk in chunks if len(chunk)]
        if not arrays:
            dtype = values.type.value_type.to_pandas_dtype()
            return np.empty((0, *values.type.shape), dtype)
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return values if isinstance(values, pa.ChunkedArray) else _chunked(values)


def _from_series(series: Any) -> Column:
    values = series.to_numpy()
    if series.dtype.kind in "biufMm" and isinstance(values, np.ndarray) and values.dtype != object:
        return values
    if series.dtype == object and len(values) and isinstance(values[0], np.ndarray):
        return column_of(list(values))
    return pa.chunked_array([pa.Array.from_pandas(series)]) if series.dtype != object else _from_objects(values)


def _from_objects(values: np.ndarray[Any, Any]) -> Column:
    return column_of(values.tolist()) if values.ndim == 1 else values


def _arrowed(values: list[Any]) -> Column:
    """As Arrow data, if Arrow can hold it; else as the objects themselves."""
    try:
        return _chunked(pa.array(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return _objects(values)


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values if not isinstance(next(iter(values), None), np.ndarray) else [*values]
    return array


def _nested(values: Any) -> np.ndarray[Any, Any]:
    """Lists of one length as a matrix; others as an array of arrays."""
    array = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    flat = array.flatten()
    plain = pa.types.is_primitive(flat.type) and not flat.null_count and not array.null_count
    if plain and len(array):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths == lengths[0]).all():
            matrix: np.ndarray[Any, Any] = flat.to_numpy(zero_copy_only=False)
            return matrix.reshape(len(array), int(lengths[0]))
    rows = [np.asarray(row) if row is not None else None for row in array.to_pylist()]
    made = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        made[index] = row
    return made


def _joined(name: str, parts: Sequence[Block]) -> Column:
    columns = [block.columns.get(name) for block in parts]
    if all(isinstance(values, np.ndarray) for values in columns):
        arrays: list[np.ndarray[Any, Any]] = [values for values in columns if values is not None]
        if len({array.shape[1:] for array in arrays}) == 1:
            return np.concatenate(arrays)
        return _objects([row for array in arrays for row in array])
    filled = [
        _chunked(pa.nulls(block.num_rows)) if values is None else as_arrow(values)
        for block, values in zip(parts, columns, strict=True)
    ]
    tables = [pa.table({name: values}) for values in filled]
    return _untensored(pa.concat_tables(tables, promote_options="permissive").column(0))


def _for_frame(values: np.ndarray[Any, Any]) -> Any:
    return list(values) if values.ndim > 1 else values


def _nbytes(values: Column) -> int:
    if isinstance(values, np.ndarray) and values.dtype == object:
        return sum(getattr(value, "nbytes", 64) for value in values)
    return int(values.nbytes)
