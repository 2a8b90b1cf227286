"""Datasets of images, arrays, sound, video, tar files, TFRecords and queries.

The arguments are those of Ray Data. Files are listed when the function is called and read when rows are asked for.
`shuffle="files"` gives the files another order in every epoch; files that are too small to be read by themselves are
put into groups by chance first, and it is the groups that change places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from paceline.data.arguments import called, check_common
from paceline.data.dataset import Dataset
from paceline.data.files import Paths, listed
from paceline.data.order import permutation
from paceline.data.plan import Read, Reorder
from paceline.data.read import FileShuffleConfig, Shuffle
from paceline.data.source import Source
from paceline.data.sources import audio, images, numpy, videos, webdataset
from paceline.data.sources.media import MediaFiles, needed
from paceline.data.sources.sql import Query
from paceline.data.sources.tfrecords import Compression, TFRecords

Partitioning = Literal["hive"] | None


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
    """A row for each image: the column `image`, height x width x channels, and `path` with `include_paths`.

    `size` is (height, width) to resize to, `mode` one of Pillow's, such as "RGB" or "L", to convert to. Without them
    images are as they are in their files, and the column is ragged where they differ. JPEGs that are much larger than
    `size` are decoded at a half, a quarter or an eighth, which takes less time.
    """
    needed("PIL.Image", "read_images", "images")
    if size is not None:
        if not isinstance(size, list | tuple) or len(size) != 2 or not all(_is_count(number) for number in size):
            raise ValueError(f"size={size!r} must be (height, width), two whole numbers of 1 or more, or None")
        size = (int(size[0]), int(size[1]))
    if mode is not None and mode not in _modes():
        raise ValueError(f"mode={mode!r} is not one of Pillow's: {', '.join(_modes())}")
    reader = images.Images(size, mode)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = MediaFiles(called("read_images", paths), files, reader, include_paths, override_num_blocks)
    return _dataset(source, shuffle, concurrency)


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
    """The rows of arrays: of an `.npy` file as the column `data`, of an `.npz` file as a column for each array in it.

    Local files are mapped into memory, others are read a range at a time. Arrays of Python objects are not read.
    """
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = MediaFiles(called("read_numpy", paths), files, numpy.Arrays(), include_paths, override_num_blocks)
    return _dataset(source, shuffle, concurrency)


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
    """A row for each sample of tar files: `__key__`, `__url__` (the tar file) and a column for each suffix.

    A sample is the files, one after the other, whose names agree up to the first dot. By default images become arrays,
    `txt` text, `cls` a whole number, `json` what it says and `npy` an array; everything else stays bytes, also what is
    pickled (`pkl`, `pyd`, `pt`, ...), which is for a `decoder` of yours to trust.

    `decoder` may be a function from sample to sample, "PIL" for images of Pillow, a list of such steps, or None for
    bytes only. `suffixes` and `fileselect` (patterns, or a function) choose among the suffixes of a sample and among
    the files of a tar file; `filerename` changes names first. `expand_json` makes columns of the fields of `json`.
    """
    for name, matches in (("suffixes", suffixes), ("fileselect", fileselect)):
        if isinstance(matches, str) or not (matches is None or callable(matches) or isinstance(matches, Sequence)):
            raise ValueError(
                f"{name}={matches!r} must be a list of patterns such as ['jpg', 'cls'], a function or None"
            )
    steps = decoder if isinstance(decoder, list | tuple) else [decoder]
    for step in steps:
        if not (step is None or isinstance(step, bool | str) or callable(step)):
            raise ValueError(f"decoder={step!r} must be a function, True, 'PIL', None, or a list of these")
    renames = filerename if isinstance(filerename, list | tuple) else [filerename]
    if not all(rename is None or callable(rename) for rename in renames):
        raise ValueError(f"filerename={filerename!r} must be a function from name to name, or a list of them")
    reader = webdataset.TarSamples(decoder, suffixes, fileselect, filerename, expand_json)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=None,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = MediaFiles(called("read_webdataset", paths), files, reader, include_paths, override_num_blocks)
    return _dataset(source, shuffle, concurrency)


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
    """A row for each `tf.train.Example`, a column for each feature. TensorFlow is not needed; checksums are checked.

    A feature that has one value in each record is a column of int64, float32 or bytes; one with several is a column of
    lists; a record that lacks it is null there. Where a feature of one value gets several only later in a file, say so
    by `tf_schema={"tags": pyarrow.list_(pyarrow.binary())}`; types given there are also cast to, so that
    `pyarrow.string()` makes text of bytes. Files named `.gz` are unpacked; others need `compression="GZIP"` or "ZLIB".
    """
    if compression not in (None, "GZIP", "ZLIB"):
        raise ValueError(f"compression={compression!r} must be 'GZIP', 'ZLIB' or None")
    reader = TFRecords(_types(tf_schema), compression)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = MediaFiles(called("read_tfrecords", paths), files, reader, include_paths, override_num_blocks)
    return _dataset(source, shuffle, concurrency)


def read_audio(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = audio.EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """A row for each sound file: `amplitude`, float32 of channels x samples, and `sample_rate`."""
    needed("soundfile", "read_audio", "audio")
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = MediaFiles(called("read_audio", paths), files, audio.Audio(), include_paths, override_num_blocks)
    return _dataset(source, shuffle, concurrency)


def read_videos(
    paths: Paths,
    *,
    filesystem: Any = None,
    partitioning: Partitioning = None,
    include_paths: bool = False,
    include_timestamps: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    file_extensions: Sequence[str] | None = videos.EXTENSIONS,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """A row for each frame: `frame`, uint8 of height x width x 3, and `frame_index`, counted from 0 in each file.

    `include_timestamps` adds `frame_timestamp`: the seconds at which it begins and ends.
    """
    needed("av", "read_videos", "video")
    reader = videos.Videos(include_timestamps)
    files = listed(
        paths,
        filesystem=filesystem,
        file_extensions=file_extensions,
        partitioning=partitioning,
        ignore_missing_paths=ignore_missing_paths,
    )
    source = MediaFiles(called("read_videos", paths), files, reader, include_paths, override_num_blocks)
    return _dataset(source, shuffle, concurrency)


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
    """The rows of a query. `connection_factory` takes no arguments and gives a connection of Python's DB-API 2.

    The query runs as one, or, with `shard_keys`, as `override_num_blocks` queries at a time, each with
    `WHERE MOD(ABS(shard_hash_fn(key)), n) = i`: the function must be one of the database that gives a number, and no
    key may be null. For the same order of rows every time the query needs an `ORDER BY` that decides it.
    """
    if not isinstance(sql, str) or not sql.strip():
        raise ValueError(f"sql={sql!r} must be a query")
    if not callable(connection_factory):
        raise TypeError(
            f"connection_factory={connection_factory!r} must be a function that opens a connection: each process opens "
            "one of its own\n\nhint: connection_factory=lambda: sqlite3.connect('train.db')"
        )
    keys = () if shard_keys is None else tuple(shard_keys)
    if isinstance(shard_keys, str) or not all(isinstance(key, str) and key for key in keys):
        raise ValueError(f"shard_keys={shard_keys!r} must be a list of columns of the query, or None")
    check_common(concurrency, override_num_blocks)
    number = override_num_blocks or 1
    if number > 1 and not keys:
        raise ValueError(f"override_num_blocks={number} needs shard_keys: the columns by which the rows are shared out")
    return Dataset(Read(Query(sql.strip().rstrip(";"), connection_factory, sql_params, keys, shard_hash_fn, number)))


def _dataset(source: MediaFiles, shuffle: Shuffle, concurrency: int | None) -> Dataset:
    check_common(concurrency, source.num_units, source.include_paths)
    config = FileShuffleConfig() if shuffle == "files" else shuffle
    if not (config is None or isinstance(config, FileShuffleConfig)):
        raise ValueError(f"shuffle={shuffle!r} must be None, 'files' or a FileShuffleConfig")
    if config is None:
        return Dataset(Read(_in_ranges(source)))
    seed = config.seed or 0
    mixed = tuple(source.files[index] for index in permutation(len(source.files), seed))
    return Dataset(Reorder(Read(_in_ranges(replace(source, files=mixed))), seed, config.reseed_after_execution))


def _in_ranges(source: MediaFiles) -> Source:
    """Large arrays are read a range of rows at a time."""
    return numpy.NumpyFiles(source) if isinstance(source.reader, numpy.Arrays) else source


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _modes() -> tuple[str, ...]:
    return ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "RGBa", "La")


def _types(tf_schema: Any) -> tuple[tuple[str, Any], ...]:
    if tf_schema is None:
        return ()
    if isinstance(tf_schema, pa.Schema):
        tf_schema = dict(zip(tf_schema.names, tf_schema.types, strict=True))
    if not isinstance(tf_schema, Mapping):
        raise TypeError(f"tf_schema={tf_schema!r} must be a dict from features to Arrow types, or a pyarrow.Schema")
    for name, kind in tf_schema.items():
        if not isinstance(kind, pa.DataType):
            raise TypeError(
                f"tf_schema[{name!r}]={kind!r} must be an Arrow type such as pyarrow.list_(pyarrow.int64())"
            )
    return tuple(tf_schema.items())
