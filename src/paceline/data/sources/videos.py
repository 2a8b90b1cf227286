"""Video files: one row for each frame, decoded by PyAV as it is asked for.

Of a file that was cut off the frames up to there come, where its format can be played without its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.trouble import in_short
from paceline.data.block import Block, Schema
from paceline.data.files import File
from paceline.data.sources.media import UnfitError, decoding, needed

EXTENSIONS = ("mp4", "mkv", "mov", "avi", "wmv", "flv", "webm", "m4v", "3gp", "mpeg", "mpg")


@dataclass(frozen=True)
class Videos:
    include_timestamps: bool
    unit_bytes: int = 0

    def blocks(self, file: File) -> Iterator[Block]:
        av = needed("av", "read_videos", "video")
        index = 0
        with decoding(file, "video"), file.open() as opened:
            try:
                with av.open(_Seekable(opened), mode="r") as container:
                    if not container.streams.video:
                        raise UnfitError("there is no video in it")
                    stream = container.streams.video[0]
                    for frame in container.decode(stream):
                        yield self._row(frame, index)
                        index += 1
            except av.FFmpegError as error:
                raise UnfitError(f"after {index} frames: {error.strerror or in_short(error)}") from error

    def _row(self, frame: Any, index: int) -> Block:
        columns = {"frame": frame.to_ndarray(format="rgb24")[None], "frame_index": np.array([index])}
        if self.include_timestamps:
            begin = float(frame.time) if frame.time is not None else np.nan
            lasts = float(frame.duration * frame.time_base) if frame.duration and frame.time_base else np.nan
            columns["frame_timestamp"] = np.array([[begin, begin + lasts]])
        return Block(columns)

    def num_rows(self, file: File) -> int | None:
        return None

    def num_bytes(self, file: File) -> int | None:
        return None

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None


class _Seekable:
    """What FFmpeg asks of a file, answered by Arrow's: it wants `seek` to tell the place."""

    def __init__(self, file: Any) -> None:
        self.read, self.tell = file.read, file.tell
        self._file = file

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return int(self._file.tell())
