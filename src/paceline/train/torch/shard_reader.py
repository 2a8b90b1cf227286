"""Reads what all ranks wrote as one state, in any other division, as `torch.distributed.checkpoint` plans it.

What torch keeps in a pickle, which tensors there are and where their parts lie, is rebuilt from the JSON of the ranks'
files. Nothing is unpickled, no rank speaks to another, and only what is needed of a file is read.
"""

from __future__ import annotations

import io
import math
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
from paceline._storage.state import read_state
from paceline.train.torch.outline import Outline, merged, values_in
from paceline.train.torch.shards import VERSION, is_stem, stem_of

Offsets = tuple[int, ...]


class Stored:
    """The state in a directory: its outline, and of each tensor the parts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        parts = _read_parts(directory)
        self.shapes: dict[str, torch.Size] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.chunks: dict[str, dict[Offsets, torch.Tensor]] = {}
        outlines: list[Outline] = []
        for part in parts:
            if part["outline"] is not None:
                outlines.append(part["outline"])
            for name, written in part["tensors"].items():
                shape = torch.Size(written["shape"])
                if self.shapes.setdefault(name, shape) != shape:
                    raise CheckpointCorruptError(
                        f"{directory}: {name!r} has two shapes, {self.shapes[name]} and {shape}"
                    )
                self.dtypes[name] = written["dtype"]
                for offsets, data in written["chunks"]:
                    self.chunks.setdefault(name, {})[tuple(offsets)] = data
        self.outline: Outline = outlines[0]
        for other in outlines[1:]:
            self.outline = merged(self.outline, other)
        self._check_complete()

    def whole(self, name: str) -> torch.Tensor:
        """A tensor put together from its parts, in memory of its own."""
        whole = self.room_for(name)
        for offsets, data in self.chunks[name].items():
            _part(whole, offsets, data.shape).copy_(data)
        return whole

    def room_for(self, name: str) -> torch.Tensor:
        return torch.empty(self.shapes[name], dtype=self.dtypes[name])

    def _check_complete(self) -> None:
        for name, shape in self.shapes.items():
            found = sum(data.numel() for data in self.chunks[name].values())
            if found != math.prod(shape):
                raise CheckpointCorruptError(
                    f"{self.directory}: of {name!r} there are {found} of {math.prod(shape)} elements"
                )


class ShardReader(StorageReader):  # type: ignore[misc]  # torch has no types here
    """For `torch.distributed.checkpoint.load(state, storage_reader=...)`."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            raise ValueError(f"checkpoint_id={checkpoint_id!r}: this reader reads {self._stored.directory} only")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        stored = self._stored
        described: dict[str, Any] = {name: BytesStorageMetadata() for name, _ in values_in(stored.outline)}
        for name, shape in stored.shapes.items():
            chunks = [
                ChunkStorageMetadata(torch.Size(offsets), data.shape) for offsets, data in stored.chunks[name].items()
            ]
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
                values = values or dict(values_in(self._stored.outline))
                planner.load_bytes(item, _saved(values[name]))
                continue
            assert item.storage_index.offset is not None
            data = self._stored.chunks[name][tuple(item.storage_index.offset)]
            target = planner.resolve_tensor(item)
            target.detach().copy_(_part(data, tuple(item.storage_offsets), item.lengths))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def read_into(wanted: dict[str, torch.Tensor], stored: Stored) -> None:
    """Fill tensors with those that are stored under their names, of a sharded one the shard that is here.

    As `torch.distributed.checkpoint.load` does it, less the exchange between ranks, which reading does not need.
    """
    reader, planner = ShardReader(stored), DefaultLoadPlanner()
    planner.set_up_planner(wanted, reader.read_metadata(), is_coordinator=False)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def holds_shards(directory: Path) -> bool:
    return (directory / f"{stem_of(0)}.json").is_file()


def _part(tensor: torch.Tensor, offsets: Offsets, lengths: torch.Size) -> torch.Tensor:
    for dim, (start, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor


def _saved(value: Any) -> io.BytesIO:
    """A value as torch's planner expects it. It was read without pickle; this one is made here and read at once."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def _read_parts(directory: Path) -> list[dict[str, Any]]:
    if not holds_shards(directory):
        raise ValueError(
            f"{directory} holds no sharded checkpoint of Paceline: there is no {stem_of(0)}.json\n\n"
            "hint: what torch.distributed.checkpoint.save wrote is read with torch.distributed.checkpoint.load"
        )
    first = _read_part(directory, stem_of(0))
    world_size = first["world_size"]
    found = {path.stem for path in directory.glob("*.json") if is_stem(path.stem)}
    expected = {stem_of(rank) for rank in range(world_size)}
    if found != expected:
        raise CheckpointCorruptError(
            f"{directory} was written by {world_size} ranks, and has the files of {len(found)}: "
            f"{', '.join(sorted(found ^ expected))} should {'not ' if found > expected else ''}be there"
        )
    return [first, *(_read_part(directory, stem) for stem in sorted(expected)[1:])]


def _read_part(directory: Path, stem: str) -> dict[str, Any]:
    part: dict[str, Any] = read_state(directory, stem=stem)
    if not isinstance(part, dict) or part.get("version") != VERSION:
        told = part.get("version") if isinstance(part, dict) else None
        raise ValueError(
            f"{directory / stem}.json has the format {told}; this version of Paceline reads the format {VERSION}\n\n"
            "hint: use the version of Paceline that wrote it, or a later one"
        )
    return part
