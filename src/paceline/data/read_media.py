"""Functions that create datasets from images, arrays, audio, video, tar files, TFRecords and SQL queries.

The arguments follow Ray Data. Files are listed by the call and read when rows are consumed. `shuffle="files"` reorders
files in every epoch. Files too small to be read on their own are first put into random groups, and the groups are
reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from paceline._core.arguments import bad_value, check_choice, is_int
from paceline.data.dataset import Dataset
from paceline.data.order.shuffle import permutation
from paceline.data.planning.plan import Read
from paceline.data.read import Shuffle, check_common, format_call, make_dataset, parse_shuffle
from paceline.data.sources import audio_video, images, numpy, webdataset
from paceline.data.sources.files import Paths, list_files
from paceline.data.sources.media import MediaSource, import_required
from paceline.data.sources.sql import SqlSource
from paceline.data.sources.tfrecords import Compression, TFRecordReader

Partitioning = Literal["hive"] | None

_IMAGE_MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "RGBa", "La")
"""The modes of Pillow."""


def read_images(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = images.EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read one row per image: the column `image`, height x width x channels, and `path` with `include_paths`.

    `size` is (height, width) to resize to; `mode` is a Pillow mode to convert to, such as "RGB" or "L". Without them
    images stay as stored, and the column is ragged if their shapes differ. JPEGs much larger than `size` are decoded at
    a half, a quarter or an eighth of their size, which is faster.
    """
    import_required("PIL.Image", "read_images", "images")
    if size is not None:
        if not isinstance(size, list | tuple) or len(size) != 2 or not all(is_int(each) and each >= 1 for each in size):
            raise bad_value("size", "(height, width), two positive integers, or None", size)
        size = (int(size[0]), int(size[1]))
    check_choice("mode", mode, (None, *_IMAGE_MODES))
    reader = images.ImageReader(size, mode)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    source = MediaSource(format_call("read_images", paths), files, reader, include_paths, override_num_blocks)
    return _make_media_dataset(source, shuffle, concurrency)


def read_numpy(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = numpy.EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read rows of arrays: an `.npy` file as the column `data`, an `.npz` file as one column per array.

    Local files are memory-mapped; others are read one range at a time. Arrays of Python objects are not supported.
    """
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    reader = numpy.NumpyReader()
    source = numpy.NumpySource(format_call("read_numpy", paths), files, reader, include_paths, override_num_blocks)
    return _make_media_dataset(source, shuffle, concurrency)


def read_webdataset(
    paths: Paths,
    *,
    filesystem: Any = None,
    decoder: bool | str | Callable[[dict[str, Any]], dict[str, Any]] | Sequence[Any] | None = True,
    fileselect: webdataset.Matches = None,
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None,
    suffixes: webdataset.Matches = None,
    include_paths: bool = False,
    expand_json: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = webdataset.EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read one row per sample of tar files: `__key__`, `__url__` (the tar file) and one column per suffix.

    A sample is a run of consecutive files whose names agree up to the first dot. By default images become arrays, `txt`
    text, `cls` an integer, `json` the parsed value and `npy` an array. Everything else stays bytes, including pickled
    data (`pkl`, `pyd`, `pt`, ...): unpickle it in a `decoder` of your own if you trust it.

    `decoder` is a function from sample to sample, "PIL" for Pillow images, a list of such steps, or None for bytes
    only. `suffixes` and `fileselect` (patterns, or a function) filter the suffixes of a sample and the files of a tar
    file; `filerename` renames files first. `expand_json` turns the fields of `json` into columns.
    """
    for name, matches in (("suffixes", suffixes), ("fileselect", fileselect)):
        if isinstance(matches, str) or not (matches is None or callable(matches) or isinstance(matches, Sequence)):
            raise bad_value(name, "a list of patterns such as ['jpg', 'cls'], a function or None", matches)
    steps = decoder if isinstance(decoder, list | tuple) else [decoder]
    for step in steps:
        if not (step is None or isinstance(step, bool | str) or callable(step)):
            raise bad_value("decoder", "a function, True, 'PIL', None, or a list of these", step)
    renames = filerename if isinstance(filerename, list | tuple) else [filerename]
    if not all(rename is None or callable(rename) for rename in renames):
        raise bad_value("filerename", "a function from name to name, or a list of them", filerename)
    reader = webdataset.WebDatasetReader(decoder, suffixes, fileselect, filerename, expand_json)
    files = list_files(paths, filesystem, file_extensions, None, ignore_missing_paths)
    source = MediaSource(format_call("read_webdataset", paths), files, reader, include_paths, override_num_blocks)
    return _make_media_dataset(source, shuffle, concurrency)


def read_tfrecords(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    tf_schema: Mapping[str, pa.DataType] | pa.Schema | None = None,
    compression: Compression | None = None,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read one row per `tf.train.Example`, one column per feature. Verifies checksums; does not need TensorFlow.

    A feature with one value in each record becomes a column of int64, float32 or bytes; one with several values becomes
    a column of lists; a missing feature is null. If a feature has one value at first and several later in a file,
    declare it: `tf_schema={"tags": pyarrow.list_(pyarrow.binary())}`. Columns are cast to the types given there, so
    `pyarrow.string()` turns bytes into text. Files named `.gz` are decompressed; others need `compression="GZIP"` or
    "ZLIB".
    """
    check_choice("compression", compression, ("GZIP", "ZLIB", None))
    import_required("google_crc32c", "read_tfrecords", "tfrecords")
    reader = TFRecordReader(_schema_types(tf_schema), compression)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    source = MediaSource(format_call("read_tfrecords", paths), files, reader, include_paths, override_num_blocks)
    return _make_media_dataset(source, shuffle, concurrency)


def read_audio(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = audio_video.AUDIO_EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read one row per audio file: `amplitude`, float32 of channels x samples, and `sample_rate`."""
    import_required("soundfile", "read_audio", "audio")
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    reader = audio_video.AudioReader()
    source = MediaSource(format_call("read_audio", paths), files, reader, include_paths, override_num_blocks)
    return _make_media_dataset(source, shuffle, concurrency)


def read_videos(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    include_paths: bool = False,
    include_timestamps: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = audio_video.VIDEO_EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read one row per video frame: `frame`, uint8 of height x width x 3, and `frame_index`, from 0 in each file.

    `include_timestamps` adds `frame_timestamp`: the start and end of the frame in seconds.
    """
    import_required("av", "read_videos", "video")
    reader = audio_video.VideoReader(include_timestamps)
    files = list_files(paths, filesystem, file_extensions, partitioning, ignore_missing_paths)
    source = MediaSource(format_call("read_videos", paths), files, reader, include_paths, override_num_blocks)
    return _make_media_dataset(source, shuffle, concurrency)


def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    sql_params: Any = None,
    shard_keys: Sequence[str] | None = None,
    shard_hash_fn: str = "MD5",
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
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
    check_common(concurrency, override_num_blocks)
    number = override_num_blocks or 1
    if number > 1 and not keys:
        raise ValueError(f"override_num_blocks={number} needs shard_keys: the columns that divide the rows")
    return Dataset(
        Read(SqlSource(sql.strip().rstrip(";"), connection_factory, sql_params, keys, shard_hash_fn, number))
    )


def _make_media_dataset(source: MediaSource, shuffle: Shuffle, concurrency: int | None) -> Dataset:
    check_common(concurrency, source.num_units, source.include_paths)
    config = parse_shuffle(shuffle)
    if config is not None:
        order = permutation(len(source.files), config.seed or 0)
        source = replace(source, files=tuple(source.files[index] for index in order))
    return make_dataset(source, shuffle)


def _schema_types(tf_schema: Any) -> tuple[tuple[str, Any], ...]:
    if tf_schema is None:
        return ()
    if isinstance(tf_schema, pa.Schema):
        tf_schema = dict(zip(tf_schema.names, tf_schema.types, strict=True))
    if not isinstance(tf_schema, Mapping):
        raise TypeError(f"tf_schema must be a dict from features to Arrow types or a pyarrow.Schema, got {tf_schema!r}")
    for name, kind in tf_schema.items():
        if not isinstance(kind, pa.DataType):
            raise TypeError(
                f"tf_schema[{name!r}] must be an Arrow type such as pyarrow.list_(pyarrow.int64()), got {kind!r}"
            )
    return tuple(tf_schema.items())
