"""Prepare a data loader for many workers: each rank gets its shard, epochs are counted, batches move to the device.

The returned loader is a copy of the given one, with the same attributes and `_PreparedLoaderMixin` in front of its
class. Since no constructor arguments are repeated, none can be forgotten; only the samplers are replaced.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from paceline._core.time_accounting import DATA, account_data_wait, account_time
from paceline.data.batches.torch import move_ahead, move_batch, pin_batch
from paceline.train.session import _require_context
from paceline.train.torch.acceleration import derive_seed, enabled_seed, get_device

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from paceline._engine.messages import WorkerInit

T = TypeVar("T")

log = logging.getLogger("paceline")


def prepare_data_loader(
    data_loader: DataLoader[T],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[T]:
    """Return a loader that yields this rank's shard, reshuffled in each epoch, on this worker's device.

    With more than one worker the loader gets a `DistributedSampler`, with the seed of the loader's generator, which
    must be the same on all ranks. A custom sampler, a batch sampler and an iterable dataset are kept.

    Each iteration is an epoch: the sampler's `set_epoch` is called with 0, 1, 2 and so on, so all ranks must iterate
    equally often. After you call `loader.sampler.set_epoch(n)`, the next iteration is epoch n and the following one n +
    1.

    `ScalingConfig(global_batch_size=...)` sets the batch size over all ranks and overrides the loader's. The content of
    the n-th batch of an epoch then does not depend on the number of workers. A short last batch is filled up from the
    beginning of the epoch, unless the loader drops it. `loader.state_dict()` returns the position of the loader, and
    `load_state_dict` resumes from it.

    `auto_transfer`: on a GPU, the next batch is copied while the current one is used, on a separate stream and from
    pinned memory. With `pin_memory=True` the loader pins batches in its own thread, otherwise the calling thread does.
    """
    begin = _require_context("prepare_data_loader").begin
    from torch.utils.data import DataLoader

    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"data_loader must be a torch.utils.data.DataLoader, got {data_loader!r}")
    if isinstance(data_loader, _PreparedLoaderMixin):
        return data_loader
    twin = _copy_loader(data_loader)
    if add_dist_sampler and (begin.world_size > 1 or begin.global_batch_size is not None):
        _shard_loader(twin, begin)
    device = get_device() if move_to_device else None
    twin._options = _LoaderOptions(
        epochs=_install_epoch_counter(twin),
        device=device if device is not None and device.type == "cuda" else None,
        prefetch=auto_transfer,
        reseed=_make_reseed(twin, begin.rank),
    )
    prepared: DataLoader[T] = twin
    return prepared


@dataclass(frozen=True)
class _LoaderOptions:
    """What a prepared loader does in addition to loading."""

    epochs: _EpochCounter
    device: torch.device | None
    """The GPU to move batches to; None leaves them in place."""
    prefetch: bool
    reseed: Callable[[int], object] | None


class _PreparedLoaderMixin:
    """Put in front of a loader's class."""

    _options: _LoaderOptions
    _resume_position: LoaderPosition | None = None

    def __iter__(self) -> Iterator[Any]:
        with account_time(DATA):  # worker processes are started here
            return self._start_epoch()

    def _start_epoch(self) -> Iterator[Any]:
        options = self._options
        position, self._resume_position = self._resume_position, None
        if position is not None:
            options.epochs(position.epoch)
        epoch = options.epochs.start_epoch()
        first = position.num_batches if position is not None else 0
        if options.reseed is not None:
            options.reseed(epoch)
        sampler = self.batch_sampler  # type: ignore[attr-defined]
        if isinstance(sampler, GlobalBatchSampler):
            sampler.first = first  # Skips batches without loading them.
        batches: Iterator[Any] = super().__iter__()  # type: ignore[misc]
        if not isinstance(sampler, GlobalBatchSampler):
            batches = itertools.islice(batches, first, None)
        if options.device is not None:
            device = options.device
            if options.prefetch:
                # Pinning is free if the loader has done it; without it the copy would block this thread.
                batches = move_ahead((pin_batch(batch, device) for batch in batches), device)
            else:
                batches = (move_batch(batch, device) for batch in batches)
        return self._count_batches(batches, epoch, first)

    def _count_batches(self, batches: Iterator[Any], epoch: int, num_batches: int) -> Iterator[Any]:
        """Track the user's position, not how far the loader has read."""
        self._current_position = LoaderPosition(epoch, num_batches)
        for batch in account_data_wait(batches):
            num_batches += 1
            self._current_position = LoaderPosition(epoch, num_batches)
            yield batch
        self._current_position = LoaderPosition(epoch + 1, 0)

    _current_position: LoaderPosition | None = None

    def state_dict(self) -> dict[str, int]:
        """Return the position in the loop over this loader: the epoch and the number of batches yielded."""
        position = self._resume_position or self._current_position or LoaderPosition(self._options.epochs.next, 0)
        return position._asdict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration resume from the position in `state`."""
        self._resume_position = LoaderPosition(state["epoch"], state["num_batches"])


class LoaderPosition(NamedTuple):
    epoch: int
    num_batches: int


class GlobalBatchSampler:
    """A batch sampler that yields one rank's part of batches that do not depend on the number of ranks."""

    def __init__(
        self, length: int, batch_size: int, *, rank: int, world_size: int, seed: int | None, drop_last: bool
    ) -> None:
        """Without a `seed`, rows come in the order of the dataset."""
        self._length = length
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._drop_last = drop_last
        self.epoch = 0
        self.first = 0
        """The first batch of the next iteration."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        num_full, rest = divmod(self._length, self._batch_size)
        return num_full + (1 if rest and not self._drop_last else 0)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        first, self.first = self.first, 0
        share = self._batch_size // self._world_size
        for number in range(first, len(self)):
            start = number * self._batch_size + self._rank * share
            # Wrap around at the end: every batch is full, so all ranks have the same weight.
            yield [order[at % self._length] for at in range(start, start + share)]

    def _order(self) -> list[int]:
        import torch

        if self._seed is None:
            return list(range(self._length))
        generator = torch.Generator()
        generator.manual_seed((self._seed + self.epoch) % (1 << 63))
        order: list[int] = torch.randperm(self._length, generator=generator).tolist()
        return order


class _EpochCounter:
    """Counts epochs and replaces a sampler's `set_epoch`; an epoch the user sets there continues the count."""

    def __init__(self, set_epoch: Callable[[int], object], first: int) -> None:
        self._set_epoch = set_epoch
        self.next = first

    def __call__(self, epoch: int) -> None:
        self._set_epoch(epoch)
        self.next = epoch

    def start_epoch(self) -> int:
        epoch = self.next
        self(epoch)
        self.next = epoch + 1
        return epoch


@functools.cache
def _prepared_class(cls: Any) -> Any:
    return type(cls.__name__, (_PreparedLoaderMixin, cls), {"__module__": cls.__module__})


def _copy_loader(loader: Any) -> Any:
    cls = _prepared_class(loader.__class__)
    twin = cls.__new__(cls)
    # Bypasses `DataLoader.__setattr__`, which refuses to replace samplers. Running worker processes stay with the
    # original loader.
    twin.__dict__.update(loader.__dict__, _iterator=None)
    return twin


def _shard_loader(twin: Any, begin: WorkerInit) -> None:
    """Replace the samplers with those of this rank, if they are the defaults of `DataLoader`."""
    from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler

    if isinstance(twin.dataset, IterableDataset):
        return
    if not _has_default_samplers(twin):
        if begin.rank == 0:
            _warn_about_kept_sampler(twin)
        return
    is_shuffled, seed = isinstance(twin.sampler, RandomSampler), _sampler_seed(twin)
    num_ranks, rank = begin.world_size, begin.rank
    if begin.global_batch_size is not None:
        batches = GlobalBatchSampler(
            len(twin.dataset),
            begin.global_batch_size,
            rank=rank,
            world_size=num_ranks,
            seed=seed if is_shuffled else None,
            drop_last=twin.drop_last,
        )
        if rank == 0 and not twin.drop_last:
            _warn_about_repeated_rows(len(twin.dataset), begin.global_batch_size, "every batch is full")
        twin.__dict__.update(batch_sampler=batches, sampler=batches, batch_size=None, drop_last=False)
        return
    sampler = DistributedSampler(twin.dataset, num_replicas=num_ranks, rank=rank, shuffle=is_shuffled, seed=seed)
    # A repeated row is the last of a rank, so a dropped last batch takes it along.
    if rank == 0 and not (twin.drop_last and len(sampler) % twin.batch_size):
        _warn_about_repeated_rows(len(twin.dataset), num_ranks, f"{num_ranks} workers get equally many")
    twin.__dict__["sampler"] = sampler
    if twin.batch_sampler is not None:
        twin.__dict__["batch_sampler"] = BatchSampler(sampler, twin.batch_size, twin.drop_last)


def _has_default_samplers(loader: Any) -> bool:
    """Return whether the loader goes through the dataset once, in order or shuffled, and forms batches from that."""
    from torch.utils.data import RandomSampler, SequentialSampler

    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler) or getattr(sampler, "replacement", False):
        return False
    return len(sampler) == len(sampler.data_source) == len(loader.dataset) and _has_default_batch_sampler(loader)


def _sampler_seed(loader: Any) -> int:
    generator = getattr(loader.sampler, "generator", None) or loader.generator
    seed: int = generator.initial_seed() if generator is not None else enabled_seed() or 0
    # The epoch is added to it, and a generator takes at most 64 bits.
    return seed % (1 << 63)


@functools.cache  # says it once
def _warn_about_repeated_rows(num_rows: int, multiple: int, purpose: str) -> None:
    num_repeated = -num_rows % multiple
    if num_repeated:
        log.warning(
            "each epoch of a prepared loader repeats %d of %d rows, so that %s. Loaders with sampler=range(rank, "
            "len(dataset), num_workers), prepared with add_dist_sampler=False, yield each row once",
            num_repeated,
            num_rows,
            purpose,
        )


def _warn_about_kept_sampler(loader: Any) -> None:
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler = loader.sampler if _has_default_batch_sampler(loader) else loader.batch_sampler
    inner = getattr(sampler, "sampler", None)
    if isinstance(sampler, DistributedSampler) or isinstance(inner, DistributedSampler):
        return
    if type(sampler) is BatchSampler:
        sampler = inner
    # Torch's own samplers ignore ranks; of others we cannot know.
    is_from_torch = type(sampler).__module__ == "torch.utils.data.sampler"
    log.warning(
        "prepare_data_loader does not shard the loader's %s: %s. Pass add_dist_sampler=False if this is intended",
        type(sampler).__name__,
        "every rank draws from the whole dataset" if is_from_torch else "it decides which rows each rank sees",
    )


def _has_default_batch_sampler(loader: Any) -> bool:
    """Return whether the loader has no batch sampler of the user's, only one it made from its sampler."""
    from torch.utils.data import BatchSampler

    batches = loader.batch_sampler
    return batches is None or (type(batches) is BatchSampler and batches.sampler is loader.sampler)


def _install_epoch_counter(loader: Any) -> _EpochCounter:
    """Replace the `set_epoch` of the sampler that supports epochs with a counter, and return it."""
    candidates = (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.sampler)
    sampler = next((one for one in candidates if callable(getattr(one, "set_epoch", None))), None)
    if sampler is None:
        return _EpochCounter(lambda epoch: None, 0)
    if not isinstance(sampler.set_epoch, _EpochCounter):
        epoch = getattr(sampler, "epoch", 0)
        sampler.set_epoch = _EpochCounter(sampler.set_epoch, epoch if isinstance(epoch, int) and epoch > 0 else 0)
    counter: _EpochCounter = sampler.set_epoch
    return counter


def _make_reseed(twin: Any, rank: int) -> Callable[[int], object] | None:
    import torch

    seed = enabled_seed()
    if seed is None or twin.generator is not None:
        return None
    # The loader seeds its worker processes from its generator: `random`, NumPy and torch.
    generator = twin.generator = torch.Generator()
    return lambda epoch: generator.manual_seed(derive_seed(seed, rank, epoch))
