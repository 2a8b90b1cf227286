"""Dataset: a lazy plan with the methods that people know. Each adds a node, or has the plan run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from paceline.data import aggregate, look, splits, write
from paceline.data.aggregate import AggregateFn
from paceline.data.barriers import Limit, RandomShuffle, Repartition, Sort, Zip
from paceline.data.block import Block, Schema
from paceline.data.explain import explained
from paceline.data.expressions import Expr, as_expr, parsed
from paceline.data.feeds import Feeds, LocalFeeds
from paceline.data.grouped import GroupedData
from paceline.data.iterator import DataIterator
from paceline.data.optimize import known_types
from paceline.data.plan import Map, Node, Read, Reorder, Union
from paceline.data.pool import Compute, Concurrency, pool_for
from paceline.data.transform import Transform
from paceline.data.transforms.batches import AddColumn, AnyFormat, MapBatches, format_named
from paceline.data.transforms.calls import Call, OnError, rows_changed_by
from paceline.data.transforms.columns import Drop, Rename, RenameAll, Select, Where, WithColumn
from paceline.data.transforms.rows import FilterRows, FlatMap, MapRows
from paceline.data.transforms.sample import RandomSample


class Dataset:
    """Rows that are read, transformed and handed out as a stream.

    Nothing is read before rows are asked for. A dataset is never changed: each method gives another one.
    """

    def __init__(self, plan: Node) -> None:
        self._plan = plan
        self._schema: Schema | None = None
        self._feeds: Feeds | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._plan,)  # what runs here stays here

    # Each row, batch or column by itself

    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | Literal["auto", "default"] | None = None,
        compute: Compute | None = None,
        batch_format: AnyFormat = "default",
        zero_copy_batch: bool = True,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """Batches through a function, a generator function, or a class that is made once in each of its processes.

        `batch_size=None`, or "auto", is a block as it comes; a batch never spans two units (such as files). A batch is
        a dict of arrays ("numpy", the default), a DataFrame or an Arrow table, and so is what the function returns or
        yields.
        Arrays are those that were read, without a copy; a function that writes to them is called again with copies,
        which `zero_copy_batch=False` gives at once. Under `on_error="skip"` a batch that fails is halved until
        the rows that fail stand alone; they are left out, and recorded in `stats()`.
        """
        if batch_size in ("auto", "default"):
            batch_size = None
        if batch_size is not None and (
            isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
        ):
            raise ValueError(f"batch_size must be a whole number of at least 1, or None, not {batch_size!r}")
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(MapBatches(call, batch_size, format_named(batch_format), zero_copy_batch))

    def map(
        self,
        fn: Any,
        *,
        compute: Compute | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """Each row, a dict, through a function that returns another."""
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(MapRows(call))

    def flat_map(
        self,
        fn: Any,
        *,
        compute: Compute | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """Each row through a function that returns a list of rows, or yields them."""
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(FlatMap(call))

    def filter(
        self,
        fn: Any = None,
        expr: str | Expr | None = None,
        *,
        compute: Compute | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """The rows for which a function of the row is true, or an expression: `filter(expr="age > 30")`.

        An expression is faster: it goes over whole columns, and files that cannot hold such rows are not read.
        """
        if isinstance(fn, str | Expr) and expr is None:
            fn, expr = None, fn
        if (fn is None) == (expr is None):
            raise ValueError("filter takes a function or an expression: filter(fn) or filter(expr='age > 30')")
        if expr is not None:
            if not isinstance(expr, str | Expr):
                raise TypeError(f"expr must be text such as 'age > 30', or made with col(), not {expr!r}")
            return self._mapped(Where(parsed(expr) if isinstance(expr, str) else expr))
        call = self._call(
            fn,
            (fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs),
            (compute, concurrency, num_cpus, num_gpus),
            on_error,
        )
        return self._mapped(FilterRows(call))

    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """These columns, in this order; a reader that can reads no others."""
        return self._mapped(Select(_names("select_columns", cols)))

    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        return self._mapped(Drop(_names("drop_columns", cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Dataset:
        """New names: of some columns, as a dict from old to new, or of all, as a list."""
        if isinstance(names, Mapping):
            _names("rename_columns", list(names)), _names("rename_columns", list(names.values()))
            return self._mapped(Rename(tuple(names.items())))
        return self._mapped(RenameAll(_names("rename_columns", names)))

    def add_column(
        self,
        col: str,
        fn: Callable[[Any], Any],
        *,
        batch_format: AnyFormat = "pandas",
        compute: Compute | None = None,
        concurrency: int | None = None,
        on_error: OnError = "raise",
    ) -> Dataset:
        """One more column, or another in the place of one: `fn` gives its values for a batch."""
        if not isinstance(col, str):
            raise TypeError(f"col must be the name of a column, not {col!r}")
        call = self._call(fn, (None, None, None, None), (compute, concurrency, None, None), on_error)
        return self._mapped(AddColumn(call, col, format_named(batch_format)))

    def with_column(self, column_name: str, expr: Expr) -> Dataset:
        """One more column, or another in the place of one, from an expression: `with_column("area", col("a") * 2)`."""
        if not isinstance(column_name, str):
            raise TypeError(f"column_name must be the name of a column, not {column_name!r}")
        if callable(expr):
            raise TypeError("with_column takes an expression, made with col()\n\nhint: for a function use add_column")
        return self._mapped(WithColumn(column_name, as_expr(expr)))

    # Other rows, or in another order

    def limit(self, limit: int) -> Dataset:
        """The first rows; no more is read than they take."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"limit must be a whole number that is not negative, not {limit!r}")
        return Dataset(Limit(self._plan, 0, limit))

    def union(self, *other: Dataset) -> Dataset:
        """The rows of this one, then those of the others."""
        _check_datasets("union", other)
        return Dataset(Union((self._plan, *(one._plan for one in other)))) if other else self

    def zip(self, *other: Dataset) -> Dataset:
        """Rows side by side; a column whose name is taken gets a number: `x_1`."""
        _check_datasets("zip", other)
        return Dataset(Zip((self._plan, *(one._plan for one in other)))) if other else self

    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        shuffle: bool = False,
    ) -> Dataset:
        """The same rows in so many units, or in units of so many rows."""
        return Dataset(Repartition(self._plan, num_blocks, target_num_rows_per_block, bool(shuffle)))

    def random_shuffle(self, *, seed: int | None = None) -> Dataset:
        """All rows in a random order, which is another one in every epoch. Without a seed it is that of seed 0."""
        return Dataset(RandomShuffle(self._plan, _seeded(seed)))

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Units, such as files, in another order in every epoch. The rows in them stay as they are."""
        return Dataset(Reorder(self._plan, _seeded(seed)))

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """About this part of the rows, each with the same chance: the same ones every time."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be a number from 0 to 1, not {fraction!r}")
        return self._mapped(RandomSample(float(fraction), _seeded(seed)))

    def sort(self, key: str | Sequence[str], descending: bool | Sequence[bool] = False) -> Dataset:
        """Rows by one column or several; missing values come last, and equal rows stay in their order."""
        keys = _names("sort", key)
        downward = (descending,) * len(keys) if isinstance(descending, bool) else tuple(descending)
        if len(downward) != len(keys) or not all(isinstance(down, bool) for down in downward):
            raise ValueError(f"descending must be True or False, or one of them for each key; not {descending!r}")
        return Dataset(Sort(self._plan, keys, downward))

    # Aggregates

    def groupby(self, key: str | Sequence[str] | None) -> GroupedData:
        """Rows by the values of one column or several, to aggregate them or to hand them to a function."""
        return GroupedData(self._plan, key)

    def aggregate(self, *aggs: AggregateFn) -> dict[str, Any]:
        """What aggregates such as `Sum("x")` make of all rows, by their names."""
        return look.aggregate(self._plan, aggs)

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The sum of a column; of several, or of all where none is named, a dict with `sum(x)`."""
        return self._aggregated(on, lambda name: aggregate.Sum(name, ignore_nulls))

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        return self._aggregated(on, lambda name: aggregate.Min(name, ignore_nulls))

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        return self._aggregated(on, lambda name: aggregate.Max(name, ignore_nulls))

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        return self._aggregated(on, lambda name: aggregate.Mean(name, ignore_nulls))

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
        return self._aggregated(on, lambda name: aggregate.Std(name, ddof, ignore_nulls))

    def unique(self, column: str) -> list[Any]:
        """The different values of a column, in no particular order."""
        return list(self._aggregated(column, lambda name: aggregate.Unique(name, ignore_nulls=False)) or ())

    # Splits

    def split(self, n: int, *, equal: bool = False, locality_hints: Any = None) -> list[Dataset]:
        """So many datasets, each with the next part of the rows; with `equal`, the few rows too many are left out.

        The parts are the same in every epoch, here and in the other splits. `locality_hints` is not needed.
        """
        return [Dataset(part) for part in splits.evenly(self._plan, n, equal=equal)]

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """The rows before the first index, from there to the second, and so on."""
        return [Dataset(part) for part in splits.at_indices(self._plan, indices)]

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """A dataset for each proportion of the rows, and one for what they leave: `[0.7, 0.2]` gives three."""
        return [Dataset(part) for part in splits.in_proportion(self._plan, proportions)]

    def train_test_split(
        self,
        test_size: int | float,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        stratify: str | None = None,
    ) -> tuple[Dataset, Dataset]:
        """Rows to train and rows to test with; `test_size` is a part of all, or a number of rows.

        With `stratify`, the name of a column of classes, each class is tested with in the same proportion.
        """
        train, test = splits.train_and_test(
            self._plan, test_size, shuffle=shuffle, seed=_seeded(seed), stratify=stratify
        )
        return Dataset(train), Dataset(test)

    def streaming_split(self, n: int, *, equal: bool = False, locality_hints: Any = None) -> list[DataIterator]:
        """Iterators for so many workers, which share one run of the dataset.

        With `equal` each gets as many rows, and the few too many are left out, other ones in every epoch; else every
        row goes to one of them. `locality_hints` is not needed: rows are where they are asked for.
        """
        return splits.streaming(self._plan, n, equal=equal)

    # What is in it

    def schema(self) -> Schema | None:
        """Names and types of the columns; None where there are no rows to tell."""
        if self._schema is None:
            self._schema = look.schema_of(self._plan)
        return self._schema

    def columns(self) -> list[str] | None:
        schema = self.schema()
        return None if schema is None else list(schema.names)

    def count(self) -> int:
        """How many rows there are; where files or earlier steps know, nothing is read."""
        return look.num_rows(self._plan)

    def size_bytes(self) -> int | None:
        """About how much memory the rows take as they are read; None where the files do not tell."""
        return look.num_bytes(self._plan)

    def input_files(self) -> list[str]:
        return look.input_files(self._plan)

    def num_blocks(self) -> int:
        raise NotImplementedError(
            "how many blocks a dataset has is known once it was run\n\nhint: materialize().num_blocks()"
        )

    def explain(self) -> str:
        """Print, and return, the plan: as it was asked for, as it is run, and its stages."""
        text = explained(self._plan)
        print(text)
        return text

    def stats(self) -> str:
        """What the last runs took, stage by stage."""
        feeds = self._own_feeds()
        told = feeds.stats()
        if not told:
            return "the dataset has not been run yet"
        quality = feeds.mixing().quality()
        return told if quality is None else f"{told}\nshuffle: {quality:.2f} of 1"

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """The first rows; no more is read than they take."""
        return list(self._first(limit).rows())

    def take_batch(self, batch_size: int = 20, *, batch_format: AnyFormat = "default") -> Any:
        """The first rows as one batch."""
        found = self._first(batch_size)
        if not found.num_rows:
            raise ValueError("the dataset is empty: there is no batch to take")
        return found.to_batch(format_named(batch_format))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All rows. With a limit, an error if there are more."""
        return list(self._all(limit, "take_all").rows())

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def to_pandas(self, limit: int | None = None) -> Any:
        """All rows as a DataFrame. With a limit, an error if there are more."""
        return self._all(limit, "to_pandas").to_pandas()

    def materialize(self) -> MaterializedDataset:
        """The same rows, computed now and kept: in memory, and beside it what does not fit."""
        return MaterializedDataset(look.kept(self._plan))

    # One after the other

    def iterator(self) -> DataIterator:
        """The rows as a stream that knows where it stands: each iteration is the next epoch."""
        return DataIterator(self._own_feeds())

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        return self.iterator().iter_rows()

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: AnyFormat = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterable[Any]:
        """Batches: a dict of arrays each, a DataFrame or an Arrow table."""
        return self.iterator().iter_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            batch_format=batch_format,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterable[Any]:
        """Batches of torch tensors."""
        return self.iterator().iter_torch_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            device=device,
            collate_fn=collate_fn,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            pin_memory=pin_memory,
        )

    def iter_tf_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterable[Any]:
        """Batches of TensorFlow tensors."""
        return self.iterator().iter_tf_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )

    def iter_jax_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = None,
        sharding: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterable[Any]:
        """Batches of JAX arrays."""
        return self.iterator().iter_jax_batches(
            prefetch_batches=prefetch_batches,
            batch_size=batch_size,
            dtypes=dtypes,
            device=device,
            sharding=sharding,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )

    def to_tf(self, feature_columns: str | Sequence[str], label_columns: str | Sequence[str], **options: Any) -> Any:
        """A `tf.data.Dataset` of features and labels; `options` are those of `DataIterator.to_tf`."""
        return self.iterator().to_tf(feature_columns, label_columns, **options)

    # To files: each of them appears whole, or not at all

    write_parquet = write.write_parquet
    write_csv = write.write_csv
    write_json = write.write_json
    write_numpy = write.write_numpy
    write_images = write.write_images
    write_tfrecords = write.write_tfrecords
    write_webdataset = write.write_webdataset

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a Dataset is not iterated itself\n\nhint: use iter_rows(), iter_batches() or take()")

    def __repr__(self) -> str:
        types, num_rows = known_types(self._plan), look.known_rows(self._plan)
        pairs = ", ".join(f"{name}: {kind or '?'}" for name, kind in (types or {}).items())
        schema = "?" if types is None else f"{{{pairs}}}"
        return f"{type(self).__name__}(num_rows={'?' if num_rows is None else num_rows}, schema={schema})"

    def _first(self, limit: int) -> Block:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"the number of rows to take must be a whole number that is not negative, not {limit!r}")
        return look.first_rows(self._own_feeds(), limit)

    def _all(self, limit: int | None, method: str) -> Block:
        if limit is None:
            return Block.concat(look.taken(self._own_feeds()))
        found = self._first(limit + 1)
        if found.num_rows > limit:
            raise ValueError(f"{method}(limit={limit}): the dataset has more rows than that")
        return found

    def _aggregated(self, on: str | Sequence[str] | None, of: Callable[[str], AggregateFn]) -> Any:
        columns = self.columns() or () if on is None else _names("aggregate", on)
        found = look.aggregate(self._plan, [of(name) for name in columns]) if columns else {}
        return next(iter(found.values()), None) if len(found) <= 1 else found

    def _own_feeds(self) -> Feeds:
        if self._feeds is None:
            self._feeds = LocalFeeds(self._plan)
        return self._feeds

    def _mapped(self, transform: Transform) -> Dataset:
        return Dataset(Map(self._plan, transform))

    def _call(
        self,
        fn: Any,
        arguments: tuple[
            Iterable[Any] | None, Mapping[str, Any] | None, Iterable[Any] | None, Mapping[str, Any] | None
        ],
        resources: tuple[Compute | None, Concurrency | None, float | None, float | None],
        on_error: OnError,
    ) -> Call:
        args, kwargs, constructor_args, constructor_kwargs = arguments
        compute, concurrency, num_cpus, num_gpus = resources
        return Call(
            fn,
            tuple(args or ()),
            dict(kwargs or {}),
            tuple(constructor_args or ()),
            dict(constructor_kwargs or {}),
            pool_for(fn, compute=compute, concurrency=concurrency, num_cpus=num_cpus, num_gpus=num_gpus),
            on_error,
            rows_changed_by(self._plan),
        )


def _names(method: str, cols: str | Sequence[str]) -> tuple[str, ...]:
    names = (cols,) if isinstance(cols, str) else tuple(cols)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not names:
        raise TypeError(f"{method} takes names of columns, not {wrong[0] if wrong else cols!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{method} was given {twice[0]!r} more than once")
    return names


def _seeded(seed: int | None) -> int:
    if seed is None:
        return 0
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number or None, not {seed!r}")
    return seed


def _check_datasets(method: str, others: Sequence[Any]) -> None:
    for other in others:
        if not isinstance(other, Dataset):
            raise TypeError(f"{method} takes datasets, not {type(other).__name__}")


class MaterializedDataset(Dataset):
    """A dataset whose rows are computed and kept: what is read from it is read from there."""

    def num_blocks(self) -> int:
        assert isinstance(self._plan, Read)
        return len(self._plan.source.units())
