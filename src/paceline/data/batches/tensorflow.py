"""Batches as TensorFlow tensors, and as a `tf.data.Dataset` for Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.batches import dtype_of, import_framework
from paceline.data.block import Schema, TensorType

Columns = str | Sequence[str]


def make_tensors(batch: Mapping[str, np.ndarray[Any, Any]], dtypes: Any = None) -> dict[str, Any]:
    """Create a tensor for each column. `dtypes` applies to all columns, or to those it names."""
    return {name: make_tensor(name, values, dtype_of(dtypes, name)) for name, values in batch.items()}


def make_tensor(name: str, values: np.ndarray[Any, Any], dtype: Any = None, ragged: Any = None) -> Any:
    """Convert one column. Rows of different lengths become a ragged tensor.

    With a `tf.RaggedTensorSpec` in `ragged`, rows of equal length do so too.
    """
    tf = import_framework("TensorFlow")
    if values.dtype.kind in "mM":
        raise TypeError(
            f"cannot convert the column {name!r} of type {values.dtype} to a tensor: TensorFlow has no dates\n\n"
            "hint: convert it to numbers in map_batches"
        )
    if values.dtype == object and any(isinstance(value, np.ndarray) for value in values):
        tensor = _make_ragged(list(values), ragged)
        # TensorFlow picks the row splits dtype by the rows. A spec has int64 unless it says otherwise.
        tensor = tensor.with_row_splits_dtype(ragged.row_splits_dtype if ragged is not None else tf.int64)
    else:
        # Strings arrive as objects, which TensorFlow accepts only in a list.
        tensor = tf.convert_to_tensor(values.tolist() if values.dtype == object else values)
        if ragged is not None:
            tensor = tf.RaggedTensor.from_tensor(
                tensor, ragged_rank=ragged.ragged_rank, row_splits_dtype=ragged.row_splits_dtype
            )
    return tensor if dtype is None else tf.cast(tensor, dtype)


def _make_ragged(rows: Sequence[Any], spec: Any) -> Any:
    """Convert rows of different lengths, which may be lists of lists, to a ragged tensor."""
    tf = import_framework("TensorFlow")
    objects = [row for row in rows if row.dtype == object]  # Rows of texts or of lists; an empty row may be either.
    if any(isinstance(item, np.ndarray) for row in objects for item in row):
        dtype = spec.dtype if spec is not None else next(_iter_number_types(objects), None)
        return tf.ragged.constant(_to_lists(rows), dtype=dtype)
    if objects and spec is not None and spec.ragged_rank > 1:
        return tf.ragged.constant(_to_lists(rows), dtype=spec.dtype, ragged_rank=spec.ragged_rank)
    return tf.ragged.stack([tf.convert_to_tensor(row) for row in rows])


def _iter_number_types(rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, np.ndarray):
            yield from [row.dtype] if row.dtype != object else _iter_number_types(row)


def _to_lists(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.tolist()
    return [_to_lists(item) for item in value] if isinstance(value, np.ndarray | list) else value


def make_tf_dataset(
    batches: Callable[[], Iterable[Mapping[str, np.ndarray[Any, Any]]]],
    schema: Callable[[], Schema | None],
    groups: Sequence[Columns],
    specs: Sequence[Any],
) -> Any:
    """Create a `tf.data.Dataset` of tuples: one entry per group of columns, a dict unless the group is a single name.

    A group's spec is the `tf.TypeSpec` of its tensors, or a dict of them; None derives it from the schema.
    """
    tf = import_framework("TensorFlow")
    signature = tuple(
        spec if spec is not None else _signature(group, schema()) for group, spec in zip(groups, specs, strict=True)
    )

    def generate() -> Iterable[Any]:
        for batch in batches():
            yield tuple(_select_group(group, batch, spec) for group, spec in zip(groups, signature, strict=True))

    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def _select_group(group: Columns, batch: Mapping[str, np.ndarray[Any, Any]], spec: Any) -> Any:
    def select_column(name: str, spec: Any) -> Any:
        ragged = spec if isinstance(spec, import_framework("TensorFlow").RaggedTensorSpec) else None
        return make_tensor(name, batch[name], getattr(spec, "dtype", None), ragged)

    if isinstance(group, str):
        return select_column(group, spec)
    return {name: select_column(name, spec[name] if isinstance(spec, Mapping) else spec) for name in group}


def _signature(group: Columns, schema: Schema | None) -> Any:
    if schema is None:
        raise ValueError(
            "the types of the columns are unknown before rows are read\n\n"
            "hint: set feature_type_spec and label_type_spec"
        )
    types = dict(zip(schema.names, schema.types, strict=True))
    if isinstance(group, str):
        return _spec(group, types[group])
    return {name: _spec(name, types[name]) for name in group}


def _spec(name: str, kind: Any) -> Any:
    tf = import_framework("TensorFlow")
    if isinstance(kind, TensorType):
        if kind.shape is None:
            raise ValueError(
                f"the rows of the column {name!r} differ in shape\n\n"
                "hint: set its tf.RaggedTensorSpec in feature_type_spec or label_type_spec"
            )
        return tf.TensorSpec((None, *kind.shape), tf.as_dtype(kind.dtype))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return tf.TensorSpec((None,), tf.string)
    if pa.types.is_fixed_size_list(kind) and not pa.types.is_nested(kind.value_type):
        return tf.TensorSpec((None, kind.list_size), _spec(name, kind.value_type).dtype)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _spec(name, kind.value_type)
        rank = inner.shape.rank
        return tf.RaggedTensorSpec((None,) * (rank + 1), inner.dtype, ragged_rank=rank)
    return tf.TensorSpec((None,), tf.as_dtype(kind.to_pandas_dtype()))
