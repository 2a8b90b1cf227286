"""Audio files, one row each, decoded by soundfile; and video files, one row per frame, decoded by PyAV on demand.

A truncated video yields the frames up to the cut, if its format can be played without its end.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block
from paceline.data.sources.files import InputFile
from paceline.data.sources.media import FileReader, InvalidContentError, explain_decoding, import_required

AUDIO_EXTENSIONS = ("mp3", "wav", "aac", "flac", "ogg", "m4a", "wma", "alac", "aiff", "pcm", "amr", "opus")

_DECODED_SIZE_FACTOR = 4


@dataclass(frozen=True)
class AudioReader(FileReader):
    unit_bytes = 8 << 20
    rows_per_file = 1

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        soundfile = import_required("soundfile", "read_audio", "audio")
        content = file.read()
        with explain_decoding(file, "audio"):
            try:
                samples, rate = soundfile.read(io.BytesIO(content), always_2d=True, dtype="float32")
            except soundfile.SoundFileError as error:
                raise InvalidContentError(summarize_error(error)) from error
        yield Block({"amplitude": np.ascontiguousarray(samples.T)[None], "sample_rate": np.array([rate])})

    def num_bytes(self, file: InputFile) -> int | None:
        return file.size * _DECODED_SIZE_FACTOR


VIDEO_EXTENSIONS = ("mp4", "mkv", "mov", "avi", "wmv", "flv", "webm", "m4v", "3gp", "mpeg", "mpg")


@dataclass(frozen=True)
class VideoReader(FileReader):
    include_timestamps: bool

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        av = import_required("av", "read_videos", "video")
        index = 0
        with explain_decoding(file, "video"), file.open() as opened:
            try:
                with av.open(_FFmpegFile(opened), mode="r") as container:
                    if not container.streams.video:
                        raise InvalidContentError("it has no video stream")
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
