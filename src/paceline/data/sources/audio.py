"""Sound files: one row each, decoded by soundfile: WAV, FLAC, OGG, MP3, AIFF."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline._storage.trouble import in_short
from paceline.data.block import Block, Schema
from paceline.data.files import File
from paceline.data.sources.media import UnfitError, decoding, needed

EXTENSIONS = ("mp3", "wav", "aac", "flac", "ogg", "m4a", "wma", "alac", "aiff", "pcm", "amr", "opus")

_ABOUT = 4


@dataclass(frozen=True)
class Audio:
    unit_bytes: int = 8 << 20

    def blocks(self, file: File) -> Iterator[Block]:
        soundfile = needed("soundfile", "read_audio", "audio")
        content = file.read()
        with decoding(file, "sound"):
            try:
                samples, rate = soundfile.read(io.BytesIO(content), always_2d=True, dtype="float32")
            except soundfile.SoundFileError as error:
                raise UnfitError(in_short(error)) from error
        yield Block({"amplitude": np.ascontiguousarray(samples.T)[None], "sample_rate": np.array([rate])})

    def num_rows(self, file: File) -> int | None:
        return 1

    def num_bytes(self, file: File) -> int | None:
        return file.size * _ABOUT

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None
