"""Parts of a dataset that a caller asks for: a lazy split, units by key, by boundaries and by number."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import READ, cut, listed, numbers, tables

from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.order.feeds import LocalFeeds
from paceline.data.planning.barriers import Repartition, Sort


def unit_rows(plan):
    units = resolve_barrier(plan, 0, InlineExecutor())
    return [[row for block in unit.read() for row in block.rows()] for unit in units]


def ids(dataset, epoch=0):
    return [row["id"] for delivered in LocalFeeds(dataset._plan).open(epoch, 0, 0) for row in delivered.block.rows()]


@pytest.mark.parametrize("options", [{}, {"split_type": "hash", "hash_column": "id"}])
def test_a_streaming_split_reads_nothing_and_has_every_row_in_one_part_in_every_epoch(options):
    READ.clear()
    ds = numbers([500, 500], [1000], [2000])
    train, test = ds.random_shuffle(seed=1).streaming_train_test_split(0.3, seed=5, **options)
    assert not READ
    parts = [sorted(ids(part, epoch)) for part in (train, test) for epoch in (0, 1)]
    assert parts[0] == parts[1]
    assert parts[2] == parts[3]
    assert sorted(parts[0] + parts[2]) == [*range(4000)]
    assert abs(len(parts[2]) - 1200) < 6 * np.sqrt(4000 * 0.3 * 0.7)
    assert sorted(ids(ds.streaming_train_test_split(0.3, seed=6, **options)[1])) != parts[2]
    first, other = (each.streaming_train_test_split(0.3, **options) for each in (ds, numbers([1000], [7, 993], [2000])))
    assert ids(first[1]) == ids(other[1]), "whatever the blocks of a unit"


def test_a_split_by_hash_keeps_equal_values_together_and_reads_the_column():
    ds = listed([{"user": ["a", "b", None] * 100, "x": np.arange(300), "y": np.arange(300)}], schema=True)
    train, test = ds.streaming_train_test_split(0.5, split_type="hash", hash_column="user")
    READ.clear()
    users = [{row["x"] % 3 for row in part.select_columns(["x"]).take_all()} for part in (train, test)]
    assert not users[0] & users[1]
    assert {name for _, columns, _ in READ for name in columns} == {"user", "x"}


@given(tables(), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_equal_keys_come_to_one_unit(table, number, sort):
    found = unit_rows(Repartition(table.plan, number, keys=("i", "s"), sort=sort))
    assert len(found) == number
    assert sorted(row["id"] for unit in found for row in unit) == [*range(len(table.rows))]
    keys = [[(row["i"], row["s"]) for row in unit] for unit in found]
    assert sum(len(set(unit)) for unit in keys) == len({key for unit in keys for key in unit})
    if sort:
        assert keys == [sorted(unit, key=lambda key: (key[0], key[1] is None, key[1] or "")) for unit in keys]


def test_boundaries_divide_sorted_rows_in_both_directions():
    values = pa.array([25, 10, None, 3, 20, 19, 9])
    plan = cut({"x": values, "id": np.arange(7)}, [4], [3])._plan
    for down, wanted in ((False, [[3, 9], [10, 19], [20, 25, None]]), (True, [[25, 20], [19, 10], [9, 3, None]])):
        found = unit_rows(Sort(plan, ("x", "id"), (down, False), (10, 20)))
        assert [[row["x"] for row in unit] for unit in found] == wanted


def test_groups_and_shuffles_have_so_many_units():
    ds = numbers([500], [500]).map_batches(lambda batch: {"k": batch["id"] % 50, **batch})
    grouped = ds.groupby("k", num_partitions=3)
    assert len(unit_rows(grouped.count()._plan)) == 3
    assert grouped.count().take_all() == ds.groupby("k").count().take_all()
    assert grouped.map_groups(lambda rows: rows).count() == 1000
    assert [len(unit) for unit in unit_rows(ds.random_shuffle(seed=2, num_blocks=8)._plan)] == [125] * 8
    assert ids(ds.random_shuffle(seed=2, num_blocks=8)) == ids(ds.random_shuffle(seed=2))


def test_another_number_of_units_is_another_dataset():
    ds = numbers([5])
    variants = [ds.random_shuffle(), ds.random_shuffle(num_blocks=2), ds.sort("id"), ds.sort("id", boundaries=[1])]
    variants += [ds.groupby("id").count(), ds.groupby("id", num_partitions=2).count()]
    variants += [ds.repartition(2), ds.repartition(2, keys="id"), ds.repartition(2, keys="id", sort=True)]
    assert len({LocalFeeds(one._plan).fingerprint() for one in variants}) == len(variants)
