"""Aggregates of one's own, their methods for one group, and the approximate ones."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import data
from paceline.data import aggregate as agg

ROWS = [{"g": i % 2, "x": None if i % 5 == 0 else i % 3, "l": [i % 2, 7], "s": "ab"[i % 2]} for i in range(20)]
COLUMN = st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=30)


class Product(agg.AggregateFnV2):
    def __init__(self, on, ignore_nulls):
        super().__init__(f"product({on})", lambda: 10, on=on, ignore_nulls=ignore_nulls)

    def aggregate_block(self, block):
        assert isinstance(block, pa.Table)
        return pc.product(block[self.on], skip_nulls=self.ignore_nulls)

    def combine(self, current_accumulator, new):
        return current_accumulator * new

    def finalize(self, accumulator):
        return str(accumulator)


def in_parts(values):
    """A dataset of the values in units of three rows, so that accumulators are combined."""
    tables = [pa.table({"x": pa.array(values[i : i + 3], pa.int64())}) for i in range(0, len(values), 3)]
    return data.from_arrow(tables)


@given(COLUMN)
def test_an_aggregate_of_ones_own_combines_blocks_and_treats_nulls_as_told(values):
    numbers = [value for value in values if value is not None]
    found = in_parts(values).aggregate(Product("x", True))["product(x)"]
    assert found == (str(math.prod(numbers)) if numbers else None)
    strict = in_parts(values).aggregate(Product("x", False))["product(x)"]
    assert strict == (str(math.prod(numbers) * 10) if len(numbers) == len(values) else None)


def test_an_aggregate_of_ones_own_serves_groups_and_empty_datasets():
    found = data.from_items(ROWS).groupby("g").aggregate(Product("x", True), agg.Count()).take_all()
    wanted = [str(math.prod(row["x"] for row in ROWS if row["g"] == g and row["x"] is not None)) for g in (0, 1)]
    assert [(row["product(x)"], row["count()"]) for row in found] == [(each, 10) for each in wanted]
    assert in_parts([1]).filter(expr="x > 1").aggregate(Product("x", False)) == {"product(x)": "10"}


def test_a_subclass_of_a_built_in_aggregate_is_called():
    class Negated(agg.Max):
        def finalize(self, accumulator):
            return -super().finalize(accumulator)

    assert in_parts([1, 5, 2, 3]).aggregate(Negated("x"), agg.Min("x")) == {"max(x)": -5, "min(x)": 1}


SINGLE = [agg.Sum, agg.Mean, agg.Std, agg.Quantile, agg.Min, agg.AbsMax, agg.Unique, agg.CountDistinct, agg.Count]
SINGLE += [agg.AsList, agg.MissingValuePercentage, agg.ZeroPercentage]


@pytest.mark.parametrize("kind", SINGLE)
@given(COLUMN)
def test_the_methods_for_one_group_give_what_a_dataset_gives(kind, values):
    one, table = kind("x"), pa.table({"x": pa.array(values, pa.int64())})
    parts = [one.aggregate_block(table.slice(i, 3)) for i in range(0, table.num_rows, 3)]
    accumulator = parts[0]
    for part in parts[1:]:
        accumulator = one.combine(accumulator, part)
    found = in_parts(values).aggregate(one)[one.name]
    assert one.finalize(accumulator) == pytest.approx(found, nan_ok=True)
    assert (one.get_target_column(), f"{one.get_agg_name()}(x)") == ("x", one.name)
    field = one.output_field(table.schema)
    assert field.name == one.name
    assert pa.scalar(found).type in (field.type, pa.null()) or isinstance(found, list)


def test_zero_factory_is_where_an_extreme_starts_if_nulls_count():
    texts = data.from_items(ROWS)
    assert texts.aggregate(agg.Min("s", False, zero_factory=lambda: "A")) == {"min(s)": "A"}
    assert texts.aggregate(agg.Min("s", True, zero_factory=lambda: "A")) == {"min(s)": "a"}
    assert texts.filter(expr="g > 1").aggregate(agg.Max("g", False, zero_factory=lambda: 9)) == {"max(g)": 9}


@given(COLUMN)
def test_counts_and_percentages_are_those_of_pandas(values):
    series = pd.Series(values, dtype="Int64")
    found = in_parts(values).aggregate(
        agg.ValueCounter("x"),
        agg.MissingValuePercentage("x"),
        agg.ZeroPercentage("x"),
        agg.ZeroPercentage("x", False, "zeros_of_all"),
        agg.ApproximateTopK("x", 7),
        agg.AsList("x"),
        agg.AsList("x", "present", ignore_nulls=True),
    )
    present = series.dropna().tolist()
    assert dict(zip(*found["value_counter(x)"].values(), strict=True)) == Counter(present)
    assert found["missing_pct(x)"] == pytest.approx(100 * series.isna().mean())
    assert found["zero_pct(x)"] == (pytest.approx(100 * present.count(0) / len(present)) if present else None)
    assert found["zeros_of_all"] == pytest.approx(100 * values.count(0) / len(values))
    assert [row["count"] for row in found["approx_topk(x)"]] == sorted(Counter(present).values(), reverse=True)
    assert (found["list(x)"], found["present"]) == (values, present)


def test_lists_are_values_or_hold_values():
    modes = agg.CountDistinct.ListEncodingMode
    found = data.from_items(ROWS).aggregate(
        agg.Unique("l"),
        agg.Unique("l", alias_name="flat", encode_lists=True),
        agg.Unique("l", alias_name="hashes", encode_lists=modes.HASH),
        agg.CountDistinct("l"),
        agg.ApproximateTopK("l", 1, encode_lists=True),
        agg.AsList("l"),
    )
    assert (found["unique(l)"], sorted(found["flat"])) == ([[0, 7], [1, 7]], [0, 1, 7])
    assert (len(set(found["hashes"])), found["count_distinct(l)"]) == (2, 2)
    assert found["approx_topk(l)"] == [{"l": 7, "count": 20}]
    assert found["list(l)"] == [row["l"] for row in ROWS]


@given(st.integers(0, 2**32), st.integers(1, 4000), st.integers(1, 4))
def test_approximate_results_stay_within_the_stated_errors(seed, num_rows, precision):
    draw = np.random.default_rng(seed)
    values, order = draw.zipf(1.3, num_rows).clip(max=500), draw.permutation(num_rows)
    quantiles = agg.ApproximateQuantile("n", [0.0, 0.25, 0.5, 1.0], precision)
    top = agg.ApproximateTopK("x", 20, log_capacity=4)
    table = pa.table({"x": values, "n": order})
    tables = [table.slice(first, max(1, num_rows // 7)) for first in range(0, num_rows, max(1, num_rows // 7))]
    parts = [(quantiles.aggregate_block(table), top.aggregate_block(table)) for table in tables]
    sketch, counts = parts[0]
    for part in parts[1:]:
        sketch, counts = quantiles.combine(sketch, part[0]), top.combine(counts, part[1])
    capacity = 8 * precision
    error = num_rows * max(0, math.ceil(math.log2(num_rows / capacity))) / capacity
    assert sum(len(values) << level for level, values in enumerate(sketch.levels)) == num_rows
    for q, found in zip(quantiles.quantiles, quantiles.finalize(sketch), strict=True):
        assert found - error <= q * num_rows <= found + 1 + error
    exact = Counter(values.tolist())
    listed = {row["x"]: row["count"] for row in top.finalize(counts)}
    assert all(exact[value] <= count <= exact[value] + num_rows / 16 for value, count in listed.items())
    assert {value for value, count in exact.items() if count > num_rows / 16} <= {*listed}


def test_integers_that_floats_cannot_hold_are_rounded():
    found = in_parts([2**53 + 1, 0]).aggregate(agg.Mean("x"), agg.Quantile("x"), agg.ZeroPercentage("x"))
    assert list(found.values()) == [2.0**52, 2.0**52, 50.0]
