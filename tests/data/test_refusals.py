"""What makes no sense is refused where it is said, by the name of the argument, before a row is read."""

import sqlite3
import threading
from functools import partial

import jax  # noqa: F401  it sets variables of the environment when it is first imported
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from made_datasets import numbers, reading

from numbered_rows import Rows
from paceline import data
from paceline.data import ActorPoolStrategy, BlockMetadata, Datasource, ReadTask, TaskPoolStrategy, col, read_datasource
from paceline.data import aggregate as agg
from paceline.data.block import Block
from paceline.data.expressions import random, udf, unnest
from paceline.data.grouped_data import GroupedData
from paceline.data.iterator import DataIterator
from paceline.data.order.sharding import WorkerShard
from paceline.data.planning.barriers import Repartition
from paceline.data.read import read_csv, read_sql
from paceline.data.sources.files import list_files

DS, X = numbers([3]), col("x")
ROWS, OTHER = data.from_items([{"id": 1, "v": 1}]), data.from_items([{"id": 1, "v": 2, "s": "a", "f": 0.5}])
LATE = OTHER.map(dict.copy)  # whose columns are not known
NOTHING, LOCK = reading([]), threading.Lock()


def same(batch):
    return batch


async def later(row):
    return row


class Model:
    def __init__(self, start):
        self.start = start

    def __call__(self, batch):
        return batch


class Tasks(Datasource):
    def __init__(self, *tasks, size=None):
        self.tasks, self.size = tasks, size

    def estimate_inmemory_data_size(self):
        return self.size

    def get_read_tasks(self, parallelism):
        return list(self.tasks)


def read_tasks(*tasks, **options):
    return read_datasource(Tasks(*tasks), **options)


def join(**arguments):
    return ROWS.join(OTHER, **{"join_type": "inner", **arguments})


def iterate(method, **arguments):
    return getattr(DataIterator(Rows([4], columns=lambda ids: {"x": ids})), method)(**arguments)


batches, to_torch, to_jax = (partial(iterate, f"iter_{kind}batches") for kind in ("", "torch_", "jax_"))


def pad(**arguments):
    return list(data.range(5).iter_jax_batches(**{"batch_size": 2, **arguments}))


def query(sql="SELECT 1", connection_factory=sqlite3.connect, **more):
    return read_sql(sql, connection_factory, **more)


def share(global_batch_size, num_workers=4):
    return DataIterator(Rows([100]), WorkerShard(0, num_workers, "equal"), global_batch_size=global_batch_size)


VALUE, TYPE, KEY, NAME = ValueError, TypeError, KeyError, AttributeError
REFUSED = [
    # Steps and what they are given
    (lambda: DS.map_batches(5), TYPE, "fn must be a function or a class with __call__, got 5"),
    (lambda: DS.map_batches(same, batch_size=0), VALUE, "batch_size must be a positive integer .*, got 0"),
    (lambda: DS.map_batches(same, batch_format="tensor"), VALUE, "batch_format must be 'default'"),
    (lambda: DS.map_batches(same, on_error="ignore"), VALUE, "on_error must be 'raise' or 'skip'"),
    (lambda: DS.map_batches(same, fn_constructor_args=(1,)), VALUE, "for classes, got .* same"),
    (lambda: DS.map(dict), TYPE, "got dict, a class without it"),
    (lambda: DS.add_column("y", later), TYPE, "got later, which is async"),
    (lambda: DS.filter(), VALUE, "filter takes a function or an expression"),
    (lambda: DS.filter(expr=5), TYPE, "expr must be text"),
    (lambda: DS.filter(expr="id >"), VALUE, "cannot parse expr 'id >'"),
    (lambda: DS.select_columns(["id", 5]), TYPE, "select_columns takes names of columns, got 5"),
    (lambda: DS.select_columns(["id", "id"]), VALUE, "select_columns takes each column once, got 'id' twice"),
    (lambda: DS.rename_columns({"a": "x", "b": "x"}), VALUE, "rename_columns takes .* once, got 'x' twice"),
    (lambda: DS.with_column("x", same), TYPE, "hint: use add_column for a function"),
    (lambda: DS.with_column("y", unnest(X)), TYPE, "one column"),
    (lambda: DS.with_columns(), VALUE, "at least one"),
    (lambda: DS.with_columns(same), TYPE, "with_columns|exprs? must"),
    (lambda: DS.with_columns(X + 1), TYPE, "exprs must have names"),
    (lambda: DS.with_columns({"a": len}), TYPE, "with_columns|exprs? must"),
    (lambda: DS.with_columns({3: X}), (TYPE, VALUE), "column_name must"),
    (lambda: DS.with_columns({"x": 1}, X), (TYPE, VALUE), "with_columns|exprs? must"),
    (lambda: DS.random_sample(1.5), VALUE, "fraction must be a number of at least 0 and of at most 1, got 1.5"),
    (lambda: DS.random_sample(0.5, seed="x"), VALUE, "seed must be an integer or None, got 'x'"),
    (lambda: DS.random_shuffle(num_blocks=0), VALUE, "num_blocks must be a positive integer or None, got 0"),
    (lambda: DS.limit(-1), VALUE, "limit must be a non-negative integer, got -1"),
    (lambda: DS.union([1]), TYPE, "union takes datasets, got a list"),
    (lambda: DS.sort("id", descending=[True, False]), VALUE, "descending must be True or False"),
    (lambda: DS.sort("id", boundaries=[2, 1]), VALUE, "boundaries must be different numbers in ascending order"),
    (lambda: DS.repartition(2, shuffle=True, keys="id"), VALUE, "keys takes num_blocks, and not shuffle"),
    (lambda: DS.repartition(2, sort=True), VALUE, "sort=True takes keys"),
    (lambda: Repartition(NOTHING), VALUE, "repartition"),
    (lambda: Repartition(NOTHING, 0), VALUE, "num_blocks must be a positive integer or None, got 0"),
    (lambda: Repartition(NOTHING, 2, target_num_rows_per_block=2), VALUE, "repartition"),
    (lambda: DS.split_at_indices([]), VALUE, "indices must be one index or more"),
    (lambda: DS.split_at_indices([3, 1]), VALUE, r"in ascending order, got \[3, 1\]"),
    (lambda: DS.split_proportionately([0.5, 0.5]), VALUE, "must add up to less than 1"),
    (lambda: DS.split_proportionately([1.5]), VALUE, "proportions must be .* above 0 and below 1, got 1.5"),
    (lambda: DS.train_test_split(1.5), VALUE, "test_size must be a fraction between 0 and 1 .* got 1.5"),
    (lambda: DS.streaming_split(0), VALUE, "n must be a positive integer, got 0"),
    (lambda: DS.streaming_train_test_split(1.5), VALUE, "test_size must be a number above 0 and below 1, got 1.5"),
    (lambda: DS.streaming_train_test_split(0.5, split_type="x"), VALUE, "must be 'random' or 'hash', got 'x'"),
    (lambda: DS.streaming_train_test_split(0.5, split_type="hash"), VALUE, "hash_column must be the name of"),
    (lambda: DS.streaming_train_test_split(0.5, hash_column="id"), VALUE, "hash_column must be None"),
    (lambda: ROWS.mix(ROWS, weights=[1]), VALUE, "weights must be a list of 2 numbers"),
    (lambda: ROWS.mix(ROWS, weights=[1, 0]), VALUE, "weights must be a positive number, got 0"),
    (lambda: ROWS.mix(ROWS, stopping_condition="longest"), VALUE, "stopping_condition must be .* got 'longest'"),
    (lambda: iter(DS), TYPE, r"hint: use iter_rows\(\), iter_batches\(\) or take\(\)"),
    (lambda: DS.num_blocks(), NotImplementedError, r"hint: use materialize\(\).num_blocks\(\)"),
    (lambda: DS.take_all(limit=2), VALUE, r"take_all\(limit=2\): the dataset has more rows"),
    (lambda: DS.to_pandas(limit=2), VALUE, r"to_pandas\(limit=2\)"),
    (lambda: numbers([0]).take_batch(), VALUE, "the dataset is empty"),
    (lambda: DS.set_name(3), (TYPE, VALUE), "name must be"),
    (lambda: data.Schema(["a"]), TYPE, "base_schema must be"),
    # Processes for functions
    (lambda: DS.map(Model, num_cpus=-1), VALUE, "num_cpus must be a non-negative number or None, got -1"),
    (lambda: DS.map(Model, concurrency=0), VALUE, "concurrency must be a positive integer, got 0"),
    (lambda: DS.map(Model, concurrency=(3, 2)), VALUE, r"concurrency must be .* got \(3, 2\)"),
    (lambda: DS.map(same, concurrency=(1, 2)), VALUE, "concurrency must be one integer for a function"),
    (lambda: DS.map(Model, compute=TaskPoolStrategy()), VALUE, "is for functions"),
    (lambda: DS.map(Model, compute=TaskPoolStrategy(), concurrency=2), VALUE, "cannot be combined"),
    (lambda: DS.map(Model, compute=5), TYPE, "compute must be an ActorPoolStrategy or a TaskPool"),
    (lambda: DS.map(same, compute="gpu"), VALUE, "compute must be 'actors' or 'tasks', got 'gpu'"),
    (lambda: ActorPoolStrategy(size=2, min_size=1), VALUE, "either size or min_size and max_size"),
    (lambda: ActorPoolStrategy(size=2, initial_size=1), VALUE, "takes either size or min_size"),
    (lambda: ActorPoolStrategy(min_size=3, max_size=2), VALUE, "min_size must be at most max_size=2, got 3"),
    (lambda: ActorPoolStrategy(None, 2, 4, initial_size=5), VALUE, "between min_size=2 and max_size=4"),
    (lambda: ActorPoolStrategy(max_tasks_in_flight_per_actor=0), VALUE, "max_tasks_in_flight_per_actor must be"),
    (lambda: TaskPoolStrategy(-1), VALUE, r"TaskPoolStrategy.size must be a positive integer or None, got -1"),
    # Joins
    (lambda: join(join_type="outer"), VALUE, "join_type must be 'inner', 'left_outer'.* got 'outer'"),
    (lambda: join(num_partitions=0), VALUE, "num_partitions must be a positive integer or None, got 0"),
    (lambda: join(), VALUE, "two columns of the result would have the name 'v'"),
    (lambda: join(left_suffix="_x", right_suffix="_x"), VALUE, "the name 'v_x'"),
    (lambda: join(on="x"), (KEY, VALUE), "the left dataset has no column 'x'; its columns are: 'id', 'v'"),
    (lambda: join(right_on=("id", "v")), VALUE, "right_on must be as many columns as on, 1"),
    (lambda: join(right_on="s", right_suffix="_r"), TYPE, "must have comparable types, got int64 and string"),
    (lambda: join(right_on="f", right_suffix="_r"), TYPE, "must have comparable types, got int64 and double"),
    (lambda: ROWS.join(LATE, "inner", validate_schemas=True), VALUE, "the name 'v'"),
    (lambda: LATE.join(ROWS, "inner", on="s", right_on="id", right_suffix="r").take_all(), TYPE, "comparable types"),
    # Groups and aggregates
    (lambda: OTHER.sum("s"), TYPE, r"sum\(s\): .* 's' must have numbers, got string"),
    (lambda: DS.groupby("id", 0), VALUE, "num_partitions must be a positive integer or None, got 0"),
    (lambda: GroupedData(NOTHING, ["k", "k"]), VALUE, "key must be the name of a column"),
    (lambda: GroupedData(NOTHING, [1]), VALUE, "key must be the name of a column"),
    (lambda: agg.check_aggregates([agg.Sum("x"), agg.Sum("x")]), VALUE, r"different names, got two of 'sum\(x\)'"),
    (lambda: agg.check_aggregates([agg.Sum("x", alias_name="x")], ["x"]), VALUE, "got two of 'x'"),
    (lambda: agg.check_aggregates(["sum"]), TYPE, "an aggregate must be an AggregateFn"),
    (lambda: agg.check_aggregates([]), VALUE, "at least one aggregate"),
    (lambda: agg.AggregateFn(init=same, merge=max, name="x"), VALUE, "either accumulate_row or accumulate_block"),
    (lambda: agg.AggregateFnV2("p", int, on="x", ignore_nulls=True), TYPE, "abstract"),
    (lambda: agg.Sum(None), (TYPE, VALUE), "on must be the name of a column"),
    (lambda: agg.ValueCounter(3), (TYPE, VALUE), "on must be the name of a column"),
    (lambda: agg.ApproximateQuantile("x", []), VALUE, "quantiles must be"),
    (lambda: agg.ApproximateQuantile("x", [2]), VALUE, "quantiles must be"),
    (lambda: agg.ApproximateTopK("x", 0), VALUE, "k must be"),
    (lambda: agg.Unique("x", encode_lists="sorted"), (TYPE, VALUE), "encode_lists must be"),
    (lambda: agg.Sum("y").output_field(pa.schema({"x": pa.int64()})), KEY, "unknown column 'y'"),
    (lambda: DS.summary(["b"]), KEY, "unknown column 'b'"),
    (lambda: DS.summary(None, {"a": len}), (TYPE, VALUE), "override_dtype_agg_mapping must be"),
    (lambda: DS.summary(None, {pa.int64(): [agg.Sum("a")]}), (TYPE, VALUE), "override_dtype_agg_mapping must be"),
    (lambda: DS.summary(["id"]).get_column_stats("aa"), KEY, "unknown column 'aa'"),
    # Expressions
    (lambda: X.str.center("a"), TYPE, r"str\.center\(width='a'\): an integer"),
    (lambda: X.str.match_regex("("), VALUE, r"str\.match_regex\(pattern='\('\)"),
    (lambda: X.str.pad(3, side="up"), VALUE, "side must be"),
    (lambda: X.str.upper(1), TYPE, "str.upper: too many"),
    (lambda: X.str.uper(), NAME, "did you mean 'upper'"),
    (lambda: X.list.slice(-1), VALUE, "start must be"),
    (lambda: X.dt.floor("eon"), VALUE, "dt.floor"),
    (lambda: X.map["a"], TYPE, "map cannot be indexed"),
    (lambda: X.cast("colour"), VALUE, "target_type must be a DataType"),
    (lambda: X.is_in(X), TYPE, "values must be a list"),
    (lambda: X.get_type("x"), VALUE, "input_schema must be a pyarrow"),
    (lambda: unnest(unnest(X)), TYPE, "already several columns"),
    (lambda: udf(int)(len)(3), TYPE, "must be given an expression"),
    (lambda: udf(int)(lambda a, b: a)(X), TYPE, "missing a required argument: 'b'"),
    (lambda: random(seed="a"), VALUE, "seed must be"),
    (lambda: bool(X > 1), TYPE, "join conditions with & and"),
    # Rows in memory
    (lambda: data.from_items([1, {"a": 1}]), VALUE, "items must be all dicts or none"),
    (lambda: data.from_items([{"a": 1}, 2]), VALUE, "items must be all dicts or none"),
    (lambda: data.from_items("text"), VALUE, "must be a list of rows"),
    (lambda: data.from_items({"a": 1}), VALUE, "must be a list of rows"),
    (lambda: data.from_pandas({"a": [1]}), VALUE, "dfs must be a DataFrame or a list of them, got a dict"),
    (lambda: data.from_numpy([1, 2]), VALUE, "ndarrays must be a ndarray or a list of them, got a int"),
    (lambda: data.from_blocks(pa.table({"x": [1]})), TYPE, "blocks must be a list"),
    (lambda: data.range(-1), VALUE, "n must be a non-negative integer, got -1"),
    (lambda: data.range(1.5), VALUE, "n must be a non-negative integer, got 1.5"),
    (lambda: data.range(3, parallelism=2, override_num_blocks=2), VALUE, "cannot be combined"),
    (lambda: data.range_tensor(3, shape=(-1,)), VALUE, "shape must be a tuple of sizes"),
    (lambda: Block.from_batch({"x": [1, 2], "y": [1]}), VALUE, "equally many rows, got 2 in 'x', 1 in 'y'"),
    (lambda: Block.from_batch({"x": "text"}), TYPE, "the column 'x' of a batch must be an array or a list"),
    (lambda: Block.from_batch({"x": np.float32(5)}), VALUE, "'x' of a batch must have a value for each row"),
    (lambda: Block.from_batch([1, 2]), TYPE, "got list"),
    (lambda: Block.from_batch(pd.DataFrame([[1, 2]], columns=["x", "x"])), VALUE, "different names, got two of 'x'"),
    (lambda: Block.from_batch(pa.table([[1], [1]], names=["x", "x"])), VALUE, "different names"),
    # Files, sources and databases
    (lambda: list_files([]), VALUE, "at least one path"),
    (lambda: list_files(3), VALUE, "paths must be a path"),
    (lambda: list_files("x", 3), VALUE, "filesystem must be a filesystem of pyarrow or fsspec, got 3"),
    (lambda: list_files("x", file_extensions="csv"), VALUE, "file_extensions must be a list"),
    (lambda: list_files("x", partitioning="dir"), VALUE, "partitioning must be 'hive' or None, got 'dir'"),
    (lambda: list_files("x", ignore_missing_paths=1), VALUE, "ignore_missing_paths must be True or False, got 1"),
    (lambda: list_files("nonsense://x/y"), VALUE, "nonsense"),
    (lambda: list_files("s3://bucket/x?colour=blue"), VALUE, "unknown option 'colour' of paths 's3://bucket/x'"),
    (lambda: read_csv("/", arrow_open_stream_args={"compression": "rar"}), VALUE, "arrow_open_stream_args must be"),
    (lambda: read_csv("/", arrow_open_stream_args={"codec": "gzip"}), VALUE, "arrow_open_stream_args must be"),
    (lambda: read_csv("/", arrow_open_stream_args=["gzip"]), VALUE, "arrow_open_stream_args must be"),
    (lambda: read_csv("/", arrow_open_stream_args={"buffer_size": "big"}), VALUE, "arrow_open_stream_args must be"),
    (lambda: read_datasource(Tasks), (TYPE, VALUE), "must be an instance of a paceline.data.Datasource"),
    (lambda: read_datasource("train/"), (TYPE, VALUE), "must be an instance of a paceline.data.Datasource"),
    (lambda: read_datasource(Datasource()), NotImplementedError, "Datasource must implement get_read_tasks"),
    (lambda: read_tasks(override_num_blocks=0), VALUE, "override_num_blocks must be .*got 0"),
    (lambda: read_datasource(Tasks(size=-1)), VALUE, "must be a non-negative integer or None, got -1"),
    (lambda: ReadTask([1]), TYPE, "read_fn must be a function"),
    (lambda: ReadTask(list, per_task_row_limit=-1), VALUE, "per_task_row_limit must be a non-negative .*, got -1"),
    (lambda: read_tasks(ReadTask(list, BlockMetadata(num_rows=-1))), VALUE, "num_rows of .* must be a non-neg.*-1"),
    (lambda: read_tasks(ReadTask(lambda: [LOCK])), TYPE, "cannot pickle"),
    (lambda: read_tasks(*[ReadTask(list, name="a")] * 2), VALUE, "different names, got two of 'a'"),
    (lambda: read_tasks(pa.table({})), TYPE, r"must return a list of paceline\.data.ReadTask, got a Table"),
    (lambda: query(sql=" "), VALUE, "sql must be a query, got ' '"),
    (lambda: query(connection_factory="a.db"), TYPE, r"connection_factory must be a function(.|\n)*hint: .*lambda"),
    (lambda: query(override_num_blocks=4), VALUE, "override_num_blocks=4 needs shard_keys"),
    (lambda: query(shard_keys="id", override_num_blocks=4), (TYPE, VALUE), "shard_keys must be a list"),
    # Batches
    (lambda: batches(batch_size=0), VALUE, "batch_size must be a positive integer or None, got 0"),
    (lambda: batches(batch_size=True), VALUE, "batch_size must be a positive integer or None, got True"),
    (lambda: batches(prefetch_batches=-1), VALUE, "prefetch_batches must be a non-negative integer, got -1"),
    (lambda: batches(batch_format="arrow"), VALUE, "must be 'default', 'numpy', 'pandas' or 'pyarrow', got 'arrow'"),
    (lambda: batches(drop_last=1), VALUE, "drop_last must be True or False, got 1"),
    (lambda: batches(local_shuffle_buffer_size=0), VALUE, "local_shuffle_buffer_size must be a positive .* got 0"),
    (lambda: batches(_collate_fn=3), VALUE, "_collate_fn must be a function or None, got 3"),
    (lambda: to_torch(device="gpu0"), VALUE, "a torch.device or None, got 'gpu0'"),
    (lambda: to_torch(dtypes="float32"), VALUE, "dtypes must be a torch.dtype or a dict .*, got 'float32'"),
    (lambda: to_torch(dtypes={"z": torch.float32}), VALUE, "dtypes has an unknown column 'z'; the columns are: 'x'"),
    (lambda: to_torch(dtypes=torch.int8, collate_fn=len), VALUE, "dtypes and collate_fn cannot be combined"),
    (lambda: to_torch(collate_fn=3), VALUE, "collate_fn must be a function or None, got 3"),
    (lambda: to_torch(pin_memory=1), VALUE, "pin_memory must be True or False, got 1"),
    (lambda: to_jax(dtypes="z"), VALUE, "dtypes must be a type such as jax.numpy.float32, or a dict .*, got 'z'"),
    (lambda: to_jax(dtypes={"z": np.float32}), VALUE, "dtypes has an unknown column 'z'; the columns are: 'x'"),
    (lambda: to_jax(device="cpu"), VALUE, r"device must be one of jax.devices\(\) or None, got 'cpu'"),
    (lambda: to_jax(sharding="x"), VALUE, "sharding must be a jax.sharding.Sharding or None, got 'x'"),
    (lambda: to_jax(collate_fn=3), VALUE, "collate_fn must be a function or None"),
    (lambda: to_jax(collate_fn=len, dtypes="int8"), VALUE, "dtypes and collate_fn cannot be combined"),
    (lambda: pad(paddings=1.5), VALUE, "paddings must fit the type of each column, got 1.5 for 'id' of int64"),
    (lambda: pad(paddings={"x": 1}), VALUE, "paddings must have a value for each column, got none for 'id'"),
    (lambda: pad(paddings=1, batch_size=None), VALUE, "paddings needs a batch_size, got None"),
    (lambda: pad(collate_fn=lambda batch: 3), TYPE, "collate_fn must return an array or a dict of arrays, got int"),
    (lambda: share(40).iter_batches(batch_size=40), VALUE, "must be 10, the share of each of 4 .*=40, got 40"),
    (lambda: share(40).iter_batches(batch_size=None), VALUE, "must be 10, the share of each of 4 .*=40, got None"),
    (lambda: share(10), VALUE, "global_batch_size must be a multiple of the number of workers, 4, got 10"),
    (lambda: iter(DataIterator(Rows([1]))), TYPE, "iter_batches"),
    (lambda: share(0), VALUE, "global_batch_size must be a positive integer or None, got 0"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_makes_no_sense_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
