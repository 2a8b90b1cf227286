"""Aggregating data: built-in aggregates, several at once, and one of your own."""

import pyarrow.compute as pc
import ray
from ray.data.aggregate import AggregateFnV2, Count, Max, Mean, Min, Quantile, Std
from ray.data.block import Block, BlockAccessor

ds = ray.data.range(100).add_column("group_key", lambda frame: frame["id"].to_numpy() % 3)
assert ds.max("id") == 99 and ds.mean("id") == 49.5
assert ds.groupby("group_key").min("id").take_all() == [{"group_key": n, "min(id)": n} for n in range(3)]
assert ds.aggregate(Count()) == {"count()": 100}
assert ds.aggregate(Quantile(on="id", q=0.75)) == {"quantile(id)": 74.25}
found = ds.groupby("group_key").aggregate(Count(on="id"), Mean(on="id"), Min(on="id"), Max(on="id"), Std(on="id"))
assert [row["count(id)"] for row in found.take_all()] == [34, 33, 33]
assert set(found.columns()) == {"group_key", "count(id)", "mean(id)", "min(id)", "max(id)", "std(id)"}


class SquareMean(AggregateFnV2):
    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None):
        name = alias_name or f"square_mean({on})"
        super().__init__(name, on=on, ignore_nulls=ignore_nulls, zero_factory=lambda: [0, 0])

    def aggregate_block(self, block: Block):
        accessor = BlockAccessor.for_block(block)
        num_rows = accessor.count(self._target_col_name, self._ignore_nulls)
        return [pc.sum(pc.power(block[self._target_col_name], 2)).as_py(), num_rows] if num_rows else None

    def combine(self, current_accumulator, new):
        return [current_accumulator[0] + new[0], current_accumulator[1] + new[1]]

    def finalize(self, accumulator):
        return accumulator[0] / accumulator[1]


assert ds.aggregate(SquareMean("id"))["square_mean(id)"] == sum(n * n for n in range(100)) / 100
by_group = ds.groupby("group_key").aggregate(SquareMean("id", alias_name="power")).take_all()
assert by_group[0]["power"] == sum(n * n for n in range(0, 100, 3)) / 34
