"""ShardedCheckpoint: models and optimizers that are spread over ranks, each rank writing its own part.

Saving goes through a tree of what this rank writes (`shards.py`), which is snapshotted and written like any state:
`report` returns as soon as it is copied, and no rank needs another until the commit. Loading goes through
`torch.distributed.checkpoint`, which plans what to read for another division of the tensors (`shard_reader.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline.train.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.storage import StorageReader

    from paceline.train.torch.shard_reader import Stored


class ShardedCheckpoint(Checkpoint):
    """A checkpoint to which every rank brings its shards, and that any number of ranks can load.

        checkpoint = ShardedCheckpoint.from_state({"model": model, "optimizer": optimizer, "epoch": epoch})
        train.report(metrics, checkpoint=checkpoint)                            # on every rank

        rest = ShardedCheckpoint(train.get_checkpoint()).load_into({"model": model, "optimizer": optimizer})
        epoch = rest["epoch"]

    Made of a path, or of another checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str] | Checkpoint, filesystem: Any = None) -> None:
        if isinstance(path, Checkpoint):
            super().__init__(path.path, path._filesystem)
        else:
            super().__init__(path, filesystem)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Models, optimizers, other objects with a `state_dict`, tensors, and numbers, strings, lists and dicts.

        Every rank calls it, and gives it to `report`, which copies it: what changes after that is not in it. A model
        may be wrapped, sharded by `fully_shard`, or neither. What is not sharded is taken to be alike on all ranks, and
        one of them stores it. An optimizer needs its model beside it.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state={type(state).__name__} is not a dict")
        for key in state:
            if not isinstance(key, str):
                raise TypeError(f"state: the key {key!r} is not a string")
        return cls.from_dict(dict(state))

    def load_into(self, state: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
        """Restore objects in place, however they are spread over ranks now; returns the values that were stored.

        `state` has them under the names that they were stored with, and may leave some out. Returned is what has no
        place to be restored in: numbers, strings, lists. Tensors that `state` does not name are not read. No rank waits
        for another. With `strict=False` a model takes what it and the checkpoint both have.
        """
        from paceline.train.torch.live_state import loading
        from paceline.train.torch.outline import names_in, rebuilt
        from paceline.train.torch.shard_reader import read_into

        with self._stored() as stored:
            entries = stored.outline["dict"]
            absent = [key for key in state if key not in entries]
            if absent:
                raise ValueError(f"{self} has no {absent[0]!r}: it holds {', '.join(map(repr, entries))}")
            wanted: dict[str, torch.Tensor] = {}
            finishing = []
            for key in state:
                tensors, finish = loading(key, state, stored, strict)
                wanted.update(tensors)
                finishing.append(finish)
            for name, tensor in wanted.items():
                if tensor.shape != stored.shapes[name]:
                    raise ValueError(
                        f"{name!r} has the shape {list(tensor.shape)}, and {list(stored.shapes[name])} in {self}"
                    )
            read_into(wanted, stored)
            rest = {
                key: rebuilt(outline, stored.whole)
                for key, outline in entries.items()
                if key not in state and not any(names_in(outline))
            }
        for finish in finishing:
            rest.update(finish())
        return rest

    def to_dict(self, *, allow_pickle: bool = False, map_location: Any = None) -> dict[str, Any]:
        """The whole state on one process, every tensor put together: `torch.save` makes one file of it."""
        from paceline.train.torch.outline import rebuilt

        with self._stored() as stored:
            state: dict[str, Any] = rebuilt(
                stored.outline,
                lambda name: stored.whole(name) if map_location is None else stored.whole(name).to(map_location),
            )
            return state

    def storage_reader(self) -> StorageReader:
        """For `torch.distributed.checkpoint.load(state, storage_reader=...)`, where that is called by code of yours."""
        from paceline.train.torch.shard_reader import ShardReader, Stored

        self._refuse_in_memory()
        if self.is_local:
            return ShardReader(Stored(Path(self.path), Path(self.path).joinpath))
        directory = Path(self.to_directory())
        reader = ShardReader(Stored(directory, directory.joinpath))
        weakref.finalize(reader, shutil.rmtree, directory, ignore_errors=True)
        return reader

    def _taken(self) -> tuple[Any, str]:
        from paceline.train.torch.live_state import taken
        from paceline.train.torch.shards import tree_of_rank

        live = taken(self.state)
        return tree_of_rank(live.outline, live.tensors, live.anywhere)

    def _refuse_in_memory(self) -> None:
        if self._path is None:
            raise ValueError(
                "this ShardedCheckpoint is only in memory, where no rank has all of it\n\n"
                "hint: give it to train.report(), and take it from train.get_checkpoint() or result.checkpoint"
            )

    @contextlib.contextmanager
    def _stored(self) -> Iterator[Stored]:
        from paceline.train.torch.shard_reader import Stored

        self._refuse_in_memory()
        if self.is_local:
            with self.as_directory() as directory:
                yield Stored(Path(directory), Path(directory).joinpath)
            return
        # Of the files with the bytes, this rank fetches those that it needs.
        with tempfile.TemporaryDirectory(prefix="paceline-checkpoint-", ignore_cleanup_errors=True) as temporary:

            def fetched(name: str) -> Path:
                self._download(Path(temporary), lambda path: path == name)
                return Path(temporary, name)

            self._download(Path(temporary), lambda path: path.endswith(".json"))
            yield Stored(Path(temporary), fetched)
