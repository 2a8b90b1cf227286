"""Transforms give the rows that pandas gives, however rows are cut; where functions run; and wrong arguments."""

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import listed, numbers

from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.exec.pipeline import InlineExecutor, lower_epoch
from paceline.data.expressions import col, lit
from paceline.data.planning.plan import PoolSpec
from paceline.data.transforms.user_calls import ActorPoolStrategy, TaskPoolStrategy, resolve_pool

FORMATS = st.sampled_from(["default", "numpy", "pandas", "pyarrow", None])
UNITS = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=3)


@st.composite
def tables(draw):
    """A dataset in units of blocks, and all of its rows."""
    sizes = draw(UNITS)
    units, frames = [], []
    for unit in sizes:
        blocks = []
        for size in unit:
            column = st.lists(st.integers(-50, 50), min_size=size, max_size=size)
            frame = pd.DataFrame(
                {
                    "a": np.array(draw(column), "i8"),
                    "b": np.array(draw(column), "f4"),
                    "c": [f"w{value % 7}" for value in draw(column)],
                }
            ).astype({"c": "str"})
            blocks.append(frame)
            frames.append(frame)
        units.append(blocks)
    every = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"a": [], "b": [], "c": []})
    return listed(*units), every


def same(dataset, frame):
    rows = dataset.take_all()
    assert rows == [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]
    return True


@given(tables(), st.sampled_from([None, "auto"]) | st.integers(1, 7), FORMATS)
@settings(max_examples=60, deadline=None)
def test_map_batches_sees_each_row_once_in_every_format(table, batch_size, batch_format):
    dataset, frame = table
    sizes = []

    def doubled(batch):
        sizes.append(len(batch["a"]))
        if isinstance(batch, dict):
            return {**batch, "a": batch["a"] * 2}
        if isinstance(batch, pd.DataFrame):
            return batch.assign(a=batch["a"] * 2)
        assert isinstance(batch, pa.Table)
        return batch.set_column(0, "a", pa.array(batch["a"].to_numpy() * 2))

    mapped = dataset.map_batches(doubled, batch_size=batch_size, batch_format=batch_format)
    assert same(mapped, frame.assign(a=frame["a"] * 2))
    assert 0 not in sizes
    assert batch_size in (None, "auto") or all(size <= batch_size for size in sizes)


def test_batches_span_blocks_but_not_units():
    sizes = []
    dataset = numbers([3, 0, 4], [5], [2]).map_batches(lambda b: sizes.append(b["id"].tolist()) or b, batch_size=4)
    assert [row["id"] for row in dataset.take_all()] == [*range(14)]
    assert sizes == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10], [11], [12, 13]]


@given(tables())
@settings(max_examples=40, deadline=None)
def test_rows_go_through_map_flat_map_and_filter(table):
    dataset, frame = table
    assert same(dataset.map(lambda row: {"s": row["a"] + row["b"]}), pd.DataFrame({"s": frame["a"] + frame["b"]}))
    assert same(dataset.filter(lambda row: row["a"] % 3 == 0), frame[frame["a"] % 3 == 0])
    assert same(dataset.filter(expr="a % 3 == 0 and b > 0"), frame[(frame["a"] % 3 == 0) & (frame["b"] > 0)])
    assert same(dataset.filter(col("c").is_in(["w1", "w2"])), frame[frame["c"].isin(["w1", "w2"])])
    repeated = frame.loc[frame.index.repeat(frame["a"].clip(0, 2))]
    assert same(dataset.flat_map(lambda row: [row] * min(max(row["a"], 0), 2)), repeated)
    assert same(dataset.flat_map(lambda row: (row for _ in range(min(max(row["a"], 0), 2)))), repeated)


@given(tables())
@settings(max_examples=40, deadline=None)
def test_columns_are_chosen_named_and_computed(table):
    dataset, frame = table
    assert same(dataset.select_columns(["c", "a"]), frame[["c", "a"]])
    assert same(dataset.select_columns("b"), frame[["b"]])
    assert same(dataset.drop_columns(["b"]), frame.drop(columns="b"))
    assert same(dataset.rename_columns({"a": "b", "b": "a"}), frame.rename(columns={"a": "b", "b": "a"}))
    assert same(dataset.rename_columns(["x", "y", "z"]), frame.set_axis(["x", "y", "z"], axis=1))
    assert same(dataset.with_column("d", col("a") * 2 - lit(1)), frame.assign(d=frame["a"] * 2 - 1))
    assert same(dataset.with_column("a", col("a") + 1), frame.assign(a=frame["a"] + 1))
    assert same(dataset.add_column("d", lambda df: df["a"] + 1), frame.assign(d=frame["a"] + 1))
    added = dataset.add_column("d", lambda batch: batch["a"] + 1, batch_format="numpy")
    assert same(added, frame.assign(d=frame["a"] + 1))


@given(UNITS, st.floats(0, 1), st.integers(0, 2**70))
@settings(max_examples=40, deadline=None)
def test_a_sample_is_the_same_however_units_are_cut_into_blocks(sizes, fraction, seed):
    cut = numbers(*sizes).random_sample(fraction, seed=seed)
    whole = numbers(*([sum(unit)] for unit in sizes)).random_sample(fraction, seed=seed)
    assert cut.take_all() == whole.take_all() == cut.take_all()
    assert numbers(*sizes).random_sample(1).count() == sum(map(sum, sizes))
    assert numbers(*sizes).random_sample(0).count() == 0


def test_a_sample_has_about_its_fraction_of_the_rows_and_another_with_another_seed():
    dataset = numbers([5000], [5000])
    found = [{row["id"] for row in dataset.random_sample(0.3, seed=seed).take_all()} for seed in range(3)]
    assert all(2700 < len(sample) < 3300 for sample in found)
    assert 750 < len(found[0] & found[1]) < 1050
    first = {number for number in found[0] if number < 5000}
    assert first != {number - 5000 for number in found[0] if number >= 5000}


def test_arguments_reach_functions():
    def plus(batch, first, *, second):
        return {"id": batch["id"] + first + second}

    added = numbers([2]).map_batches(plus, fn_args=(10,), fn_kwargs={"second": 100})
    assert [row["id"] for row in added.take_all()] == [110, 111]
    by_row = numbers([2]).map(lambda row, k: {"id": row["id"] * k}, fn_args=[5])
    assert [row["id"] for row in by_row.take_all()] == [0, 5]
    kept = numbers([4]).filter(lambda row, k: row["id"] > k, fn_kwargs={"k": 1})
    assert [row["id"] for row in kept.take_all()] == [2, 3]
    flat = numbers([2]).flat_map(lambda row, k: [row] * k, fn_args=(2,))
    assert [row["id"] for row in flat.take_all()] == [0, 0, 1, 1]


def test_a_batch_may_be_written_to_and_without_copies_it_is_the_memory_it_came_in():
    source, seen = np.arange(4), []

    def double(batch):
        for array in batch.values():
            array *= 2
        return batch

    for given_ in ({"x": source}, pa.table({"x": source})):
        for zero_copy_batch in (True, False):
            dataset = listed([given_]).map_batches(double, zero_copy_batch=zero_copy_batch)
            assert [row["x"] for row in dataset.take_all()] == [0, 2, 4, 6]
            assert source.tolist() == [0, 1, 2, 3]
    listed([{"x": source}]).map_batches(lambda b: seen.append(b["x"]) or b, zero_copy_batch=True).take_all()
    assert np.shares_memory(seen[0], source)


def test_rows_that_grow_are_cut_into_blocks_of_the_stated_size(monkeypatch):
    context = DataContext(target_max_block_size=1000)
    monkeypatch.setattr(DataContext, "_current", context)
    dataset = numbers([10]).map(lambda row: {"x": np.full(50, row["id"], "f8")})
    batches = list(dataset.iter_batches(batch_size=None))
    assert [len(batch["x"]) for batch in batches] == [3, 3, 3, 1]


class Counted:
    """Counts its calls, and how many of it were made."""

    made = 0

    def __init__(self, start, *, step=1):
        type(self).made += 1
        self.number, self.step = start, step

    def __call__(self, batch):
        self.number += self.step
        return {"call": np.full(len(batch["id"]), self.number)}


def test_a_class_is_made_once_for_each_use_in_a_process_and_keeps_its_state():
    one = numbers([2, 2], [2]).map_batches(
        Counted, fn_constructor_args=(10,), fn_constructor_kwargs={"step": 2}, concurrency=1
    )
    other = numbers([1]).map_batches(Counted, fn_constructor_args=(100,))
    plan = one.union(other)._plan
    Counted.made = 0
    executor = InlineExecutor()
    calls = [
        row["call"]
        for each in (cloudpickle.loads(cloudpickle.dumps(plan)), plan)
        for delivered in executor.run(lower_epoch(each, 0, executor))
        for row in delivered.block.rows()
    ]
    assert calls == [12, 12, 14, 14, 16, 16, 101, 18, 18, 20, 20, 22, 22, 102]
    assert Counted.made == 2


class Model:
    def __call__(self, batch):
        return batch


def function(batch):
    return batch


def choose_pool(fn, **given):
    return resolve_pool(fn, **{"compute": None, "concurrency": None, "num_cpus": None, "num_gpus": None, **given})


@pytest.mark.parametrize(
    ("fn", "given", "pool"),
    [
        (function, {}, None),
        (function, {"concurrency": 4}, None),
        (function, {"compute": TaskPoolStrategy(3)}, None),
        (function, {"compute": "tasks"}, None),
        (function, {"compute": "actors"}, PoolSpec(1, 4)),
        (function, {"num_gpus": 1}, PoolSpec(1, 1, 1.0, 1.0)),
        (function, {"num_gpus": 0.5, "concurrency": 4}, PoolSpec(1, 4, 1.0, 0.5)),
        (function, {"compute": ActorPoolStrategy(size=2)}, PoolSpec(2, 2)),
        (Model, {}, PoolSpec(1, 4)),
        (Model, {"num_cpus": 2}, PoolSpec(1, 2, 2.0)),
        (Model, {"concurrency": 3}, PoolSpec(3, 3)),
        (Model, {"concurrency": (2, 5)}, PoolSpec(2, 5)),
        (Model, {"compute": ActorPoolStrategy(min_size=2)}, PoolSpec(2, 4)),
        (Model, {"compute": ActorPoolStrategy(min_size=8)}, PoolSpec(8, 8)),
        (Model, {"compute": ActorPoolStrategy(max_size=6)}, PoolSpec(1, 6)),
        (Model, {"compute": ActorPoolStrategy(min_size=1, max_size=4, initial_size=3)}, PoolSpec(3, 4)),
        (Model, {"num_gpus": 1, "concurrency": 2}, PoolSpec(2, 2, 1.0, 1.0)),
    ],
)
def test_the_pool_follows_from_the_arguments(fn, given, pool, monkeypatch):
    monkeypatch.setattr(DataContext, "_current", DataContext(ExecutionOptions(ExecutionResources(cpu=4))))
    assert choose_pool(fn, **given) == pool
