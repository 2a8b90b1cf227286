"""A state on disk without pickle: `state.json` is the tree, `state.bin` the bytes of its tensors and arrays.

Saving is two acts. `snapshot` copies every value into memory that is kept between saves, and training goes on
at once; `Snapshot.write` puts that memory on disk, in another thread if one likes. Reading maps `state.bin` and
copies nothing. Every buffer starts at a multiple of 64 bytes, and equal states have equal files.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline._engine.messages import FileEntry
from paceline._storage.arena import Arena, copy_into
from paceline._storage.files import Files, LocalFiles
from paceline._storage.layout import METADATA
from paceline._storage.leaves import Buffer, Leaf, Natural, restored_array, restored_tensor, torch_dtype
from paceline._storage.pinned import ALIGNMENT, FromGpu, gap_after
from paceline._storage.tree import decoded, encoded

__all__ = [
    "Arena",
    "Deferred",
    "RawLeaf",
    "Snapshot",
    "holds_state",
    "read_deferred",
    "read_raw",
    "read_state",
    "snapshot",
    "write_state",
]

VERSION = 1
STEM = "state"
TREE_FILE = f"{STEM}.json"
BYTES_FILE = f"{STEM}.bin"

_DISK = LocalFiles()


class _Document(msgspec.Struct, frozen=True):
    """What `state.json` holds."""

    version: int
    num_bytes: Natural
    tree: Any
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
    """A state as it was when `snapshot` returned, in the memory of its arena."""

    nbytes: int
    _tree: Any
    _buffers: tuple[Buffer, ...]
    _host: memoryview
    _from_gpu: FromGpu
    _stem: str
    """What the names of its files begin with."""
    notes: bytes = b""
    """The user's own about it, in a file of their own."""

    def write(self, directory: Path, files: Files = _DISK) -> tuple[FileEntry, ...]:
        """Write its files; on an error a part of one may be left. The directory itself is not synced."""
        document = {
            "version": VERSION,
            "num_bytes": self.nbytes,
            "tree": self._tree,
            "buffers": msgspec.to_builtins(self._buffers),
        }
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
        written = (
            files.write_parts(directory / f"{self._stem}.bin", self._parts()),
            files.write_parts(directory / f"{self._stem}.json", [memoryview(text)]),
        )
        return (*written, files.write_parts(directory / METADATA, [memoryview(self.notes)])) if self.notes else written

    def _parts(self) -> Iterator[memoryview]:
        yield self._host
        yield from self._from_gpu.parts()


def snapshot(tree: Any, arena: Arena, *, allow_pickle: bool = False, path: str = "state", stem: str = STEM) -> Snapshot:
    """Copy a state into the arena; a value that has no place in a state is a TypeError that names its path.

    Values on a GPU are on their way when this returns: work given to the current stream from then on comes
    after the copy. Work on another stream that changes them must be ordered by its owner.
    """
    node, leaves = encoded(tree, path=path, allow_pickle=allow_pickle)
    buffers, num_host_bytes, num_bytes = _laid_out(leaves)
    on_gpu = ((leaf, at.offset - num_host_bytes) for leaf, at in zip(leaves, buffers, strict=True) if leaf.on_gpu)
    from_gpu = FromGpu(on_gpu, num_bytes - num_host_bytes, arena.pinned)
    host = arena.reserve(num_host_bytes)
    copy_into(((leaf, at.offset) for leaf, at in zip(leaves, buffers, strict=True) if not leaf.on_gpu), host)
    return Snapshot(num_bytes, node, buffers, host, from_gpu, stem)


def write_state(tree: Any, directory: Path, *, allow_pickle: bool = False, stem: str = STEM) -> tuple[FileEntry, ...]:
    """Write a state in one go, in memory of its own."""
    return snapshot(tree, Arena(), allow_pickle=allow_pickle, stem=stem).write(directory)


def read_state(directory: Path, *, allow_pickle: bool = False, map_location: Any = None, stem: str = STEM) -> Any:
    """The state that was written; tensors and arrays are views of the file, and writable.

    They are read as they are touched, and what is changed in them stays in this process; the file must not be
    cut short while they live. Tensors are on the CPU, or on the device `map_location`. A ValueError names the
    file that is not what it should be.
    """
    directory = Path(directory)
    file = directory / f"{stem}.json"
    document = _read_document(file)
    data = _mapped(directory / f"{stem}.bin", document)
    makers = _Makers(document.buffers, data, allow_pickle, map_location)
    try:
        return decoded(
            document.tree,
            path="state",
            makers={"$leaf": makers.leaf, "$dtype": makers.dtype, "$size": makers.size},
        )
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: the state is nested too deeply") from error


class RawLeaf(msgspec.Struct, frozen=True):
    """A tensor, an array, bytes or a pickle as it lies in the file."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_raw(directory: Path) -> Any:
    """The state with a `RawLeaf` in the place of each leaf: nothing is unpickled, and no framework is imported."""
    document = _read_document(directory / TREE_FILE)
    data = _mapped(directory / BYTES_FILE, document)

    def leaf(number: Any) -> RawLeaf:
        if type(number) is not int or not 0 <= number < len(document.buffers):
            raise ValueError(f"there is no leaf {number!r} among {len(document.buffers)}")
        at = document.buffers[number]
        return RawLeaf(at.kind, str(at.dtype), at.shape, bytes(data[at.offset : at.offset + at.nbytes]))

    makers = {"$leaf": leaf, "$dtype": lambda name: f"dtype {name}", "$size": lambda lengths: tuple(lengths)}
    return decoded(document.tree, path="state", makers=makers)


class Deferred:
    """A leaf that is not read yet."""

    def __init__(self, buffer: Buffer, read: Callable[[], Any]) -> None:
        self.dtype = buffer.dtype
        self.shape = buffer.shape
        self._read = read

    def value(self) -> Any:
        """The tensor, array or bytes: a view of the file."""
        return self._read()


def read_deferred(directory: Path, stem: str, bytes_file: Callable[[str], Path]) -> Any:
    """The state with a `Deferred` in the place of each leaf; `bytes_file` is asked for the other file by its name.

    Not before a leaf is read: it may have to be fetched from afar. A pickle is refused.
    """
    file = directory / f"{stem}.json"
    document = _read_document(file)
    made: list[_Makers] = []

    def makers() -> _Makers:
        if not made:
            data = _mapped(bytes_file(f"{stem}.bin"), document)
            made.append(_Makers(document.buffers, data, allow_pickle=False, map_location=None))
        return made[0]

    def leaf(number: Any) -> Deferred:
        if type(number) is not int or not 0 <= number < len(document.buffers):
            raise ValueError(f"there is no leaf {number!r} among {len(document.buffers)}")
        return Deferred(document.buffers[number], lambda: makers().leaf(number))

    plain = _Makers(document.buffers, bytearray(), allow_pickle=False, map_location=None)
    try:
        return decoded(document.tree, path="state", makers={"$leaf": leaf, "$dtype": plain.dtype, "$size": plain.size})
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: the state is nested too deeply") from error


def holds_state(directory: Path) -> bool:
    return (Path(directory) / TREE_FILE).is_file() and (Path(directory) / BYTES_FILE).is_file()


class _Makers:
    """Makes the values that stand outside the tree, each leaf once: what was shared is shared again."""

    def __init__(
        self, buffers: tuple[Buffer, ...], data: mmap.mmap | bytearray, allow_pickle: bool, map_location: Any
    ) -> None:
        self._buffers = buffers
        self._data = data
        self._allow_pickle = allow_pickle
        self._map_location = map_location
        self._made: dict[int, Any] = {}

    def leaf(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._buffers):
            raise ValueError(f"there is no leaf {number!r} among {len(self._buffers)}")
        if number not in self._made:
            self._made[number] = self._restored(self._buffers[number])
        return self._made[number]

    def dtype(self, name: Any) -> Any:
        return torch_dtype(name, _torch())

    def size(self, lengths: Any) -> Any:
        return _torch().Size(lengths)

    def _restored(self, buffer: Buffer) -> Any:
        if buffer.kind == "tensor":
            try:
                tensor = restored_tensor(buffer, self._data, _torch())
            except RuntimeError as error:
                raise ValueError(str(error)) from error
            return tensor if self._map_location is None else tensor.to(self._map_location)
        if buffer.kind == "array":
            return restored_array(buffer, self._data)
        data = bytes(self._data[buffer.offset : buffer.offset + buffer.nbytes])
        return data if buffer.kind == "bytes" else self._unpickled(data)

    def _unpickled(self, data: bytes) -> Any:
        if not self._allow_pickle:
            raise ValueError(
                "it is a pickle, which can run any code when it is loaded\n\n"
                "hint: say allow_pickle=True if you trust whoever wrote this checkpoint"
            )
        import pickle

        return pickle.loads(data)  # noqa: S301  the caller said so


def _laid_out(leaves: list[Leaf]) -> tuple[tuple[Buffer, ...], int, int]:
    """Where each leaf goes, the size of the part in plain memory, and of the whole: GPU values come last."""
    offsets = [0] * len(leaves)
    num_host_bytes = end = 0
    for on_gpu in (False, True):
        for number, leaf in enumerate(leaves):
            if leaf.on_gpu is on_gpu:
                offsets[number] = end
                end += leaf.nbytes + gap_after(leaf.nbytes)
        if not on_gpu:
            num_host_bytes = end
    buffers = tuple(
        Buffer(leaf.kind, offset, leaf.nbytes, leaf.dtype, leaf.shape)
        for leaf, offset in zip(leaves, offsets, strict=True)
    )
    return buffers, num_host_bytes, end


def _read_document(file: Path) -> _Document:
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    version = raw.get("version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise ValueError(
            f"{file} has the format {version}, and this version of Paceline reads the format {VERSION}\n\n"
            "hint: use the version of Paceline that wrote it, or a later one"
        )
    try:
        return msgspec.convert(raw, _Document)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{file} does not describe a state: {error}") from error


def _mapped(file: Path, document: _Document) -> mmap.mmap | bytearray:
    """The bytes of all buffers, private to this process; every buffer is known to lie inside them."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != document.num_bytes:
            raise ValueError(f"{file} has {size} bytes where {file.stem}.json speaks of {document.num_bytes}")
        for number, buffer in enumerate(document.buffers):
            if buffer.offset % ALIGNMENT or buffer.offset + buffer.nbytes > size:
                told = f"buffer {number} of {buffer.nbytes} bytes at {buffer.offset}"
                raise ValueError(
                    f"{file.with_name(TREE_FILE)}: {told} does not lie in the {size} bytes of {BYTES_FILE}"
                )
        # Copies of overlapping buffers could add up to more memory than the file is large.
        if sum(buffer.nbytes for buffer in document.buffers) > size:
            raise ValueError(f"{file.with_name(TREE_FILE)}: the buffers overlap")
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) if size else bytearray()


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "the state holds tensors, and torch is not installed\n\nhint: pip install 'paceline[torch]'"
        ) from error
    return torch
