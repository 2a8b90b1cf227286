"""DataIterator: the rows of one worker, epoch by epoch, in the form that the train function asks for.

It knows where it stands. A batch counts as used from the moment it is handed out; what was only prepared ahead does
not. That place is a `Cursor`, which a checkpoint keeps and with which another iterator goes on, on as many workers as
there are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.data.batches.arguments import (
    DEFAULT,
    DEFAULT_BATCH_SIZE,
    Default,
    check_columns,
    check_flag,
    check_format,
    check_function,
    check_seed,
    check_whole,
)
from paceline.data.block import Block, Schema
from paceline.data.epochs import Batch, Cutting, Epochs, Form
from paceline.data.feeds import Feeds
from paceline.data.position import Cursor, Split

if TYPE_CHECKING:
    from paceline.data.dataset import MaterializedDataset


class DataIterator:
    """The rows of a dataset, or of one worker's part of it, as batches or one by one.

    Each iteration is one epoch: the first is epoch 0, the next epoch 1. One that is left early has ended its epoch. On
    `set_state` the next iteration gives what the state's epoch has left.
    """

    def __init__(
        self,
        feeds: Feeds,
        split: Split = Split(),  # noqa: B008  frozen
        *,
        cursor: Cursor | None = None,
        global_batch_size: int | None = None,
        name: str = "",
        default_device: Callable[[], Any] | None = None,
    ) -> None:
        """`default_device` says what `device="auto"` is: that of the worker; None: the CPU."""
        self._feeds = feeds
        self._split = split
        self._name = name
        self._global_batch_size = global_batch_size
        self._default_device = default_device
        self._epochs = Epochs(feeds, split, name)
        if global_batch_size is not None:
            check_whole("global_batch_size", global_batch_size, 1)
            if global_batch_size % split.world:
                raise ValueError(
                    f"global_batch_size={global_batch_size} cannot be divided among {split.world} workers: use a "
                    "multiple of their number"
                )
        if cursor is not None:
            self.go_to(cursor)

    # Where it stands

    def cursor(self) -> Cursor:
        """Where this worker goes on: all that it was handed so far is used, and an epoch that it left is over."""
        return self._epochs.next_cursor()

    def get_state(self) -> dict[str, Any]:
        """Where the iteration stands, as a plain dict for `set_state`: small, and good as JSON.

        Inside a loop it counts the batch at hand as used. After a loop that was left early it stands at the batch where
        that was.
        """
        state: dict[str, Any] = msgspec.to_builtins(self._epochs.cursor())
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on from where a state was taken, on any number of workers."""
        try:
            cursor = msgspec.convert(state, Cursor)
        except msgspec.ValidationError as error:
            raise ValueError(f"this is no state that get_state() gave: {error}\n\nstate: {state!r}") from None
        self.go_to(cursor)

    def go_to(self, cursor: Cursor) -> None:
        """The same as `set_state`, from a cursor."""
        fingerprint = self._epochs.fingerprint
        if cursor.fingerprint and cursor.fingerprint != fingerprint:
            raise ValueError(
                f"the state was taken from other data than dataset {self._name!r} has now: its files, the rows in "
                f"them, or how they are shuffled, changed (fingerprint {cursor.fingerprint}, now {fingerprint})\n\n"
                "hint: to begin anew, do not restore the state; to go on at the same place of the changed data, drop "
                "'fingerprint' from the state before set_state(state)"
            )
        self._epochs.go_to(cursor)

    # Batches

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | Default | None = DEFAULT,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        _collate_fn: Callable[[Any], Any] | None = None,
    ) -> Iterable[Any]:
        """Batches as a dict of NumPy arrays (`"default"` or `"numpy"`), a DataFrame or an Arrow table.

        `batch_size` is 256, or the worker's share of the global batch size; None: as the rows come, in blocks. With
        `local_shuffle_buffer_size` rows change places within so many neighbours.
        """
        form = check_format(batch_format)
        check_function("_collate_fn", _collate_fn)

        def made(block: Block) -> Batch:
            batch = block.to_batch(form)
            return batch if _collate_fn is None else _collate_fn(batch)

        cutting = self._cutting(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        check_whole("prefetch_batches", prefetch_batches, 0)
        return self._epochs.batches(cutting, Form(made, num_ahead=prefetch_batches if _collate_fn is not None else 0))

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """One row at a time, as a dict."""
        return self._epochs.rows()

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | Default | None = DEFAULT,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterable[Any]:
        """Batches as a dict of torch tensors on a device; `"auto"` is the worker's own.

        `dtypes` is one for all columns, or a dict that has one for some. `collate_fn` gets a dict of NumPy arrays;
        what it makes of that goes to the device. To a GPU the next batch travels while one is used.
        """
        from paceline.data.batches import torch as form

        form.check_installed()
        check_function("collate_fn", collate_fn)
        check_flag("pin_memory", pin_memory)
        form.check_dtypes(dtypes)
        if collate_fn is not None and dtypes is not None:
            raise ValueError("dtypes and collate_fn are both given: let collate_fn make tensors of the right types")
        self._check_columns("dtypes", dtypes)
        if isinstance(device, str) and device == "auto":
            device = self._default_device
        target = form.device_of(device)
        form.check_pinning(pin_memory)
        check_whole("prefetch_batches", prefetch_batches, 0)
        travels = target.type == "cuda" and prefetch_batches > 0

        def staged(parts: Sequence[Block]) -> Batch:
            return form.staged([_numbers(part, dtypes) for part in parts], dtypes, target)

        def made(block: Block) -> Batch:
            batch = _numbers(block, dtypes)
            batch = form.tensors(batch, dtypes) if collate_fn is None else collate_fn(batch)
            if pin_memory:
                batch = form.pinned(batch, target)
            stays = target.type == "cpu" and collate_fn is None
            return batch if travels or stays else form.moved(batch, target)

        cutting = self._cutting(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        in_thread = collate_fn is not None or target.type != "cpu"
        placed = (lambda batches: form.moved_ahead(batches, target)) if travels else None
        made_of_parts = staged if travels and collate_fn is None else None
        num_ahead = prefetch_batches if in_thread else 0
        return self._epochs.batches(cutting, Form(made, placed, num_ahead, made_of_parts))

    def iter_jax_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | Default | None = DEFAULT,
        dtypes: Any = None,
        device: Any = None,
        sharding: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterable[dict[str, Any]]:
        """Batches as a dict of JAX arrays, on JAX's default device, another one, or laid out by a sharding.

        With a sharding over the devices of all workers, an array is made of the batches of all of them.
        """
        from paceline.data.batches import jax as form

        form.check_dtypes(dtypes)
        self._check_columns("dtypes", dtypes)
        target = form.check_target(device, sharding)
        form.check_even(target, drop_last)
        check_whole("prefetch_batches", prefetch_batches, 0)

        def made(block: Block) -> Batch:
            return form.arrays(_numbers(block, dtypes), dtypes, target)

        cutting = self._cutting(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        return self._epochs.batches(cutting, Form(made, num_ahead=prefetch_batches if form.travels(target) else 0))

    def iter_tf_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | Default | None = DEFAULT,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterable[dict[str, Any]]:
        """Batches as a dict of TensorFlow tensors."""
        from paceline.data.batches import tensorflow as form

        form.check_installed()
        self._check_columns("dtypes", dtypes)
        check_whole("prefetch_batches", prefetch_batches, 0)
        cutting = self._cutting(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)

        def made(block: Block) -> Batch:
            return form.tensors(_numbers(block, dtypes), dtypes)

        return self._epochs.batches(cutting, Form(made))

    def to_tf(
        self,
        feature_columns: str | Sequence[str],
        label_columns: str | Sequence[str],
        *,
        additional_columns: str | Sequence[str] | None = None,
        prefetch_batches: int = 1,
        batch_size: int | Default | None = DEFAULT,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        feature_type_spec: Any = None,
        label_type_spec: Any = None,
        additional_type_spec: Any = None,
    ) -> Any:
        """A `tf.data.Dataset` of (features, labels), for `model.fit`; a dict where several columns are named.

        `batch_size` is 1, or the worker's share of the global batch size.
        """
        from paceline.data.batches import tensorflow as form

        form.check_installed()
        groups = {"feature_columns": feature_columns, "label_columns": label_columns}
        specs = [feature_type_spec, label_type_spec]
        if additional_columns is not None:
            groups["additional_columns"] = additional_columns
            specs.append(additional_type_spec)
        if isinstance(batch_size, Default) and self._global_batch_size is None:
            batch_size = 1
        for name, columns in groups.items():
            self._check_columns(name, dict.fromkeys([columns] if isinstance(columns, str) else columns))
        batches = self.iter_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return form.dataset(lambda: batches, self.schema, list(groups.values()), specs)

    def materialize(self) -> MaterializedDataset:
        """The rows of the next epoch as a dataset in memory."""
        from paceline.data.dataset import MaterializedDataset
        from paceline.data.plan import Read
        from paceline.data.sources.memory import Memory

        # Copied: whoever makes the rows wants the memory back in which they come.
        copied = Form(lambda block: block.take(range(block.num_rows)))
        blocks = tuple(self._epochs.batches(Cutting(), copied))
        return MaterializedDataset(Read(Memory(f"materialize({self._name or 'dataset'})", blocks)))

    def schema(self) -> Schema | None:
        return self._feeds.schema()

    def stats(self) -> str:
        """What the runs took, stage by stage, and how well rows are shuffled: 0 in order, 1 as good as at random."""
        quality = self._feeds.mixing().quality(self._epochs.window, self._feeds.num_rows())
        told = self._feeds.stats()
        return told if quality is None else f"{told}\nshuffle: {quality:.2f} of 1"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "a DataIterator is not iterated itself\n\n"
            "hint: iterate over its batches, as in `for batch in it.iter_batches():`, or over `it.iter_rows()`"
        )

    def __repr__(self) -> str:
        return f"DataIterator({self._name or 'dataset'}, worker {self._split.rank} of {self._split.world})"

    def _check_columns(self, name: str, columns: Any) -> None:
        """Where it is known before rows are read which columns there are."""
        if isinstance(columns, Mapping):
            schema = self.schema()
            if schema is not None:
                check_columns(name, columns, schema.names)

    def _cutting(self, batch_size: Any, drop_last: Any, window_rows: Any, seed: Any) -> Cutting:
        share = None if self._global_batch_size is None else self._global_batch_size // self._split.world
        if isinstance(batch_size, Default):
            batch_size = share or DEFAULT_BATCH_SIZE
        check_whole("batch_size", batch_size, 1, or_none=True)
        if share is not None and batch_size != share:
            raise ValueError(
                f"batch_size={batch_size} does not fit global_batch_size={self._global_batch_size}, of which each of "
                f"{self._split.world} workers has {share}\n\nhint: leave batch_size out"
            )
        check_flag("drop_last", drop_last)
        check_whole("local_shuffle_buffer_size", window_rows, 1, or_none=True)
        check_seed(seed)
        chunk_rows = None if batch_size is None else batch_size * self._split.parts
        return Cutting(chunk_rows, window_rows or 0, seed or 0, drop_last)


def _numbers(block: Block, dtypes: Any) -> dict[str, Any]:
    """A block as arrays; it has all the columns that `dtypes` names."""
    if isinstance(dtypes, Mapping):
        check_columns("dtypes", dtypes, block.columns)
    return block.to_numpy()
