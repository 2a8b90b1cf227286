"""Tar files of WebDataset: the files of one sample stand one after the other and differ in what follows the first dot.

`000123.jpg`, `000123.cls` are a row with the key `000123` and the columns `jpg` and `cls`. What is pickled in such
files (`pyd`, `pkl`, `pickle`, `pt`, `pth`) stays bytes: to unpickle is to run what whoever made the file wrote.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, BinaryIO

import numpy as np

from paceline._storage.trouble import in_short
from paceline.data.block import Block, Schema
from paceline.data.files import File
from paceline.data.sources import images
from paceline.data.sources.media import UnfitError, decoding, needed

EXTENSIONS = ("tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "tar.zst")

Sample = dict[str, Any]
Matches = Sequence[str] | Callable[[str], bool] | None
"""Patterns, or a function that says yes or no; None: all."""

_PARTS = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_ROWS = 64
_BLOCK_BYTES = 8 << 20

IMAGES = frozenset(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "bmp", "gif", "tif", "tiff"))
TEXTS = frozenset(("txt", "text", "transcript"))
NUMBERS = frozenset(("cls", "cls2", "class", "count", "index", "inx", "id"))


@dataclass(frozen=True)
class TarSamples:
    decoder: bool | str | Callable[[Sample], Sample] | Sequence[Any] | None = True
    suffixes: Matches = None
    fileselect: Matches = None
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None = None
    expand_json: bool = False
    columns: tuple[str, ...] | None = None
    unit_bytes: int = 0

    def blocks(self, file: File) -> Iterator[Block]:
        with decoding(file, "a tar file of samples"), file.stream() as stream:
            held: list[Sample] = []
            size = 0
            for sample in samples(self._named(members(stream)), self.suffixes):
                held.append(sample)
                size += sum(len(value) for value in sample.values())
                if len(held) == _ROWS or size >= _BLOCK_BYTES:
                    yield self._block(file, held)
                    held, size = [], 0
            if held:
                yield self._block(file, held)

    def _block(self, file: File, held: Sequence[Sample]) -> Block:
        there = {"__url__", *(suffix for sample in held for suffix in sample)}
        if self.columns is not None and {*self.columns} <= there:
            wanted = {"__key__", *self.columns}
            held = [{name: sample[name] for name in sample if name in wanted} for sample in held]
        return Block.from_rows([self._decoded({"__url__": str(file), **sample}) for sample in held])

    def _named(self, found: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        renames = [] if self.filerename is None else self.filerename
        for name, content in found:
            for rename in [renames] if callable(renames) else renames:
                name = rename(name)
            if _wanted(name, self.fileselect):
                yield name, content

    def _decoded(self, sample: Sample) -> Sample:
        steps: Sequence[Any] = self.decoder if isinstance(self.decoder, list | tuple) else [self.decoder]
        for step in steps:
            if step is None or step is False:
                continue
            sample = step(sample) if callable(step) else decoded(sample, step)
            if not isinstance(sample, dict):
                raise TypeError(f"decoder gave a {type(sample).__name__} for a sample: it must give a dict")
        if self.expand_json and "json" in sample:
            fields = sample["json"]
            fields = json.loads(fields) if isinstance(fields, bytes) else fields
            if not isinstance(fields, dict):
                raise UnfitError(f"sample {sample['__key__']!r}: its json is no object, so it has no fields to expand")
            sample = {**sample, **fields}
        return sample

    def num_rows(self, file: File) -> int | None:
        return None

    def num_bytes(self, file: File) -> int | None:
        return file.size

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> TarSamples | None:
        known = self.decoder is None or isinstance(self.decoder, bool | str)  # one of the user's may look at anything
        return replace(self, columns=tuple(columns)) if known and not self.expand_json else None


# Samples


def samples(found: Iterable[tuple[str, bytes]], suffixes: Matches = None) -> Iterator[Sample]:
    """Files with one key, one after the other, are a sample. Files without a dot in their name are passed over."""
    sample: Sample = {}
    for name, content in found:
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
            raise UnfitError(f"sample {key!r} has two files that end in .{suffix}")
        if _wanted(suffix, suffixes):
            sample[suffix] = content
    if sample:
        yield sample


def _wanted(name: str, matches: Matches) -> bool:
    if matches is None:
        return True
    if callable(matches):
        return bool(matches(name))
    return any(fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern) for pattern in matches)


def decoded(sample: Sample, how: bool | str = True) -> Sample:
    """Each file of a sample by the end of its name. `how="PIL"` leaves images as Pillow's."""
    made = {}
    for suffix, content in sample.items():
        if suffix.startswith("__") or not isinstance(content, bytes):
            made[suffix] = content
            continue
        try:
            made[suffix] = _value(suffix.rpartition(".")[2].lower(), content, how)
        except ImportError:
            raise
        except (ValueError, TypeError, OSError, EOFError, UnicodeDecodeError) as error:
            raise UnfitError(
                f"sample {sample.get('__key__')!r}: its .{suffix} cannot be decoded: {in_short(error)}"
            ) from error
    return made


def _value(kind: str, content: bytes, how: bool | str) -> Any:
    if kind in IMAGES:
        if how == "PIL":
            image = needed("PIL.Image", "decoding images", "images").open(io.BytesIO(content))
            image.load()
            return image
        return images.decoded(content)
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


class _Header(tarfile.TarInfo):
    """Python's reader takes a damaged or missing header for the end of the file: here it is an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        if not buf:
            raise tarfile.ReadError("it ends without the mark of its end: it is empty, was cut off or is not finished")
        if len(buf) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it ends within the header of a file: it was cut off")
        if not any(buf):  # the mark of its end
            return super().frombuf(buf, encoding, errors)
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"the header of a file is damaged: {error}") from None


def members(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in a tar file, packed or not, in their order."""
    name = ""
    try:
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Header) as archive:
            for info in archive:
                if info.isreg():
                    name = info.name
                    opened = archive.extractfile(info)
                    assert opened is not None  # a regular file has content
                    content = opened.read()
                    if len(content) < info.size:
                        raise tarfile.ReadError(f"it ends within {name!r}: it was cut off")
                    yield name, content
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UnfitError(f"{in_short(error)}{f' (after {name!r})' * bool(name)}") from error
