"""prepare_trainer: check that a Transformers trainer fits this run, and let it read dataset shards."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.train.backend import require
from paceline.train.session import _require_context
from paceline.train.torch.acceleration import get_device

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

T = TypeVar("T")


def prepare_trainer(trainer: T) -> T:
    """Check that a Transformers trainer uses the ranks and device of this run, and return it.

    Its `train_dataset` and `eval_dataset` may be the result of `get_dataset_shard(name).iter_torch_batches(...)`, or
    the shard itself, which is then batched according to the training arguments. Such a dataset tracks its position: a
    resumed trainer continues from there and skips nothing (`ignore_data_skip` is set).
    """
    begin = _require_context("prepare_trainer").begin
    require("paceline.train.huggingface.transformers.prepare_trainer", ("transformers", "accelerate"), "transformers")
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, got {trainer!r}")
    args = trainer.args
    if (args.process_index, args.world_size, args.device) != (begin.rank, begin.world_size, get_device()):
        raise ValueError(
            f"the trainer is set up for rank {args.process_index} of {args.world_size} on {args.device}, but "
            f"this worker is rank {begin.rank} of {begin.world_size} on {get_device()}\n\n"
            "hint: create TrainingArguments in the train function, and leave the device to ScalingConfig(use_gpu=...)"
        )
    if not isinstance(trainer, _ShardLoaderMixin):
        cls: Any = type(trainer)
        trainer.__class__ = _add_shard_loader_mixin(cls)
    if _is_shard(trainer.train_dataset):
        args.ignore_data_skip = True
    return trainer


class _ShardLoaderMixin:
    """Put in front of a trainer's class: creates loaders for shards, and leaves others to the trainer."""

    args: Any
    train_dataset: Any
    eval_dataset: Any

    def get_train_dataloader(self) -> DataLoader[Any]:
        if _is_shard(self.train_dataset):
            return _make_shard_loader(self.train_dataset, self.args.train_batch_size)
        loader: DataLoader[Any] = super().get_train_dataloader()  # type: ignore[misc]
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        named = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        dataset = named if named is not None else self.eval_dataset
        if _is_shard(dataset):
            return _make_shard_loader(dataset, self.args.eval_batch_size)
        loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return loader


@functools.cache
def _add_shard_loader_mixin(cls: Any) -> Any:
    return type(cls.__name__, (_ShardLoaderMixin, cls), {"__module__": cls.__module__})


def _is_shard(dataset: Any) -> bool:
    from paceline.data.iterator import DataIterator
    from paceline.data.order.epochs import _ReusableIterable

    return isinstance(dataset, DataIterator | _ReusableIterable)


def _make_shard_loader(shard: Any, batch_size: int) -> DataLoader[Any]:
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    cuts_batches = hasattr(shard, "iter_torch_batches")
    batches = shard.iter_torch_batches(batch_size=batch_size) if cuts_batches else shard

    class Batches(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return _non_empty_epoch(batches)

    # A separate generator: a loader draws a number on each iteration, and a resumed run iterates at other times. With
    # torch's global generator, dropout would then differ.
    return DataLoader(Batches(), batch_size=None, generator=torch.Generator())


def _non_empty_epoch(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield one epoch that has batches: when resumed right after the last batch of an epoch, nothing of it is left."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        yield from batches
