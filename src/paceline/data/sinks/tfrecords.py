"""TFRecord files of `tf.train.Example`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.data.block import Block
from paceline.data.sinks.sink import FileWriter, FormatSink
from paceline.data.sources.media import import_required
from paceline.data.sources.tfexample_codec import encode_examples
from paceline.data.sources.tfrecord_codec import frame_record


@dataclass(frozen=True)
class TFRecordSink(FormatSink):
    name = "write_tfrecords"
    suffix = ".tfrecords"

    def __post_init__(self) -> None:
        import_required("google_crc32c", "write_tfrecords", "tfrecords")

    def open(self, path: Path) -> TFRecordWriter:
        return TFRecordWriter(path)


class TFRecordWriter(FileWriter):
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, block: Block) -> None:
        for example in encode_examples(block):
            self._file.write(frame_record(example))

    def close(self) -> None:
        self._file.close()
