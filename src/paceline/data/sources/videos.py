"""Video files: one row per frame, decoded by PyAV on demand.

A truncated file yields the frames up to the cut, if its format can be played without its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block, Schema
from paceline.data.files import InputFile
from paceline.data.sources.media import InvalidContentError, explain_decoding, import_required

EXTENSIONS = ("mp4", "mkv", "mov", "avi", "wmv", "flv", "webm", "m4v", "3gp", "mpeg", "mpg")


@dataclass(frozen=True)
class VideoReader:
    include_timestamps: bool
    unit_bytes: int = 0

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        av = import_required("av", "read_videos", "video")
        index = 0
        with explain_decoding(file, "video"), file.open() as opened:
            try:
                with av.open(_FFmpegFile(opened), mode="r") as container:
                    if not container.streams.video:
                        raise InvalidContentError("there is no video in it")
                    stream = container.streams.video[0]
                    for frame in container.decode(stream):
                        yield self._frame_block(frame, index)
                        index += 1
            except av.FFmpegError as error:
                raise InvalidContentError(
                    f"after {index} frames: {error.strerror or summarize_error(error)}"
                ) from error

    def _frame_block(self, frame: Any, index: int) -> Block:
        columns = {"frame": frame.to_ndarray(format="rgb24")[None], "frame_index": np.array([index])}
        if self.include_timestamps:
            begin = float(frame.time) if frame.time is not None else np.nan
            lasts = float(frame.duration * frame.time_base) if frame.duration and frame.time_base else np.nan
            columns["frame_timestamp"] = np.array([[begin, begin + lasts]])
        return Block(columns)

    def num_rows(self, file: InputFile) -> int | None:
        return None

    def num_bytes(self, file: InputFile) -> int | None:
        return None

    def schema(self) -> Schema | None:
        return None

    def project_columns(self, columns: Sequence[str]) -> None:
        return None


class _FFmpegFile:
    """Adapts Arrow's file to FFmpeg, which needs `seek` to return the position."""

    def __init__(self, file: Any) -> None:
        self.read, self.tell = file.read, file.tell
        self._file = file

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return int(self._file.tell())
