"""Sources of files that each contain some rows, and the readers of raw bytes, images, audio and video.

A unit is one file, or several small consecutive ones; the grouping depends only on the files. Pillow decodes images,
soundfile audio, and PyAV video, one row per frame: a truncated video yields the frames up to the cut, if its format can
be played without its end.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from paceline._core.lazy_imports import import_extra
from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block, Schema, TensorType
from paceline.data.context import DataContext
from paceline.data.planning.plan import PlainSource
from paceline.data.sources.files import InputFile, InvalidContentError, explain_read_errors
from paceline.data.sources.memory import unit_ranges
from paceline.data.sources.schemas import PATH, partition_fields, path_fields

IMAGE_EXTENSIONS = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif", "webp")
AUDIO_EXTENSIONS = ("mp3", "wav", "aac", "flac", "ogg", "m4a", "wma", "alac", "aiff", "pcm", "amr", "opus")
VIDEO_EXTENSIONS = ("mp4", "mkv", "mov", "avi", "wmv", "flv", "webm", "m4v", "3gp", "mpeg", "mpg")
BYTES = "bytes"

_IMAGE_SIZE_FACTOR, _AUDIO_SIZE_FACTOR = 8, 4
"""About how much larger a file's content is in memory."""
_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,), "YCbCr": (3,), "HSV": (3,), "LAB": (3,)}
"""The channel dimension of an array by Pillow mode, for modes with one byte per channel."""
_WIDE_BYTES = 1 << 30
"""From this size on, Arrow's 32-bit binary type may be too small for a joined column."""
_TIME_ERROR = 1e-6
"""Of frames, when times are compared with a frame rate."""
_BLOCK_BYTES = 8 << 20
"""Rows are passed on once they reach this size, so that the first ones do not wait for the last."""


class FileReader:
    unit_bytes = 0
    """Files are grouped into units up to this size; 0: each file is a unit."""
    max_unit_files = 256
    rows_per_file: int | None = None

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        """Yield the rows of a file. Errors name the file."""
        raise NotImplementedError

    def num_bytes(self, file: InputFile) -> int | None:
        return file.size

    def schema(self) -> Schema | None:
        return None

    def project_columns(self, columns: Sequence[str]) -> FileReader | None:
        """A reader of only these columns; None if that saves nothing. If a column is missing, it reads all of them, so
        that the error can list the existing ones."""
        return None


@dataclass(frozen=True)
class MediaSource(PlainSource):
    name: str
    files: tuple[InputFile, ...]
    reader: FileReader
    include_paths: bool = False
    num_units: int | None = None

    def units(self) -> Sequence[Any]:
        if self.num_units is None:
            groups: Iterable[Sequence[InputFile]] = self._group_by_size()
        else:  # one per file if there are fewer files
            groups = [self.files[start:stop] for start, stop in unit_ranges(len(self.files), 0, self.num_units, 1)]
        partition = tuple(partition_fields(self.files))
        return [MediaUnit(tuple(group), self.reader, self.include_paths, partition) for group in groups]

    def _group_by_size(self) -> Iterator[Sequence[InputFile]]:
        group: list[InputFile] = []
        size = 0
        for file in self.files:
            if group and (size + file.size > self.reader.unit_bytes or len(group) == self.reader.max_unit_files):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if group:
            yield group

    def schema(self) -> Schema | None:
        schema = self.reader.schema()
        if schema is None:
            return None
        more = path_fields(self.files, self.include_paths)
        return Schema.from_columns([*schema.names, *(f.name for f in more)], [*schema.types, *(f.type for f in more)])

    def project_columns(self, columns: Sequence[str]) -> MediaSource | None:
        added = {field.name for field in path_fields(self.files, self.include_paths)}
        reader = self.reader.project_columns([name for name in columns if name not in added])
        if reader is None:
            return None
        return replace(self, reader=reader, include_paths=self.include_paths and PATH in columns)


@dataclass(frozen=True)
class MediaUnit:
    files: tuple[InputFile, ...]
    reader: FileReader
    include_paths: bool
    partition: tuple[Any, ...]

    @property
    def name(self) -> str:
        first, last = self.files[0].name, self.files[-1].name
        return first if len(self.files) == 1 else f"{first} to {last} ({len(self.files)} files)"

    @property
    def num_rows(self) -> int | None:
        return None if self.reader.rows_per_file is None else self.reader.rows_per_file * len(self.files)

    @property
    def num_bytes(self) -> int | None:
        sizes = [self.reader.num_bytes(file) for file in self.files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def read(self) -> Iterator[Block]:
        limit = min(_BLOCK_BYTES, DataContext.get_current().target_max_block_size)
        parts: list[tuple[InputFile, Block]] = []
        size = 0
        for file in self.files:
            for block in self.reader.read_blocks(file):
                parts.append((file, block))
                size += block.nbytes
                if size >= limit:
                    yield with_origin_columns(parts, self.include_paths, self.partition)
                    parts, size = [], 0
        if parts:
            yield with_origin_columns(parts, self.include_paths, self.partition)


def with_origin_columns(
    parts: Sequence[tuple[InputFile, Block]], include_paths: bool, partition: Sequence[Any]
) -> Block:
    """Join blocks, and add the columns that say which file a row is from."""
    block = Block.concat(part for _, part in parts)
    if not partition and not include_paths:
        return block
    files = [file for file, part in parts for _ in range(part.num_rows)]
    for field in partition:
        block = block.with_column(
            field.name, pa.array([dict(file.partition)[field.name] for file in files], field.type)
        )
    return block.with_column(PATH, pa.array([file.path for file in files], pa.string())) if include_paths else block


@dataclass(frozen=True)
class BinaryReader(FileReader):
    type: Any
    unit_bytes = 32 << 20
    max_unit_files = 512
    rows_per_file = 1

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        yield Block({BYTES: pa.array([file.read()], self.type)})

    def schema(self) -> Schema | None:
        return Schema.from_columns([BYTES], [self.type])


def choose_binary_type(files: Sequence[InputFile]) -> Any:
    is_wide = any(file.size >= (_WIDE_BYTES // 16 if file.compression else _WIDE_BYTES) for file in files)
    return pa.large_binary() if is_wide else pa.binary()


@dataclass(frozen=True)
class ImageReader(FileReader):
    size: tuple[int, int] | None
    """Height and width; None: as in the file."""
    mode: str | None
    unit_bytes = 4 << 20
    rows_per_file = 1

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        content = file.read()
        with explain_read_errors(file, "an image"):
            array = decode_image(content, self.size, self.mode)
        yield Block({"image": array[None]})

    def num_bytes(self, file: InputFile) -> int | None:
        if self.size is None:
            return file.size * _IMAGE_SIZE_FACTOR
        channels = _CHANNELS.get(self.mode or "RGB", (4,))
        return int(np.prod(self.size + channels))

    def schema(self) -> Schema | None:
        if self.size is None or self.mode not in _CHANNELS:
            return None
        return Schema.from_columns(["image"], [TensorType(np.dtype(np.uint8), (*self.size, *_CHANNELS[self.mode]))])


def decode_image(content: bytes, size: tuple[int, int] | None = None, mode: str | None = None) -> np.ndarray[Any, Any]:
    """Decode an image to an array of height x width, or height x width x channels."""
    pillow = import_extra("PIL.Image", "decoding images")
    if not content:
        raise InvalidContentError("it is empty")
    try:
        with pillow.open(io.BytesIO(content)) as image:
            if size is not None:
                height, width = size
                # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, never below the requested size.
                image.draft(image.mode, (width, height))
            if mode is not None and image.mode != mode:
                image = image.convert(mode)
            if size is not None and image.size != (width, height):
                image = image.resize((width, height), pillow.Resampling.BILINEAR)
            return np.asarray(image)
    except import_extra("PIL", "decoding images").UnidentifiedImageError:
        raise InvalidContentError("Pillow does not know its format") from None
    except (SyntaxError, struct.error, zlib.error, IndexError, OverflowError, pillow.DecompressionBombError) as error:
        raise InvalidContentError(summarize_error(error)) from error


@dataclass(frozen=True)
class AudioReader(FileReader):
    unit_bytes = 8 << 20
    rows_per_file = 1

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        soundfile = import_extra("soundfile", "read_audio")
        content = file.read()
        with explain_read_errors(file, "audio"):
            try:
                samples, rate = soundfile.read(io.BytesIO(content), always_2d=True, dtype="float32")
            except soundfile.SoundFileError as error:
                raise InvalidContentError(summarize_error(error)) from error
        yield Block({"amplitude": np.ascontiguousarray(samples.T)[None], "sample_rate": np.array([rate])})

    def num_bytes(self, file: InputFile) -> int | None:
        return file.size * _AUDIO_SIZE_FACTOR


@dataclass(frozen=True)
class VideoReader(FileReader):
    include_timestamps: bool
    fps: float | None = None
    """Frames per second to keep: the first frame at or after each time 0, 1/fps, 2/fps, ...; None: all."""
    size: tuple[int, int] | None = None
    """Height and width; None: as in the file."""

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        av = import_extra("av", "read_videos")
        index = 0
        with explain_read_errors(file, "video"), file.open() as opened:
            try:
                with av.open(_FFmpegFile(opened), mode="r") as container:
                    if not container.streams.video:
                        raise InvalidContentError("it has no video stream")
                    stream = container.streams.video[0]
                    start: float | None = None
                    due = 0
                    for frame in container.decode(stream):
                        start = start if start is not None else frame.time
                        since = 0.0 if frame.time is None or start is None else frame.time - start
                        if self.fps is None or since * self.fps >= due - _TIME_ERROR:
                            yield self._frame_block(frame, index)
                            due = math.floor(since * (self.fps or 0) + _TIME_ERROR) + 1
                        index += 1
            except av.FFmpegError as error:
                raise InvalidContentError(
                    f"after {index} frames: {error.strerror or summarize_error(error)}"
                ) from error

    def _frame_block(self, frame: Any, index: int) -> Block:
        height, width = self.size or (frame.height, frame.width)
        pixels = frame.to_ndarray(format="rgb24", width=width, height=height)
        columns = {"frame": pixels[None], "frame_index": np.array([index])}
        if self.include_timestamps:
            begin = float(frame.time) if frame.time is not None else np.nan
            duration = float(frame.duration * frame.time_base) if frame.duration and frame.time_base else np.nan
            columns["frame_timestamp"] = np.array([[begin, begin + duration]])
        return Block(columns)

    def num_bytes(self, file: InputFile) -> int | None:
        return None


class _FFmpegFile:
    """Adapts Arrow's file to FFmpeg, which needs `seek` to return the position."""

    def __init__(self, file: Any) -> None:
        self.read, self.tell = file.read, file.tell
        self._file = file

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return int(self._file.tell())
