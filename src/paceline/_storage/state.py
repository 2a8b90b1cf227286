"""A state on disk without pickle: `state.json` holds the tree, `state.bin` the bytes of its tensors and arrays.

`take_snapshot` copies every value into memory that is kept between saves, and training continues at once;
`StateSnapshot.write` writes it to disk, in any thread. Reading maps `state.bin` and copies nothing. Every buffer starts
at a multiple of 64 bytes, and equal states have equal files.
"""

import functools
import json
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from paceline._core.checkpoint_records import FileEntry
from paceline._storage.files import Files, LocalFiles
from paceline._storage.run_layout import METADATA
from paceline._storage.snapshot_memory import ALIGNMENT, GpuSnapshot, copy_leaves, padding_after
from paceline._storage.snapshot_memory import SnapshotMemory as SnapshotMemory
from paceline._storage.state_leaves import (
    Buffer,
    Leaf,
    Natural,
    parse_torch_dtype,
    restore_array,
    restore_tensor,
    view_bytes,
)
from paceline._storage.state_tree import decode_tree, encode_tree

STATE_VERSION = 1
STEM = "state"
TREE_FILE = f"{STEM}.json"
BYTES_FILE = f"{STEM}.bin"

_PAGE_BYTES = 4096
_PART_BYTES = 16 << 20
_DISK = LocalFiles()


class _StateDocument(msgspec.Struct, frozen=True):
    """The contents of `state.json`."""

    version: int
    num_bytes: Natural
    tree: Any
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False, repr=False)
class StateSnapshot:
    """A state as it was when `take_snapshot` returned, held in its `SnapshotMemory`."""

    nbytes: int
    _tree: Any
    _buffers: tuple[Buffer, ...]
    _host_parts: Callable[[], Iterator[memoryview]]
    _gpu_snapshot: GpuSnapshot
    _stem: str
    notes: bytes = b""
    """The user's own notes, written to a separate file."""
    before_part: Callable[[], None] = lambda: None
    """Called before each part is written; may raise, if the snapshot is no longer wanted."""

    @property
    def is_streamed(self) -> bool:
        """Whether values are read while they are written, so that they must not change until `write` returns."""
        return self._gpu_snapshot.is_streamed

    def write(self, directory: Path, files: Files = _DISK) -> tuple[FileEntry, ...]:
        """Write the files; an error may leave a partial one. Does not sync the directory itself."""
        document = {
            "version": STATE_VERSION,
            "num_bytes": self.nbytes,
            "tree": self._tree,
            "buffers": msgspec.to_builtins(self._buffers),
        }
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
        written = (
            files.write_parts(directory / f"{self._stem}.bin", self._parts(), self.nbytes),
            files.write_parts(directory / f"{self._stem}.json", [memoryview(text)], len(text)),
        )
        if not self.notes:
            return written
        return (*written, files.write_parts(directory / METADATA, [memoryview(self.notes)], len(self.notes)))

    def _parts(self) -> Iterator[memoryview]:
        for part in chain(self._host_parts(), self._gpu_snapshot.parts()):
            for start in range(0, len(part), _PART_BYTES):
                self.before_part()
                yield part[start : start + _PART_BYTES]


def take_snapshot(
    tree: Any,
    memory: SnapshotMemory,
    *,
    allow_pickle: bool = False,
    path: str = "state",
    stem: str = STEM,
    is_lasting: bool = True,
) -> StateSnapshot:
    """Copy a state into the arena. Raises a TypeError that names the path of an unsupported value.

    A snapshot that is not `is_lasting` copies nothing from host memory before it is written: the caller waits for that.
    Copies of GPU values are in progress when this returns: later work on the current stream runs after them. The owner
    of another stream that changes the values must order its work. See `StateSnapshot.is_streamed` for the exception.
    """
    node, leaves = encode_tree(tree, path=path, allow_pickle=allow_pickle)
    buffers, num_host_bytes, num_bytes = _lay_out_leaves(leaves)
    on_gpu = (
        (leaf, buffer.offset - num_host_bytes) for leaf, buffer in zip(leaves, buffers, strict=True) if leaf.on_gpu
    )
    from_gpu = GpuSnapshot(on_gpu, num_bytes - num_host_bytes, memory.pinned)
    on_host = [(leaf, buffer.offset) for leaf, buffer in zip(leaves, buffers, strict=True) if not leaf.on_gpu]
    if not is_lasting:
        return StateSnapshot(num_bytes, node, buffers, lambda: _iter_bytes(on_host, num_host_bytes), from_gpu, stem)
    host = memory.reserve(num_host_bytes)
    host[-_PAGE_BYTES:] = bytes(len(host[-_PAGE_BYTES:]))
    copy_leaves(on_host, host)
    return StateSnapshot(num_bytes, node, buffers, lambda: iter([host]), from_gpu, stem)


def _iter_bytes(placed: list[tuple[Leaf, int]], end: int) -> Iterator[memoryview]:
    """Yield the bytes of leaves up to an offset, with zeros between them."""
    at = 0
    for leaf, offset in placed:
        if leaf.nbytes:
            yield memoryview(bytes(offset - at))
            yield view_bytes(leaf)
            at = offset + leaf.nbytes
    yield memoryview(bytes(end - at))


def write_state(tree: Any, directory: Path, *, allow_pickle: bool = False, stem: str = STEM) -> tuple[FileEntry, ...]:
    """Write a state in one call, with its own memory."""
    snapshot = take_snapshot(tree, SnapshotMemory(), allow_pickle=allow_pickle, stem=stem, is_lasting=False)
    return snapshot.write(directory)


def read_state(directory: Path, *, allow_pickle: bool = False, map_location: Any = None, stem: str = STEM) -> Any:
    """Read a state; tensors and arrays are writable views of the file.

    Data is read on first access, and changes stay in this process. The file must not be truncated while the views
    exist. Tensors are on the CPU, or on the device `map_location`. Raises a ValueError that names the invalid file.
    """
    directory = Path(directory)
    file = directory / f"{stem}.json"
    document = _read_document(file)
    data = _map_buffers(directory / f"{stem}.bin", document)
    restorer = _LeafRestorer(document.buffers, data, allow_pickle, map_location)
    return _decode_document(file, document, restorer.restore_leaf)


def _decode_document(file: Path, document: _StateDocument, restore_leaf: Callable[[Any], Any]) -> Any:
    makers: dict[str, Callable[[Any], Any]] = {
        "$leaf": restore_leaf,
        "$dtype": lambda name: parse_torch_dtype(name, _import_torch()),
        "$size": lambda lengths: _import_torch().Size(lengths),
    }
    try:
        return decode_tree(document.tree, path="state", makers=makers)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: the state is nested too deeply") from error


class RawLeaf(msgspec.Struct, frozen=True):
    """A tensor, an array, bytes or a pickle as stored in the file."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_raw_state(directory: Path) -> Any:
    """Read a state with a `RawLeaf` for each leaf: unpickles nothing and imports no framework."""
    document = _read_document(directory / TREE_FILE)
    data = _map_buffers(directory / BYTES_FILE, document)

    def leaf(number: Any) -> RawLeaf:
        buffer = _find_buffer(document.buffers, number)
        return RawLeaf(buffer.kind, str(buffer.dtype), buffer.shape, _buffer_bytes(buffer, data))

    makers = {"$leaf": leaf, "$dtype": lambda name: f"dtype {name}", "$size": lambda lengths: tuple(lengths)}
    return decode_tree(document.tree, path="state", makers=makers)


class DeferredLeaf:
    def __init__(self, buffer: Buffer, read: Callable[[], Any]) -> None:
        self.dtype = buffer.dtype
        self.shape = buffer.shape
        self._read = read

    def value(self) -> Any:
        """Return the tensor, array or bytes: a view of the file."""
        return self._read()


def read_deferred_state(directory: Path, stem: str, bytes_file: Callable[[str], Path]) -> Any:
    """Read a state with a `DeferredLeaf` for each leaf; `bytes_file` returns the path of the binary file for its name.

    It is called only when a leaf is read, since the file may have to be downloaded. Refuses pickles.
    """
    file = directory / f"{stem}.json"
    document = _read_document(file)

    @functools.cache
    def open_restorer() -> _LeafRestorer:
        data = _map_buffers(bytes_file(f"{stem}.bin"), document)
        return _LeafRestorer(document.buffers, data)

    def leaf(number: Any) -> DeferredLeaf:
        buffer = _find_buffer(document.buffers, number)
        return DeferredLeaf(buffer, lambda: open_restorer().restore_leaf(number))

    return _decode_document(file, document, leaf)


def has_state(directory: Path) -> bool:
    return (Path(directory) / TREE_FILE).is_file() and (Path(directory) / BYTES_FILE).is_file()


@dataclass(frozen=True)
class _LeafRestorer:
    """Restores the values outside the tree, each leaf once, so that shared values are shared again."""

    _buffers: tuple[Buffer, ...]
    _data: mmap.mmap | bytearray
    _allow_pickle: bool = False
    _map_location: Any = None
    _made: dict[int, Any] = field(default_factory=dict)

    def restore_leaf(self, number: Any) -> Any:
        buffer = _find_buffer(self._buffers, number)
        if number not in self._made:
            self._made[number] = self._restore_buffer(buffer)
        return self._made[number]

    def _restore_buffer(self, buffer: Buffer) -> Any:
        if buffer.kind == "tensor":
            try:
                tensor = restore_tensor(buffer, self._data, _import_torch())
            except RuntimeError as error:
                raise ValueError(str(error)) from error
            return tensor if self._map_location is None else tensor.to(self._map_location)
        if buffer.kind == "array":
            return restore_array(buffer, self._data)
        data = _buffer_bytes(buffer, self._data)
        return data if buffer.kind == "bytes" else self._unpickle(data)

    def _unpickle(self, data: bytes) -> Any:
        if not self._allow_pickle:
            raise ValueError(
                "it is a pickle, which can run any code when it is loaded\n\n"
                "hint: pass allow_pickle=True if you trust the author of this checkpoint"
            )
        import pickle

        return pickle.loads(data)  # noqa: S301 - the caller asked for it


def _find_buffer(buffers: tuple[Buffer, ...], number: Any) -> Buffer:
    if type(number) is not int or not 0 <= number < len(buffers):
        raise ValueError(f"unknown leaf {number!r} of {len(buffers)}")
    return buffers[number]


def _buffer_bytes(buffer: Buffer, data: mmap.mmap | bytearray) -> bytes:
    return bytes(data[buffer.offset : buffer.offset + buffer.nbytes])


def _lay_out_leaves(leaves: list[Leaf]) -> tuple[tuple[Buffer, ...], int, int]:
    """Return the buffer of each leaf, the size of the host-memory part, and the total size.

    GPU values come last, at a page of their own, because they are written from other memory.
    """
    offsets = [0] * len(leaves)
    num_host_bytes = end = 0
    for on_gpu in (False, True):
        for number, leaf in enumerate(leaves):
            if leaf.on_gpu is on_gpu:
                offsets[number] = end
                end += leaf.nbytes + padding_after(leaf.nbytes)
        if not on_gpu:
            end += -end % _PAGE_BYTES if any(leaf.on_gpu for leaf in leaves) else 0
            num_host_bytes = end
    buffers = tuple(
        Buffer(leaf.kind, offset, leaf.nbytes, leaf.dtype, leaf.shape)
        for leaf, offset in zip(leaves, offsets, strict=True)
    )
    return buffers, num_host_bytes, end


def _read_document(file: Path) -> _StateDocument:
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    version = raw.get("version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version != STATE_VERSION:
        raise ValueError(
            f"{file} has format {version}; this Paceline reads format {STATE_VERSION}\n\n"
            "hint: use the version of Paceline that wrote it, or a later one"
        )
    try:
        return msgspec.convert(raw, _StateDocument)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{file} is not a valid state: {error}") from error


def _map_buffers(file: Path, document: _StateDocument) -> mmap.mmap | bytearray:
    """Map the bytes of all buffers privately, after checking that every buffer lies inside the file."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != document.num_bytes:
            raise ValueError(f"{file} has {size} bytes, but {file.stem}.json lists {document.num_bytes}")
        for number, buffer in enumerate(document.buffers):
            if buffer.offset % ALIGNMENT or buffer.offset + buffer.nbytes > size:
                extent = f"buffer {number} of {buffer.nbytes} bytes at {buffer.offset}"
                raise ValueError(f"{file.with_name(TREE_FILE)}: {extent} exceeds the {size} bytes of {BYTES_FILE}")
        # Copies of overlapping buffers could need more memory than the size of the file.
        if sum(buffer.nbytes for buffer in document.buffers) > size:
            raise ValueError(f"{file.with_name(TREE_FILE)}: the buffers overlap")
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) if size else bytearray()


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "the state holds tensors, and torch is not installed\n\nhint: pip install 'paceline[torch]'"
        ) from error
    return torch
