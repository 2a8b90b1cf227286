"""Groups and aggregates, of groups and of all rows, against pandas, whatever the units, their types and the memory."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import reading, rows, tables

from paceline.data import aggregate as agg
from paceline.data.aggregate import AggregateFn, Count, Max, Mean, Min, Quantile, Std, Sum, Unique
from paceline.data.block import Block, as_numpy
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor, lower_plan
from paceline.data.grouped_data import MapGroups
from paceline.data.planning.barriers import GroupBy, GroupRows
from paceline.data.planning.group_aggregation import GroupAggregation
from paceline.data.planning.plan import Map, PoolSpec, Transform, TransformScope
from paceline.data.planning.sort_keys import SortKeys

KEYS = st.lists(st.sampled_from(["i", "f", "s"]), min_size=1, max_size=2, unique=True)

VALUES = AggregateFn(
    init=lambda key: (key, []),
    accumulate_row=lambda state, row: (state[0], [*state[1], row["id"]]),
    merge=lambda left, right: (left[0], [*left[1], *right[1]]),
    finalize=lambda state: str((type(state).__name__, sorted(state[1]))),
    name="mine",
)


def whole(plan, *aggregates):
    executor = InlineExecutor()
    pipeline = lower_plan(agg.plan_partial_aggregates(plan, aggregates), 0, lambda barrier, epoch: [])
    return agg.finish_aggregates(executor.run(pipeline), aggregates)


def is_text(value):
    return isinstance(value, str)


def alike(found, wanted):
    """Equal, with null, NaN and None all being missing."""
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        if theirs is None or theirs is pd.NA or (isinstance(theirs, float) and math.isnan(theirs)):
            assert mine is None or math.isnan(mine)
        elif isinstance(theirs, float):
            assert mine == pytest.approx(theirs, rel=1e-9)
        else:
            assert mine == theirs


@given(tables(), KEYS)
@settings(max_examples=40, deadline=None)
def test_groups_come_to_what_pandas_says(table, keys):
    grouped = table.frame.groupby(keys, dropna=False, sort=True)
    wanted = {
        "count()": (Count(), grouped["id"].size()),
        "valid": (Count("f", ignore_nulls=True, alias_name="valid"), grouped["f"].count()),
        "sum(i)": (Sum("i"), grouped["i"].sum()),
        "min(f)": (Min("f"), grouped["f"].min()),
        "max(s)": (Max("s"), grouped["s"].agg(lambda part: max(filter(is_text, part), default=None))),
        "mean(f)": (Mean("f"), grouped["f"].mean()),
        "std(id)": (Std("id"), grouped["id"].std()),
        "spread": (Std("f", ddof=0, alias_name="spread"), grouped["f"].std(ddof=0)),
        "abs_max(i)": (agg.AbsMax("i"), grouped["i"].agg(lambda part: part.abs().max())),
        "quantile(id)": (Quantile("id", 0.25), grouped["id"].quantile(0.25)),
        "count_distinct(s)": (agg.CountDistinct("s"), grouped["s"].nunique()),
        "mine": (VALUES, grouped["id"].agg(lambda part: str(("tuple", sorted(part))))),
    }
    found = rows(GroupBy(table.plan, tuple(keys), tuple(aggregate for aggregate, _ in wanted.values())))
    if not table.rows:
        assert found == []
        return
    index = grouped.size().index
    order = [index.get_level_values(name).tolist() for name in keys]
    for name, values in zip(keys, order, strict=True):
        alike([row[name] for row in found], [None if value is np.nan else value for value in values])
    assert list(found[0]) == [*keys, *wanted]
    for name, (_, series) in wanted.items():
        alike([row[name] for row in found], series.tolist())


@given(tables())
@settings(max_examples=50, deadline=None)
def test_all_rows_come_to_what_pandas_says(table):
    data = table.frame
    strict = [kind("f", ignore_nulls=False, alias_name=f"strict {kind.__name__}") for kind in (Sum, Mean, Std, Min)]
    usual = (Count(), Sum("f"), Min("s"), Max("f"), Mean("i"), Std("f"), Quantile("f", 0.75), Unique("s", True), VALUES)
    found = whole(table.plan, *usual, *strict)
    texts = [*filter(is_text, data["s"])]
    values = data["f"].dropna()
    complete = values if len(values) == len(data) else values[:0]
    wanted = {
        "count()": len(data),
        "sum(f)": values.sum(min_count=1),
        "min(s)": min(texts, default=None),
        "max(f)": values.max() if len(values) else None,
        "mean(i)": data["i"].mean(),
        "std(f)": values.std(),
        "quantile(f)": values.quantile(0.75),
        "unique(s)": [*dict.fromkeys(texts)],
        "mine": str(("tuple", [*range(len(data))])),
        "strict Sum": complete.sum(min_count=1),
        "strict Mean": complete.mean(),
        "strict Std": complete.std(),
        "strict Min": complete.min() if len(complete) else None,
    }
    assert list(found) == list(wanted)
    alike(list(found.values()), list(wanted.values()))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50), st.sampled_from([0.0, 1e6, 1e9]), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_a_deviation_keeps_its_digits_far_from_zero(values, origin, size):
    numbers = np.array(values) + origin
    plan = reading([Block({"x": numbers[begin : begin + size]}) for begin in range(0, len(numbers), size)])
    found = whole(plan, Std("x"), Mean("x"))
    assert found["std(x)"] == pytest.approx(float(np.std(numbers, ddof=1)), rel=1e-6, abs=1e-6)
    assert found["mean(x)"] == pytest.approx(float(np.mean(numbers)), rel=1e-12, abs=1e-12)


def test_units_of_other_types_are_aggregated_together():
    plan = reading([Block({"x": [None, None]}), Block({"x": np.array([1, 2])}), Block({"x": np.array([2.5])})])
    assert whole(plan, Sum("x"), Max("x"), Unique("x", ignore_nulls=True), Count("x", ignore_nulls=True)) == {
        "sum(x)": 5.5,
        "max(x)": 2.5,
        "unique(x)": [1.0, 2.0, 2.5],
        "count(x)": 3,
    }
    texts = reading([Block({"x": [None, None]}), Block({"x": ["b", "a"]})])
    zeros = reading([Block({"x": np.array([-0.0])}), Block({"x": np.array([0.0])})])
    assert whole(zeros, Unique("x"), agg.CountDistinct("x")) == {"unique(x)": [0.0], "count_distinct(x)": 1}
    assert whole(texts, Min("x"), Unique("x", ignore_nulls=False)) == {"min(x)": "a", "unique(x)": [None, "b", "a"]}


def test_a_block_is_accumulated_as_a_table_and_the_key_reaches_the_state():
    total = AggregateFn(
        init=lambda key: (key, 0),
        accumulate_block=lambda state, table: (state[0], state[1] + sum(table.column("x").to_pylist())),
        merge=lambda left, right: (left[0], left[1] + right[1]),
        finalize=str,
        name="total",
    )
    parts = {"k": np.array([1, 0, 1]), "t": ["a", "b", "a"], "x": np.arange(3)}, {"k": [0], "t": ["b"], "x": [5]}
    plan = reading([Block(part) for part in parts])
    assert [row["total"] for row in rows(GroupBy(plan, ("k",), (total,)))] == ["(0, 6)", "(1, 2)"]
    assert [row["total"] for row in rows(GroupBy(plan, ("k", "t"), (total,)))] == ["((0, 'b'), 6)", "((1, 'a'), 2)"]
    assert whole(plan, total) == {"total": "(None, 8)"}


@dataclass(frozen=True)
class Told(Transform):
    """What a function that gets groups sees: their ids, together."""

    name = "map_batches(told)"
    pool = PoolSpec(2, 3)

    def apply(self, blocks, scope):
        for block in blocks:
            yield Block({"ids": [str([row["id"] for row in block.rows()])], "size": np.array([block.num_rows])})


@given(tables(), KEYS)
@settings(max_examples=60, deadline=None)
def test_a_function_gets_each_group_whole(table, keys):
    found = rows(Map(GroupRows(table.plan, tuple(keys)), MapGroups(tuple(keys), Told())))
    groups = [group["id"].tolist() for _, group in table.frame.groupby(keys, dropna=False, sort=True)]
    assert [row["ids"] for row in found] == [str(ids) for ids in groups]


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_a_group_is_whole_however_its_rows_are_cut(keys, cuts):
    block = Block({"key": np.array(sorted(keys), np.int64), "id": np.arange(len(keys))})
    ends = sorted(min(place, len(keys)) for place in cuts)
    parts = (block.slice(begin, end) for begin, end in zip([0, *ends], [*ends, len(keys)], strict=True))
    found = [row["size"] for made in MapGroups(("key",), Told()).apply(parts, TransformScope()) for row in made.rows()]
    assert found == [keys.count(key) for key in sorted(set(keys))]


def test_a_group_is_in_one_unit_and_many_small_groups_come_in_few_blocks(data_context):
    each = MapGroups(("key",), Told())
    assert (each.pool, each.name) == (PoolSpec(2, 3), "map_groups(told)")
    small = reading([Block({"key": np.arange(1000), "id": np.arange(1000)})])
    units = resolve_barrier(GroupRows(small, ("key",)), 0, InlineExecutor())
    assert [block.num_rows for unit in units for block in each.apply(unit.read(), TransformScope())] == [1000]
    data_context.target_max_block_size = 200
    block = Block({"key": np.arange(1000) % 7, "id": np.arange(1000)})
    units = resolve_barrier(GroupRows(reading([block.slice(0, 400), block.slice(400)]), ("key",)), 0, InlineExecutor())
    seen = [{row["key"] for block in unit.read() for row in block.rows()} for unit in units]
    assert sum(map(len, seen)) == 7
    assert len(seen) > 3


@pytest.mark.parametrize("other", [[], [Unique("x")]], ids=["in a hash table", "in sorted rows"])
def test_the_groups_of_a_block_are_sorted_and_equal_keys_are_one_group(other):
    keys = pa.array([2.0, -0.0, None, 1.0, 0.0, float("nan"), 2.0])
    block = Block.from_arrow(pa.table({"k": keys, "x": range(7)}))
    aggregation = GroupAggregation(SortKeys.ascending(("k",)), (Sum("x"), Count(), *other))
    states, _ = aggregation.arrange(block, 0, 0)
    assert states.num_rows == 4
    groups = aggregation.finish_states([states]).to_pandas()
    assert groups["k"].tolist()[:3] == [0, 1, 2]
    assert groups["k"].isna().tolist() == [False, False, False, True]
    assert (groups["sum(x)"].tolist(), groups["count()"].tolist()) == ([5, 3, 6, 7], [2, 1, 2, 2])
    assert as_numpy(states.column("k"))[:3].tolist() == [0, 1, 2], "the exchange finds groups by bisection"
