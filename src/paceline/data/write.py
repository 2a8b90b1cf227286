"""Writers: `write_parquet` and its siblings, which `Dataset` has as methods.

A path is a directory of files, one or more for each unit of the dataset, named `part-000000` and so on in the order of
rows. The data processes write into a hidden directory; only when all rows are there do the files get their places. So
a write that fails, or whose process is killed, leaves nothing that a reader could take for a dataset.

On a disk a new directory appears, and an old one is replaced, in one step. Files that are added to a directory appear
one after the other: a process killed in these last moments leaves some of them, which the next write to that directory
removes. In an object store files are uploaded one by one at the end, and a process killed then leaves those it had
uploaded.

With `resume=True` what is written of a directory is kept when the process ends before its time, and the same write,
called again, does the units that are left; see `sinks/progress.py`. It ends as if it had never been interrupted.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paceline.data.block import Block
from paceline.data.plan import Map, Node
from paceline.data.position import Delivered
from paceline.data.sinks.local import FILES
from paceline.data.sinks.sink import Sink, Sizes, Write, Written, filed, reported
from paceline.data.transform import Pool

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class SaveMode(enum.StrEnum):
    """What to do where there are files already."""

    APPEND = "append"
    """Add to them."""
    OVERWRITE = "overwrite"
    """Put the new ones in their place, all that is there."""
    ERROR = "error"
    """Refuse to write."""
    IGNORE = "ignore"
    """Leave them and write nothing."""


Mode = SaveMode | Literal["append", "overwrite", "error", "ignore"]


class Place(Protocol):
    @property
    def shown(self) -> str: ...
    def holds_something(self) -> bool: ...
    def sweep(self) -> None: ...
    def staging(self, overwrite: bool) -> contextlib.AbstractContextManager[Path]: ...
    def publish(self, path: Path, files: Sequence[Written], *, overwrite: bool, only_new: bool) -> None: ...


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
    """Write Parquet files. Columns of tensors are written as Arrow's fixed-shape tensors, which `read_parquet` knows.

    `partition_cols` makes directories such as `year=2024/month=5` of the values of these columns, which are left out
    of the files. `arrow_parquet_args` are those of `pyarrow.parquet.ParquetWriter`, such as `compression="zstd"`, and
    `row_group_size`, in rows. With `min_rows_per_file`, rows of several units go to one file, which one process writes.
    """
    from paceline.data.sinks.parquet import ParquetSink

    given = {**(arrow_parquet_args_fn() if arrow_parquet_args_fn is not None else {}), **arrow_parquet_args}
    sizes = _sizes(min_rows_per_file, max_rows_per_file, partition_cols)
    _write(dataset, path, ParquetSink.checked(given), sizes, filesystem, mode, concurrency, resume)


def write_csv(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    compression: str | None = None,
    concurrency: int | None = None,
    resume: bool = False,
    **arrow_csv_args: Any,
) -> None:
    """Write CSV files, each with a header. Tensors and lists have no place in one: the error names the column.

    `arrow_csv_args` are `write_options=pyarrow.csv.WriteOptions(...)`, or its arguments themselves, such as
    `delimiter=";"`. `compression="gzip"` compresses the files.
    """
    from paceline.data.sinks.csv import CsvSink

    sizes = _sizes(min_rows_per_file, max_rows_per_file)
    _write(dataset, path, CsvSink.checked(arrow_csv_args, compression), sizes, filesystem, mode, concurrency, resume)


def write_json(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    compression: str | None = None,
    concurrency: int | None = None,
    resume: bool = False,
) -> None:
    """Write files with one JSON object a line. Tensors become lists, bytes base64, nan and infinity null."""
    from paceline.data.sinks.json import JsonSink

    sizes = _sizes(min_rows_per_file, max_rows_per_file)
    _write(dataset, path, JsonSink.checked(compression), sizes, filesystem, mode, concurrency, resume)


def write_numpy(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    column: str,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    concurrency: int | None = None,
    resume: bool = False,
) -> None:
    """Write one column as `.npy` files, in each of which the first dimension is the rows."""
    from paceline.data.sinks.numpy import NumpySink

    sizes = _sizes(min_rows_per_file, max_rows_per_file)
    _write(dataset, path, NumpySink(_named("column", column)), sizes, filesystem, mode, concurrency, resume)


def write_images(
    dataset: Dataset,
    path: str | os.PathLike[str],
    column: str,
    file_format: str = "png",
    *,
    filesystem: Any = None,
    mode: Mode = SaveMode.APPEND,
    concurrency: int | None = None,
    resume: bool = False,
) -> None:
    """Write each row's image as a file of its own: arrays of bytes, (height, width) or (height, width, channels)."""
    from paceline.data.sinks.images import ImageSink

    sink = ImageSink.checked(_named("column", column), _named("file_format", file_format))
    _write(dataset, path, sink, _sizes(None, None), filesystem, mode, concurrency, resume)


def write_tfrecords(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    concurrency: int | None = None,
    resume: bool = False,
) -> None:
    """Write TFRecord files of `tf.train.Example`; tensorflow is not needed for it.

    Integers and booleans become int64 lists, floats float lists of 32 bits, strings and bytes byte lists. Tensors of
    one dimension become lists; for others the error names the column.
    """
    from paceline.data.sinks.tfrecords import TFRecordSink

    sizes = _sizes(min_rows_per_file, max_rows_per_file)
    _write(dataset, path, TFRecordSink(), sizes, filesystem, mode, concurrency, resume)


def write_webdataset(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    min_rows_per_file: int | None = None,
    max_rows_per_file: int | None = None,
    mode: Mode = SaveMode.APPEND,
    encoder: bool | Callable[[dict[str, Any]], dict[str, Any]] = True,
    concurrency: int | None = None,
    resume: bool = False,
) -> None:
    """Write tar files in the manner of WebDataset: of each row a member `key.column` for every column.

    The key is the column `__key__`, or the row's number in its file. With `encoder=True` values are encoded by the
    extension that the column's name is: numbers for `cls`, JSON for `json`, arrays for `npy`, images for `jpg` and
    `png`. A function instead takes the row and returns one with bytes; `False` takes bytes and strings as they are.
    """
    from paceline.data.sinks.webdataset import WebDatasetSink

    sizes = _sizes(min_rows_per_file, max_rows_per_file)
    _write(dataset, path, WebDatasetSink(encoder), sizes, filesystem, mode, concurrency, resume)


def _write(
    dataset: Dataset,
    path: str | os.PathLike[str],
    sink: Sink,
    sizes: Sizes,
    filesystem: Any,
    mode: Mode,
    concurrency: int | None,
    resume: bool,
) -> None:
    chosen = _mode(mode)
    pool = None if concurrency is None else Pool(1, _counted("concurrency", concurrency))
    place = place_at(path, filesystem)
    place.sweep()
    if resume:
        _resume(dataset, place, sink, sizes, chosen, pool)
        return
    only_new = chosen in (SaveMode.ERROR, SaveMode.IGNORE)
    if place.holds_something() and only_new:
        if chosen is SaveMode.IGNORE:
            return
        raise _occupied(sink, place)
    overwrite = chosen is SaveMode.OVERWRITE
    with place.staging(overwrite) as directory:
        if sizes.least is None:
            plan = Map(dataset._plan, Write(sink, str(directory / FILES), sizes, pool))
            with contextlib.closing(_delivered(plan)) as rows:
                files = [file for delivered in rows for file in reported(delivered.block)]
        else:
            with contextlib.closing(_delivered(dataset._plan)) as rows:
                files = filed(_with_ends(rows), sink, directory / FILES, sizes)
        try:
            place.publish(directory, files, overwrite=overwrite, only_new=only_new)
        except FileExistsError:
            if chosen is not SaveMode.IGNORE:
                raise


def _resume(dataset: Dataset, place: Place, sink: Sink, sizes: Sizes, mode: SaveMode, pool: Pool | None) -> None:
    """Go on with a write that another process began, or begin one that can be gone on with."""
    from paceline.data.exec.lower import outline
    from paceline.data.sinks.local import LocalPlace
    from paceline.data.sinks.progress import is_finished, job_of, mark_of, progress_at

    if not isinstance(place, LocalPlace):
        raise ValueError(
            f"{sink.name}(resume=True): {place.shown} is a store, and what is staged for one is not kept\n\n"
            "hint: write to a directory of this machine, or of a filesystem mounted on it, and copy it when it is done"
        )
    if sizes.least is not None:
        raise ValueError(f"{sink.name}(resume=True): with min_rows_per_file one process writes all, from the beginning")
    job = job_of(dataset._plan, [task.unit for task in outline(dataset._plan).tasks], sink, sizes)
    if is_finished(place, job):
        return
    if place.holds_something() and mode is not SaveMode.OVERWRITE:
        if mode is SaveMode.IGNORE:
            return
        if mode is SaveMode.ERROR:
            raise _occupied(sink, place)
        raise ValueError(
            f"{sink.name}(resume=True) makes a directory as a whole, and there are other files at {place.shown}\n\n"
            "hint: mode='overwrite' replaces them when all is written; or name a directory that is not there yet"
        )
    with progress_at(place, job, sink.name) as progress:
        plan = Map(dataset._plan, Write(sink, str(progress.directory / FILES), sizes, pool))
        with contextlib.closing(_delivered(plan, progress.next_unit)) as rows:
            progress.followed(rows)
        overwrite = mode is SaveMode.OVERWRITE
        place.publish(
            progress.directory, progress.files, overwrite=overwrite, only_new=not overwrite, mark=mark_of(job)
        )


def _occupied(sink: Sink, place: Place) -> FileExistsError:
    return FileExistsError(
        f"{sink.name}: there are files at {place.shown}, and mode='error' does not touch them\n\n"
        "hint: mode='append' adds to them, mode='overwrite' replaces them, mode='ignore' leaves them"
    )


def _delivered(plan: Node, unit: int = 0) -> Generator[Delivered, None, None]:
    from paceline.data.feeds import LocalFeeds

    yield from LocalFeeds(plan).open(0, unit, 0)


def _with_ends(rows: Iterator[Delivered]) -> Iterator[Block | None]:
    """The blocks, and None wherever a unit ends."""
    last = None
    for delivered in rows:
        if last is not None and delivered.unit != last:
            yield None
        last = delivered.unit
        yield delivered.block


def place_at(path: str | os.PathLike[str], filesystem: Any = None) -> Place:
    """The place that a path leads to, on this machine or elsewhere."""
    from paceline.data.sinks.local import LocalPlace

    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path={path!r} must be a path or a URI, not {type(path).__name__}")
    text = os.fspath(path)
    if not text:
        raise ValueError("path='' is empty: it must name a directory")
    scheme = text.partition("://")[0] if "://" in text else ""
    if filesystem is not None and not _is_local(filesystem):
        return _bucket(text, filesystem)
    if scheme not in ("", "file", "local"):
        return _bucket(text, filesystem)
    local = text.partition("://")[2] if scheme else text
    return LocalPlace(Path(os.path.realpath(os.path.expanduser(local))))


def _bucket(text: str, filesystem: Any) -> Place:
    from paceline._storage.address import store_at
    from paceline.data.sinks.bucket import BucketPlace

    return BucketPlace(store_at(text, filesystem))


def _is_local(filesystem: Any) -> bool:
    from pyarrow.fs import LocalFileSystem

    if isinstance(filesystem, LocalFileSystem):
        return True
    protocol = getattr(filesystem, "protocol", ())
    return "file" in ((protocol,) if isinstance(protocol, str) else tuple(protocol))


def _mode(mode: Any) -> SaveMode:
    try:
        return SaveMode(mode)
    except ValueError:
        allowed = ", ".join(repr(one.value) for one in SaveMode)
        raise ValueError(f"mode={mode!r} is not known: it must be one of {allowed}") from None


def _sizes(least: int | None, most: int | None, partition_cols: Sequence[str] | None = None) -> Sizes:
    for name, value in (("min_rows_per_file", least), ("max_rows_per_file", most)):
        if value is not None:
            _counted(name, value)
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_rows_per_file={least} is more than max_rows_per_file={most}")
    if isinstance(partition_cols, str):
        raise ValueError(f"partition_cols={partition_cols!r} must be a list of columns: [{partition_cols!r}]")
    names = tuple(partition_cols or ())
    if len(set(names)) < len(names):
        raise ValueError(f"partition_cols={list(names)} names a column twice")
    return Sizes(least, most, names)


def _counted(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number from 1 on")
    return value


def _named(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r} must be a name")
    return value
