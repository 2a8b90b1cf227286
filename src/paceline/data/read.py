"""Functions that create datasets from files, queries and objects in memory.

The arguments follow Ray Data. Paths and arguments are checked immediately, so errors point at the call; rows are read
when they are consumed. `shuffle="files"` reorders files in every epoch. Media files too small to be read on their own
are first put into random groups, and the groups are reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import (
    bad_value,
    check_bool,
    check_choice,
    check_instance,
    check_int,
    check_names,
    check_number,
    is_int,
    with_options,
)
from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block, column_of
from paceline.data.dataset import Dataset
from paceline.data.datasource.partitioning import Partitioning, PathPartitionFilter
from paceline.data.expressions import Expr, parse_expression
from paceline.data.expressions.nodes import depends_on_row_number
from paceline.data.open_args import parse_open_args
from paceline.data.order.shuffle import permutation
from paceline.data.planning.plan import Map, PlanNode, Read, ReorderUnits, Source, Transform
from paceline.data.sources import avro, media, memory, numpy, orc, parquet, text, tfrecords, webdataset
from paceline.data.sources.files import InputFile, Paths, list_files
from paceline.data.sources.footers import ParquetContents
from paceline.data.sources.schemas import table_to_block
from paceline.data.sources.sql import SqlSource
from paceline.data.task_options import ReadOptions, TaskOptions, UnitOptions, parse_num_units, warn_unused
from paceline.data.transforms.columns import DecodeTensors, parse_tensor_columns

JSON_FILE_EXTENSIONS = tuple(
    f"{kind}{packed}" for kind in ("json", "jsonl", "ndjson") for packed in ("", ".gz", ".bz2", ".zst", ".lz4")
)
_IMAGE_MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "RGBa", "La")
"""The modes of Pillow."""


@dataclass(frozen=True)
class FileShuffleConfig:
    """Shuffles files, and the parts of large files, differently in every epoch.

    The same seed gives the same orders; None means 0.
    """

    seed: int | None = None
    reseed_after_execution: bool = True
    """If False, every epoch has the same order."""

    def __post_init__(self) -> None:
        check_int("FileShuffleConfig.seed", self.seed, optional=True)
        check_bool("FileShuffleConfig.reseed_after_execution", self.reseed_after_execution)


Shuffle = Literal["files"] | FileShuffleConfig | None


class FileOptions(ReadOptions, total=False):
    """The arguments of all readers of files, with their defaults."""

    filesystem: Annotated[Any, None]
    partitioning: Annotated[Partitioning | Literal["hive"] | None, "hive"]
    partition_filter: Annotated[PathPartitionFilter | None, None]
    include_paths: Annotated[bool, False]
    file_extensions: Annotated[Sequence[str] | None, None]
    ignore_missing_paths: Annotated[bool, False]
    shuffle: Annotated[Shuffle, None]


class StreamOptions(FileOptions, total=False):
    """The arguments of readers that read files from the beginning to the end."""

    arrow_open_stream_args: Annotated[Mapping[str, Any] | None, None]


@with_options(FileOptions, file_extensions=("parquet",))
def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: Expr | str | Any | None = None,
    tensor_column_schema: Mapping[str, tuple[Any, tuple[int, ...]]] | None = None,
    include_row_hash: bool = False,
    skip_paths: Paths | None = None,
    **options: Unpack[FileOptions],
) -> Dataset:
    """Read Parquet files.

    `filter` is an expression such as `col("age") > 30`, the same as text, or a `pyarrow.compute` expression. Row groups
    whose statistics rule out a match are not read. Files may differ: a missing column is null, and numbers get the
    wider type.

    `tensor_column_schema` has the type and shape of columns whose values are the raw bytes of arrays:
    `{"image": (numpy.uint8, (28, 28))}`. `include_row_hash` adds `row_hash`, a number that identifies a row by its
    file and its place there. `skip_paths` are files, and directories with all that is below them, to leave out.
    """
    if columns is not None:
        columns = tuple(check_names("columns", columns))
    tensors = parse_tensor_columns(tensor_column_schema)
    check_bool("include_row_hash", include_row_hash)
    name, files = _open_files("read_parquet", paths, options, skip_paths)
    return _make_dataset(
        parquet.ParquetSource(
            name=name,
            contents=ParquetContents(files),
            columns=columns,
            filter=_parse_filter(filter),
            include_paths=options["include_paths"],
            num_units=options["override_num_blocks"],
            include_row_hash=include_row_hash,
        ).validate(),
        options,
        [DecodeTensors(tensors)] if tensors else (),
    )


@with_options(FileOptions, partitioning=None, file_extensions=("orc",))
def read_orc(paths: Paths, **options: Unpack[FileOptions]) -> Dataset:
    """Read ORC files. Only the columns that are needed are read. Files must have the same columns and types."""
    name, files = _open_files("read_orc", paths, options)
    return _make_dataset(orc.OrcSource(name, files, options["include_paths"]).validate(), options)


@with_options(StreamOptions, partitioning=None)
def read_avro(paths: Paths, **options: Unpack[StreamOptions]) -> Dataset:
    """Read Avro files, one row per record. Types are those of the values, as in `from_items`."""
    import_extra("fastavro", "read_avro")
    return _read_media("read_avro", paths, avro.AvroReader(), options)


@with_options(StreamOptions)
def read_csv(
    paths: Paths,
    *,
    read_options: Any = None,
    parse_options: Any = None,
    convert_options: Any = None,
    **options: Unpack[StreamOptions],
) -> Dataset:
    """Read CSV files, optionally compressed (`.gz`, `.bz2`, `.zst`, `.lz4`).

    `read_options`, `parse_options` and `convert_options` are those of `pyarrow.csv`. The beginning of the first file
    determines columns and types for all files. Files are read whole, so `override_num_blocks` has no effect.
    """
    from pyarrow import csv

    check_instance("read_options", read_options, csv.ReadOptions, "a pyarrow.csv.ReadOptions", optional=True)
    check_instance("parse_options", parse_options, csv.ParseOptions, "a pyarrow.csv.ParseOptions", optional=True)
    check_instance("convert_options", convert_options, csv.ConvertOptions, "pyarrow.csv.ConvertOptions", optional=True)
    name, files = _open_files("read_csv", paths, options)
    csv_options = text.CsvOptions(read_options, parse_options, convert_options)
    return _make_dataset(text.CsvSource(name, files, options["include_paths"], csv_options).validate(), options)


@with_options(StreamOptions, file_extensions=JSON_FILE_EXTENSIONS)
def read_json(
    paths: Paths,
    *,
    lines: bool = False,
    read_options: Any = None,
    parse_options: Any = None,
    **options: Unpack[StreamOptions],
) -> Dataset:
    """Read JSON files, optionally compressed: one row per line, an array of rows, or a single row.

    The layout is detected from the beginning of each file; `lines=True` forces one row per line. `read_options` and
    `parse_options` are those of `pyarrow.json`. Files are read whole, so `override_num_blocks` has no effect.
    """
    from pyarrow import json

    check_instance("read_options", read_options, json.ReadOptions, "a pyarrow.json.ReadOptions", optional=True)
    check_instance("parse_options", parse_options, json.ParseOptions, "a pyarrow.json.ParseOptions", optional=True)
    check_bool("lines", lines)
    name, files = _open_files("read_json", paths, options)
    json_options = text.JsonOptions(read_options, parse_options)
    return _make_dataset(
        text.JsonSource(name, files, options["include_paths"], lines, json_options).validate(), options
    )


@with_options(StreamOptions)
def read_text(
    paths: Paths, *, encoding: str = "utf-8", drop_empty_lines: bool = True, **options: Unpack[StreamOptions]
) -> Dataset:
    """Read lines of text files, optionally compressed, into the column `text`. Files are read whole."""
    check_bool("drop_empty_lines", drop_empty_lines)
    try:
        "".encode(encoding)
    except (LookupError, TypeError):
        raise bad_value("encoding", "an encoding of Python such as 'utf-8'", encoding) from None
    name, files = _open_files("read_text", paths, options)
    return _make_dataset(text.TextSource(name, files, options["include_paths"], encoding, drop_empty_lines), options)


@with_options(StreamOptions)
def read_binary_files(paths: Paths, **options: Unpack[StreamOptions]) -> Dataset:
    """Read each file as one row, into the column `bytes`. Compressed files are decompressed."""
    name, files = _open_files("read_binary_files", paths, options)
    reader = media.BinaryReader(media.choose_binary_type(files))
    source = media.MediaSource(name, files, reader, options["include_paths"], options["override_num_blocks"])
    return _make_dataset(source, options)


@with_options(FileOptions, partitioning=None, file_extensions=media.IMAGE_EXTENSIONS)
def read_images(
    paths: Paths,
    *,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    arrow_open_file_args: Mapping[str, Any] | None = None,
    **options: Unpack[FileOptions],
) -> Dataset:
    """Read one row per image: the column `image`, height x width x channels, and `path` with `include_paths`.

    `size` is (height, width) to resize to; `mode` is a Pillow mode to convert to, such as "RGB" or "L". Without them
    images stay as stored, and the column is ragged if their shapes differ. JPEGs much larger than `size` are decoded at
    a half, a quarter or an eighth of their size, which is faster.
    """
    import_extra("PIL.Image", "read_images")
    check_choice("mode", mode, (None, *_IMAGE_MODES))
    reader = media.ImageReader(_check_size("size", size), mode)
    open_args = parse_open_args("arrow_open_file_args", arrow_open_file_args)
    return _read_media("read_images", paths, reader, {**options, "arrow_open_stream_args": open_args})  # type: ignore[typeddict-unknown-key]


@with_options(StreamOptions, partitioning=None, file_extensions=numpy.EXTENSIONS)
def read_numpy(paths: Paths, *, allow_pickle: bool = False, **options: Unpack[StreamOptions]) -> Dataset:
    """Read rows of arrays: an `.npy` file as the column `data`, an `.npz` file as one column per array.

    Local files are memory-mapped; others are read one range at a time. Arrays of Python objects are pickled, and
    loaded only with `allow_pickle=True`, which runs the code in them.
    """
    reader = numpy.NumpyReader(check_bool("allow_pickle", allow_pickle))
    return _read_media("read_numpy", paths, reader, options, numpy.NumpySource)


@with_options(StreamOptions, partitioning=None, file_extensions=webdataset.EXTENSIONS)
def read_webdataset(
    paths: Paths,
    *,
    decoder: bool | str | Callable[[dict[str, Any]], dict[str, Any]] | Sequence[Any] | None = True,
    fileselect: webdataset.Matches = None,
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None,
    suffixes: webdataset.Matches = None,
    expand_json: bool = False,
    verbose_open: bool = False,
    **options: Unpack[StreamOptions],
) -> Dataset:
    """Read one row per sample of tar files: `__key__`, `__url__` (the tar file) and one column per suffix.

    A sample is a run of consecutive files whose names agree up to the first dot. By default images become arrays, `txt`
    text, `cls` an integer, `json` the parsed value and `npy` an array. Everything else stays bytes, including pickled
    data (`pkl`, `pyd`, `pt`, ...): unpickle it in a `decoder` of your own if you trust it.

    `decoder` is a function from sample to sample, "PIL" for Pillow images, a list of such steps, or None for bytes
    only. `suffixes` and `fileselect` (patterns, or a function) filter the suffixes of a sample and the files of a tar
    file; `filerename` renames files first. `expand_json` turns the fields of `json` into columns. `verbose_open` logs
    the name of each tar file when it is opened.
    """
    for name, matches in (("suffixes", suffixes), ("fileselect", fileselect)):
        if isinstance(matches, str) or not (matches is None or callable(matches) or isinstance(matches, Sequence)):
            raise bad_value(name, "a list of patterns such as ['jpg', 'cls'], a function or None", matches)
    for step in decoder if isinstance(decoder, list | tuple) else [decoder]:
        if not (step is None or isinstance(step, bool | str) or callable(step)):
            raise bad_value("decoder", "a function, True, 'PIL', None, or a list of these", step)
    renames = filerename if isinstance(filerename, list | tuple) else [filerename]
    if not all(rename is None or callable(rename) for rename in renames):
        raise bad_value("filerename", "a function from name to name, or a list of them", filerename)
    check_bool("verbose_open", verbose_open)
    reader = webdataset.WebDatasetReader(
        decoder, suffixes, fileselect, filerename, expand_json, verbose_open=verbose_open
    )
    return _read_media("read_webdataset", paths, reader, options)


@with_options(StreamOptions, partitioning=None)
def read_tfrecords(
    paths: Paths,
    *,
    tf_schema: Mapping[str, pa.DataType] | pa.Schema | None = None,
    compression: tfrecords.Compression | None = None,
    **options: Unpack[StreamOptions],
) -> Dataset:
    """Read one row per `tf.train.Example`, one column per feature. Verifies checksums; does not need TensorFlow.

    A feature with one value in each record becomes a column of int64, float32 or bytes; one with several values becomes
    a column of lists; a missing feature is null. If a feature has one value at first and several later in a file,
    declare it: `tf_schema={"tags": pyarrow.list_(pyarrow.binary())}`. Columns are cast to the types given there, so
    `pyarrow.string()` turns bytes into text. Files named `.gz` are decompressed; others need `compression="GZIP"` or
    "ZLIB".
    """
    check_choice("compression", compression, ("GZIP", "ZLIB", None))
    import_extra("google_crc32c", "read_tfrecords")
    return _read_media(
        "read_tfrecords",
        paths,
        tfrecords.TFRecordReader(tfrecords.parse_feature_types(tf_schema), compression),
        options,
    )


@with_options(StreamOptions, partitioning=None, file_extensions=media.AUDIO_EXTENSIONS)
def read_audio(paths: Paths, **options: Unpack[StreamOptions]) -> Dataset:
    """Read one row per audio file: `amplitude`, float32 of channels x samples, and `sample_rate`."""
    import_extra("soundfile", "read_audio")
    return _read_media("read_audio", paths, media.AudioReader(), options)


@with_options(StreamOptions, partitioning=None, file_extensions=media.VIDEO_EXTENSIONS)
def read_videos(
    paths: Paths,
    *,
    include_timestamps: bool = False,
    fps: float | None = None,
    resize: tuple[int, int] | None = None,
    **options: Unpack[StreamOptions],
) -> Dataset:
    """Read one row per video frame: `frame`, uint8 of height x width x 3, and `frame_index`, from 0 in each file.

    `include_timestamps` adds `frame_timestamp`: the start and end of the frame in seconds. With `fps` only so many
    frames per second are kept, with the index they have in the file. `resize` is (height, width).
    """
    import_extra("av", "read_videos")
    check_number("fps", fps, above=0, optional=True)
    reader = media.VideoReader(include_timestamps, fps, _check_size("resize", resize))
    return _read_media("read_videos", paths, reader, options)


@with_options(ReadOptions)
def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    sql_params: Any = None,
    shard_keys: Sequence[str] | None = None,
    shard_hash_fn: str = "MD5",
    **options: Unpack[ReadOptions],
) -> Dataset:
    """Read the rows of a query. `connection_factory` takes no arguments and returns a DB-API 2 connection.

    The query runs once. With `shard_keys` it runs as `override_num_blocks` parallel queries, each with the clause
    `WHERE MOD(ABS(shard_hash_fn(key)), n) = i`; `shard_hash_fn` must be a database function that returns a number, and
    no key may be null. For a stable row order the query needs an `ORDER BY` that determines it.
    """
    if not isinstance(sql, str) or not sql.strip():
        raise bad_value("sql", "a query", sql)
    if not callable(connection_factory):
        raise TypeError(
            f"connection_factory must be a function that opens a connection, got {connection_factory!r}: each process "
            "opens its own\n\nhint: connection_factory=lambda: sqlite3.connect('train.db')"
        )
    keys = () if shard_keys is None else tuple(shard_keys)
    if isinstance(shard_keys, str) or not all(isinstance(key, str) and key for key in keys):
        raise bad_value("shard_keys", "a list of columns of the query or None", shard_keys)
    number = check_read_options("read_sql", options) or 1
    if number > 1 and not keys:
        raise ValueError(f"override_num_blocks={number} needs shard_keys: the columns that divide the rows")
    return Dataset(
        Read(SqlSource(sql.strip().rstrip(";"), connection_factory, sql_params, keys, shard_hash_fn, number))
    )


@with_options(UnitOptions)
def range(n: int, **options: Unpack[UnitOptions]) -> Dataset:
    """Create a dataset of the integers 0 to n - 1, in the column `id`."""
    num_units = parse_num_units(options)
    return Dataset(Read(memory.RangeSource(f"range({check_int('n', n, at_least=0)})", n, num_units=num_units)))


@with_options(UnitOptions)
def range_tensor(n: int, *, shape: Sequence[int] = (1,), **options: Unpack[UnitOptions]) -> Dataset:
    """Create a dataset of `n` tensors, each filled with its number from 0 to n - 1, in the column `data`."""
    num_units = parse_num_units(options)
    if not isinstance(shape, Sequence) or not shape or not all(is_int(size) and size >= 0 for size in shape):
        raise bad_value("shape", "a tuple of sizes such as (2, 2)", shape)
    name = f"range_tensor({check_int('n', n, at_least=0)}, shape={tuple(shape)})"
    return Dataset(Read(memory.RangeSource(name, n, "data", tuple(shape), num_units)))


@with_options(UnitOptions)
def from_items(items: Sequence[Any], **options: Unpack[UnitOptions]) -> Dataset:
    """Create a dataset with one row per item. Dicts become columns; other items go into the column `item`."""
    num_units = parse_num_units(options)
    if isinstance(items, str | bytes | Mapping):
        raise bad_value("items", "a list of rows", items)
    rows = list(items)
    are_dicts = [isinstance(row, Mapping) for row in rows]
    if len(set(are_dicts)) > 1:
        odd = are_dicts.index(not are_dicts[0])
        raise ValueError(
            f"items must be all dicts or none, got a {type(rows[0]).__name__} in items[0] and a "
            f"{type(rows[odd]).__name__} in items[{odd}]"
        )
    block = Block.from_rows(rows)
    return Dataset(Read(memory.MemorySource(f"from_items({len(rows)} items)", (block,), num_units, min_units=64)))


def from_pandas(dfs: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset from a `pandas.DataFrame` or a list of them. The index is dropped."""
    pandas = import_extra("pandas", "from_pandas")
    return _from_one_or_many("from_pandas", "dfs", dfs, pandas.DataFrame, Block.from_pandas, override_num_blocks)


def from_numpy(ndarrays: Any, *, column: str = "data", override_num_blocks: int | None = None) -> Dataset:
    """Create a one-column dataset from an array or a list of arrays. Rows are along the first dimension."""

    def block(array: np.ndarray[Any, Any]) -> Block:
        return Block({column: array if array.ndim else column_of([array.item()])})

    return _from_one_or_many("from_numpy", "ndarrays", ndarrays, np.ndarray, block, override_num_blocks)


def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset from a `pyarrow.Table` or a list of them."""

    def block(table: Any) -> Block:
        return table_to_block(pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table)

    return _from_one_or_many("from_arrow", "tables", tables, (pa.Table, pa.RecordBatch), block, override_num_blocks)


def _from_one_or_many(function: str, argument: str, values: Any, kind: Any, block: Any, number: int | None) -> Dataset:
    check_int("override_num_blocks", number, at_least=1, optional=True)
    parts = list(values) if isinstance(values, list | tuple) else [values]
    for part in parts:
        if not isinstance(part, kind):
            name = kind[0].__name__ if isinstance(kind, tuple) else kind.__name__
            raise ValueError(f"{argument} must be a {name} or a list of them, got a {type(part).__name__}")
    blocks = tuple(block(part) for part in parts)
    rows = sum(part.num_rows for part in blocks)
    return Dataset(Read(memory.MemorySource(f"{function}({rows} rows)", blocks, number)))


def _check_size(name: str, size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(is_int(each) and each >= 1 for each in size):
        raise bad_value(name, "(height, width), two positive integers, or None", size)
    return int(size[0]), int(size[1])


def _open_files(
    function: str, paths: Paths, options: FileOptions, skip_paths: Paths | None = None
) -> tuple[str, tuple[InputFile, ...]]:
    """Check the options; return the call as messages show it, without credentials or URL options, and the files."""
    options["override_num_blocks"] = check_read_options(function, options)
    check_bool("include_paths", options["include_paths"])
    _parse_shuffle(options["shuffle"])
    files = list_files(
        paths,
        options["filesystem"],
        options["file_extensions"],
        options["partitioning"],
        options["ignore_missing_paths"],
        options["partition_filter"],
        parse_open_args("arrow_open_stream_args", options.get("arrow_open_stream_args")),
        skip_paths,
    )
    texts = [str(path).partition("?")[0] for path in (paths if isinstance(paths, list | tuple) else [paths])]
    scheme, _, rest = texts[0].partition("://")
    first = f"{scheme}://{rest.rpartition('@')[2]}" if rest else scheme
    more = f", ... {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"{function}({first!r}{more})", files


def _read_media(
    function: str,
    paths: Paths,
    reader: media.FileReader,
    options: FileOptions,
    source: type[media.MediaSource] = media.MediaSource,
) -> Dataset:
    name, files = _open_files(function, paths, options)
    config = _parse_shuffle(options["shuffle"])
    if config is not None:
        files = tuple(files[index] for index in permutation(len(files), config.seed or 0))
    return _make_dataset(source(name, files, reader, options["include_paths"], options["override_num_blocks"]), options)


def _make_dataset(source: Source, options: FileOptions, transforms: Sequence[Transform] = ()) -> Dataset:
    plan: PlanNode = Read(source)
    for transform in transforms:
        plan = Map(plan, transform)
    return shuffle_units(plan, options["shuffle"])


def shuffle_units(plan: PlanNode, shuffle: Shuffle) -> Dataset:
    """Reorder the units of a plan, if the user wants that."""
    config = _parse_shuffle(shuffle)
    if config is None:
        return Dataset(plan)
    return Dataset(ReorderUnits(plan, seed=config.seed or 0, every_epoch=config.reseed_after_execution))


def _parse_shuffle(shuffle: Shuffle) -> FileShuffleConfig | None:
    config = FileShuffleConfig() if shuffle == "files" else shuffle
    return check_instance("shuffle", config, FileShuffleConfig, "'files', a FileShuffleConfig", optional=True)  # type: ignore[no-any-return]


def _parse_filter(value: Any) -> Any:
    if isinstance(value, str):
        return parse_expression(value)
    if isinstance(value, Expr) and depends_on_row_number(value):
        raise ValueError(f"filter must depend on columns only, got {value!r}\n\nhint: use Dataset.filter")
    if value is None or isinstance(value, Expr | pc.Expression):
        return value
    raise bad_value("filter", "an expression: col('age') > 30, 'age > 30' or one of pyarrow.compute", value)


def check_read_options(function: str, options: ReadOptions) -> int | None:
    """Check the arguments that all readers share; return the number of units that was asked for, or None."""
    warn_unused(function, options, [*TaskOptions.__annotations__, "ray_remote_args"])
    return parse_num_units(options)
