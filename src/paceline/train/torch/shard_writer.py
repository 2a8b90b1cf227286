"""What one rank writes of a distributed state: its own shards, and its part of the replicated tensors.

The ranks agree on who writes what in one small exchange when a checkpoint is reported, and need none after that: each
rank's files say where their shards belong, and together they form the whole state.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._worker import context as worker_context
from paceline.train.torch.outline import Outline

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor

VERSION = 1
SPREAD_FROM = 64 << 10
"""Smaller tensors stay together on the lowest rank, so that reading one needs no other rank's file."""

_PREFIX = "shards-"


class HeldTensor(msgspec.Struct, frozen=True):
    """A tensor that a rank holds, as exchanged between ranks."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    is_sharded: bool
    is_replicated: bool
    """Bitwise equal on all ranks, so any rank may write it; otherwise the lowest rank does."""


def shard_stem(rank: int) -> str:
    """Return the prefix of a rank's file names."""
    return f"{_PREFIX}{rank:05d}"


def is_shard_stem(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()


def build_rank_tree(
    outline: Outline, tensors: Mapping[str, torch.Tensor], replicated: frozenset[str]
) -> tuple[Any, str]:
    """Return the tree this rank writes and the stem of its files. All ranks call it together.

    `replicated` names the tensors that are equal on all ranks, such as weights under DistributedDataParallel.
    """
    from torch.distributed.tensor import DTensor

    rank, world_size = _rank_and_world_size()
    held = []
    for name, value in sorted(tensors.items()):
        if not isinstance(value, DTensor) and hasattr(value, "local_shards"):
            raise ValueError(
                f"{name!r} is a ShardedTensor; only DTensor is supported\n\n"
                "hint: shard the model with fully_shard, or pass a device_mesh to FullyShardedDataParallel"
            )
        is_sharded = isinstance(value, DTensor)
        held.append(HeldTensor(name, tuple(value.shape), value.nbytes, is_sharded, name in replicated))
    everywhere = _exchange_held(held, world_size)
    ours = {name for name, writer in assign_writers(everywhere).items() if writer == rank}
    written: dict[str, Any] = {}
    for name, value in tensors.items():
        chunks: list[Any] = []
        if isinstance(value, DTensor):
            chunks = _own_chunks(name, value)
        elif name in ours:
            chunks = [[[0] * value.dim(), value.detach()]]
        if chunks:
            written[name] = {"shape": list(value.shape), "dtype": value.dtype, "chunks": chunks}
    is_same = all(each == held for each in everywhere)
    tree = {
        "version": VERSION,
        "rank": rank,
        "world_size": world_size,
        # Ranks that hold the same tensors write the outline once; otherwise each rank writes its own.
        "outline": outline if rank == 0 or not is_same else None,
        "tensors": written,
    }
    return tree, shard_stem(rank)


def assign_writers(everywhere: Sequence[Sequence[HeldTensor]]) -> dict[str, int]:
    """Return which rank writes each unsharded tensor. Large ones are spread evenly."""
    holders: dict[str, list[int]] = {}
    tensors: dict[str, HeldTensor] = {}
    for rank, held in enumerate(everywhere):
        for each in held:
            if not each.is_sharded:
                holders.setdefault(each.name, []).append(rank)
                tensors.setdefault(each.name, each)
    chosen: dict[str, int] = {}
    load = [0] * len(everywhere)
    for name in sorted(tensors, key=lambda name: (-tensors[name].nbytes, name)):
        spread = tensors[name].is_replicated and tensors[name].nbytes >= SPREAD_FROM
        ranks = holders[name] if spread else holders[name][:1]
        chosen[name] = min(ranks, key=lambda rank: (load[rank], rank))
        load[chosen[name]] += tensors[name].nbytes
    return chosen


def _rank_and_world_size() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    context = worker_context.current()
    if context is not None and context.begin.world_size > 1:
        raise RuntimeError(
            f"a sharded checkpoint of {context.begin.world_size} workers needs a torch process group\n\n"
            "hint: use TorchTrainer, or call torch.distributed.init_process_group on every worker"
        )
    return 0, 1


def _exchange_held(held: list[HeldTensor], world_size: int) -> list[list[HeldTensor]]:
    """Return what each rank holds. Ranks that hold the same, as nearly always, exchange only a digest."""
    if world_size == 1:
        return [held]
    import torch.distributed as dist

    text = msgspec.json.encode(held)
    digests: list[Any] = [None] * world_size
    dist.all_gather_object(digests, hashlib.sha256(text).digest())
    if len(set(digests)) == 1:
        return [held] * world_size
    texts: list[Any] = [None] * world_size
    dist.all_gather_object(texts, text)
    everywhere = [msgspec.json.decode(each, type=list[HeldTensor]) for each in texts]
    _check_agreement(everywhere)
    return everywhere


def _check_agreement(everywhere: Sequence[Sequence[HeldTensor]]) -> None:
    """Ranks may hold different tensors, but not different ones under the same name."""
    first: dict[str, tuple[int, HeldTensor]] = {}
    for rank, held in enumerate(everywhere):
        for each in held:
            other_rank, other = first.setdefault(each.name, (rank, each))
            if (other.shape, other.is_sharded) != (each.shape, each.is_sharded):
                raise ValueError(
                    f"{each.name!r} has shape {list(other.shape)} on rank {other_rank} but {list(each.shape)} on rank "
                    f"{rank}{'' if other.is_sharded == each.is_sharded else ', and is sharded on only one of them'}"
                    "\n\nhint: if a tensor differs between ranks, put the rank into its key"
                )


def _own_chunks(name: str, tensor: DTensor) -> list[Any]:
    """Return the chunks of a sharded tensor that this rank writes, each with its offset in the whole tensor."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return []  # Only other ranks hold it.
    for dim, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise ValueError(
                f"{name!r} is a partial sum ({placement}) on each rank; no rank holds the values\n\n"
                "hint: store x.redistribute(placements=[Replicate()])"
            )
        # One replica writes, a different one for each name.
        if placement.is_replicate() and coordinate[dim] != zlib.crc32(name.encode()) % tensor.device_mesh.size(dim):
            return []
    planner = DefaultSavePlanner()
    planner.set_up_planner({name: tensor}, is_coordinator=False)
    chunks = []
    for item in planner.create_local_plan().items:
        assert item.tensor_data is not None
        data = planner.resolve_data(item).detach()
        if data.numel():
            chunks.append([list(item.tensor_data.chunk.offsets), data])
    return chunks
