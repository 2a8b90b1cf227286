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
_COMPILED = "_orig_mod."
"""What `torch.compile` puts into the names of the weights of the module that it was given."""


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
        """The weights of a model as they are now; of one that was wrapped or compiled, those of the model inside.

        Of a model that is sharded over several workers each has only a part: that is refused, and the error says what
        to do instead.
        """
        return cls.from_state_dict(_unwrapped(model).state_dict())

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> Self:
        """What `model.state_dict()` gave, as it is now."""
        import torch

        state_dict = _whole(_renamed(state_dict))
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
            weights = torch.load(file, map_location="cpu", weights_only=True)
        _load(_unwrapped(model), weights)
        return model


def _load(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    import torch

    names = {name.replace(_COMPILED, ""): name for name in model.state_dict()}
    weights = _renamed(weights)
    if weights and not weights.keys() & names.keys():
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, _WRAPPED)
    weights = _renamed(weights, names)
    if any(_is_sharded(parameter) for parameter in model.parameters()):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        # Every worker has read the file, and keeps its part of it.
        set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
    else:
        model.load_state_dict(weights)


def _new_directory() -> Path:
    if worker_context.current() is not None:
        # Not a temporary one that goes with the object: an ASYNC upload still reads it when the object is gone.
        return staging_directory()
    return Path(tempfile.mkdtemp(prefix="paceline-checkpoint-"))


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._orig_mod
        else:
            return model


def _renamed(state_dict: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Under the names of the model before it was compiled, or under given ones."""
    renamed = {name: names.get(name, name) if names is not None else name.replace(_COMPILED, "") for name in state_dict}
    # Left as it is wherever that is possible: torch notes beside the weights which versions of modules they are of.
    if all(name == other for name, other in renamed.items()):
        return state_dict
    return {renamed[name]: value for name, value in state_dict.items()}


def _whole(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    shards = [name for name, value in state_dict.items() if _is_sharded(value)]
    for name in shards:
        if state_dict[name].device_mesh.size() > 1:
            raise ValueError(
                f"{name!r} is only this rank's shard of a tensor, and TorchCheckpoint holds whole models\n\n"
                "hint: let every rank report ShardedCheckpoint.from_state({'model': model}); or let every rank gather "
                "the weights with get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
                "cpu_offload=True)) of torch.distributed.checkpoint.state_dict, and rank 0 report "
                "TorchCheckpoint.from_state_dict of them"
            )
    if not shards:
        return state_dict
    return {name: value.to_local() if name in shards else value for name, value in state_dict.items()}


def _is_sharded(value: Any) -> bool:
    # Looked up, not imported: that takes a second, and without it there is no sharded tensor.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)
