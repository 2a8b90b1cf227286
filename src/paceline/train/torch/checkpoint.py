"""TorchCheckpoint: the weights of one model, in a file that plain torch can read."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from paceline._storage.state import RawLeaf
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import new_checkpoint

if TYPE_CHECKING:
    import torch

    from paceline.data.preprocessor import Preprocessor

M = TypeVar("M", bound="torch.nn.Module")

_WRAPPED = "module."
"""Prefix that DistributedDataParallel adds to weight names."""
_COMPILED = "_orig_mod."
"""Prefix that `torch.compile` adds to weight names."""


class TorchCheckpoint(Checkpoint):
    """A checkpoint with one file, `model.pt`: a state dict for `torch.load(weights_only=True)`.

        train.report(metrics, checkpoint=TorchCheckpoint.from_model(model))
        model = TorchCheckpoint(result.checkpoint.path).get_model(Net())

    In a worker the file is created on the run's storage, and `report` moves it into place without copying; read it from
    `get_checkpoint()` afterwards. Elsewhere it is a temporary file that is deleted with this object.
    """

    MODEL_FILENAME: ClassVar[str] = "model.pt"

    @classmethod
    def from_model(cls, model: torch.nn.Module, *, preprocessor: Preprocessor | None = None) -> Self:
        """Save the current weights of a model. For a wrapped or compiled model, the weights of the inner model.

        Raises for a model sharded over several workers, where each holds only a part; the error says what to do
        instead.
        """
        return cls.from_state_dict(_unwrap_model(model).state_dict(), preprocessor=preprocessor)

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any], *, preprocessor: Preprocessor | None = None) -> Self:
        """Save the result of `model.state_dict()`."""
        import torch

        state_dict = _require_unsharded(_rename_weights(state_dict))
        checkpoint = new_checkpoint(cls)
        torch.save(state_dict, Path(checkpoint.path) / cls.MODEL_FILENAME)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint

    def get_model(self, model: M | None = None, *, allow_pickle: bool = False) -> M:
        """Load the weights into a model and return it. The model may be new or wrapped by `prepare_model`.

        A file with a whole model, as `torch.save(model)` writes it, runs code when it is loaded: it needs
        `allow_pickle=True`, and then no `model`.
        """
        import torch

        with self.as_directory() as directory:
            file = Path(directory) / self.MODEL_FILENAME
            try:
                weights = torch.load(file, map_location="cpu", weights_only=not allow_pickle)
            except pickle.UnpicklingError as problem:
                raise ValueError(
                    f"{self.MODEL_FILENAME} of {self} holds more than weights, and loading it would run its code\n\n"
                    "hint: if you trust it, pass allow_pickle=True"
                ) from problem
        if isinstance(weights, torch.nn.Module):
            if model is None:
                whole: M = weights
                return whole
            weights = weights.state_dict()
        if model is None:
            raise ValueError(
                f"get_model() needs a model: {self.MODEL_FILENAME} holds weights, not the code of a model\n\n"
                "hint: load them into a new one with checkpoint.get_model(Net())"
            )
        _load_into_model(_unwrap_model(model), weights)
        return model


def _load_into_model(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    import torch

    names = {name.replace(_COMPILED, ""): name for name in model.state_dict()}
    weights = _rename_weights(weights)
    if weights and not weights.keys() & names.keys():
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, _WRAPPED)
    weights = _rename_weights(weights, names)
    if any(_is_sharded(parameter) for parameter in model.parameters()):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        # Every worker reads the whole file and keeps its shard.
        set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
    else:
        model.load_state_dict(weights)


def _unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._orig_mod
        else:
            return model


def _rename_weights(state_dict: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Rename weights to the names before compilation, or to the given ones."""
    renamed = {name: names.get(name, name) if names is not None else name.replace(_COMPILED, "") for name in state_dict}
    # Return the original where possible: torch attaches module versions to it.
    if all(name == other for name, other in renamed.items()):
        return state_dict
    return {renamed[name]: value for name, value in state_dict.items()}


def _require_unsharded(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    shards = [name for name, value in state_dict.items() if _is_sharded(value)]
    for name in shards:
        if state_dict[name].device_mesh.size() > 1:
            raise ValueError(
                f"{name!r} is only this rank's shard of a tensor; TorchCheckpoint holds whole models\n\n"
                "hint: let every rank report ShardedCheckpoint.from_state({'model': model}); or let every rank gather "
                "the weights with get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
                "cpu_offload=True)) of torch.distributed.checkpoint.state_dict, and rank 0 report "
                "TorchCheckpoint.from_state_dict of them"
            )
    if not shards:
        return state_dict
    return {name: value.to_local() if name in shards else value for name, value in state_dict.items()}


def _is_sharded(value: Any) -> bool:
    # Looked up instead of imported, which takes a second; if it is not imported, there are no sharded tensors.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def read_raw_weights(path: Path) -> Any:
    """Return the tree in a file, with a `RawLeaf` per tensor; None if torch cannot read it as plain weights."""
    import torch

    try:
        return _to_raw(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _to_raw(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return RawLeaf("tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, Mapping):
        return {key: _to_raw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_raw(item) for item in value]
    return value
