"""A data loader made ready for many workers: each rank gets its part, epochs are counted, batches move to the device.

The loader that comes back is a twin of the one that was given: the same class with `_Prepared` in front, the same
attributes. Arguments are not listed and passed on again, so none can be forgotten; only the samplers are exchanged.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.train.session import _context
from paceline.train.torch.devices import get_device
from paceline.train.torch.reproducibility import enabled_seed, seed_for
from paceline.train.torch.transfer import moved, moved_ahead

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    from paceline._engine.messages import Begin

T = TypeVar("T")

log = logging.getLogger("paceline")


def prepare_data_loader(
    data_loader: DataLoader[T],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[T]:
    """A loader that gives this rank its part of the data, shuffled anew in each epoch, on this worker's device.

    With more than one worker it gets a `DistributedSampler`, seeded as the loader's generator is, which must be alike
    on all ranks. A sampler of your own, a batch sampler and an iterable dataset are kept as they are.

    Each iteration is an epoch: the sampler's `set_epoch` is called with 0, 1, 2 and so on, so all ranks iterate
    equally often. Call `loader.sampler.set_epoch(n)` yourself and the next iteration is epoch n, the one after n + 1.

    `auto_transfer`: on a GPU the next batch is copied while one is used; give the loader `pin_memory=True` for that.
    """
    begin = _context("prepare_data_loader").begin
    from torch.utils.data import DataLoader

    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"data_loader={data_loader!r} is not a torch.utils.data.DataLoader")
    if isinstance(data_loader, _Prepared):
        return data_loader
    twin = _twin(data_loader)
    if add_dist_sampler and begin.world_size > 1:
        _shard(twin, begin)
    device = get_device() if move_to_device else None
    twin._feed = _Feed(
        epochs=_epochs(twin),
        device=device if device is not None and device.type == "cuda" else None,
        ahead=auto_transfer,
        reseed=_reseeding(twin, begin.rank),
    )
    prepared: DataLoader[T] = twin
    return prepared


@dataclass(frozen=True)
class _Feed:
    """What a prepared loader does beyond loading."""

    epochs: _Epochs
    device: torch.device | None
    """The GPU that batches go to; None leaves them where they are."""
    ahead: bool
    reseed: Callable[[int], object] | None
    """Makes what the loader's worker processes draw in an epoch follow from its number."""


class _Prepared:
    """Stands before the class of a loader."""

    _feed: _Feed

    def __iter__(self) -> Iterator[Any]:
        feed = self._feed
        epoch = feed.epochs.begin()
        if feed.reseed is not None:
            feed.reseed(epoch)
        batches: Iterator[Any] = super().__iter__()  # type: ignore[misc]
        if feed.device is None:
            return batches
        if feed.ahead:
            return moved_ahead(batches, feed.device)
        return (moved(batch, feed.device) for batch in batches)


class _Epochs:
    """Counts epochs, and stands in for the `set_epoch` of a sampler: from what the user says there it counts on."""

    def __init__(self, set_epoch: Callable[[int], object], first: int) -> None:
        self._set_epoch = set_epoch
        self._next = first

    def __call__(self, epoch: int) -> None:
        self._set_epoch(epoch)
        self._next = epoch

    def begin(self) -> int:
        epoch = self._next
        self(epoch)
        self._next = epoch + 1
        return epoch


@functools.cache
def _prepared_class(cls: Any) -> Any:
    return type(cls.__name__, (_Prepared, cls), {"__module__": cls.__module__})


def _twin(loader: Any) -> Any:
    cls = _prepared_class(loader.__class__)
    twin = cls.__new__(cls)
    # Past `DataLoader.__setattr__`, which refuses to exchange samplers. Running worker processes stay with the
    # loader that started them.
    twin.__dict__.update(loader.__dict__, _iterator=None)
    return twin


def _shard(twin: Any, begin: Begin) -> None:
    """Exchange the samplers for those of this rank, if they are the ones that `DataLoader` makes by itself."""
    from torch.utils.data import BatchSampler, IterableDataset

    if isinstance(twin.dataset, IterableDataset):
        return
    if not _has_default_samplers(twin):
        if begin.rank == 0:
            _say_what_is_kept(twin)
        return
    sampler = _part_sampler(twin, begin)
    twin.__dict__["sampler"] = sampler
    if twin.batch_sampler is not None:
        twin.__dict__["batch_sampler"] = BatchSampler(sampler, twin.batch_size, twin.drop_last)


def _has_default_samplers(loader: Any) -> bool:
    """Whether one in order, or one at random, goes through the dataset once, and batches are cut from that."""
    from torch.utils.data import RandomSampler, SequentialSampler

    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler) or getattr(sampler, "replacement", False):
        return False
    return len(sampler) == len(sampler.data_source) == len(loader.dataset) and _cuts_batches_itself(loader)


def _part_sampler(loader: Any, begin: Begin) -> DistributedSampler[Any]:
    from torch.utils.data import DistributedSampler, RandomSampler

    generator = getattr(loader.sampler, "generator", None) or loader.generator
    seed = generator.initial_seed() if generator is not None else enabled_seed() or 0
    return DistributedSampler(
        loader.dataset,
        num_replicas=begin.world_size,
        rank=begin.rank,
        shuffle=isinstance(loader.sampler, RandomSampler),
        # The sampler adds the epoch to it, and a generator takes no more than 64 bits.
        seed=seed % (1 << 63),
    )


def _say_what_is_kept(loader: Any) -> None:
    from torch.utils.data import BatchSampler, DistributedSampler

    kept = loader.sampler if _cuts_batches_itself(loader) else loader.batch_sampler
    inner = getattr(kept, "sampler", None)
    if isinstance(kept, DistributedSampler) or isinstance(inner, DistributedSampler):
        return
    if type(kept) is BatchSampler:
        kept = inner
    # Torch's own know nothing of ranks; of others we cannot tell.
    of_torch = type(kept).__module__ == "torch.utils.data.sampler"
    log.warning(
        "prepare_data_loader keeps the %s of the loader as it is: %s. Pass add_dist_sampler=False if that is meant",
        type(kept).__name__,
        "every rank draws from the whole dataset" if of_torch else "what each rank sees is up to it",
    )


def _cuts_batches_itself(loader: Any) -> bool:
    """Whether the loader was given no batch sampler: the one it has, if any, it made of its sampler."""
    from torch.utils.data import BatchSampler

    batches = loader.batch_sampler
    return batches is None or (type(batches) is BatchSampler and batches.sampler is loader.sampler)


def _epochs(loader: Any) -> _Epochs:
    """The counter of the sampler that knows of epochs, put in the place of its `set_epoch`."""
    candidates = (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.sampler)
    sampler = next((one for one in candidates if callable(getattr(one, "set_epoch", None))), None)
    if sampler is None:
        return _Epochs(lambda epoch: None, 0)
    if not isinstance(sampler.set_epoch, _Epochs):
        said = getattr(sampler, "epoch", 0)
        sampler.set_epoch = _Epochs(sampler.set_epoch, said if isinstance(said, int) and said > 0 else 0)
    counter: _Epochs = sampler.set_epoch
    return counter


def _reseeding(twin: Any, rank: int) -> Callable[[int], object] | None:
    import torch

    seed = enabled_seed()
    if seed is None or twin.generator is not None:
        return None
    # Worker processes are seeded with what the loader draws from its generator: `random`, NumPy and torch alike.
    generator = twin.generator = torch.Generator()
    return lambda epoch: generator.manual_seed(seed_for(seed, rank, epoch))
