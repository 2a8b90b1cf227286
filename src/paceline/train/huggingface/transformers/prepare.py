"""prepare_trainer: a Transformers trainer that reads this worker's part of a dataset, checked to be one of this run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.train.backend import require
from paceline.train.session import _context
from paceline.train.torch.devices import get_device

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

T = TypeVar("T")


def prepare_trainer(trainer: T) -> T:
    """Check that a Transformers trainer has found the ranks and the device of this run, and return it.

    As `train_dataset` and `eval_dataset` it may have what `get_dataset_shard(name).iter_torch_batches(...)` gives, or
    the shard itself, which is then cut into batches as the training arguments say. Such a dataset knows where it
    stands: a trainer that resumes goes on from there and skips nothing (`ignore_data_skip` is set).
    """
    begin = _context("prepare_trainer").begin
    require("paceline.train.huggingface.transformers.prepare_trainer", ("transformers", "accelerate"), "transformers")
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer={trainer!r} is not a transformers.Trainer")
    args = trainer.args
    found = args.process_index, args.world_size, args.device
    if found != (begin.rank, begin.world_size, get_device()):
        raise ValueError(
            f"the trainer takes itself for rank {found[0]} of {found[1]} on {found[2]}; "
            f"this worker is rank {begin.rank} of {begin.world_size} on {get_device()}\n\n"
            "hint: make TrainingArguments in the train function, and leave the device to ScalingConfig(use_gpu=...)"
        )
    if not isinstance(trainer, _ReadsShards):
        cls: Any = type(trainer)
        trainer.__class__ = _reading_shards(cls)
    if _is_shard(trainer.train_dataset):
        args.ignore_data_skip = True
    return trainer


class _ReadsShards:
    """Stands before the class of a trainer: loaders of shards are ours, all others the trainer's."""

    args: Any
    train_dataset: Any
    eval_dataset: Any

    def get_train_dataloader(self) -> DataLoader[Any]:
        if _is_shard(self.train_dataset):
            return _loader(self.train_dataset, self.args.train_batch_size)
        loader: DataLoader[Any] = super().get_train_dataloader()  # type: ignore[misc]
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        named = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        dataset = named if named is not None else self.eval_dataset
        if _is_shard(dataset):
            return _loader(dataset, self.args.eval_batch_size)
        loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return loader


@functools.cache
def _reading_shards(cls: Any) -> Any:
    return type(cls.__name__, (_ReadsShards, cls), {"__module__": cls.__module__})


def _is_shard(dataset: Any) -> bool:
    from paceline.data.epochs import _Again
    from paceline.data.iterator import DataIterator

    return isinstance(dataset, DataIterator | _Again)


def _loader(shard: Any, batch_size: int) -> DataLoader[Any]:
    """A loader whose elements are the batches of a shard, as they are."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    cuts_batches = hasattr(shard, "iter_torch_batches")
    batches = shard.iter_torch_batches(batch_size=batch_size) if cuts_batches else shard

    class Batches(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return _some(batches)

    # With a generator of its own: a loader draws a number whenever it is iterated, and after a resume that is at other
    # times. From torch's own generator, dropout would go on with other numbers.
    return DataLoader(Batches(), batch_size=None, generator=torch.Generator())


def _some(batches: Iterable[Any]) -> Iterator[Any]:
    """One epoch that has a batch: resumed right after the last one of an epoch, nothing is left of that."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        yield from batches
