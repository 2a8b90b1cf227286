"""ShardedCheckpoint: models and optimizers spread over ranks, each of which writes its own part.

Saving builds a tree of what this rank writes (`shard_writer.py`), which is snapshotted and written like any state:
`report` returns as soon as the copy exists, and ranks do not depend on each other until the commit. Loading uses
`torch.distributed.checkpoint`, which plans what to read if the tensors are now sharded differently (`shard_reader.py`).
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

    from paceline.train.torch.shard_reader import StoredState


class ShardedCheckpoint(Checkpoint):
    """A checkpoint to which every rank contributes its shards, and that any number of ranks can load.

        checkpoint = ShardedCheckpoint.from_state({"model": model, "optimizer": optimizer, "epoch": epoch})
        train.report(metrics, checkpoint=checkpoint)                            # on every rank

        rest = ShardedCheckpoint(train.get_checkpoint()).load_into({"model": model, "optimizer": optimizer})
        epoch = rest["epoch"]

    The argument is a path or another checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str] | Checkpoint, filesystem: Any = None) -> None:
        if isinstance(path, Checkpoint):
            filesystem, self._is_verified, path = path._filesystem, path._is_verified, path.path
        super().__init__(path, filesystem)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Create a checkpoint of models, optimizers, other objects with a `state_dict`, tensors and plain values.

        Every rank calls this and passes the result to `report`, which copies it: later changes are not included. A
        model may be wrapped, sharded by `fully_shard`, or neither. Unsharded values are assumed to be the same on all
        ranks, and one rank stores them. An optimizer needs its model in the same state.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a dict, got {type(state).__name__}")
        for key in state:
            if not isinstance(key, str):
                raise TypeError(f"the keys of state must be strings, got {key!r}")
        return cls.from_dict(dict(state))

    def load_into(self, state: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
        """Restore objects in place, however they are sharded now, and return the other stored values.

        `state` has the objects under the names they were stored with, and may omit some. The result has what cannot be
        restored in place: numbers, strings, lists. Tensors that `state` does not name are not read. Ranks do not wait
        for each other. With `strict=False` a model loads only the weights that the checkpoint also has.
        """
        from paceline.train.torch.live_state import plan_loading
        from paceline.train.torch.outline import iterate_tensor_names, rebuild_tree
        from paceline.train.torch.shard_reader import read_into

        with self._open_stored_state() as stored:
            entries = stored.outline["dict"]
            absent = [key for key in state if key not in entries]
            if absent:
                raise ValueError(f"{self} has no {absent[0]!r}; the keys are {', '.join(map(repr, entries))}")
            targets: dict[str, torch.Tensor] = {}
            finishing = []
            for key in state:
                tensors, finish = plan_loading(key, state, stored, strict)
                targets.update(tensors)
                finishing.append(finish)
            for name, tensor in targets.items():
                if tensor.shape != stored.shapes[name]:
                    raise ValueError(
                        f"{name!r} has shape {list(tensor.shape)}, but {list(stored.shapes[name])} in {self}"
                    )
            read_into(targets, stored)
            rest = {
                key: rebuild_tree(outline, stored.assemble_tensor)
                for key, outline in entries.items()
                if key not in state and not any(iterate_tensor_names(outline))
            }
        for finish in finishing:
            rest.update(finish())
        return rest

    def to_dict(self, *, allow_pickle: bool = False, map_location: Any = None, verify: bool = True) -> dict[str, Any]:
        """Return the whole state in one process, with every tensor assembled, for example for `torch.save`."""
        from paceline.train.torch.outline import rebuild_tree

        with self._open_stored_state(verify=verify) as stored:
            # `to(None)` returns the tensor itself.
            state: dict[str, Any] = rebuild_tree(
                stored.outline, lambda name: stored.assemble_tensor(name).to(map_location)
            )
            return state

    def storage_reader(self) -> StorageReader:
        """Return a reader for your own call of `torch.distributed.checkpoint.load(state, storage_reader=...)`."""
        from paceline.train.torch.shard_reader import ShardReader, StoredState

        self._refuse_in_memory()
        if self.is_local:
            self._verify_once()
            return ShardReader(StoredState(Path(self.path), Path(self.path).joinpath))
        directory = Path(self.to_directory())
        reader = ShardReader(StoredState(directory, directory.joinpath))
        weakref.finalize(reader, shutil.rmtree, directory, ignore_errors=True)
        return reader

    def _state_for_rank(self) -> tuple[Any, str]:
        from paceline.train.torch.live_state import capture_state
        from paceline.train.torch.shard_writer import build_rank_tree

        live = capture_state(self.state)
        return build_rank_tree(live.outline, live.tensors, live.replicated)

    def _refuse_in_memory(self) -> None:
        if self._path is None:
            raise ValueError(
                "cannot read a ShardedCheckpoint in memory: no rank has all of it\n\n"
                "hint: pass it to train.report(), and read it from train.get_checkpoint() or result.checkpoint"
            )

    @contextlib.contextmanager
    def _open_stored_state(self, *, verify: bool = True) -> Iterator[StoredState]:
        from paceline.train.torch.shard_reader import StoredState

        self._refuse_in_memory()
        if self.is_local:
            with self.as_directory(verify=verify) as directory:
                yield StoredState(Path(directory), Path(directory).joinpath)
            return
        # This rank downloads only the data files it needs.
        with tempfile.TemporaryDirectory(prefix="paceline-checkpoint-", ignore_cleanup_errors=True) as temporary:

            def fetch_file(name: str) -> Path:
                self._download(Path(temporary), lambda path: path == name)
                return Path(temporary, name)

            self._download(Path(temporary), lambda path: path.endswith(".json"))
            yield StoredState(Path(temporary), fetch_file)
