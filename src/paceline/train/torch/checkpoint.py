"""TorchCheckpoint: the weights of one model, in a file that any torch can read."""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import staging_directory

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="torch.nn.Module")

_WRAPPED = "module."
"""What DistributedDataParallel puts before the names of its model's weights."""


class TorchCheckpoint(Checkpoint):
    """A checkpoint with one file, `model.pt`: a state dict that `torch.load(weights_only=True)` reads.

        train.report(metrics, checkpoint=TorchCheckpoint.from_model(model))
        model = TorchCheckpoint(result.checkpoint.path).get_model(Net())

    Made in a worker it lies on the run's own storage, and `report` moves it into place without copying: read it from
    `get_checkpoint()` after that. Made elsewhere it is a temporary file that goes with this object.
    """

    MODEL_FILENAME: ClassVar[str] = "model.pt"

    @classmethod
    def from_model(cls, model: torch.nn.Module) -> Self:
        """The weights of a model as they are now; of one that `prepare_model` wrapped, those of the model inside."""
        return cls.from_state_dict(_unwrapped(model).state_dict())

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> Self:
        """What `model.state_dict()` gave, as it is now."""
        import torch

        _refuse_shards(state_dict)
        checkpoint = cls.from_directory(_new_directory())
        if worker_context.current() is None:
            weakref.finalize(checkpoint, shutil.rmtree, checkpoint.path, ignore_errors=True)
        torch.save(state_dict, Path(checkpoint.path) / cls.MODEL_FILENAME)
        return checkpoint

    def get_model(self, model: M | None = None) -> M:
        """Load the weights into a model, which is returned: a fresh one, or one that `prepare_model` wrapped."""
        if model is None:
            raise ValueError(
                f"get_model() was given no model: {self.MODEL_FILENAME} holds weights, not the code of a model\n\n"
                "hint: checkpoint.get_model(Net()) loads them into a new one"
            )
        import torch

        with self.as_directory() as directory:
            file = Path(directory) / self.MODEL_FILENAME
            weights: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        bare = _unwrapped(model)
        if weights and not weights.keys() & bare.state_dict().keys():
            torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, _WRAPPED)
        bare.load_state_dict(weights)
        return model


def _new_directory() -> Path:
    if worker_context.current() is not None:
        # Not a temporary one that goes with the object: an ASYNC upload still reads it when the object is gone.
        return staging_directory()
    return Path(tempfile.mkdtemp(prefix="paceline-checkpoint-"))


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    return model.module if isinstance(model, DataParallel | DistributedDataParallel) else model


def _refuse_shards(state_dict: Mapping[str, Any]) -> None:
    # Looked up, not imported: that takes a second, and without it there is no sharded tensor.
    tensors = sys.modules.get("torch.distributed.tensor")
    shards = [name for name, value in state_dict.items() if tensors and isinstance(value, tensors.DTensor)]
    if shards:
        raise ValueError(
            f"{shards[0]!r} is only this rank's shard of a tensor, and TorchCheckpoint holds whole models\n\n"
            "hint: let every rank report ShardedCheckpoint.from_state({'model': model}), or gather the weights with "
            "get_model_state_dict first"
        )
