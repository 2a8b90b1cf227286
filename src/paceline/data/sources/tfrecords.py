"""TFRecord files of `tf.train.Example`: one row per record, one column per feature.

A feature with one value in every record of a file is a column of values; otherwise it is a column of lists. A missing
feature is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column
from paceline.data.sources.files import InputFile
from paceline.data.sources.media import FileReader, InvalidContentError, explain_decoding
from paceline.data.sources.tf_examples import DecodedFeature, ExampleDecoder
from paceline.data.sources.tfexample_codec import Kind, MalformedExampleError
from paceline.data.sources.tfrecord_codec import CorruptRecordError, InflatingReader, read_records

Compression = Literal["GZIP", "ZLIB"]

_TYPES: dict[Kind, Any] = {"bytes": pa.binary(), "float": pa.float32(), "int64": pa.int64()}
_RECORDS = 4096
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class TFRecordReader(FileReader):
    types: tuple[tuple[str, Any], ...] = ()
    compression: Compression | None = None
    columns: tuple[str, ...] | None = None

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        shapes = FeatureShapes(dict(self.types))
        decoder = ExampleDecoder()
        done = 0
        with (
            explain_decoding(file, "TFRecords of tf.train.Example"),
            file.open() if self.compression else file.stream() as opened,
        ):
            records = read_records(InflatingReader(opened) if self.compression else opened)
            while True:
                try:
                    batch = _take_batch(records)
                    columns = self._make_columns(decoder.decode(batch), shapes, len(batch))
                except MalformedExampleError as error:
                    raise InvalidContentError(f"record {done + error.record}: {error.reason}") from None
                except CorruptRecordError as error:
                    raise InvalidContentError(str(error)) from None
                if not batch:
                    return
                yield Block(columns, num_rows=len(batch))
                done += len(batch)

    def _make_columns(
        self, features: Mapping[str, DecodedFeature], shapes: FeatureShapes, num_rows: int
    ) -> dict[str, Column]:
        names = sorted({*features, *shapes.types})
        if self.columns is not None and {*self.columns} <= {*names}:
            names = [name for name in names if name in self.columns]
        return {name: shapes.make_column(name, features.get(name), num_rows) for name in names}

    def project_columns(self, columns: Sequence[str]) -> TFRecordReader | None:
        return replace(self, columns=tuple(columns))


def _take_batch(records: Iterator[bytes]) -> list[bytes]:
    """The next records, up to a number of records or bytes."""
    batch: list[bytes] = []
    size = 0
    for data in islice(records, _RECORDS):
        batch.append(data)
        size += len(data)
        if size >= _BLOCK_BYTES:
            break
    return batch


@dataclass
class FeatureShapes:
    """Which features are single values and which are lists: as declared, or as first seen."""

    types: dict[str, Any]
    lists: dict[str, bool] = field(default_factory=dict)

    def make_column(self, name: str, feature: DecodedFeature | None, num_rows: int) -> Column:
        if feature is None:
            return pa.chunked_array([pa.nulls(num_rows, self.types[name])])
        column = _list_column(feature) if self._is_list(name, feature) else _single_value_column(feature)
        kind = self.types.get(name)
        if kind is None:
            return column
        try:
            return pa.chunked_array([column if isinstance(column, pa.Array) else pa.array(column)]).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidContentError(
                f"cannot convert feature {name!r} to {kind}, its type in tf_schema: {error}"
            ) from None

    def _is_list(self, name: str, feature: DecodedFeature) -> bool:
        several = feature.counts > 1
        if name in self.types:
            listed = bool(pa.types.is_list(self.types[name]) or pa.types.is_large_list(self.types[name]))
        else:
            listed = self.lists.setdefault(name, bool(several.any()))
        if not listed and several.any():
            row = int(np.argmax(several))
            raise MalformedExampleError(
                f"feature {name!r} has {feature.counts[row]} values, and one in earlier records\n\n"
                f"hint: read_tfrecords(..., tf_schema={{{name!r}: pyarrow.list_(...)}}) makes it a list in all records",
                row,
            )
        return listed


def _single_value_column(feature: DecodedFeature) -> Column:
    present = feature.counts == 1
    if feature.kind == "bytes":
        values: list[bytes | None] = [None] * len(present)
        for row, value in zip(np.nonzero(present)[0].tolist(), feature.values, strict=True):
            values[row] = value
        return pa.array(values, _TYPES["bytes"])
    if present.all():
        return np.asarray(feature.values)
    spread = np.zeros(len(present), np.asarray(feature.values).dtype)
    spread[present] = feature.values
    return pa.array(spread, _TYPES[feature.kind], mask=~present)


def _list_column(feature: DecodedFeature) -> Column:
    ends = np.cumsum(np.maximum(feature.counts, 0))
    offsets = np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int32)
    mask = pa.array(feature.counts < 0) if (feature.counts < 0).any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(feature.values, _TYPES[feature.kind]), mask=mask)
