"""Groups: the plans that are made, and functions that get each group whole."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_of import Table, reading, rows, tables

from paceline.data.barriers import GroupBy, GroupRows
from paceline.data.block import Block
from paceline.data.exec.exchange import resolved
from paceline.data.exec.inline import InlineExecutor
from paceline.data.grouped import EachGroup, GroupedData
from paceline.data.plan import Map
from paceline.data.transform import Pool, Scope, Transform


@dataclass(frozen=True)
class Told(Transform):
    """What a function that gets groups sees: their ids, together."""

    name = "map_batches(told)"
    pool = Pool(2, 3)

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        for block in blocks:
            yield Block({"ids": [str([row["id"] for row in block.rows()])], "size": np.array([block.num_rows])})


@given(tables(), st.lists(st.sampled_from(["i", "f", "s"]), min_size=1, max_size=2, unique=True))
@settings(max_examples=60, deadline=None)
def test_a_function_gets_each_group_whole(table: Table, keys: list[str]) -> None:
    found = rows(Map(GroupRows(table.plan, tuple(keys)), EachGroup(tuple(keys), Told())))
    groups = [group["id"].tolist() for _, group in table.frame.groupby(keys, dropna=False, sort=True)]
    assert [row["ids"] for row in found] == [str(ids) for ids in groups]


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_a_group_is_whole_however_its_rows_are_cut(keys: list[int], cuts: list[int]) -> None:
    block = Block({"key": np.array(sorted(keys), np.int64), "id": np.arange(len(keys))})
    ends = sorted(min(place, len(keys)) for place in cuts)
    parts = (block.slice(begin, end) for begin, end in zip([0, *ends], [*ends, len(keys)], strict=True))
    found = [row["size"] for made in EachGroup(("key",), Told()).apply(parts, Scope()) for row in made.rows()]
    assert found == [keys.count(key) for key in sorted(set(keys))]


def test_groups_keep_the_processes_and_the_name_of_the_function() -> None:
    each = EachGroup(("key",), Told())
    assert (each.pool, each.name, each.keeps_rows) == (Pool(2, 3), "map_groups(told)", False)


def test_many_small_groups_come_in_few_blocks(data_context) -> None:
    plan = Map(
        GroupRows(reading([Block({"key": np.arange(1000), "id": np.arange(1000)})]), ("key",)),
        EachGroup(("key",), Told()),
    )
    units = resolved(plan.input, 0, InlineExecutor())
    made = [block for unit in units for block in plan.transform.apply(unit.read(), Scope())]
    assert [block.num_rows for block in made] == [1000]


def test_a_group_is_in_one_unit(data_context) -> None:
    data_context.target_max_block_size = 200
    block = Block({"key": np.arange(1000) % 7, "id": np.arange(1000)})
    units = resolved(GroupRows(reading([block.slice(0, 400), block.slice(400)]), ("key",)), 0, InlineExecutor())
    seen = [{row["key"] for block in unit.read() for row in block.rows()} for unit in units]
    assert sum(map(len, seen)) == 7
    assert len(seen) > 3


def test_aggregates_are_named_as_in_ray() -> None:
    grouped = GroupedData(reading([Block({"k": np.array([1, 1, 2]), "x": np.array([1.0, 2.0, 5.0])})]), "k")
    assert rows(grouped.count()._plan) == [{"k": 1, "count()": 2}, {"k": 2, "count()": 1}]
    assert rows(grouped.sum("x")._plan) == [{"k": 1, "sum(x)": 3.0}, {"k": 2, "sum(x)": 5.0}]
    assert rows(grouped.mean(["x"])._plan) == [{"k": 1, "mean(x)": 1.5}, {"k": 2, "mean(x)": 5.0}]
    assert [row["std(x)"] for row in rows(grouped.std("x", ddof=0)._plan)] == [0.5, 0.0]
    assert rows(grouped.min("x")._plan)[0] | rows(grouped.max("x")._plan)[0] == {"k": 1, "min(x)": 1.0, "max(x)": 2.0}
    plan = grouped.sum("x")._plan
    assert isinstance(plan, GroupBy)
    assert plan.name == "groupby('k').aggregate(sum(x))"


def test_without_keys_all_rows_are_one_group(data_context) -> None:
    data_context.target_max_block_size = 10
    grouped = GroupedData(reading([Block({"x": np.arange(3)}), Block({"x": np.arange(4)})]), None)
    assert rows(grouped.sum("x")._plan) == [{"sum(x)": 9}]


@pytest.mark.parametrize("key", [["k", "k"], [1]])
def test_keys_that_are_none_are_refused(key: list[object]) -> None:
    with pytest.raises(ValueError, match=r"groupby\(.*\): it must be the name of a column"):
        GroupedData(reading([]), key)
