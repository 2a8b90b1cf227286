"""WebDataset tar files: the files of a sample are consecutive and differ only after the first dot.

`000123.jpg`, `000123.cls` are a row with the key `000123` and the columns `jpg` and `cls`. Pickled members (`pyd`,
`pkl`, `pickle`, `pt`, `pth`) stay bytes: unpickling would run code chosen by whoever made the file.
"""

from __future__ import annotations

import io
import json
import logging
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, BinaryIO

import numpy as np

from paceline._core.lazy_imports import import_extra
from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block
from paceline.data.sources.files import InputFile, InvalidContentError, explain_read_errors
from paceline.data.sources.media import FileReader, decode_image

log = logging.getLogger("paceline")

EXTENSIONS = ("tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "tar.zst")

Sample = dict[str, Any]
Matches = Sequence[str] | Callable[[str], bool] | None
"""Patterns, or a predicate; None: all."""

_PARTS = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_ROWS = 64
_BLOCK_BYTES = 8 << 20

IMAGES = frozenset(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "bmp", "gif", "tif", "tiff"))
TEXTS = frozenset(("txt", "text", "transcript"))
NUMBERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))


@dataclass(frozen=True)
class WebDatasetReader(FileReader):
    decoder: bool | str | Callable[[Sample], Sample] | Sequence[Any] | None = True
    suffixes: Matches = None
    fileselect: Matches = None
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None
    expand_json: bool = False
    columns: tuple[str, ...] | None = None
    verbose_open: bool = False

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        if self.verbose_open:
            log.warning("read_webdataset: opening %s", file)
        with explain_read_errors(file, "a tar file of samples"), file.stream() as stream:
            samples: list[Sample] = []
            size = 0
            for sample in group_samples(self._select_members(read_members(stream)), self.suffixes):
                samples.append(sample)
                size += sum(len(value) for value in sample.values())
                if len(samples) == _ROWS or size >= _BLOCK_BYTES:
                    yield self._make_block(file, samples)
                    samples, size = [], 0
            if samples:
                yield self._make_block(file, samples)

    def _make_block(self, file: InputFile, samples: Sequence[Sample]) -> Block:
        names = {"__url__", *(suffix for sample in samples for suffix in sample)}
        if self.columns is not None and {*self.columns} <= names:
            selected = {"__key__", *self.columns}
            samples = [{name: sample[name] for name in sample if name in selected} for sample in samples]
        return Block.from_rows([self._decode_sample({"__url__": str(file), **sample}) for sample in samples])

    def _select_members(self, members: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        renames = [] if self.filerename is None else self.filerename
        for name, content in members:
            for rename in [renames] if callable(renames) else renames:
                name = rename(name)
            if _is_wanted(name, self.fileselect):
                yield name, content

    def _decode_sample(self, sample: Sample) -> Sample:
        steps: Sequence[Any] = self.decoder if isinstance(self.decoder, list | tuple) else [self.decoder]
        for step in steps:
            if step is None or step is False:
                continue
            sample = step(sample) if callable(step) else decode_sample(sample, step)
            if not isinstance(sample, dict):
                raise TypeError(f"decoder must return a dict for a sample, got a {type(sample).__name__}")
        if self.expand_json and "json" in sample:
            fields = sample["json"]
            fields = json.loads(fields) if isinstance(fields, bytes) else fields
            if not isinstance(fields, dict):
                raise InvalidContentError(f"sample {sample['__key__']!r}: its json is not an object with fields")
            sample = {**sample, **fields}
        return sample

    def project_columns(self, columns: Sequence[str]) -> WebDatasetReader | None:
        is_builtin = self.decoder is None or isinstance(self.decoder, bool | str)  # a user's decoder may use any column
        return replace(self, columns=tuple(columns)) if is_builtin and not self.expand_json else None


# Samples


def group_samples(members: Iterable[tuple[str, bytes]], suffixes: Matches = None) -> Iterator[Sample]:
    """Group consecutive files with the same key into samples. Files without a dot in their name are ignored."""
    sample: Sample = {}
    for name, content in members:
        parts = _PARTS.match(name)
        if parts is None:
            continue
        key, suffix = parts.groups()
        if sample and sample["__key__"] != key:
            yield sample
            sample = {}
        if not sample:
            sample = {"__key__": key}
        if suffix in sample:
            raise InvalidContentError(f"sample {key!r} has two .{suffix} files")
        if _is_wanted(suffix, suffixes):
            sample[suffix] = content
    if sample:
        yield sample


def _is_wanted(name: str, matches: Matches) -> bool:
    if matches is None:
        return True
    if callable(matches):
        return bool(matches(name))
    return any(fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern) for pattern in matches)


def decode_sample(sample: Sample, how: bool | str = True) -> Sample:
    """Decode each file of a sample by its extension. `how="PIL"` keeps images as Pillow images."""
    decoded = {}
    for suffix, content in sample.items():
        if suffix.startswith("__") or not isinstance(content, bytes):
            decoded[suffix] = content
            continue
        try:
            decoded[suffix] = _decode_value(suffix.rpartition(".")[2].lower(), content, how)
        except ImportError:
            raise
        except (ValueError, TypeError, OSError, EOFError, UnicodeDecodeError) as error:
            raise InvalidContentError(
                f"sample {sample.get('__key__')!r}: cannot decode its .{suffix}: {summarize_error(error)}"
            ) from error
    return decoded


def _decode_value(kind: str, content: bytes, how: bool | str) -> Any:
    if kind in IMAGES:
        if how == "PIL":
            image = import_extra("PIL.Image", "decoding images").open(io.BytesIO(content))
            image.load()
            return image
        return decode_image(content)
    if kind in TEXTS:
        return content.decode()
    if kind in NUMBERS:
        return int(content)
    if kind in ("json", "jsn"):
        return json.loads(content)
    if kind == "npy":
        return np.load(io.BytesIO(content), allow_pickle=False)
    return content


# Tar files


class _StrictTarInfo(tarfile.TarInfo):
    """Raises on a damaged or missing header, which Python's reader takes for the end of the file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictTarInfo:
        if not buf:
            raise tarfile.ReadError("it has no end marker: it is empty, truncated or unfinished")
        if len(buf) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it is truncated within the header of a file")
        if not any(buf):  # the end-of-archive marker
            return super().frombuf(buf, encoding, errors)
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"the header of a file is damaged: {error}") from None


def read_members(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files in a tar file, compressed or not, in order."""
    name = ""
    try:
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_StrictTarInfo) as archive:
            for info in archive:
                if info.isreg():
                    name = info.name
                    opened = archive.extractfile(info)
                    assert opened is not None  # regular files have content
                    content = opened.read()
                    if len(content) < info.size:
                        raise tarfile.ReadError(f"it is truncated within {name!r}")
                    yield name, content
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InvalidContentError(f"{summarize_error(error)}{f' (after {name!r})' * bool(name)}") from error
