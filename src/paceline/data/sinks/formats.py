"""The file formats that can be written: for each, a sink with its options, and the writer of one file."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from paceline._core.arguments import bad_value, check_choice, check_int, join_or
from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block, as_arrow, as_numpy
from paceline.data.sinks.sink import FileWriter, FormatSink, compression_suffix, open_output
from paceline.data.sources.tf_examples import encode_examples
from paceline.data.sources.tfrecords import frame_record
from paceline.data.sources.webdataset import NUMBERS, TEXTS

ROW_GROUP_BYTES = 64 << 20
"""The approximate memory of a row group, unless the user sets its number of rows."""
KEY = "__key__"
Encoder = bool | Callable[[dict[str, Any]], dict[str, Any]]

CSV_OPTIONS = ("include_header", "batch_size", "delimiter", "quoting_style")
_IMAGE_FORMATS = {"jpg": "jpeg", "tif": "tiff"}
_TAR_IMAGES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "ppm": "ppm", "pgm": "ppm", "pbm": "ppm", "webp": "webp"}


class ParquetWriter(FileWriter):
    """Writes row groups of a useful size, whatever the size of the incoming blocks."""

    def __init__(self, path: Path, sink: ParquetSink) -> None:
        super().__init__(path, sink)
        self._writer: Any = None
        self._group_rows = 0
        self._waiting: list[Any] = []
        self._num_waiting = 0

    def can_append(self, block: Block) -> bool:
        if self._writer is None:
            return True
        try:
            self._cast_to_schema(block.to_arrow())
        except (pa.ArrowException, KeyError):
            return False
        return True

    def write(self, block: Block) -> None:
        table = block.to_arrow()
        if self._writer is None:
            self._open_writer(table)
        self._waiting.append(self._cast_to_schema(table))
        self._num_waiting += table.num_rows
        if self._num_waiting >= self._group_rows:
            self._flush()

    def close(self) -> None:
        self._flush(with_rest=True)
        self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self, table: Any) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(self.path, table.schema, **self.sink.options)
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        self._group_rows = self.sink.row_group_size or max(1, ROW_GROUP_BYTES // row_bytes)

    def _cast_to_schema(self, table: Any) -> Any:
        """Convert to the columns and types of the file's first rows; raise if that would lose data."""
        schema = self._writer.schema
        if table.schema.equals(schema):
            return table
        if set(table.column_names) != set(schema.names):
            raise KeyError(f"other columns: {table.column_names}")
        return table.select(schema.names).cast(schema)

    def _flush(self, with_rest: bool = False) -> None:
        if not self._num_waiting:
            return
        table = pa.concat_tables(self._waiting)
        start = 0
        while table.num_rows - start >= self._group_rows or (with_rest and start < table.num_rows):
            count = min(self._group_rows, table.num_rows - start)
            self._writer.write_table(table.slice(start, count), row_group_size=count)
            start += count
        rest = table.slice(start)
        self._waiting, self._num_waiting = ([rest] if rest.num_rows else []), rest.num_rows


@dataclass(frozen=True)
class ParquetSink(FormatSink):
    options: Mapping[str, Any]
    row_group_size: int | None = None

    name, suffix, writer = "write_parquet", ".parquet", ParquetWriter

    @classmethod
    def from_arguments(cls, options: Mapping[str, Any]) -> ParquetSink:
        """Check the options against pyarrow now rather than in the middle of the write."""
        import pyarrow.parquet as pq

        size = check_int("row_group_size", options.get("row_group_size"), at_least=1, optional=True)
        passed = {name: value for name, value in options.items() if name != "row_group_size"}
        # Options that refer to columns by index can only be checked once there are columns.
        tried = {name: value for name, value in passed.items() if name != "sorting_columns"}
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([("x", pa.int64())]), **tried).close()
        except (TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise ValueError(f"write_parquet: pyarrow rejects {tried!r}: {error}") from error
        return cls(passed, size)


class OrcWriter(FileWriter):
    def __init__(self, path: Path, sink: OrcSink) -> None:
        from pyarrow import orc

        super().__init__(path, sink)
        self._writer = orc.ORCWriter(str(path), **sink.options)
        self._schema: Any = None

    def can_append(self, block: Block) -> bool:
        return self._schema is None or block.to_arrow().schema.equals(self._schema)

    def write(self, block: Block) -> None:
        table = block.to_arrow()
        tensor = next((each.name for each in table.schema if isinstance(each.type, pa.BaseExtensionType)), None)
        if tensor is not None:
            raise ValueError(
                f"write_orc: column {tensor!r} has tensors, which ORC cannot hold\n\nhint: write_parquet can"
            )
        self._schema = table.schema
        self._writer.write(table)

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class OrcSink(FormatSink):
    options: Mapping[str, Any]

    name, suffix, writer = "write_orc", ".orc", OrcWriter

    @classmethod
    def from_arguments(cls, options: Mapping[str, Any]) -> OrcSink:
        """Check the options against pyarrow now rather than in the middle of the write."""
        from pyarrow import orc

        try:
            with orc.ORCWriter(pa.BufferOutputStream(), **options) as tried:
                tried.write(pa.table({"x": [0]}))
        except (TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise ValueError(f"write_orc: pyarrow rejects {dict(options)!r}: {error}") from error
        return cls(options)


class CsvWriter(FileWriter):
    def __init__(self, path: Path, sink: CsvSink) -> None:
        super().__init__(path, sink)
        self._stream = open_output(path, sink.compression)
        self._writer: Any = None
        self._schema: Any = None

    def can_append(self, block: Block) -> bool:
        return self._schema is None or set(block.columns) == set(self._schema.names)

    def write(self, block: Block) -> None:
        from pyarrow.csv import CSVWriter, WriteOptions

        table, options = _to_flat_table(block), self.sink.options
        if self._writer is not None:
            table = table.select(self._schema.names)
            if not table.schema.equals(self._schema):
                # Rows of other types continue in the same file, under the same header: text has no types.
                self._writer.close()
                self._writer, options = None, {**options, "include_header": False}
        if self._writer is None:
            self._schema = table.schema
            self._writer = CSVWriter(self._stream, self._schema, write_options=WriteOptions(**options))
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stream.close()


def _to_flat_table(block: Block) -> Any:
    for name, values in block.columns.items():
        contents = ""
        if not isinstance(values, np.ndarray):
            contents = f"values of type {values.type}" if pa.types.is_nested(values.type) else ""
        elif values.ndim > 1:
            contents = f"tensors of shape {values.shape[1:]}"
        elif values.dtype == object and any(isinstance(value, np.ndarray | list | dict) for value in values):
            contents = "arrays"
        if contents:
            raise ValueError(
                f"write_csv: column {name!r} has {contents}, which CSV cannot hold\n\n"
                "hint: write_parquet and write_json can; drop_columns leaves the column out"
            )
    return block.to_arrow()


@dataclass(frozen=True)
class CsvSink(FormatSink):
    options: Mapping[str, Any]
    """The arguments of `pyarrow.csv.WriteOptions`, which cannot be pickled."""
    compression: str | None = None

    name, writer = "write_csv", CsvWriter

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], compression: str | None) -> CsvSink:
        from pyarrow.csv import WriteOptions

        compression_suffix(compression)
        defaults = arguments.get("write_options")
        options = {name: getattr(defaults, name) for name in CSV_OPTIONS if hasattr(defaults, name)}
        options |= {name: value for name, value in arguments.items() if name != "write_options"}
        if unknown := next((name for name in options if name not in CSV_OPTIONS), None):
            raise bad_value("an argument of CSV files", join_or(map(repr, ("write_options", *CSV_OPTIONS))), unknown)
        WriteOptions(**options)
        return cls(options, compression)

    @property
    def suffix(self) -> str:
        return f".csv{compression_suffix(self.compression)}"


class JsonWriter(FileWriter):
    def __init__(self, path: Path, sink: JsonSink) -> None:
        super().__init__(path, sink)
        self._stream = open_output(path, sink.compression)
        self._encoder = msgspec.json.Encoder(enc_hook=to_plain_json)

    def write(self, block: Block) -> None:
        if self.sink.pandas_options is not None:
            text = block.to_pandas().to_json(None, orient="records", lines=True, **self.sink.pandas_options)
            self._stream.write(text.encode())
            return
        try:
            self._stream.write(self._encoder.encode_lines(block.rows()))
        except (TypeError, ValueError) as error:
            raise type(error)(f"write_json: {self._describe_bad_column(block)}{error}") from error

    def close(self) -> None:
        self._stream.close()

    def _describe_bad_column(self, block: Block) -> str:
        for row in block.rows():
            for name, value in row.items():
                try:
                    self._encoder.encode(value)
                except (TypeError, ValueError):
                    return f"column {name!r}: "
        return ""


def to_plain_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    if isinstance(value, np.datetime64 | np.timedelta64 | np.str_):
        return str(value)
    if isinstance(value, np.bytes_):
        return base64.b64encode(value).decode()
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


@dataclass(frozen=True)
class JsonSink(FormatSink):
    compression: str | None = None
    pandas_options: Mapping[str, Any] | None = None
    """Arguments of `pandas.DataFrame.to_json`, which then encodes the rows."""

    name, writer = "write_json", JsonWriter

    def __post_init__(self) -> None:
        compression_suffix(self.compression)

    @classmethod
    def from_arguments(cls, compression: str | None, pandas_options: Mapping[str, Any]) -> JsonSink:
        if not pandas_options:
            return cls(compression)
        for name, value, only in (("orient", "records", "records"), ("lines", True, True)):
            check_choice(f"{name} of pandas_json_args_fn", pandas_options.get(name, value), (only,))
        options = {name: value for name, value in pandas_options.items() if name not in ("orient", "lines")}
        compression = options.pop("compression", compression)
        try:
            import_extra("pandas", "pandas_json_args_fn").DataFrame({"x": [0]}).to_json(
                None, orient="records", lines=True, **options
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"write_json: pandas rejects {options!r}: {error}") from error
        return cls(compression, options)

    @property
    def suffix(self) -> str:
        return f".json{compression_suffix(self.compression)}"


class NumpyWriter(FileWriter):
    """The file header contains the number of rows, so rows are buffered until all are there."""

    def __init__(self, path: Path, sink: NumpySink) -> None:
        super().__init__(path, sink)
        self._parts: list[Any] = []

    def can_append(self, block: Block) -> bool:
        if not self._parts:
            return True
        first, values = self._parts[0], _to_array(self.sink.column, block)
        return bool(values.shape[1:] == first.shape[1:] and values.dtype.kind == first.dtype.kind)

    def write(self, block: Block) -> None:
        self._parts.append(_to_array(self.sink.column, block))

    def close(self) -> None:
        values = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        with self.path.open("wb") as file:
            np.save(file, values, allow_pickle=False)
        self._parts.clear()

    def abandon(self) -> None:
        self._parts.clear()


def _to_array(column: str, block: Block) -> Any:
    values = as_numpy(block.column(column))
    if values.dtype != object:
        return values
    kinds = {type(value) for value in values}
    if kinds <= {str, np.str_} or kinds <= {bytes}:
        return np.array(values.tolist())
    shapes = {getattr(value, "shape", None) for value in values}
    if kinds == {np.ndarray} and len(shapes) == 1:
        return np.stack(list(values))
    names = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise ValueError(
        f"write_numpy: column {column!r} has {'arrays of different shapes' if kinds == {np.ndarray} else names}, which "
        "do not fit one array\n\nhint: write_parquet can write them"
    )


@dataclass(frozen=True)
class NumpySink(FormatSink):
    column: str

    name, suffix, writer = "write_numpy", ".npy", NumpyWriter


class ImageWriter(FileWriter):
    def write(self, block: Block) -> None:
        values = block.column(self.sink.column)
        value = values[0] if isinstance(values, np.ndarray) else values[0].as_py()
        image = to_image(f"write_images: column {self.sink.column!r}", value)
        with self.path.open("wb") as file:
            image.save(file, _IMAGE_FORMATS.get(self.sink.file_format, self.sink.file_format))


def to_image(context: str, value: Any) -> Any:
    array = np.asarray(value) if value is not None else np.empty(0, object)
    if array.dtype.kind in "iu" and array.dtype != np.uint8 and array.size and array.min() >= 0 and array.max() <= 255:
        array = array.astype(np.uint8)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (2, 3, 4))
    if array.dtype not in (np.uint8, np.bool_) or not fits:
        raise ValueError(
            f"{context} must be an image of type uint8 and shape (height, width) or (height, width, channels), "
            f"got type {array.dtype} and shape {array.shape}\n\n"
            "hint: (255 * x).round().astype('uint8') converts floats from 0 to 1"
        )
    return import_extra("PIL.Image", "encoding images").fromarray(np.ascontiguousarray(array))


@dataclass(frozen=True)
class ImageSink(FormatSink):
    column: str
    file_format: str

    name, writer, one_row_each = "write_images", ImageWriter, True

    @classmethod
    def from_arguments(cls, column: str, file_format: str) -> ImageSink:
        image = import_extra("PIL.Image", "write_images")
        image.init()
        name = file_format.lower().lstrip(".")
        if _IMAGE_FORMATS.get(name, name).upper() not in image.SAVE:
            raise bad_value("file_format", join_or(sorted(kind.lower() for kind in image.SAVE)), file_format)
        return cls(column, name)

    @property
    def suffix(self) -> str:
        return f".{self.file_format}"


class TFRecordWriter(FileWriter):
    def __init__(self, path: Path, sink: TFRecordSink) -> None:
        super().__init__(path, sink)
        self._file = path.open("wb") if sink.compression is None else open_output(path, sink.compression)

    def write(self, block: Block) -> None:
        for example in encode_examples(self._cast_columns(block)):
            self._file.write(frame_record(example))

    def _cast_columns(self, block: Block) -> Block:
        for name, kind in self.sink.types:
            try:
                block = block.with_column(name, as_chunked(block.column(name)).cast(kind))
            except pa.ArrowException as error:
                raise ValueError(
                    f"write_tfrecords: column {name!r} does not fit {kind} of tf_schema: {error}"
                ) from error
        return block

    def close(self) -> None:
        self._file.close()


def as_chunked(values: Any) -> Any:
    column = as_arrow(values)
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


@dataclass(frozen=True)
class TFRecordSink(FormatSink):
    compression: str | None = None
    types: tuple[tuple[str, Any], ...] = ()

    name, writer = "write_tfrecords", TFRecordWriter

    def __post_init__(self) -> None:
        import_extra("google_crc32c", "write_tfrecords")

    @property
    def suffix(self) -> str:
        return f".tfrecords{compression_suffix(self.compression)}"


class WebDatasetWriter(FileWriter):
    """The columns of a row are members that share a key. They have no timestamp and no owner, so the same rows make the
    same file."""

    def __init__(self, path: Path, sink: WebDatasetSink) -> None:
        super().__init__(path, sink)
        self._stream = open_output(path, sink.compression)
        self._tar = tarfile.open(fileobj=self._stream, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115  see close()
        self._num_rows = 0
        self._last_key = ""

    def write(self, block: Block) -> None:
        encoder = self.sink.encoder
        for row in block.rows():
            key = str(row.get(KEY)) if row.get(KEY) is not None else f"{self._num_rows:08d}"
            if key == self._last_key:
                raise ValueError(
                    f"write_webdataset: consecutive rows must have different {KEY}, got {key!r} twice: "
                    "they would be read as one row"
                )
            self._num_rows, self._last_key = self._num_rows + 1, key
            for name, value in (encoder(row) if callable(encoder) else row).items():
                if not name.startswith("__") and value is not None:
                    data = encode_value(name, value, by_extension=encoder is True)
                    member = tarfile.TarInfo(f"{key}.{name}")
                    member.size = len(data)
                    self._tar.addfile(member, io.BytesIO(data))

    def close(self) -> None:
        self._tar.close()
        self._stream.close()

    def abandon(self) -> None:
        self._stream.close()


def encode_value(name: str, value: Any, *, by_extension: bool = True) -> bytes:
    """Encode a value as a member. `name` is a column, which may contain dots; its last part decides the encoding."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    extension = name.rpartition(".")[2].lower()
    if by_extension:
        if extension in NUMBERS and isinstance(value, int | np.integer):
            return str(int(value)).encode()
        if extension in TEXTS and np.ndim(value) == 0:
            return str(value).encode()
        if extension in ("json", "jsn"):
            return msgspec.json.encode(value, enc_hook=to_plain_json)
        buffer = io.BytesIO()
        if extension == "npy":
            np.save(buffer, np.asarray(value), allow_pickle=False)
            return buffer.getvalue()
        if extension in _TAR_IMAGES:
            to_image(f"write_webdataset: column {name!r}", value).save(buffer, _TAR_IMAGES[extension])
            return buffer.getvalue()
    raise ValueError(
        f"write_webdataset: cannot encode column {name!r}, which has a value of type {type(value).__name__}\n\n"
        "hint: name it cls, txt, json, npy, jpg or png, or set encoder to a function that returns bytes"
    )


@dataclass(frozen=True)
class WebDatasetSink(FormatSink):
    encoder: Encoder = True
    compression: str | None = None

    name, writer = "write_webdataset", WebDatasetWriter

    @property
    def suffix(self) -> str:
        return f".tar{compression_suffix(self.compression)}"

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, bool) and not callable(self.encoder):
            raise bad_value("encoder", "True, False, or a function from a row to a row", self.encoder)
