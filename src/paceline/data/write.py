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
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, cast

from paceline._core.arguments import bad_value, check_int, join_or, with_options
from paceline.data.block import Block
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.plan import Map, PoolSpec
from paceline.data.planning.plan_queries import stream_deliveries
from paceline.data.sinks import formats
from paceline.data.sinks.sink import FileSizing, FormatSink, WriteFiles, parse_staged_files, write_files
from paceline.data.sinks.targets import FILES, LocalSinkTarget, SinkTarget, resolve_target

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class SaveMode(enum.StrEnum):
    """What to do if files already exist."""

    APPEND = "append"
    """Add new files."""
    OVERWRITE = "overwrite"
    """Replace everything there."""
    ERROR = "error"
    """Raise an error."""
    IGNORE = "ignore"
    """Keep the existing files and write nothing."""


Mode = SaveMode | Literal["append", "overwrite", "error", "ignore"]


class TargetOptions(TypedDict, total=False):
    """The arguments of all writers, with their defaults."""

    filesystem: Annotated[Any, None]
    mode: Annotated[Mode, SaveMode.APPEND]
    concurrency: Annotated[int | None, None]
    resume: Annotated[bool, False]


class WriteOptions(TargetOptions, total=False):
    """The arguments of writers of files with many rows."""

    min_rows_per_file: Annotated[int | None, None]
    max_rows_per_file: Annotated[int | None, None]


def write_parquet(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    partition_cols: Sequence[str] | None = None,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    concurrency: int | None = None,
    resume: bool = False,
    arrow_parquet_args_fn: Callable[[], dict[str, Any]] | None = None,
    **arrow_parquet_args: Any,
) -> None:
    """Write Parquet files. Tensor columns become Arrow fixed-shape tensors, which `read_parquet` understands.

    `partition_cols` creates directories such as `year=2024/month=5` from these columns, which are omitted from the
    files. `arrow_parquet_args` are arguments of `pyarrow.parquet.ParquetWriter`, such as `compression="zstd"`, and
    `row_group_size`, in rows. With `min_rows_per_file`, rows of several units go to one file, written by one process.

    With `resume=True`, here and in the other writers, finished units are kept if this process dies, and the same call
    in another process completes the rest.
    """
    arguments = {**(arrow_parquet_args_fn() if arrow_parquet_args_fn is not None else {}), **arrow_parquet_args}
    options = WriteOptions(filesystem=filesystem, mode=mode, concurrency=concurrency, resume=resume)
    sizes = _check_sizes(min_rows_per_file, max_rows_per_file, partition_cols)
    _write_dataset(dataset, path, formats.ParquetSink.from_arguments(arguments), options, sizes)


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
    **options: Unpack[WriteOptions],
) -> None:
    """Write CSV files with headers. Tensors and lists are not supported: the error names the column.

    `write_options` is a `pyarrow.csv.WriteOptions`; the arguments after it are those of that class, and override it.
    `compression="gzip"` compresses the files.
    """
    chosen = (include_header, batch_size, delimiter, quoting_style)
    sink = formats.CsvSink.from_arguments(write_options, chosen, compression)
    _write_dataset(dataset, path, sink, options)


@with_options(WriteOptions)
def write_json(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    compression: str | None = None,
    **options: Unpack[WriteOptions],
) -> None:
    """Write one JSON object per line. Tensors become lists, bytes base64, NaN and infinity null."""
    _write_dataset(dataset, path, formats.JsonSink(compression), options)


@with_options(WriteOptions)
def write_numpy(
    dataset: Dataset, path: str | os.PathLike[str], *, column: str, **options: Unpack[WriteOptions]
) -> None:
    """Write one column as `.npy` files. Rows are along the first dimension."""
    _write_dataset(dataset, path, formats.NumpySink(_check_name("column", column)), options)


@with_options(TargetOptions)
def write_images(
    dataset: Dataset,
    path: str | os.PathLike[str],
    column: str,
    file_format: str = "png",
    **options: Unpack[TargetOptions],
) -> None:
    """Write each row's image to its own file. Images are uint8 arrays, (height, width) or (height, width, channels)."""
    sink = formats.ImageSink.from_arguments(_check_name("column", column), _check_name("file_format", file_format))
    _write_dataset(dataset, path, sink, cast(WriteOptions, options))


@with_options(WriteOptions)
def write_tfrecords(dataset: Dataset, path: str | os.PathLike[str], **options: Unpack[WriteOptions]) -> None:
    """Write TFRecord files of `tf.train.Example`. TensorFlow is not needed.

    Integers and booleans become int64 lists, floats 32-bit float lists, strings and bytes byte lists. One-dimensional
    tensors become lists; for others the error names the column.
    """
    _write_dataset(dataset, path, formats.TFRecordSink(), options)


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
    _write_dataset(dataset, path, formats.WebDatasetSink(encoder), options)


def _write_dataset(
    dataset: Dataset,
    path: str | os.PathLike[str],
    sink: FormatSink,
    options: WriteOptions,
    sizes: FileSizing | None = None,
) -> None:
    if sizes is None:
        sizes = _check_sizes(options.get("min_rows_per_file"), options.get("max_rows_per_file"))
    save_mode = _parse_mode(options["mode"])
    concurrency = check_int("concurrency", options["concurrency"], at_least=1, optional=True)
    pool = None if concurrency is None else PoolSpec(1, concurrency)
    target = resolve_target(path, options["filesystem"])
    target.remove_abandoned()
    if options["resume"]:
        _resume_write(dataset, target, sink, sizes, save_mode, pool)
        return
    only_new = save_mode in (SaveMode.ERROR, SaveMode.IGNORE)
    if target.has_files() and only_new:
        if save_mode is SaveMode.IGNORE:
            return
        raise _target_exists_error(sink, target)
    overwrite = save_mode is SaveMode.OVERWRITE
    with target.open_staging(overwrite) as directory:
        if sizes.min_rows is None:
            plan = Map(dataset._plan, WriteFiles(sink, str(directory / FILES), sizes, pool))
            with contextlib.closing(stream_deliveries(plan)) as rows:
                files = [file for delivered in rows for file in parse_staged_files(delivered.block)]
        else:
            with contextlib.closing(stream_deliveries(dataset._plan)) as rows:
                files = write_files(_with_unit_ends(rows), sink, directory / FILES, sizes)
        try:
            target.publish(directory, files, overwrite=overwrite, only_new=only_new)
        except FileExistsError:
            if save_mode is not SaveMode.IGNORE:
                raise


def _resume_write(
    dataset: Dataset, target: SinkTarget, sink: FormatSink, sizes: FileSizing, mode: SaveMode, pool: PoolSpec | None
) -> None:
    """Resume a write that another process started, or start a resumable one."""
    from paceline.data.exec.pipeline import outline_plan
    from paceline.data.sinks.write_progress import encode_mark, is_write_finished, make_write_job, open_progress

    if not isinstance(target, LocalSinkTarget):
        raise ValueError(
            f"{sink.name}(resume=True) cannot write to the store {target.display_name}\n\n"
            "hint: write to a local or mounted directory, and copy it when it is complete"
        )
    if sizes.min_rows is not None:
        raise ValueError(f"{sink.name}(resume=True) cannot be combined with min_rows_per_file")
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
        plan = Map(dataset._plan, WriteFiles(sink, str(progress.directory / FILES), sizes, pool))
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


def _with_unit_ends(rows: Iterator[RowDelivery]) -> Iterator[Block | None]:
    for number, (_, deliveries) in enumerate(groupby(rows, lambda delivered: delivered.unit)):
        if number:
            yield None
        yield from (delivered.block for delivered in deliveries)


def _parse_mode(mode: Any) -> SaveMode:
    try:
        return SaveMode(mode)
    except ValueError:
        raise bad_value("mode", join_or(repr(each.value) for each in SaveMode), mode) from None


def _check_sizes(least: int | None, most: int | None, partition_cols: Sequence[str] | None = None) -> FileSizing:
    check_int("min_rows_per_file", least, at_least=1, optional=True)
    check_int("max_rows_per_file", most, at_least=1, optional=True)
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_rows_per_file must be at most max_rows_per_file={most}, got {least}")
    if isinstance(partition_cols, str):
        raise bad_value("partition_cols", f"a list of columns such as [{partition_cols!r}]", partition_cols)
    names = tuple(partition_cols or ())
    if len(set(names)) < len(names):
        raise bad_value("partition_cols", "a list of different columns", list(names))
    return FileSizing(least, most, names)


def _check_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise bad_value(name, "a name", value)
    return value
