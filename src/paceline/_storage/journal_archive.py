"""The compressed part of a journal: `journal-000001.jsonl.gz`, the lines of a run that has ended, as they were.

In their place the journal has one line that names the file, so lines that follow are appended as ever. gzip, because
every installation can read and write it, and so can `zcat`. A file consists of members of some megabytes each, which
are compressed at the same time.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec

from paceline._core.codec import seal_line, unseal_line
from paceline._core.errors import StorageError
from paceline._core.system import open_private
from paceline._storage.files import Files
from paceline._storage.lease import UNFENCED, Fence
from paceline._storage.replacement import prepared_path, replace_file

BLOCK_BYTES = 1 << 20
_MEMBER_BYTES = 4 << 20
_NUM_THREADS = 2
_LEVEL = 1
"""The fastest: numbers that differ in every line do not get much smaller with more effort."""
_GZIP_WBITS = 31
_GZIP_MAGIC = b"\x1f\x8b"
_MIN_SEGMENT_BYTES = 4096
_NAME = re.compile(r"journal-\d{6}\.jsonl\.gz")

ARCHIVE_PREFIX = b'{"type":"journal_archived"'
"""How the payload of the line begins that stands for an archive."""


class JournalArchived(msgspec.Struct, frozen=True, tag="journal_archived"):
    """One of the first lines of a journal: the lines that were here are in a file."""

    file: str
    num_lines: int
    num_bytes: int
    """Of the lines."""
    crc: int
    """Of these bytes."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JournalArchived).decode


def iter_archives(file: BinaryIO) -> Iterator[JournalArchived]:
    """Yield the archives of an open journal, and leave the file at the first line that stands for none."""
    while True:
        at = file.tell()
        line = file.readline()
        payload = unseal_line(line) if ARCHIVE_PREFIX in line else None
        if payload is None:
            file.seek(at)
            return
        yield decode_archive(payload)


def decode_archive(payload: bytes) -> JournalArchived:
    try:
        archive = _decode(payload)
    except msgspec.MsgspecError as problem:
        raise StorageError(
            f"a line of the journal cannot be read by this version of Paceline ({problem})\n\n"
            "hint: open the run with the version that wrote it, or a newer one"
        ) from None
    if not _NAME.fullmatch(archive.file):
        raise StorageError(f"{archive.file[:300]!r} is not the name of a part of a journal")
    return archive


def iter_archived_blocks(journal: Path, archive: JournalArchived) -> Iterator[bytes]:
    """Yield the lines of an archive, in blocks of whole lines. Raises if a byte is missing or altered."""
    path = journal.with_name(archive.file)
    crc = num_bytes = 0
    try:
        with path.open("rb") as file:
            for block in iter_whole_lines(_decompress(file)):
                crc, num_bytes = zlib.crc32(block, crc), num_bytes + len(block)
                yield block
    except FileNotFoundError:
        raise _make_error(path, "is missing") from None
    except zlib.error as error:
        raise _make_error(path, f"is damaged ({error})") from None
    if (crc, num_bytes) != (archive.crc, archive.num_bytes):
        raise _make_error(path, f"is damaged: {num_bytes} of {archive.num_bytes} bytes are left, or some are altered")


def _make_error(path: Path, problem: str) -> StorageError:
    return StorageError(
        f"{path}, a part of the run's journal, {problem}\n\n"
        "hint: restore it from a copy; the checkpoints of the run are not affected"
    )


def iter_journal_blocks(path: Path, length: float = math.inf, *, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a journal, archived ones too, in blocks of whole lines, without what follows the last line.

    `length`: where in the file to end; `start`: where to begin, without archived lines if it is not 0.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        for archive in iter_archives(file) if start == 0 else ():
            yield from iter_archived_blocks(path, archive)
        yield from iter_whole_lines(iter(lambda: file.read(int(min(BLOCK_BYTES, length - file.tell()))), b""))


def compress_segment(data: bytes) -> bytes:
    """Compress a segment of a journal in a store, unless it is small."""
    return zlib.compress(data, _LEVEL, _GZIP_WBITS) if len(data) >= _MIN_SEGMENT_BYTES else data


def decompress_segment(data: bytes) -> bytes:
    """Return the lines of a segment; earlier versions wrote them uncompressed."""
    return zlib.decompress(data, _GZIP_WBITS) if data.startswith(_GZIP_MAGIC) else data


def iter_whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield rest + chunk[:end]
            rest = chunk[end:]
        else:
            rest += chunk


def _decompress(file: BinaryIO) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP_WBITS)
    is_begun = False
    data = b""
    while data or (data := file.read(BLOCK_BYTES)):
        is_begun = True
        if block := member.decompress(data, BLOCK_BYTES):
            yield block
        data = member.unconsumed_tail
        if member.eof:
            data, member, is_begun = member.unused_data, zlib.decompressobj(_GZIP_WBITS), False
    if is_begun:
        raise zlib.error("it ends in the middle")


def archive_journal(files: Files, path: Path, fence: Fence = UNFENCED) -> None:
    """Replace the lines of a journal by an archive of them. Only for a driver that has written its last line.

    The archive is durable and read back before the journal is replaced, atomically. After a crash the journal is the
    old or the new one.
    """
    with path.open("rb") as journal:
        before = list(iter_archives(journal))
        if os.fstat(journal.fileno()).st_size == journal.tell():
            return
        target = path.with_name(f"journal-{len(before) + 1:06d}.jsonl.gz")
        part = prepared_path(target, fence)
        archive = _write_archive(part, target.name, journal)
        for _ in iter_archived_blocks(path, msgspec.structs.replace(archive, file=part.name)):
            pass  # Raises if something else comes back.
        files.write(prepared_path(path, fence), b"".join(seal_line(_encode(each)) for each in (*before, archive)))
        replace_file(files, target, fence)
        files.sync_dir(path.parent)
        replace_file(files, path, fence)
        files.sync_dir(path.parent)


def _write_archive(part: Path, name: str, journal: BinaryIO) -> JournalArchived:
    num_lines = num_bytes = crc = 0
    pending: deque[Future[bytes]] = deque()
    with open(part, "wb", opener=open_private) as file, ThreadPoolExecutor(_NUM_THREADS, "paceline-archive") as pool:
        for block in iter(lambda: journal.read(_MEMBER_BYTES), b""):
            num_lines, num_bytes, crc = num_lines + block.count(b"\n"), num_bytes + len(block), zlib.crc32(block, crc)
            pending.append(pool.submit(zlib.compress, block, _LEVEL, _GZIP_WBITS))
            if len(pending) > _NUM_THREADS:
                file.write(pending.popleft().result())
        for compressed in pending:
            file.write(compressed.result())
        file.flush()
        os.fsync(file.fileno())
    return JournalArchived(name, num_lines, num_bytes, crc)
