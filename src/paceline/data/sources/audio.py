"""Audio files, one row each, decoded by soundfile: WAV, FLAC, OGG, MP3, AIFF."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block, Schema
from paceline.data.files import InputFile
from paceline.data.sources.media import InvalidContentError, explain_decoding, import_required

EXTENSIONS = ("mp3", "wav", "aac", "flac", "ogg", "m4a", "wma", "alac", "aiff", "pcm", "amr", "opus")

_DECODED_SIZE_FACTOR = 4


@dataclass(frozen=True)
class AudioReader:
    unit_bytes: int = 8 << 20

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        soundfile = import_required("soundfile", "read_audio", "audio")
        content = file.read()
        with explain_decoding(file, "sound"):
            try:
                samples, rate = soundfile.read(io.BytesIO(content), always_2d=True, dtype="float32")
            except soundfile.SoundFileError as error:
                raise InvalidContentError(summarize_error(error)) from error
        yield Block({"amplitude": np.ascontiguousarray(samples.T)[None], "sample_rate": np.array([rate])})

    def num_rows(self, file: InputFile) -> int | None:
        return 1

    def num_bytes(self, file: InputFile) -> int | None:
        return file.size * _DECODED_SIZE_FACTOR

    def schema(self) -> Schema | None:
        return None

    def project_columns(self, columns: Sequence[str]) -> None:
        return None
