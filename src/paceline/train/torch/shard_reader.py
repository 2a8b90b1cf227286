"""Read the files of all ranks as one state and reshard it, with a `torch.distributed.checkpoint` load plan.

The metadata that torch keeps in a pickle (the tensors and the location of their chunks) is rebuilt from the JSON files
of the ranks. Nothing is unpickled, ranks do not communicate, and only the needed parts of a file are read.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from paceline._core.errors import CheckpointCorruptError
from paceline._storage.state import DeferredLeaf, read_deferred_state
from paceline.train.torch.outline import Outline, iterate_values, merge_outlines
from paceline.train.torch.shard_writer import VERSION, is_shard_stem, shard_stem

Offsets = tuple[int, ...]


class StoredState:
    """The state in a directory: its outline, and the chunks of each tensor."""

    def __init__(self, directory: Path, bytes_file: Callable[[str], Path]) -> None:
        self.directory = directory
        parts = _read_parts(directory, bytes_file)
        self.shapes: dict[str, torch.Size] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.chunks: dict[str, dict[Offsets, DeferredLeaf]] = {}
        for part in parts:
            for name, written in part["tensors"].items():
                shape = torch.Size(written["shape"])
                if self.shapes.setdefault(name, shape) != shape:
                    raise CheckpointCorruptError(
                        f"{directory}: {name!r} has two shapes, {self.shapes[name]} and {shape}"
                    )
                self.dtypes[name] = written["dtype"]
                for offsets, data in written["chunks"]:
                    self.chunks.setdefault(name, {})[tuple(offsets)] = data
        outlines = (part["outline"] for part in parts if part["outline"] is not None)
        self.outline: Outline = _load_deferred(functools.reduce(merge_outlines, outlines))
        for name, shape in self.shapes.items():
            num_elements = sum(math.prod(data.shape) for data in self.chunks[name].values())
            if num_elements != math.prod(shape):
                raise CheckpointCorruptError(f"{directory}: {name!r} has {num_elements} of {math.prod(shape)} elements")

    def assemble_tensor(self, name: str) -> torch.Tensor:
        """Assemble a tensor from its chunks, in new memory."""
        tensor = self.allocate_tensor(name)
        for offsets, data in self.chunks[name].items():
            _narrow_tensor(tensor, offsets, data.shape).copy_(data.value())
        return tensor

    def allocate_tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self.shapes[name], dtype=self.dtypes[name])


class ShardReader(StorageReader):  # type: ignore[misc]
    """For `torch.distributed.checkpoint.load(state, storage_reader=...)`."""

    def __init__(self, stored: StoredState) -> None:
        self._stored = stored

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            raise ValueError(
                f"checkpoint_id must be None, got {checkpoint_id!r}: this reader reads only {self._stored.directory}"
            )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        stored = self._stored
        described: dict[str, Any] = {name: BytesStorageMetadata() for name, _ in iterate_values(stored.outline)}
        for name, shape in stored.shapes.items():
            parts = stored.chunks[name].items()
            chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(data.shape)) for offsets, data in parts]
            described[name] = TensorStorageMetadata(TensorProperties(dtype=stored.dtypes[name]), shape, chunks)
        return Metadata(described)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        values: dict[str, Any] = {}
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                values = values or dict(iterate_values(self._stored.outline))
                # The planner expects a pickle, which is made here and read at once; the file had none.
                buffer = io.BytesIO()
                torch.save(values[name], buffer)
                buffer.seek(0)
                planner.load_bytes(item, buffer)
                continue
            assert item.storage_index.offset is not None
            data = self._stored.chunks[name][tuple(item.storage_index.offset)].value()
            target = planner.resolve_tensor(item)
            target.detach().copy_(_narrow_tensor(data, tuple(item.storage_offsets), item.lengths))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def read_into(targets: dict[str, torch.Tensor], stored: StoredState) -> None:
    """Fill tensors with the stored ones of the same name; for a sharded tensor, with the local shard.

    Like `torch.distributed.checkpoint.load`, without the communication between ranks, which reading does not need.
    """
    reader, planner = ShardReader(stored), DefaultLoadPlanner()
    planner.set_up_planner(targets, reader.read_metadata(), is_coordinator=False)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def _load_deferred(value: Any) -> Any:
    if isinstance(value, DeferredLeaf):
        return value.value()
    if isinstance(value, dict):
        for key in value:
            value[key] = _load_deferred(value[key])
        return value
    return type(value)(map(_load_deferred, value)) if type(value) in (list, tuple) else value


def _narrow_tensor(tensor: torch.Tensor, offsets: Offsets, lengths: Sequence[int]) -> torch.Tensor:
    for dim, (start, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor


def _read_parts(directory: Path, bytes_file: Callable[[str], Path]) -> list[dict[str, Any]]:
    if not (directory / f"{shard_stem(0)}.json").is_file():
        raise ValueError(
            f"{directory} is not a ShardedCheckpoint: it has no {shard_stem(0)}.json\n\n"
            "hint: read files of torch.distributed.checkpoint.save with torch.distributed.checkpoint.load"
        )
    first = _read_part(directory, shard_stem(0), bytes_file)
    world_size = first["world_size"]
    stems = {path.stem for path in directory.glob("*.json") if is_shard_stem(path.stem)}
    expected = {shard_stem(rank) for rank in range(world_size)}
    if stems != expected:
        raise CheckpointCorruptError(
            f"{directory} was written by {world_size} ranks but has the files of {len(stems)}; "
            f"{'unexpected' if stems > expected else 'missing'}: {', '.join(sorted(stems ^ expected))}"
        )
    return [first, *(_read_part(directory, stem, bytes_file) for stem in sorted(expected)[1:])]


def _read_part(directory: Path, stem: str, bytes_file: Callable[[str], Path]) -> dict[str, Any]:
    part: dict[str, Any] = read_deferred_state(directory, stem, bytes_file)
    if not isinstance(part, dict) or part.get("version") != VERSION:
        version = part.get("version") if isinstance(part, dict) else None
        raise ValueError(
            f"{directory / stem}.json has format {version}; this version of Paceline reads format {VERSION}\n\n"
            "hint: use the version of Paceline that wrote it, or a later one"
        )
    return part
