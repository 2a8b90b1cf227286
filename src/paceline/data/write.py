"""Writers: `write_parquet` and its siblings, which are methods of `Dataset`.

A path is a directory of files, one or more per unit of the dataset, named `part-000000` and so on in row order. Data
processes write into a hidden directory; files move to their final places only when all rows are written. A write that
fails or is killed leaves nothing that a reader could mistake for a dataset.

On a disk, a new directory appears, and an old one is replaced, atomically. Files added to an existing directory, or to
an object store, appear one by one: a process killed at that moment leaves some of them. In a directory, the next
write removes these.

With `resume=True`, finished units are kept if the process dies, and the same call completes the remaining ones; see
`sinks/write_progress.py`. The result is the same as without an interruption.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, cast

import pyarrow as pa
import xxhash

from paceline._core.arguments import (
    bad_value,
    check_bool,
    check_callable,
    check_instance,
    check_int,
    join_or,
    with_options,
)
from paceline.data.block import Block
from paceline.data.datasource.filename_provider import FilenameProvider, FileNaming
from paceline.data.open_args import DETECT, parse_open_args
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.plan import Map, PoolSpec
from paceline.data.planning.plan_queries import stream_deliveries
from paceline.data.sinks import formats
from paceline.data.sinks.sink import FileSizing, FormatSink, StagedFile, WriteFiles, parse_staged_files, write_files
from paceline.data.sinks.targets import FILES, LocalSinkTarget, SinkTarget, resolve_target
from paceline.data.sources.tfrecords import parse_feature_types
from paceline.data.task_options import warn_unused

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class SaveMode(enum.StrEnum):
    """What to do if files, or a table, already exist."""

    APPEND = "append"
    """Add new files or rows."""
    OVERWRITE = "overwrite"
    """Replace everything there."""
    ERROR = "error"
    """Raise an error."""
    IGNORE = "ignore"
    """Keep what exists and write nothing."""
    CREATE = "create"
    """Create it, and raise an error if it exists."""
    UPSERT = "upsert"
    """Update the rows with the same keys and add the others. Only tables of Iceberg have keys."""


Mode = SaveMode | Literal["append", "overwrite", "error", "ignore", "create", "upsert"]


class TargetOptions(TypedDict, total=False):
    """The arguments of all writers, with their defaults."""

    filesystem: Annotated[Any, None]
    mode: Annotated[Mode, SaveMode.APPEND]
    concurrency: Annotated[int | None, None]
    resume: Annotated[bool, False]
    try_create_dir: Annotated[bool, True]
    arrow_open_stream_args: Annotated[Mapping[str, Any] | None, None]
    filename_provider: Annotated[FilenameProvider | None, None]
    ray_remote_args: Annotated[Any, None]


class WriteOptions(TargetOptions, total=False):
    """The arguments of writers of files with many rows."""

    min_rows_per_file: Annotated[int | None, None]
    max_rows_per_file: Annotated[int | None, None]
    num_rows_per_file: Annotated[int | None, None]


def write_parquet(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    partition_cols: Sequence[str] | None = None,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    min_bytes_per_file: int | None = None,
    num_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    concurrency: int | None = None,
    resume: bool = False,
    try_create_dir: bool = True,
    arrow_open_stream_args: Mapping[str, Any] | None = None,
    filename_provider: FilenameProvider | None = None,
    ray_remote_args: Any = None,
    arrow_parquet_args_fn: Callable[[], dict[str, Any]] | None = None,
    **arrow_parquet_args: Any,
) -> None:
    """Write Parquet files. Tensor columns become Arrow fixed-shape tensors, which `read_parquet` understands.

    `partition_cols` creates directories such as `year=2024/month=5` from these columns, which are omitted from the
    files. `arrow_parquet_args` are arguments of `pyarrow.parquet.ParquetWriter`, such as `compression="zstd"`, and
    `row_group_size`, in rows. With `min_rows_per_file`, whose older name is `num_rows_per_file`, or
    `min_bytes_per_file` (about, in memory), rows of several units go to one file, written by one process.

    In all writers: with `resume=True`, finished units are kept if this process dies, and the same call in another
    process completes the rest. A `filename_provider` names the files. With `try_create_dir=False` the directory must
    exist. `arrow_open_stream_args={"compression": "gzip"}` compresses files of formats that have no compression of
    their own; `buffer_size` has no effect.
    """
    options = WriteOptions(
        filesystem=filesystem,
        mode=mode,
        concurrency=concurrency,
        resume=resume,
        try_create_dir=try_create_dir,
        arrow_open_stream_args=arrow_open_stream_args,
        filename_provider=filename_provider,
        ray_remote_args=ray_remote_args,
        min_rows_per_file=min_rows_per_file,
        max_rows_per_file=max_rows_per_file,
        num_rows_per_file=num_rows_per_file,
    )
    arguments = _merge_arguments("arrow_parquet_args_fn", arrow_parquet_args_fn, arrow_parquet_args)
    sizes = _check_sizes(options, partition_cols, min_bytes_per_file)
    _refuse_compression("write_parquet", options)
    write_dataset(dataset, path, formats.ParquetSink.from_arguments(arguments), options, sizes)


@with_options(WriteOptions)
def write_csv(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    compression: str | None = None,
    write_options: Any = None,
    include_header: bool | None = None,
    batch_size: int | None = None,
    delimiter: str | None = None,
    quoting_style: str | None = None,
    arrow_csv_args_fn: Callable[[], dict[str, Any]] | None = None,
    **options: Unpack[WriteOptions],
) -> None:
    """Write CSV files with headers. Tensors and lists are not supported: the error names the column.

    `write_options` is a `pyarrow.csv.WriteOptions`; the arguments after it are those of that class, and override it.
    `arrow_csv_args_fn` returns such arguments as a dict. `compression="gzip"` compresses the files.
    """
    chosen = (include_header, batch_size, delimiter, quoting_style)
    given = {name: value for name, value in zip(formats.CSV_OPTIONS, chosen, strict=True) if value is not None}
    given |= {"write_options": write_options} if write_options is not None else {}
    arguments = _merge_arguments("arrow_csv_args_fn", arrow_csv_args_fn, given)
    compression = choose_compression(compression, options)
    write_dataset(dataset, path, formats.CsvSink.from_arguments(arguments, compression), options)


@with_options(WriteOptions, rest="pandas_json_args")
def write_json(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    compression: str | None = None,
    pandas_json_args_fn: Callable[[], dict[str, Any]] | None = None,
    pandas_json_args: Mapping[str, Any],
    **options: Unpack[WriteOptions],
) -> None:
    """Write one JSON object per line. Tensors become lists, bytes base64, NaN and infinity null.

    With other arguments, those of `pandas.DataFrame.to_json`, or a function `pandas_json_args_fn` that returns some,
    pandas encodes the rows; `orient` and `lines` stay "records" and True.
    """
    arguments = _merge_arguments("pandas_json_args_fn", pandas_json_args_fn, dict(pandas_json_args))
    sink = formats.JsonSink.from_arguments(choose_compression(compression, options), arguments)
    write_dataset(dataset, path, sink, options)


@with_options(WriteOptions)
def write_numpy(
    dataset: Dataset, path: str | os.PathLike[str], *, column: str, **options: Unpack[WriteOptions]
) -> None:
    """Write one column as `.npy` files. Rows are along the first dimension."""
    _refuse_compression("write_numpy", options)
    write_dataset(dataset, path, formats.NumpySink(_check_name("column", column)), options)


@with_options(TargetOptions)
def write_images(
    dataset: Dataset,
    path: str | os.PathLike[str],
    column: str,
    file_format: str = "png",
    **options: Unpack[TargetOptions],
) -> None:
    """Write each row's image to its own file. Images are uint8 arrays, (height, width) or (height, width, channels)."""
    _refuse_compression("write_images", options)
    sink = formats.ImageSink.from_arguments(_check_name("column", column), _check_name("file_format", file_format))
    write_dataset(dataset, path, sink, cast(WriteOptions, options))


@with_options(WriteOptions)
def write_tfrecords(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    tf_schema: Mapping[str, pa.DataType] | pa.Schema | None = None,
    **options: Unpack[WriteOptions],
) -> None:
    """Write TFRecord files of `tf.train.Example`. TensorFlow is not needed.

    Integers and booleans become int64 lists, floats 32-bit float lists, strings and bytes byte lists. One-dimensional
    tensors become lists; for others the error names the column. Columns are first cast to the Arrow types that
    `tf_schema` has for them.
    """
    sink = formats.TFRecordSink(choose_compression(None, options), parse_feature_types(tf_schema))
    write_dataset(dataset, path, sink, options)


@with_options(WriteOptions)
def write_webdataset(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    encoder: formats.Encoder = True,
    **options: Unpack[WriteOptions],
) -> None:
    """Write WebDataset tar files: each row becomes one member `key.column` per column.

    The key is the column `__key__`, or the row's number in its file. With `encoder=True`, the column name is the
    extension that selects the encoding: numbers for `cls`, JSON for `json`, arrays for `npy`, images for `jpg` and
    `png`. A function receives the row and returns one with bytes; `False` writes bytes and strings as they are.
    """
    write_dataset(dataset, path, formats.WebDatasetSink(encoder, choose_compression(None, options)), options)


def write_dataset(
    dataset: Dataset,
    path: str | os.PathLike[str],
    sink: FormatSink,
    options: WriteOptions,
    sizes: FileSizing | None = None,
) -> list[StagedFile]:
    """Write the files and return them; none if they were kept as they were, or a write was resumed."""
    if sizes is None:
        sizes = _check_sizes(options)
    save_mode = parse_mode(options["mode"], sink.name)
    pool = check_write_options(sink.name, options)
    provider: FilenameProvider | None = check_instance(
        "filename_provider", options["filename_provider"], FilenameProvider, "a FilenameProvider", optional=True
    )
    target = resolve_target(path, options["filesystem"])
    can_create = check_bool("try_create_dir", options["try_create_dir"])
    if not can_create and isinstance(target, LocalSinkTarget) and not target.target.is_dir():
        raise FileNotFoundError(f"{sink.name}(try_create_dir=False): there is no directory {target.display_name}")
    target.remove_abandoned()
    naming = _make_naming(provider, dataset, target, save_mode)
    if options["resume"]:
        _resume_write(dataset, target, sink, sizes, save_mode, pool, naming)
        return []
    only_new = save_mode in (SaveMode.ERROR, SaveMode.IGNORE)
    if target.has_files() and only_new:
        if save_mode is SaveMode.IGNORE:
            return []
        raise _target_exists_error(sink, target)
    overwrite = save_mode is SaveMode.OVERWRITE
    with target.open_staging(overwrite) as directory:
        if not sizes.spans_units:
            plan = Map(dataset._plan, WriteFiles(sink, str(directory / FILES), sizes, pool, naming))
            with contextlib.closing(stream_deliveries(plan)) as rows:
                files = [file for delivered in rows for file in parse_staged_files(delivered.block)]
        else:
            with contextlib.closing(stream_deliveries(dataset._plan)) as rows:
                files = write_files(_with_unit_ends(rows), sink, directory / FILES, sizes, naming)
        try:
            target.publish(directory, files, overwrite=overwrite, only_new=only_new)
        except FileExistsError:
            if save_mode is not SaveMode.IGNORE:
                raise
            return []
    return files


def _make_naming(
    provider: FilenameProvider | None, dataset: Dataset, target: SinkTarget, mode: SaveMode
) -> FileNaming | None:
    """The same rows written to the same files give the same names; files that are added have new ones."""
    if provider is None:
        return None
    from paceline.data.exec.pipeline import outline_plan

    beside = sorted(target.list_names()) if mode is SaveMode.APPEND else []
    rows = outline_plan(dataset._plan).fingerprint
    return FileNaming(provider, xxhash.xxh3_128_hexdigest(repr((rows, beside)).encode()))


def _resume_write(
    dataset: Dataset,
    target: SinkTarget,
    sink: FormatSink,
    sizes: FileSizing,
    mode: SaveMode,
    pool: PoolSpec | None,
    naming: FileNaming | None,
) -> None:
    """Resume a write that another process started, or start a resumable one."""
    from paceline.data.exec.pipeline import outline_plan
    from paceline.data.sinks.write_progress import encode_mark, is_write_finished, make_write_job, open_progress

    if not isinstance(target, LocalSinkTarget):
        raise ValueError(
            f"{sink.name}(resume=True) cannot write to the store {target.display_name}\n\n"
            "hint: write to a local or mounted directory, and copy it when it is complete"
        )
    if sizes.spans_units:
        raise ValueError(f"{sink.name}(resume=True) cannot be combined with min_rows_per_file or min_bytes_per_file")
    job = make_write_job(dataset._plan, [task.unit for task in outline_plan(dataset._plan).tasks], sink, sizes)
    if is_write_finished(target, job):
        return
    if target.has_files() and mode is not SaveMode.OVERWRITE:
        if mode is SaveMode.IGNORE:
            return
        if mode is SaveMode.ERROR:
            raise _target_exists_error(sink, target)
        raise ValueError(
            f"{sink.name}(resume=True) needs an empty directory, and {target.display_name} has other files\n\n"
            "hint: mode='overwrite' replaces them when all rows are written; or use a new directory"
        )
    with open_progress(target, job, sink.name) as progress:
        plan = Map(dataset._plan, WriteFiles(sink, str(progress.directory / FILES), sizes, pool, naming))
        with contextlib.closing(stream_deliveries(plan, progress.next_unit)) as rows:
            progress.record_units(rows)
        overwrite = mode is SaveMode.OVERWRITE
        target.publish(
            progress.directory, progress.files, overwrite=overwrite, only_new=not overwrite, mark=encode_mark(job)
        )


def _target_exists_error(sink: FormatSink, target: SinkTarget) -> FileExistsError:
    return FileExistsError(
        f"{sink.name}: {target.display_name} already has files (mode='error')\n\n"
        "hint: mode='append' adds to them, mode='overwrite' replaces them, mode='ignore' keeps them"
    )


@with_options(WriteOptions, rest="arrow_orc_args")
def write_orc(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    arrow_orc_args_fn: Callable[[], dict[str, Any]] | None = None,
    arrow_orc_args: Mapping[str, Any],
    **options: Unpack[WriteOptions],
) -> None:
    """Write ORC files. Other arguments, or what `arrow_orc_args_fn` returns, are those of `pyarrow.orc.ORCWriter`, such
    as `compression="zstd"`. Tensor columns are not supported."""
    _refuse_compression("write_orc", options)
    arguments = _merge_arguments("arrow_orc_args_fn", arrow_orc_args_fn, dict(arrow_orc_args))
    write_dataset(dataset, path, formats.OrcSink.from_arguments(arguments), options)


def _with_unit_ends(rows: Iterator[RowDelivery]) -> Iterator[Block | None]:
    for number, (_, deliveries) in enumerate(groupby(rows, lambda delivered: delivered.unit)):
        if number:
            yield None
        yield from (delivered.block for delivered in deliveries)


def parse_mode(mode: Any, function: str) -> SaveMode:
    """The mode of a writer of files: CREATE is ERROR, and there is no UPSERT."""
    try:
        parsed = SaveMode(mode)
    except ValueError:
        raise bad_value("mode", join_or(repr(each.value) for each in SaveMode), mode) from None
    if parsed is SaveMode.UPSERT:
        raise ValueError(
            f"{function}: mode must not be 'upsert': files have no keys by which rows could be updated\n\n"
            "hint: write_iceberg(mode='upsert') updates the rows of a table"
        )
    return SaveMode.ERROR if parsed is SaveMode.CREATE else parsed


def check_write_options(function: str, options: Mapping[str, Any]) -> PoolSpec | None:
    """Check the arguments that all writers share; return the processes that `concurrency` asks for."""
    warn_unused(function, options, ["ray_remote_args"])
    concurrency = check_int("concurrency", options["concurrency"], at_least=1, optional=True)
    return None if concurrency is None else PoolSpec(1, concurrency)


def _merge_arguments(name: str, make: Callable[[], dict[str, Any]] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Call a function for arguments, if there is one; arguments of the call come first."""
    check_callable(name, make, optional=True)
    made = make() if make is not None else {}
    return {**check_instance(f"the result of {name}", made, Mapping, "a dict of arguments"), **given}


def choose_compression(compression: str | None, options: WriteOptions) -> str | None:
    codec = parse_open_args("arrow_open_stream_args", options["arrow_open_stream_args"]).get("compression", DETECT)
    if compression is not None and codec not in (DETECT, compression):
        raise ValueError(
            f"compression={compression!r} and arrow_open_stream_args={options['arrow_open_stream_args']!r} disagree"
        )
    return compression if codec == DETECT else codec


def _refuse_compression(function: str, options: TargetOptions) -> None:
    args = parse_open_args("arrow_open_stream_args", options["arrow_open_stream_args"])
    if args.get("compression") not in (None, DETECT):
        raise ValueError(
            f"{function}: arrow_open_stream_args must not compress files that no reader would decompress, got {args!r}"
            + ("\n\nhint: compression='zstd' compresses the columns" if function != "write_images" else "")
        )


def _check_sizes(
    options: WriteOptions, partition_cols: Sequence[str] | None = None, min_bytes: int | None = None
) -> FileSizing:
    least, older = options.get("min_rows_per_file"), options.get("num_rows_per_file")
    most = options.get("max_rows_per_file")
    check_int("min_rows_per_file", least, at_least=1, optional=True)
    check_int("num_rows_per_file", older, at_least=1, optional=True)
    check_int("max_rows_per_file", most, at_least=1, optional=True)
    check_int("min_bytes_per_file", min_bytes, at_least=1, optional=True)
    if least is not None and older is not None:
        raise ValueError("num_rows_per_file and min_rows_per_file cannot be combined: one is the older name")
    least = older if least is None else least
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_rows_per_file must be at most max_rows_per_file={most}, got {least}")
    if isinstance(partition_cols, str):
        raise bad_value("partition_cols", f"a list of columns such as [{partition_cols!r}]", partition_cols)
    names = tuple(partition_cols or ())
    if len(set(names)) < len(names):
        raise bad_value("partition_cols", "a list of different columns", list(names))
    return FileSizing(least, most, names, min_bytes)


def _check_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise bad_value(name, "a name", value)
    return value
