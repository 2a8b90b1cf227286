"""DataIterator: the rows of one worker, epoch by epoch, in the format that the train function requests.

It knows its position. A batch counts as used once it is handed out; prefetched batches do not. The position is a
`Cursor`, which is saved in a checkpoint. Another iterator can resume from it, on any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from paceline._core.arguments import bad_value, check_bool, check_callable, check_choice, check_int
from paceline._core.call_errors import explain_calls
from paceline.data.batches import import_framework
from paceline.data.block import BatchFormat, Block, Schema, list_columns
from paceline.data.collate_fn import collate_block
from paceline.data.context import DataContext
from paceline.data.order.epochs import Batch, BatchAssembly, BatchingOptions, EpochIterator
from paceline.data.order.feeds import Feeds
from paceline.data.order.sharding import Cursor, WorkerShard

if TYPE_CHECKING:
    from paceline.data.dataset import MaterializedDataset


class DefaultBatchSize:
    """Default of `batch_size`: tells an omitted argument from None."""

    def __repr__(self) -> str:
        return "256"


DEFAULT = DefaultBatchSize()


class BatchIteration:
    """The methods that iterate over rows and batches, in a `DataIterator` and in a `Dataset`."""

    def _as_iterator(self) -> DataIterator:
        raise NotImplementedError

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | DefaultBatchSize | None = DEFAULT,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        _collate_fn: Callable[[Any], Any] | None = None,
    ) -> Iterable[Any]:
        """Iterate over batches: dicts of NumPy arrays (`"default"` or `"numpy"`), DataFrames or Arrow tables.

        `batch_size` defaults to 256, or to the worker's share of the global batch size; None yields blocks as they
        come. With `local_shuffle_buffer_size`, rows are shuffled within windows of that many rows.
        """
        check_choice("batch_format", batch_format, ("default", *get_args(BatchFormat)))
        form: Any = "numpy" if batch_format == "default" else batch_format
        check_callable("_collate_fn", _collate_fn, optional=True)
        iterator = self._as_iterator()

        def make_batch(block: Block) -> Batch:
            batch = block.to_batch(form)
            return batch if _collate_fn is None else _collate_fn(batch)

        cutting = iterator._batching_options(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        check_int("prefetch_batches", prefetch_batches, at_least=0)
        num_ahead = prefetch_batches if _collate_fn is not None else 0
        return iterator._epochs.batches(cutting, BatchAssembly(make_batch, num_prefetched=num_ahead))

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """Iterate over rows, as dicts."""
        return self._as_iterator()._epochs.rows()

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | DefaultBatchSize | None = DEFAULT,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterable[Any]:
        """Iterate over batches as dicts of torch tensors on a device; `"auto"` is the worker's device.

        `dtypes` is one dtype for all columns, or a dict for some of them. `collate_fn` receives a dict of NumPy arrays,
        or what its base class in `paceline.data.collate_fn` says, and its result is moved to the device. On a GPU the
        next batch is copied while the current one is used.
        """
        from paceline.data.batches import torch as form

        torch = import_framework("torch")
        check_callable("collate_fn", collate_fn, optional=True)
        check_bool("pin_memory", pin_memory)
        form.check_dtypes(dtypes)
        if collate_fn is not None and dtypes is not None:
            raise ValueError(
                "dtypes and collate_fn cannot be combined: let collate_fn create tensors of the right types"
            )
        iterator = self._as_iterator()
        iterator._check_columns("dtypes", dtypes)
        if isinstance(device, str) and device == "auto":
            device = iterator._default_device
        target = form.resolve_device(device)
        form.check_pinning(pin_memory)
        check_int("prefetch_batches", prefetch_batches, at_least=0)
        travels = target.type == "cuda" and prefetch_batches > 0

        def stage_blocks(parts: Sequence[Block]) -> Batch:
            with torch.cuda.device(target):
                return form.concat_parts([_to_arrays(part, dtypes) for part in parts], dtypes, pin_memory=True)

        def make_batch(block: Block) -> Batch:
            if collate_fn is None:
                batch: Any = form.make_tensors(_to_arrays(block, dtypes), dtypes)
            else:
                batch = collate_block(block, collate_fn)
            if pin_memory:
                batch = form.pin_batch(batch, target)
            stays = target.type == "cpu" and collate_fn is None
            return batch if travels or stays else form.move_batch(batch, target)

        cutting = iterator._batching_options(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        placed = (lambda batches: form.move_ahead(batches, target)) if travels else None
        made_of_parts = stage_blocks if travels and collate_fn is None else None
        num_ahead = prefetch_batches if collate_fn is not None or target.type != "cpu" else 0
        return iterator._epochs.batches(cutting, BatchAssembly(make_batch, placed, num_ahead, made_of_parts))

    def iter_jax_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | DefaultBatchSize | None = DEFAULT,
        dtypes: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        device: Any = None,
        sharding: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        synchronize_batches: bool = False,
        paddings: Any = None,
    ) -> Iterable[Any]:
        """Iterate over batches as dicts of JAX arrays, on the default device, a given device, or with a sharding.

        With a sharding over the devices of all workers, each array is assembled from the batches of all workers.
        `collate_fn` is that of `iter_torch_batches`; it returns an array or a dict of arrays. `paddings` fills the last
        batch up to `batch_size` rows: one value, or a dict with one for each column. `synchronize_batches` compares the
        shapes of each batch between the processes of JAX, and raises an error where they differ.
        """
        from paceline.data.batches import jax as form

        form.check_dtypes(dtypes)
        iterator = self._as_iterator()
        iterator._check_columns("dtypes", dtypes)
        target = form.check_target(device, sharding)
        form.check_even_batches(target, drop_last or paddings is not None)
        check_int("prefetch_batches", prefetch_batches, at_least=0)
        check_callable("collate_fn", collate_fn, optional=True)
        check_bool("synchronize_batches", synchronize_batches)
        if collate_fn is not None and dtypes is not None:
            raise ValueError("dtypes and collate_fn cannot be combined: let collate_fn create the right types")
        cutting = iterator._batching_options(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        if paddings is not None and cutting.chunk_rows is None:
            raise ValueError(f"paddings needs a batch_size, got {batch_size!r}")
        num_rows = (cutting.chunk_rows or 0) // iterator._split.num_parts

        def make_batch(block: Block) -> Batch:
            batch = _to_arrays(block, dtypes) if collate_fn is None else collate_block(block, collate_fn)
            arrays = form.check_arrays(batch)
            if paddings is not None:
                arrays = form.pad_arrays(arrays, paddings, num_rows)
            if synchronize_batches:
                form.compare_shapes(arrays)
            made = form.make_arrays(arrays, dtypes, target)
            return made if isinstance(batch, Mapping) else made[""]

        num_ahead = prefetch_batches if form.leaves_host(target) else 0
        return iterator._epochs.batches(cutting, BatchAssembly(make_batch, num_prefetched=num_ahead))

    def iter_tf_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | DefaultBatchSize | None = DEFAULT,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterable[dict[str, Any]]:
        """Iterate over batches as dicts of TensorFlow tensors."""
        from paceline.data.batches import tensorflow as form

        import_framework("TensorFlow")
        iterator = self._as_iterator()
        iterator._check_columns("dtypes", dtypes)
        check_int("prefetch_batches", prefetch_batches, at_least=0)
        cutting = iterator._batching_options(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)

        def make_batch(block: Block) -> Batch:
            return form.make_tensors(_to_arrays(block, dtypes), dtypes)

        return iterator._epochs.batches(cutting, BatchAssembly(make_batch))

    def to_tf(
        self,
        feature_columns: str | Sequence[str],
        label_columns: str | Sequence[str],
        *,
        additional_columns: str | Sequence[str] | None = None,
        prefetch_batches: int = 1,
        batch_size: int | DefaultBatchSize | None = DEFAULT,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        feature_type_spec: Any = None,
        label_type_spec: Any = None,
        additional_type_spec: Any = None,
    ) -> Any:
        """Return a `tf.data.Dataset` of (features, labels) for `model.fit`. Several columns become a dict.

        `batch_size` defaults to 1, or to the worker's share of the global batch size.
        """
        from paceline.data.batches import tensorflow as form

        import_framework("TensorFlow")
        groups = {"feature_columns": feature_columns, "label_columns": label_columns}
        specs = [feature_type_spec, label_type_spec]
        if additional_columns is not None:
            groups["additional_columns"] = additional_columns
            specs.append(additional_type_spec)
        iterator = self._as_iterator()
        if isinstance(batch_size, DefaultBatchSize) and iterator._global_batch_size is None:
            batch_size = 1
        for name, columns in groups.items():
            iterator._check_columns(name, dict.fromkeys([columns] if isinstance(columns, str) else columns))
        batches = iterator.iter_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return form.make_tf_dataset(lambda: batches, iterator.schema, list(groups.values()), specs)


@explain_calls
class DataIterator(BatchIteration):
    """Iterates over a dataset, or one worker's shard of it, by batches or by rows.

    Each iteration is one epoch: first epoch 0, then epoch 1. Leaving an iteration early ends its epoch. After
    `set_state` the next iteration yields the rest of the state's epoch.
    """

    def __init__(
        self,
        feeds: Feeds,
        split: WorkerShard = WorkerShard(),  # noqa: B008
        *,
        cursor: Cursor | None = None,
        global_batch_size: int | None = None,
        name: str = "",
        default_device: Callable[[], Any] | None = None,
    ) -> None:
        """`default_device` is what `device="auto"` means: the worker's device. None is the CPU."""
        self._feeds = feeds
        self._split = split
        self._name = name
        self._global_batch_size = self._check_global_batch_size(global_batch_size)
        self._default_device = default_device
        self._epochs = EpochIterator(feeds, split, name)
        if cursor is not None:
            self.go_to(cursor)

    def _attach_to_worker(
        self,
        name: str,
        *,
        global_batch_size: int | None,
        default_device: Callable[[], Any] | None,
        on_dropped: Callable[[int, int], object] | None,
    ) -> None:
        """Set what a worker knows: the dataset's name, its device, its share of global batches if all are equal, and
        whom to tell about rows that are dropped."""
        self._name, self._default_device, self._epochs.on_dropped = name, default_device, on_dropped
        if self._split.mode == "equal":
            self._global_batch_size = self._check_global_batch_size(global_batch_size)

    def _check_global_batch_size(self, size: int | None) -> int | None:
        check_int("global_batch_size", size, at_least=1, optional=True)
        if size is not None and size % self._split.world:
            raise bad_value("global_batch_size", f"a multiple of the number of workers, {self._split.world}", size)
        return size

    def _as_iterator(self) -> DataIterator:
        return self

    # Position

    def cursor(self) -> Cursor:
        """Return where this worker resumes: everything handed out is used, and an epoch left early is over."""
        return self._epochs.next_cursor()

    def get_state(self) -> dict[str, Any]:
        """Return the position as a small dict for `set_state`. It is JSON-serializable.

        Inside a loop the current batch counts as used. After leaving a loop early, the position is at the batch where
        the loop stopped.
        """
        state: dict[str, Any] = msgspec.to_builtins(self._epochs.cursor())
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume the next iteration from a state, on any number of workers."""
        try:
            cursor = msgspec.convert(state, Cursor)
        except msgspec.ValidationError as error:
            raise ValueError(f"state is not from get_state(): {error}\n\nstate: {state!r}") from None
        self.go_to(cursor)

    def go_to(self, cursor: Cursor) -> None:
        """Like `set_state`, from a cursor."""
        fingerprint = self._epochs.fingerprint
        if cursor.fingerprint and cursor.fingerprint != fingerprint:
            raise ValueError(
                f"dataset {self._name!r} has changed since the state was saved: its files, their rows, or how they are "
                f"shuffled (fingerprint {cursor.fingerprint}, now {fingerprint})\n\n"
                "hint: to start over, do not restore the state; to continue at the same position of the changed data, "
                "remove 'fingerprint' from the state before set_state(state)"
            )
        self._epochs.go_to(cursor)

    def materialize(self) -> MaterializedDataset:
        """Read the rows of the next epoch into a dataset in memory."""
        from paceline.data.dataset import MaterializedDataset
        from paceline.data.planning.plan import Read
        from paceline.data.sources.memory import MemorySource

        # Copied, because the producer reuses the memory that the rows arrive in.
        copied = BatchAssembly(lambda block: block.take(range(block.num_rows)))
        blocks = tuple(self._epochs.batches(BatchingOptions(), copied))
        return MaterializedDataset(Read(MemorySource(f"materialize({self._name or 'dataset'})", blocks)))

    def get_context(self) -> DataContext:
        """Return the context of this process."""
        return DataContext.get_current()

    def schema(self) -> Schema | None:
        return self._feeds.schema()

    def stats(self) -> str:
        """Return the timing of the executions by stage, and the shuffle quality: 0 is in order, 1 is random."""
        quality = self._feeds.mixing().quality(self._epochs.window, self._feeds.num_rows())
        stats = self._feeds.stats()
        return stats if quality is None else f"{stats}\nshuffle: {quality:.2f} of 1"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "a DataIterator is not iterable\n\n"
            "hint: use iter_batches(), as in `for batch in it.iter_batches():`, or iter_rows()"
        )

    def __repr__(self) -> str:
        return f"DataIterator({self._name or 'dataset'}, worker {self._split.rank} of {self._split.world})"

    def _check_columns(self, name: str, columns: Any) -> None:
        """Check column names early, if the columns are known without reading rows."""
        if isinstance(columns, Mapping):
            schema = self.schema()
            if schema is not None:
                check_columns(name, columns, schema.names)

    def _batching_options(self, batch_size: Any, drop_last: Any, window_rows: Any, seed: Any) -> BatchingOptions:
        share = None if self._global_batch_size is None else self._global_batch_size // self._split.world
        if isinstance(batch_size, DefaultBatchSize):
            batch_size = share or 256
        check_int("batch_size", batch_size, at_least=1, optional=True)
        if share is not None and batch_size != share:
            raise ValueError(
                f"batch_size must be {share}, the share of each of {self._split.world} workers in "
                f"global_batch_size={self._global_batch_size}, got {batch_size}\n\nhint: leave batch_size out"
            )
        check_bool("drop_last", drop_last)
        check_int("local_shuffle_buffer_size", window_rows, at_least=1, optional=True)
        check_int("local_shuffle_seed", seed, optional=True)
        chunk_rows = None if batch_size is None else batch_size * self._split.num_parts
        return BatchingOptions(chunk_rows, window_rows or 0, seed or 0, drop_last)


DatasetIterator = DataIterator
"""The older name."""


def _to_arrays(block: Block, dtypes: Any) -> dict[str, Any]:
    """Convert a block to arrays, and check that it has all columns named in `dtypes`."""
    if dtypes is not None and isinstance(dtypes, Mapping):
        check_columns("dtypes", dtypes, block.columns)
    return block.to_numpy()


def check_columns(name: str, columns: Iterable[str], existing: Iterable[str]) -> None:
    existing = list(existing)
    for column in columns:
        if column not in existing:
            raise ValueError(
                f"{name} has an unknown column {column!r}; the columns are: {list_columns(existing, column)}"
            )
