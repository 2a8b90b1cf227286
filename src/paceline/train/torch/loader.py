"""A data loader made ready for many workers: each rank gets its part, epochs are counted, batches move to the device.

The loader that comes back is a twin of the one that was given: the same class with `_Prepared` in front, the same
attributes. Arguments are not listed and passed on again, so none can be forgotten; only the samplers are exchanged.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from paceline._core.spending import DATA, spent, waited_for
from paceline.data.batches.torch import moved, moved_ahead, pinned
from paceline.train.session import _context
from paceline.train.torch.devices import get_device
from paceline.train.torch.reproducibility import enabled_seed, seed_for

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

    With `ScalingConfig(global_batch_size=...)` that is the size of a batch over all ranks, whatever the loader says,
    and what is in the n-th of an epoch does not depend on the number of workers; a short last one is filled up from
    the beginning of the epoch, unless the loader drops it. `loader.state_dict()` says where the loader stands, and
    `load_state_dict` goes on from there.

    `auto_transfer`: on a GPU the next batch is copied while one is used, on a stream of its own and from pinned memory.
    With `pin_memory=True` the loader pins batches in a thread of its own, else this one does.
    """
    begin = _context("prepare_data_loader").begin
    from torch.utils.data import DataLoader

    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"data_loader={data_loader!r} is not a torch.utils.data.DataLoader")
    if isinstance(data_loader, _Prepared):
        return data_loader
    twin = _twin(data_loader)
    if add_dist_sampler and (begin.world_size > 1 or begin.global_batch_size is not None):
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
    _position: Position | None = None

    def __iter__(self) -> Iterator[Any]:
        with spent(DATA):  # worker processes are started here
            return self._begun()

    def _begun(self) -> Iterator[Any]:
        feed = self._feed
        position, self._position = self._position, None
        if position is not None:
            feed.epochs(position.epoch)
        epoch = feed.epochs.begin()
        first = position.num_batches if position is not None else 0
        if feed.reseed is not None:
            feed.reseed(epoch)
        skips = _skips_batches(self, first)
        batches: Iterator[Any] = super().__iter__()  # type: ignore[misc]
        if not skips:
            for _ in itertools.islice(batches, first):
                pass
        if feed.device is not None:
            batches = _on_device(batches, feed.device, ahead=feed.ahead)
        return self._counted(batches, epoch, first)

    def _counted(self, batches: Iterator[Any], epoch: int, num_batches: int) -> Iterator[Any]:
        """Note where the user stands, not where the loader has read to."""
        self._stands = Position(epoch, num_batches)
        for batch in waited_for(batches):
            num_batches += 1
            self._stands = Position(epoch, num_batches)
            yield batch
        self._stands = Position(epoch + 1, 0)

    _stands: Position | None = None

    def state_dict(self) -> dict[str, int]:
        """Where the loop over this loader stands: the epoch, and how many of its batches have been handed out."""
        stands = self._position or self._stands or Position(self._feed.epochs.next, 0)
        return {"epoch": stands.epoch, "num_batches": stands.num_batches}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next iteration go on from where `state_dict` was taken."""
        self._position = Position(state["epoch"], state["num_batches"])


def _on_device(batches: Iterator[Any], device: torch.device, *, ahead: bool) -> Iterator[Any]:
    if not ahead:
        return (moved(batch, device) for batch in batches)
    # Costs nothing where the loader has pinned them; where it has not, the copy would hold up this thread.
    return moved_ahead((pinned(batch, device) for batch in batches), device)


class Position(NamedTuple):
    epoch: int
    num_batches: int


def _skips_batches(loader: Any, num_batches: int) -> bool:
    """Whether the sampler passes over batches without anything being loaded."""
    if isinstance(loader.batch_sampler, GlobalBatches):
        loader.batch_sampler.first = num_batches
        return True
    return False


class GlobalBatches:
    """A batch sampler that gives one rank its part of batches that do not depend on the number of ranks."""

    def __init__(
        self, length: int, batch_size: int, *, rank: int, world_size: int, seed: int | None, drop_last: bool
    ) -> None:
        """`seed`: None for the order of the dataset."""
        self._length = length
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._drop_last = drop_last
        self.epoch = 0
        self.first = 0
        """The batch that the next iteration begins with."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self._length, self._batch_size)
        return whole + (1 if rest and not self._drop_last else 0)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        first, self.first = self.first, 0
        share = self._batch_size // self._world_size
        for number in range(first, len(self)):
            start = number * self._batch_size + self._rank * share
            # Past the end it goes on at the beginning: every batch is full, so that every rank weighs the same.
            yield [order[at % self._length] for at in range(start, start + share)]

    def _order(self) -> list[int]:
        import torch

        if self._seed is None:
            return list(range(self._length))
        generator = torch.Generator()
        generator.manual_seed((self._seed + self.epoch) % (1 << 63))
        order: list[int] = torch.randperm(self._length, generator=generator).tolist()
        return order


class _Epochs:
    """Counts epochs, and stands in for the `set_epoch` of a sampler: from what the user says there it counts on."""

    def __init__(self, set_epoch: Callable[[int], object], first: int) -> None:
        self._set_epoch = set_epoch
        self.next = first

    def __call__(self, epoch: int) -> None:
        self._set_epoch(epoch)
        self.next = epoch

    def begin(self) -> int:
        epoch = self.next
        self(epoch)
        self.next = epoch + 1
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
    if begin.global_batch_size is not None:
        batches = _global_batches(twin, begin, begin.global_batch_size)
        twin.__dict__.update(batch_sampler=batches, sampler=batches, batch_size=None, drop_last=False)
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

    return DistributedSampler(
        loader.dataset,
        num_replicas=begin.world_size,
        rank=begin.rank,
        shuffle=isinstance(loader.sampler, RandomSampler),
        seed=_seed_of(loader),
    )


def _global_batches(loader: Any, begin: Begin, size: int) -> GlobalBatches:
    from torch.utils.data import RandomSampler

    return GlobalBatches(
        len(loader.dataset),
        size,
        rank=begin.rank,
        world_size=begin.world_size,
        seed=_seed_of(loader) if isinstance(loader.sampler, RandomSampler) else None,
        drop_last=loader.drop_last,
    )


def _seed_of(loader: Any) -> int:
    generator = getattr(loader.sampler, "generator", None) or loader.generator
    seed: int = generator.initial_seed() if generator is not None else enabled_seed() or 0
    # The epoch is added to it, and a generator takes no more than 64 bits.
    return seed % (1 << 63)


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
