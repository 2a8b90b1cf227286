"""TorchPredictor: apply a checkpoint's model to the batches of a dataset, on CPU or GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._core.arguments import check_choice
from paceline._storage.state import has_state
from paceline.train.checkpoint import Checkpoint
from paceline.train.predictor import Predictor, to_checkpoint
from paceline.train.torch.checkpoint import TorchCheckpoint
from paceline.train.torch.model import HALF_TYPES
from paceline.train.torch.shard_writer import shard_stem

if TYPE_CHECKING:
    import torch


class TorchPredictor(Predictor):
    """A class for `Dataset.map_batches`: each of its processes loads the model once.

        predicted = dataset.map_batches(
            TorchPredictor,
            fn_constructor_kwargs={"checkpoint": result.checkpoint, "model": Net, "feature_columns": "image"},
            batch_size=256,
            concurrency=4,
        )
        predicted.write_parquet(path, resume=True)

    `model` is a module, or a function that returns one. The weights come from a `TorchCheckpoint`, a
    `ShardedCheckpoint`, or the entry `state_key` of a `Checkpoint.from_dict`. `precision="bf16"` or `"fp16"` enables
    autocast; floating-point inputs are converted to the type of the weights, or to `dtype`. With `use_gpu=True` and
    `num_gpus=1` in `map_batches`, each process uses its own GPU. See `Predictor` for the other arguments.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str | None,
        model: torch.nn.Module | Callable[[], torch.nn.Module],
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: bool | Sequence[str] = True,
        output_column: str = "predictions",
        state_key: str = "model",
        use_gpu: bool = False,
        precision: str | None = None,
        dtype: torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        """With `checkpoint=None` the model keeps its current weights."""
        super().__init__(feature_columns=feature_columns, keep_columns=keep_columns, output_column=output_column)
        import torch

        check_choice("precision", precision, (*HALF_TYPES, None))
        if use_gpu and not torch.cuda.is_available():
            raise ValueError("use_gpu=True, but this process has no GPU\n\nhint: pass num_gpus=1 to map_batches")
        module = model if isinstance(model, torch.nn.Module) else model()
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"model must be or return a torch.nn.Module, got {type(module).__name__}")
        if checkpoint is not None:
            load_weights(module, to_checkpoint(checkpoint), state_key)
        self.device = torch.device("cuda" if use_gpu else "cpu")
        self.model = module.to(self.device).eval()
        self._run: Callable[..., Any] = torch.compile(self.model) if compile else self.model
        self._autocast = getattr(torch, HALF_TYPES[precision]) if precision is not None else None
        floating = (each.dtype for each in self.model.parameters() if each.is_floating_point())
        self._dtype = dtype if dtype is not None else next(floating, None)

    def call_model(self, inputs: Any) -> Any:
        """Call the model with a tensor, or a dict of tensors. Runs under `torch.inference_mode` and autocast."""
        return self._run(inputs)

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, dtype=self._autocast, enabled=self._autocast is not None),
        ):
            return super().predict(batch)

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        return self.tensor(super().inputs(batch))

    def tensor(self, array: Any) -> torch.Tensor:
        """Convert an array to a tensor on the device, floating-point numbers to the type the model computes with."""
        import torch

        # Copy rows in shared memory: torch has no read-only tensors.
        writable = array if array.flags.writeable else array.copy()
        tensor = torch.from_numpy(np.ascontiguousarray(writable))
        dtype = self._dtype if tensor.is_floating_point() else None
        return tensor.to(self.device, dtype)

    def _to_array(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return super()._to_array(value)
        # NumPy has no bfloat16, and few file readers know float16.
        plain = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
        return plain.cpu().numpy()


def load_weights(model: torch.nn.Module, checkpoint: Checkpoint, state_key: str) -> None:
    """Load the weights of any kind of checkpoint into a model."""
    with checkpoint.as_directory() as directory:
        if Path(directory, TorchCheckpoint.MODEL_FILENAME).is_file():
            TorchCheckpoint(directory).get_model(model)
        elif Path(directory, f"{shard_stem(0)}.json").is_file():
            from paceline.train.torch.sharded import ShardedCheckpoint

            ShardedCheckpoint(directory).load_into({state_key: model})
        elif has_state(Path(directory)):
            state = Checkpoint(directory).to_dict()
            if state_key not in state:
                raise ValueError(f"{checkpoint} has no {state_key!r}; the keys are {', '.join(map(repr, state))}")
            model.load_state_dict(state[state_key])
        else:
            raise ValueError(
                f"{checkpoint} has no model; its files are {', '.join(sorted(os.listdir(directory)))}\n\n"
                "hint: pass checkpoint=None, and as model a function that loads the weights itself"
            )
