"""Aggregates of groups and of all rows against pandas, whatever the units, their types and the memory."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_of import Table, frame, reading, rows, tables

from paceline.data.aggregate import (
    AbsMax,
    AggregateFn,
    Count,
    CountDistinct,
    Max,
    Mean,
    Min,
    Quantile,
    Std,
    Sum,
    Unique,
    aggregated,
    checked,
    partially,
)
from paceline.data.barriers import GroupBy
from paceline.data.block import Block
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.pipeline import lowered
from paceline.data.plan import Node

KEYS = st.lists(st.sampled_from(["i", "f", "s"]), min_size=1, max_size=2, unique=True)

VALUES = AggregateFn(
    init=lambda key: (key, []),
    accumulate_row=lambda state, row: (state[0], [*state[1], row["id"]]),
    merge=lambda left, right: (left[0], [*left[1], *right[1]]),
    finalize=lambda state: str((type(state).__name__, sorted(state[1]))),
    name="mine",
)


def whole(plan: Node, *aggregates: AggregateFn) -> dict[str, Any]:
    executor = InlineExecutor()
    pipeline = lowered(partially(plan, aggregates), 0, lambda barrier, epoch: [])
    return aggregated(executor.run(pipeline), aggregates)


def alike(found: list[Any], wanted: list[Any]) -> None:
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
@settings(max_examples=80, deadline=None)
def test_groups_come_to_what_pandas_says(table: Table, keys: list[str]) -> None:
    made = (
        Count(),
        Count("f", ignore_nulls=True, alias_name="valid"),
        Sum("i"),
        Sum("id"),
        Min("f"),
        Max("s"),
        Mean("f"),
        Std("id"),
        Std("f", ddof=0, alias_name="spread"),
        AbsMax("i"),
        Quantile("id", 0.25),
        CountDistinct("s"),
        VALUES,
    )
    found = rows(GroupBy(table.plan, tuple(keys), made))
    grouped = table.frame.groupby(keys, dropna=False, sort=True)
    wanted = {
        "count()": grouped["id"].size(),
        "valid": grouped["f"].count(),
        "sum(i)": grouped["i"].sum(),
        "sum(id)": grouped["id"].sum(),
        "min(f)": grouped["f"].min(),
        "max(s)": grouped["s"].agg(lambda part: max([text for text in part if isinstance(text, str)], default=None)),
        "mean(f)": grouped["f"].mean(),
        "std(id)": grouped["id"].std(),
        "spread": grouped["f"].std(ddof=0),
        "abs_max(i)": grouped["i"].agg(lambda part: part.abs().max()),
        "quantile(id)": grouped["id"].quantile(0.25),
        "count_distinct(s)": grouped["s"].nunique(),
        "mine": grouped["id"].agg(lambda part: str(("tuple", sorted(part)))),
    }
    if not table.rows:
        assert found == []
        return
    index = wanted["count()"].index
    order = [index.get_level_values(name).tolist() for name in keys]
    for name, values in zip(keys, order, strict=True):
        alike([row[name] for row in found], [None if value is np.nan else value for value in values])
    assert list(found[0]) == [*keys, *wanted]
    for name, series in wanted.items():
        alike([row[name] for row in found], series.tolist())


@given(tables())
@settings(max_examples=80, deadline=None)
def test_all_rows_come_to_what_pandas_says(table: Table) -> None:
    data = table.frame
    found = whole(
        table.plan, Count(), Sum("f"), Min("s"), Max("f"), Mean("i"), Std("f"), Quantile("f", 0.75), Unique("s"), VALUES
    )
    texts = [text for text in data["s"] if isinstance(text, str)]
    values = data["f"].dropna()
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
    }
    assert list(found) == list(wanted)
    alike(list(found.values()), list(wanted.values()))


@given(tables())
@settings(max_examples=40, deadline=None)
def test_a_missing_value_counts_where_it_is_not_ignored(table: Table) -> None:
    names = ("sum(f)", "mean(f)", "std(f)", "min(f)")
    made = [kind("f", ignore_nulls=False) for kind in (Sum, Mean, Std, Min)]
    strict = whole(table.plan, *made)
    usual = whole(table.plan, Sum("f"), Mean("f"), Std("f"), Min("f"))
    missing = bool(table.frame["f"].isna().any())
    alike([strict[name] for name in names], [None if missing else usual[name] for name in names])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50), st.sampled_from([0.0, 1e6, 1e9]), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_a_deviation_keeps_its_digits_far_from_zero(values: list[float], origin: float, size: int) -> None:
    numbers = np.array(values) + origin
    plan = reading([Block({"x": numbers[begin : begin + size]}) for begin in range(0, len(numbers), size)])
    found = whole(plan, Std("x"), Mean("x"))
    assert found["std(x)"] == pytest.approx(float(np.std(numbers, ddof=1)), rel=1e-6, abs=1e-6)
    assert found["mean(x)"] == pytest.approx(float(np.mean(numbers)), rel=1e-12, abs=1e-12)


def test_units_of_other_types_are_aggregated_together() -> None:
    plan = reading([Block({"x": [None, None]}), Block({"x": np.array([1, 2])}), Block({"x": np.array([2.5])})])
    assert whole(plan, Sum("x"), Max("x"), Unique("x"), Count("x", ignore_nulls=True)) == {
        "sum(x)": 5.5,
        "max(x)": 2.5,
        "unique(x)": [1.0, 2.0, 2.5],
        "count(x)": 3,
    }
    texts = reading([Block({"x": [None, None]}), Block({"x": ["b", "a"]})])
    assert whole(texts, Min("x"), Unique("x", ignore_nulls=False)) == {"min(x)": "a", "unique(x)": [None, "b", "a"]}


def test_a_block_is_accumulated_as_a_table() -> None:
    total = AggregateFn(
        init=lambda key: 0,
        accumulate_block=lambda state, table: state + sum(table.column("x").to_pylist()),
        merge=lambda left, right: left + right,
        name="total",
    )
    plan = reading([Block({"k": np.array([1, 0, 1]), "x": np.arange(3)}), Block({"k": np.array([0]), "x": [5]})])
    assert frame(GroupBy(plan, ("k",), (total,))).to_dict("list") == {"k": [0, 1], "total": [6, 2]}


def test_the_key_reaches_the_state() -> None:
    seen = AggregateFn(
        init=lambda key: key, accumulate_row=lambda state, row: state, merge=lambda a, b: a, finalize=str, name="key"
    )
    plan = reading([Block({"k": np.array([1, 0]), "t": ["a", "b"]})])
    assert [row["key"] for row in rows(GroupBy(plan, ("k",), (seen,)))] == ["0", "1"]
    assert [row["key"] for row in rows(GroupBy(plan, ("k", "t"), (seen,)))] == ["(0, 'b')", "(1, 'a')"]
    assert whole(plan, seen) == {"key": "None"}


def test_a_sum_of_texts_is_refused() -> None:
    with pytest.raises(TypeError, match=r"sum\(x\): the column 'x' has no numbers, but string"):
        whole(reading([Block({"x": ["a"]})]), Sum("x"))


def test_two_results_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two columns of the result are called 'sum\(x\)'"):
        checked([Sum("x"), Sum("x")])
    with pytest.raises(ValueError, match="are called 'x'"):
        checked([Sum("x", alias_name="x")], ["x"])
    with pytest.raises(TypeError, match="it must be an AggregateFn"):
        checked(["sum"])
    with pytest.raises(ValueError, match="one aggregate or more"):
        checked([])


def test_an_aggregate_needs_one_way_to_accumulate() -> None:
    with pytest.raises(ValueError, match="exactly one of accumulate_row and accumulate_block"):
        AggregateFn(init=lambda key: 0, merge=max, name="x")


def test_a_state_of_many_units_is_merged_as_it_comes() -> None:
    plan = reading([Block({"x": np.array([number])}) for number in range(1000)])
    assert whole(plan, Sum("x"), Count(), Std("x")) == {
        "sum(x)": 499500,
        "count()": 1000,
        "std(x)": pytest.approx(np.std(np.arange(1000), ddof=1)),
    }
