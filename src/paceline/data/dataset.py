"""Dataset: the public API over a lazy plan. Each method adds a plan node or runs the plan."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast

from paceline._core.arguments import (
    bad_value,
    check_bool,
    check_choice,
    check_instance,
    check_int,
    check_number,
    with_options,
)
from paceline._core.call_errors import explain_calls
from paceline.data import frames, stats, write
from paceline.data.aggregate import AggregateFn, AggregateFnV2, ColumnAggregates, Unique
from paceline.data.block import Block, Schema, list_columns
from paceline.data.context import DataContext
from paceline.data.datasource import datasink
from paceline.data.expressions import Expr, parse_expression
from paceline.data.expressions.nodes import StarNode, UnnestNode
from paceline.data.grouped_data import GroupedData, check_column_name, check_expr
from paceline.data.iterator import BatchIteration, DataIterator
from paceline.data.order.feeds import Feeds, LocalFeeds
from paceline.data.planning import plan_queries, splits
from paceline.data.planning.barriers import Join, Limit, Mix, RandomShuffle, Repartition, Sort, Zip
from paceline.data.planning.joins import JOIN_TYPES, JoinSpec
from paceline.data.planning.mix_pattern import MixStoppingCondition, parse_ratio
from paceline.data.planning.optimizer import known_types
from paceline.data.planning.plan import Map, PlanNode, Read, ReorderUnits, Transform, Union, last_row_change
from paceline.data.planning.plan_queries import explain_plan
from paceline.data.sinks import tables
from paceline.data.sources.memory import divide_for_batches
from paceline.data.stats import DatasetSummary
from paceline.data.task_options import ColumnOptions, PlacementOptions, TaskOptions, warn_unused
from paceline.data.transforms import columns
from paceline.data.transforms.async_calls import DEFAULT_CALLS_IN_FLIGHT
from paceline.data.transforms.rows import (
    AddColumn,
    AnyFormat,
    FilterRows,
    FlatMap,
    MapBatches,
    MapRows,
    RandomSample,
    SplitRows,
    parse_batch_format,
)
from paceline.data.transforms.user_calls import (
    ActorPoolStrategy,
    Compute,
    Concurrency,
    OnError,
    UserCall,
    parse_compute,
    resolve_pool,
)


class PoolOptions(TypedDict, total=False):
    """The arguments of all methods that call a function, with their defaults."""

    compute: Annotated[Compute | None, None]
    concurrency: Annotated[Concurrency | None, None]
    on_error: Annotated[OnError, "raise"]


class CallOptions(PoolOptions, PlacementOptions, total=False):
    """The arguments of methods that call a function or a class."""

    fn_args: Annotated[Iterable[Any] | None, None]
    fn_kwargs: Annotated[Mapping[str, Any] | None, None]
    fn_constructor_args: Annotated[Iterable[Any] | None, None]
    fn_constructor_kwargs: Annotated[Mapping[str, Any] | None, None]
    num_cpus: Annotated[float | None, None]
    num_gpus: Annotated[float | None, None]
    memory: Annotated[float | None, None]
    ray_remote_args_fn: Annotated[Any, None]


_UNUSED_CALL_OPTIONS = (*PlacementOptions.__annotations__, "memory", "ray_remote_args_fn")


@explain_calls
class Dataset(BatchIteration, ColumnAggregates[Any]):
    """A lazy stream of rows.

    Nothing is read until rows are consumed. Datasets are immutable: each method returns a new one.
    """

    def __init__(self, plan: PlanNode) -> None:
        self._plan = plan
        self._schema: Schema | None = None
        self._feeds: Feeds | None = None
        self._name: str | None = None
        self._id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Running executors are not pickled.
        return type(self), (self._plan,), {"_name": self._name, "_id": self._id}

    # Transforms of rows, batches and columns

    @with_options(CallOptions)
    def map_batches(
        self,
        fn: Any,
        *,
        batch_size: int | Literal["auto", "default"] | None = None,
        batch_format: AnyFormat = "default",
        zero_copy_batch: bool = True,
        udf_modifying_row_count: bool = True,
        **options: Unpack[CallOptions],
    ) -> Dataset:
        """Apply a function, a generator function or a class to batches. A class is instantiated once per process.

        With `udf_modifying_row_count=False` the function must return as many rows as it gets: they are counted without
        calling it, and a limit or a split is applied before it. Several calls of an async function are in flight at a
        time (see `ActorPoolStrategy`), here and in `map`, `flat_map` and `filter`; the order of rows stays.

        `batch_size=None` or "auto" passes blocks as they come. A batch never spans two units (such as files); rows in
        memory are divided into units of whole batches. A batch is a dict of arrays ("numpy", the default), a DataFrame
        or an Arrow table; the function returns or yields one of these.

        Arrays are passed without a copy. A function that writes to them is called again with copies;
        `zero_copy_batch=False` passes copies from the start. With `on_error="skip"`, a failing batch is halved until
        the failing rows are isolated; those are dropped and recorded in `stats()`.
        """
        num_rows: Any = None if batch_size in ("auto", "default") else batch_size
        check_int("batch_size", num_rows, at_least=1, optional=True)
        call = self._make_call(fn, options)
        form = parse_batch_format(batch_format)
        keeps_rows = not check_bool("udf_modifying_row_count", udf_modifying_row_count)
        plan = self._plan if num_rows is None else divide_for_batches(self._plan, num_rows)
        return Dataset(Map(plan, MapBatches(call, num_rows, form, zero_copy_batch, keeps_rows)))

    @with_options(CallOptions)
    def map(self, fn: Any, **options: Unpack[CallOptions]) -> Dataset:
        """Apply a function to each row. Rows are dicts, and so is the result."""
        return self._with_transform(MapRows(self._make_call(fn, options)))

    @with_options(CallOptions)
    def flat_map(self, fn: Any, **options: Unpack[CallOptions]) -> Dataset:
        """Apply a function that returns a list of rows, or yields rows, to each row."""
        return self._with_transform(FlatMap(self._make_call(fn, options)))

    @with_options(CallOptions)
    def filter(self, fn: Any = None, expr: str | Expr | None = None, **options: Unpack[CallOptions]) -> Dataset:
        """Keep the rows for which a function or an expression is true: `filter(expr="age > 30")`.

        Expressions are faster: they work on whole columns, and files that cannot contain matching rows are not read.
        """
        if isinstance(fn, str | Expr) and expr is None:
            fn, expr = None, fn
        if (fn is None) == (expr is None):
            raise ValueError("filter takes a function or an expression: filter(fn) or filter(expr='age > 30')")
        if expr is not None:
            if not isinstance(expr, str | Expr):
                raise TypeError(f"expr must be text such as 'age > 30' or an expression of col(), got {expr!r}")
            return self._with_transform(
                columns.FilterExpression(parse_expression(expr) if isinstance(expr, str) else expr)
            )
        return self._with_transform(FilterRows(self._make_call(fn, options)))

    @with_options(ColumnOptions)
    def select_columns(self, cols: str | Sequence[str], **options: Unpack[ColumnOptions]) -> Dataset:
        """Select columns, in this order. Readers that support it read only these columns."""
        warn_unused("select_columns", options, ColumnOptions.__annotations__)
        return self._with_transform(columns.SelectColumns(_check_names("select_columns", cols)))

    @with_options(ColumnOptions)
    def drop_columns(self, cols: str | Sequence[str], **options: Unpack[ColumnOptions]) -> Dataset:
        warn_unused("drop_columns", options, ColumnOptions.__annotations__)
        return self._with_transform(columns.DropColumns(_check_names("drop_columns", cols)))

    @with_options(ColumnOptions)
    def rename_columns(self, names: Mapping[str, str] | Sequence[str], **options: Unpack[ColumnOptions]) -> Dataset:
        """Rename some columns with a dict from old to new names, or all columns with a list."""
        warn_unused("rename_columns", options, ColumnOptions.__annotations__)
        if isinstance(names, Mapping):
            _check_names("rename_columns", list(names)), _check_names("rename_columns", list(names.values()))
            return self._with_transform(columns.RenameColumns(tuple(names.items())))
        return self._with_transform(columns.RenameAllColumns(_check_names("rename_columns", names)))

    @with_options(PoolOptions)
    def add_column(
        self,
        col: str,
        fn: Callable[[Any], Any],
        *,
        batch_format: AnyFormat = "pandas",
        **options: Unpack[PoolOptions],
    ) -> Dataset:
        """Add or replace a column. `fn` computes its values for a batch."""
        if not isinstance(col, str):
            raise TypeError(f"col must be the name of a column, got {col!r}")
        call = self._make_call(fn, cast(CallOptions, options))
        return self._with_transform(AddColumn(call, col, parse_batch_format(batch_format)))

    @with_options(ColumnOptions)
    def with_column(self, column_name: str, expr: Expr, **options: Unpack[ColumnOptions]) -> Dataset:
        """Add or replace a column computed by an expression: `with_column("area", col("a") * 2)`."""
        warn_unused("with_column", options, ColumnOptions.__annotations__)
        return self._with_transform(columns.WithColumns(((check_column_name(column_name), check_expr(expr)),)))

    @with_options(ColumnOptions)
    def with_columns(
        self, exprs: Mapping[str, Expr] | Expr | None = None, *more_exprs: Expr, **options: Unpack[ColumnOptions]
    ) -> Dataset:
        """Add or replace columns, all computed from the columns there are: `with_columns({"area": col("a") * 2})`.

        An expression without a name in a dict has it from `alias`, or is `unnest(struct)`, which adds a column for each
        field.
        """
        warn_unused("with_columns", options, ColumnOptions.__annotations__)
        named = dict(exprs) if isinstance(exprs, Mapping) else {}
        rest = [*(() if exprs is None or isinstance(exprs, Mapping) else (exprs,)), *more_exprs]
        outputs: list[tuple[str | None, Expr]] = []
        for name, expr in (*named.items(), *((None, expr) for expr in rest)):
            if name is None and not (isinstance(expr, UnnestNode | StarNode) or getattr(expr, "name", None)):
                raise TypeError(
                    f"exprs must have names, got {expr!r}\n\nhint: use expr.alias('name') or {{'name': expr}}"
                )
            if isinstance(expr, UnnestNode) and name is None:
                outputs.append((None, expr))
            elif not isinstance(expr, StarNode):
                outputs.append((check_column_name(expr.name if name is None else name), check_expr(expr)))
        if not outputs:
            raise ValueError("with_columns must be given at least one expression")
        if names := [name for name, _ in outputs if name is not None]:
            _check_names("with_columns", names)
        return self._with_transform(columns.WithColumns(tuple(outputs)))

    # Selecting, combining and reordering rows

    def limit(self, limit: int) -> Dataset:
        """Keep the first `limit` rows. Reads no more than needed."""
        return Dataset(Limit(self._plan, 0, check_int("limit", limit, at_least=0)))

    def union(self, *other: Dataset) -> Dataset:
        """Append the rows of other datasets."""
        _check_datasets("union", other)
        return Dataset(Union((self._plan, *(one._plan for one in other)))) if other else self

    def zip(self, *other: Dataset) -> Dataset:
        """Combine datasets column-wise, row by row. Duplicate column names get a suffix: `x_1`."""
        _check_datasets("zip", other)
        return Dataset(Zip((self._plan, *(one._plan for one in other)))) if other else self

    def mix(
        self,
        *other: Dataset,
        weights: Sequence[float] | None = None,
        stopping_condition: MixStoppingCondition = MixStoppingCondition.STOP_ON_LONGEST_DROP,
    ) -> Dataset:
        """Let the rows of several datasets alternate. With `weights=[0.75, 0.25]`, three of four rows are from here.

        The proportions are exact in every window of as many rows as the weights need, here four; the default is equal
        weights. The order is fixed, each dataset keeps its own. See `MixStoppingCondition` for what happens when one
        has no more rows.

        Rows are read when they are needed, if the readers know how many there are. Otherwise, for example after a
        filter or `map_batches`, the rows of that dataset are first stored in memory, or on disk if they do not fit;
        transform the mixed rows instead.
        """
        _check_datasets("mix", other)
        shares = [1.0] * (1 + len(other)) if weights is None else list(weights)
        if len(shares) != 1 + len(other):
            raise bad_value("weights", f"a list of {1 + len(other)} numbers, one for each dataset", weights)
        for share in shares:
            check_number("weights", share, above=0)
        stop = check_choice("stopping_condition", stopping_condition, MixStoppingCondition)
        return Dataset(Mix((self._plan, *(one._plan for one in other)), parse_ratio(shares), stop))

    def join(
        self,
        ds: Dataset,
        join_type: str,
        num_partitions: int | None = None,
        on: str | Sequence[str] = ("id",),
        right_on: str | Sequence[str] | None = None,
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        *,
        partition_size_hint: int | None = None,
        aggregator_ray_remote_args: Mapping[str, Any] | None = None,
        validate_schemas: bool = False,
    ) -> Dataset:
        """Pair rows with those of another dataset that have equal keys: `users.join(visits, "inner", on="user")`.

        `join_type` is "inner", "left_outer", "right_outer", "full_outer", "left_semi", "right_semi", "left_anti" or
        "right_anti". `on` names the keys here, and `right_on` those of `ds` if they differ. Key columns appear once. A
        missing key, null or NaN, matches nothing; integers of any width match, and so do 0.0 and -0.0. The suffixes are
        appended to column names that both datasets have.

        The result is ordered by a hash of the keys, then by the positions of the left and the right row: the same in
        every epoch and with any number of processes. It has `num_partitions` units; by default, as many as its size
        requires. All rows with the same key must fit in memory; everything else is spilled to disk if necessary.

        Wrong columns raise now if the readers know the columns, and otherwise when rows are read. `validate_schemas`
        reads rows to find wrong columns now. The other two arguments have no effect.
        """
        _check_datasets("join", [ds])
        warn_unused(
            "join",
            {
                "partition_size_hint": partition_size_hint,
                "aggregator_ray_remote_args": aggregator_ray_remote_args,
            },
            ("partition_size_hint", "aggregator_ray_remote_args"),
        )
        keys = _check_names("join", on)
        right_keys = keys if right_on is None else _check_names("join", right_on)
        if len(right_keys) != len(keys):
            raise bad_value("right_on", f"as many columns as on, {len(keys)}", right_on)
        for name, suffix in (("left_suffix", left_suffix), ("right_suffix", right_suffix)):
            check_instance(name, suffix, str, "text", optional=True)
        how = check_choice("join_type", getattr(join_type, "value", join_type), JOIN_TYPES)
        spec = JoinSpec(how, keys, right_keys, left_suffix, right_suffix)
        if check_bool("validate_schemas", validate_schemas):
            schemas = [one.schema() for one in (self, ds)]
            known = [schema and dict(zip(schema.names, schema.types, strict=True)) for schema in schemas]
            if known[0] and known[1]:
                spec.infer_types(known[0], known[1])
        joined = Join(
            (self._plan, ds._plan), spec, check_int("num_partitions", num_partitions, at_least=1, optional=True)
        )
        known_types(joined)  # raises if columns that are known do not fit
        return Dataset(joined)

    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        strict: bool = False,
        shuffle: bool = False,
        keys: str | Sequence[str] | None = None,
        sort: bool = False,
    ) -> Dataset:
        """Redistribute the rows into `num_blocks` units, or into units of `target_num_rows_per_block` rows.

        With `keys`, rows with equal keys go to the same unit, by a hash of the keys; `sort` sorts each unit by them.
        Units always have exactly the number of rows, so `strict` has no effect.
        """
        names = () if keys is None else _check_names("repartition", keys)
        for name, value in (("strict", strict), ("sort", sort)):
            check_bool(name, value)
        return Dataset(
            Repartition(self._plan, num_blocks, target_num_rows_per_block, bool(shuffle), keys=names, sort=sort)
        )

    def random_shuffle(self, *, seed: int | None = None, num_blocks: int | None = None) -> Dataset:
        """Shuffle all rows, differently in every epoch. The default seed is 0.

        The result has `num_blocks` units; by default, as many as its size requires.
        """
        check_int("num_blocks", num_blocks, at_least=1, optional=True)
        return Dataset(RandomShuffle(self._plan, _check_seed(seed), num_blocks=num_blocks))

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Shuffle units, such as files, differently in every epoch. Rows within a unit keep their order."""
        return Dataset(ReorderUnits(self._plan, _check_seed(seed)))

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """Sample about `fraction` of the rows, each with the same probability. Every epoch samples the same rows."""
        check_number("fraction", fraction, at_least=0, at_most=1)
        return self._with_transform(RandomSample(float(fraction), _check_seed(seed)))

    def sort(
        self,
        key: str | Sequence[str],
        descending: bool | Sequence[bool] = False,
        boundaries: Sequence[float] | None = None,
    ) -> Dataset:
        """Sort by one or more columns. Missing values come last; the sort is stable.

        `boundaries` divides the result into units by the first key, which has numbers: with `[10, 20]`, into those
        below 10, from 10 to below 20, and from 20 on.
        """
        keys = _check_names("sort", key)
        directions = (descending,) * len(keys) if isinstance(descending, bool) else tuple(descending)
        if len(directions) != len(keys) or not all(isinstance(each, bool) for each in directions):
            raise bad_value("descending", "True or False, or one of them for each key", descending)
        if boundaries is not None:
            for value in boundaries:
                check_number("boundaries", value)
            if list(boundaries) != sorted(set(boundaries)):
                raise bad_value("boundaries", "different numbers in ascending order", boundaries)
        return Dataset(Sort(self._plan, keys, directions, None if boundaries is None else tuple(boundaries)))

    # Aggregates

    def groupby(self, key: str | Sequence[str] | None, num_partitions: int | None = None) -> GroupedData:
        """Group rows by one or more columns, to aggregate the groups or apply a function to each.

        The result has at most `num_partitions` units; by default, as many as its size requires.
        """
        return GroupedData(self._plan, key, num_partitions)

    def aggregate(self, *aggs: AggregateFn) -> dict[str, Any]:
        """Compute aggregates such as `Sum("x")` over all rows. Returns a dict from aggregate name to value.

        The methods for one aggregate, such as `sum`, return its value if there is only one column.
        """
        return plan_queries.compute_aggregates(self._plan, aggs)

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """Return the distinct values of a column, in no particular order. A null is one of them, unless ignored."""
        return list(self._aggregate_columns(column, lambda name: Unique(name, ignore_nulls)) or ())

    def summary(
        self,
        columns: Sequence[str] | None = None,
        override_dtype_agg_mapping: Mapping[Any, Callable[[str], Sequence[AggregateFnV2]]] | None = None,
    ) -> DatasetSummary:
        """Compute statistics of some columns, or of all, in one pass.

        Numbers: count, mean, smallest, largest, standard deviation, approximate median, percentages of missing values
        and of zeros. Times: count, smallest, largest, missing. Texts and bytes: count, missing, and the ten most
        frequent values, approximately. Lists, structs and tensors: count and missing. `override_dtype_agg_mapping`
        maps a type, such as `pyarrow.int64()`, to a function that returns the aggregates for a column of that type.
        """
        overrides = stats.check_overrides(override_dtype_agg_mapping)
        wanted = None if columns is None else _check_names("summary", columns)
        schema = self.schema() or Schema.from_columns((), ())
        types = dict(zip(schema.names, schema.types, strict=True))
        for name in wanted or ():
            if name not in types:
                raise KeyError(f"unknown column {name!r}; the columns are: {list_columns(types, name)}")
        chosen = {name: stats.choose_aggregates(types[name], overrides, name) for name in wanted or types}
        aggregates = [one for each in chosen.values() for one in each]
        values = plan_queries.compute_aggregates(self._plan, aggregates) if aggregates else {}
        return stats.make_summary(schema, chosen, values)

    # Splits

    def split(self, n: int, *, equal: bool = False, locality_hints: Any = None) -> list[Dataset]:
        """Split into `n` datasets of consecutive rows. With `equal`, surplus rows are dropped.

        As in all splits, the parts are the same in every epoch. `locality_hints` is accepted and ignored.
        """
        return [Dataset(part) for part in splits.split_evenly(self._plan, n, equal=equal)]

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """Split before each index: rows up to the first index, from there to the second, and so on."""
        return [Dataset(part) for part in splits.split_at_indices(self._plan, indices)]

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """Split by proportions, with one more dataset for the remainder: `[0.7, 0.2]` returns three."""
        return [Dataset(part) for part in splits.split_proportionately(self._plan, proportions)]

    def train_test_split(
        self,
        test_size: int | float,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        stratify: str | None = None,
    ) -> tuple[Dataset, Dataset]:
        """Split into train and test datasets. `test_size` is a fraction or a number of rows.

        With `stratify`, the name of a class column, each class has the same proportion in the test dataset.
        """
        train, test = splits.split_train_test(
            self._plan, test_size, shuffle=shuffle, seed=_check_seed(seed), stratify=stratify
        )
        return Dataset(train), Dataset(test)

    @with_options(TaskOptions)
    def streaming_train_test_split(
        self,
        test_size: float,
        *,
        split_type: Literal["random", "hash"] = "random",
        hash_column: str | None = None,
        seed: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> tuple[Dataset, Dataset]:
        """Split into train and test datasets without reading anything. About `test_size` of the rows are for testing.

        Each row is in the same part in every epoch: at random, by its number in its unit, or with `split_type="hash"`
        by the value of `hash_column`, so that rows with equal values stay together, also in other datasets.
        """
        warn_unused("streaming_train_test_split", options)
        check_number("test_size", test_size, above=0, below=1)
        check_choice("split_type", split_type, ("random", "hash"))
        if (split_type == "hash") != isinstance(hash_column, str):
            expected = "the name of a column" if split_type == "hash" else "None if split_type is 'random'"
            raise bad_value("hash_column", expected, hash_column)
        fixed = Dataset(splits.fix_order(self._plan))
        train, test = (
            fixed._with_transform(SplitRows(float(test_size), _check_seed(seed), hash_column, is_test))
            for is_test in (False, True)
        )
        return train, test

    def streaming_split(self, n: int, *, equal: bool = False, locality_hints: Any = None) -> list[DataIterator]:
        """Return `n` iterators that share one execution of the dataset.

        With `equal`, every iterator gets the same number of rows and the surplus rows, different ones in every epoch,
        are dropped; otherwise every row goes to exactly one iterator. `locality_hints` is accepted and ignored: rows
        are delivered to where they are consumed.
        """
        return splits.split_streaming(self._plan, n, equal=equal)

    # Inspection

    def schema(self, fetch_if_missing: bool = True) -> Schema | None:
        """Return the names and types of the columns, or None if there are no rows to infer them from.

        `fetch_if_missing=False` reads no rows, and returns None if the sources and steps do not tell the schema.
        """
        if self._schema is None and fetch_if_missing:
            self._schema = plan_queries.find_schema(self._plan)
        return self._schema or plan_queries.find_known_schema(self._plan)

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        schema = self.schema(fetch_if_missing)
        names = known_types(self._plan) if schema is None else schema.names
        return None if names is None else list(names)

    @property
    def context(self) -> DataContext:
        """The settings for all datasets of this process: `DataContext.get_current()`."""
        return DataContext.get_current()

    @property
    def name(self) -> str | None:
        """The name that `set_name` gave to this dataset. Datasets made from it do not inherit it."""
        return self._name

    def set_name(self, name: str | None) -> None:
        """Name this dataset, for `repr` and `get_dataset_id`."""
        if name is not None and not isinstance(name, str):
            raise bad_value("name", "a text or None", name)
        self._name = name

    def get_dataset_id(self) -> str:
        """Return a unique ID of this dataset, which starts with its name. A copy has its own ID."""
        self._id = self._id or uuid.uuid4().hex
        return f"{self._name or 'dataset'}_{self._id}"

    @staticmethod
    def copy(ds: Dataset) -> Dataset:
        """Return a dataset of the same rows, with the same name."""
        _check_datasets("copy", [ds])
        copied = type(ds)(ds._plan)
        copied._name = ds._name
        return copied

    def count(self) -> int:
        """Count the rows. Reads nothing if files or earlier steps know the count."""
        return plan_queries.count_rows(self._plan)

    def size_bytes(self) -> int | None:
        """Estimate the in-memory size of the rows that are read; None if the files do not provide it."""
        return plan_queries.estimate_bytes(self._plan)

    def input_files(self) -> list[str]:
        return plan_queries.list_input_files(self._plan)

    def num_blocks(self) -> int:
        raise NotImplementedError("a lazy dataset has no number of blocks\n\nhint: use materialize().num_blocks()")

    def explain(self) -> str:
        """Return the plan as text: as written, as optimized, and its stages. `print()` it."""
        return explain_plan(self._plan)

    def stats(self) -> str:
        """Return the timing of the last executions, stage by stage."""
        feeds = self._own_feeds()
        timing = feeds.stats()
        if not timing:
            return "the dataset has not been run yet"
        quality = feeds.mixing().quality()
        return timing if quality is None else f"{timing}\nshuffle: {quality:.2f} of 1"

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the first rows. Reads no more than needed."""
        return list(self._first_rows(limit).rows())

    def take_batch(self, batch_size: int = 20, *, batch_format: AnyFormat = "default") -> Any:
        """Return the first rows as one batch."""
        block = self._first_rows(batch_size, "batch_size")
        if not block.num_rows:
            raise ValueError("cannot take a batch: the dataset is empty")
        return block.to_batch(parse_batch_format(batch_format))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all rows. Raises if there are more than `limit`."""
        return list(self._all_rows(limit, "take_all").rows())

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def to_pandas(self, limit: int | None = None) -> Any:
        """Return all rows as a DataFrame. Raises if there are more than `limit`."""
        return self._all_rows(limit, "to_pandas").to_pandas()

    def materialize(self) -> MaterializedDataset:
        """Compute all rows now and keep them in memory; what does not fit is spilled to disk."""
        return MaterializedDataset(plan_queries.materialize_rows(self._plan))

    # Iteration

    def iterator(self) -> DataIterator:
        """Return a resumable iterator over the rows. Each iteration is the next epoch."""
        return DataIterator(self._own_feeds())

    def _as_iterator(self) -> DataIterator:
        return self.iterator()

    # Writers: each file appears whole or not at all

    write_parquet = write.write_parquet
    write_csv = write.write_csv
    write_json = write.write_json
    write_numpy = write.write_numpy
    write_images = write.write_images
    write_tfrecords = write.write_tfrecords
    write_webdataset = write.write_webdataset
    write_orc = write.write_orc
    write_delta = tables.write_delta
    write_iceberg = tables.write_iceberg
    write_lance = tables.write_lance
    write_sql = tables.write_sql
    write_datasink = datasink.write_datasink
    to_dask, to_modin = frames.to_dask, frames.to_modin
    to_daft, to_spark = frames.to_daft, frames.to_spark

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a Dataset is not iterable\n\nhint: use iter_rows(), iter_batches() or take()")

    def __repr__(self) -> str:
        types, num_rows = known_types(self._plan), plan_queries.known_num_rows(self._plan)
        pairs = ", ".join(f"{name}: {kind or '?'}" for name, kind in (types or {}).items())
        schema = "?" if types is None else f"{{{pairs}}}"
        name = "" if self._name is None else f"name={self._name!r}, "
        return f"{type(self).__name__}({name}num_rows={'?' if num_rows is None else num_rows}, schema={schema})"

    def _first_rows(self, limit: int, argument: str = "limit") -> Block:
        return plan_queries.read_first_rows(self._own_feeds(), check_int(argument, limit, at_least=0))

    def _all_rows(self, limit: int | None, method: str) -> Block:
        if limit is None:
            return Block.concat(plan_queries.stream_feed_blocks(self._own_feeds()))
        block = self._first_rows(limit + 1)
        if block.num_rows > limit:
            raise ValueError(f"{method}(limit={limit}): the dataset has more rows")
        return block

    def _aggregate_columns(self, on: str | Sequence[str] | None, of: Callable[[str], AggregateFn]) -> Any:
        names = self.columns() or () if on is None else _check_names("aggregate", on)
        values = plan_queries.compute_aggregates(self._plan, [of(name) for name in names]) if names else {}
        return next(iter(values.values()), None) if len(values) <= 1 else values

    def _own_feeds(self) -> Feeds:
        if self._feeds is None:
            self._feeds = LocalFeeds(self._plan)
        return self._feeds

    def _with_transform(self, transform: Transform) -> Dataset:
        return Dataset(Map(self._plan, transform))

    def _make_call(self, fn: Any, options: CallOptions) -> UserCall:
        warn_unused(getattr(fn, "__name__", "fn"), options, _UNUSED_CALL_OPTIONS)
        compute = parse_compute(options["compute"])
        gpus, cpus = options.get("num_gpus"), options.get("num_cpus")
        return UserCall(
            fn,
            tuple(options.get("fn_args") or ()),
            dict(options.get("fn_kwargs") or {}),
            tuple(options.get("fn_constructor_args") or ()),
            dict(options.get("fn_constructor_kwargs") or {}),
            resolve_pool(fn, compute, options["concurrency"], cpus, gpus),
            options["on_error"],
            compute.num_in_flight if isinstance(compute, ActorPoolStrategy) else DEFAULT_CALLS_IN_FLIGHT,
            last_row_change(self._plan),
        )


def _check_names(method: str, cols: str | Sequence[str]) -> tuple[str, ...]:
    names = (cols,) if isinstance(cols, str) else tuple(cols)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not names:
        raise TypeError(f"{method} takes names of columns, got {wrong[0] if wrong else cols!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{method} takes each column once, got {twice[0]!r} twice")
    return names


def _check_seed(seed: int | None) -> int:
    return check_int("seed", seed, optional=True) or 0


def _check_datasets(method: str, datasets: Sequence[Any]) -> None:
    for dataset in datasets:
        if not isinstance(dataset, Dataset):
            raise TypeError(f"{method} takes datasets, got a {type(dataset).__name__}")


@explain_calls
class MaterializedDataset(Dataset):
    """A dataset whose rows are already computed and kept."""

    def num_blocks(self) -> int:
        assert isinstance(self._plan, Read)
        return len(self._plan.source.units())
