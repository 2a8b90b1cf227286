"""Sort, slices, repartition, zip and shuffle against pandas and plain lists, whatever the units and the memory."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import READ, BackwardsExecutor, reading, rows, run, slice_at, tables

from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec.exchange import hashes_at_ranks, resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.order.shuffle import hash_indices, shuffle_quality
from paceline.data.planning.barriers import Limit, Materialize, RandomShuffle, Repartition, SliceRows, Sort, Zip
from paceline.data.planning.plan import Map, ReorderUnits, Transform, Union


@dataclass(frozen=True)
class Odd(Transform):
    """Only rows with an odd id."""

    name = "odd"

    def apply(self, blocks, scope):
        for block in blocks:
            yield block.take(np.flatnonzero(np.asarray(block.column("id")) % 2)) if block.num_rows else block


@dataclass(frozen=True)
class Doubled(Transform):
    name = "doubled"
    keeps_rows = True

    def apply(self, blocks, scope):
        for block in blocks:
            yield block.with_column("id", np.asarray(block.column("id")) * 2) if block.num_rows else block


def ids(plan, epoch=0):
    return [row["id"] for row in rows(plan, epoch)]


def ids_by_unit(plan):
    units = resolve_barrier(plan, 0, InlineExecutor())
    found = [[row["id"] for block in unit.read() for row in block.rows()] for unit in units]
    assert [unit.num_rows for unit in units] == [*map(len, found)]
    return found


KEYS = st.lists(st.tuples(st.sampled_from("ifs"), st.booleans()), min_size=1, max_size=3, unique_by=lambda k: k[0])


@given(tables(), KEYS)
@settings(max_examples=100, deadline=None)
def test_rows_are_sorted_as_pandas_sorts_them(table, keys):
    names, descending = zip(*keys, strict=True)
    sorted_frame = table.frame.sort_values(list(names), ascending=[not down for down in descending], kind="stable")
    assert ids(Sort(table.plan, names, descending)) == sorted_frame["id"].tolist()


def test_times_are_sorted_and_rows_of_one_key_are_divided_into_parts_that_fit(data_context):
    data_context.target_max_block_size = 100
    stamps = np.array([5, 3, "NaT", 4, 1], "datetime64[s]").astype("datetime64[us]")
    plan = reading([Block({"id": np.arange(3), "t": stamps[:3]}), Block({"id": np.arange(3, 5), "t": stamps[3:]})])
    assert ids(Sort(plan, ("t",), (False,))) == [4, 1, 3, 0, 2]
    dates = pa.chunked_array([pa.array([3, None, 1], pa.date32())])
    assert ids(Sort(reading([Block({"id": np.arange(3), "t": dates})]), ("t",), (True,))) == [0, 2, 1]
    data_context.target_max_block_size = 800
    block = Block({"id": np.arange(1000), "key": np.zeros(1000, np.int64)})
    found = ids_by_unit(Sort(reading([block.slice(0, 300), block.slice(300)]), ("key",), (False,)))
    assert len(found) > 10
    assert max(map(len, found)) < 250
    assert [row for part in found for row in part] == [*range(1000)]


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        ([Block({"id": np.arange(3)})], KeyError, "unknown column 'x'; the columns are: 'id'"),
        ([Block({"x": np.ones((3, 2))})], TypeError, "by the column 'x', which is of type"),
        ([Block({"x": np.arange(3)}), Block({"x": ["a"]})], TypeError, r"sort\('x'\): cannot compare the values"),
    ],
    ids=["no column", "tensors", "different types"],
)
def test_keys_that_have_no_order_are_refused(blocks, error, message):
    with pytest.raises(error, match=message):
        run(Sort(reading(blocks), ("x",), (False,)))


@given(tables(), st.integers(0, 40), st.none() | st.integers(0, 40), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_slice_has_its_rows(table, start, length, mapped):
    stop = None if length is None else start + length
    plan = Map(table.plan, Doubled()) if mapped else table.plan
    wanted = [row["id"] * (2 if mapped else 1) for row in table.rows][start:stop]
    assert ids(SliceRows(plan, start, stop)) == wanted
    assert ids(SliceRows(ReorderUnits(plan, seed=3), start, stop)) == ids(ReorderUnits(plan, seed=3))[start:stop]


@given(tables(), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_limit_counts_what_a_filter_leaves(table, num_rows):
    odd = [row["id"] for row in table.rows if row["id"] % 2]
    assert ids(Limit(Map(table.plan, Odd()), 0, num_rows)) == odd[:num_rows]
    assert ids(Map(Limit(table.plan, 0, num_rows), Odd())) == [*range(1, min(num_rows, len(table.rows)), 2)]


def test_a_limit_reads_no_more_than_it_needs():
    READ.clear()
    plan = reading([Block({"id": np.arange(10)}), Block({"id": np.arange(10, 1000)})])
    assert ids(Limit(plan, 0, 7)) == [*range(7)]
    assert ids(Limit(Map(plan, Doubled()), 0, 7)) == [*range(0, 14, 2)]
    assert ids(Limit(Map(plan, Odd()), 0, 5)) == [1, 3, 5, 7, 9]
    assert ids(Limit(Map(plan, Odd()), 0, 0)) == []
    assert {unit for unit, *_ in READ} == {"unit 0"}


@given(tables(), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_repartition_gives_nearly_equal_blocks_or_the_requested_size(table, number):
    count = len(table.rows)
    for shuffle in (False, True):
        found = ids_by_unit(Repartition(table.plan, number, shuffle=shuffle))
        assert len(found) == number or (shuffle and not count)
        assert not found or max(map(len, found)) - min(map(len, found)) <= 1
        order = [row for part in found for row in part]
        assert (sorted(order) if shuffle else order) == [*range(count)]
        assert not shuffle or count <= 20 or order != [*range(count)]
    sized = ids_by_unit(Repartition(table.plan, target_num_rows_per_block=number))
    assert sized == [[*range(count)][begin : begin + number] for begin in range(0, count, number)]


@given(tables(), st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=80, deadline=None)
def test_rows_meet_by_their_position(table, cuts):
    count = len(table.rows)
    ends = sorted(min(place, count) for place in cuts)
    others = [
        Block({"id": np.arange(begin, end) * 10, "other": np.arange(begin, end)})
        for begin, end in zip([0, *ends], [*ends, count], strict=True)
    ]
    found = rows(Zip((table.plan, reading(others), reading([Block({"id": np.arange(count)})]))))
    assert [(row["id"], row["id_1"], row["other"], row["id_2"]) for row in found] == [
        (index, index * 10, index, index) for index in range(count)
    ]
    assert [row["s"] for row in found] == [row["s"] for row in table.rows]
    with pytest.raises(ValueError, match=f"equally many rows, got {count} and {count + 1}"):
        run(Zip((table.plan, reading([Block({"id": np.arange(count + 1)})]))))


def test_every_kind_of_column_comes_back():
    ragged = np.empty(3, dtype=object)
    ragged[:] = [np.arange(2), np.arange(3), np.arange(0)]
    columns = {
        "tensor": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "bool": np.array([True, False, True]),
        "time": np.array(["2020-01-01", "NaT", "2021-01-01"], "datetime64[ns]"),
        "text": pa.chunked_array([["a"], [None, "é"]]),
        "list": pa.chunked_array([[[1], None, [2, 3]]]),
        "ragged": ragged,
        "int": pa.chunked_array([pa.array([1, None, 3])]),
        "zoned": pa.chunked_array([pa.array([1, 2, 3], pa.timestamp("us", "UTC"))]),
        "category": pa.chunked_array([pa.array(["a", "b", "a"]).dictionary_encode()]),
    }
    block = Block(columns)
    for plan in (Materialize(reading([block])), Sort(reading([block]), ("text",), (False,))):
        [found] = run(plan)
        back = found.take([0, 1, 2]) if isinstance(plan, Materialize) else found.take([0, 2, 1])
        assert back.schema == block.schema
        for mine, theirs in zip(back.rows(), block.rows(), strict=True):
            for name, value in theirs.items():
                np.testing.assert_equal(mine[name], value, err_msg=name)
    parts = tuple(reading([Block({"id": np.arange(first, first + 3)})]) for first in (0, 3, 6, 9))
    assert ids(Materialize(Union(parts))) == [*range(12)], "units of one name keep their rows apart"


def test_no_rows_stay_no_rows():
    for nothing in (reading([]), reading([Block.empty()]), reading([Block({"id": np.arange(0)})] * 2)):
        assert run(Sort(nothing, ("id",), (False,))) == []
        assert run(Zip((nothing, nothing))) == []
        assert run(Repartition(nothing, 3)) == []
        assert run(Materialize(nothing)) == []
        assert run(SliceRows(nothing, 1, 5)) == []


def order(plan, epoch=0, executor=None):
    """The ids of the rows, to which tensors and texts belong."""
    found = rows(plan, epoch, executor)
    assert all((row["pair"].tolist(), row["text"]) == ([row["id"], 7], f"row {row['id']}") for row in found)
    return np.array([row["id"] for row in found])


def numbered(count, units, size=1000):
    """Rows in so many units, each in blocks of this size."""
    index = np.arange(count)
    whole = Block({"id": index, "pair": np.stack([index, index * 0 + 7], 1), "text": [f"row {i}" for i in index]})
    parts = slice_at(whole, [count * unit // units for unit in range(1, units)])
    return reading([[part.slice(at, at + size) for at in range(0, part.num_rows, size)] for part in parts])


@given(
    st.integers(0, 300),
    st.integers(1, 5),
    st.integers(1, 50),
    st.sampled_from([200, 1000, 32 << 20]),
    st.sampled_from([0, 3000, 1 << 30]),
)
@settings(max_examples=40, deadline=None)
def test_the_order_is_the_same_whatever_the_blocks_and_the_memory_and_whoever_is_first(
    count, units, size, part_bytes, budget
):
    context = DataContext.get_current()
    context.target_max_block_size, context.execution_options.resource_limits.object_store_memory = 32 << 20, 1 << 30
    wanted = order(RandomShuffle(numbered(count, units), seed=5)).tolist()
    assert sorted(wanted) == [*range(count)]
    context.target_max_block_size = part_bytes
    context.execution_options.resource_limits.object_store_memory = budget
    plan = RandomShuffle(numbered(count, units, size), seed=5)
    assert order(plan).tolist() == order(plan, executor=BackwardsExecutor()).tolist() == wanted


def test_seed_and_epoch_make_another_order():
    plan = numbered(500, 3)
    orders = [order(RandomShuffle(plan, seed), epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(found) for found in orders}) == 4
    assert order(RandomShuffle(plan, 0, every_epoch=False), 0).tolist() == orders[0]
    assert order(RandomShuffle(plan, 0, every_epoch=False), 1).tolist() == orders[0]


def test_it_is_as_good_as_random_and_every_row_comes_to_every_place(data_context):
    data_context.target_max_block_size = 4000
    for epoch in range(5):
        found = order(RandomShuffle(numbered(5000, 7), 3), epoch)
        assert shuffle_quality(found) > 0.9
    counts = np.zeros((6, 6), int)
    for seed in range(360):
        counts[np.arange(6), order(RandomShuffle(numbered(6, 2), seed))] += 1
    # 60 are expected in each of 36 places: six deviations of that.
    assert np.abs(counts - 60).max() < 6 * np.sqrt(60 * 5 / 6)


def test_the_parts_are_alike_in_all_epochs(data_context):
    data_context.target_max_block_size = 1000
    plan = RandomShuffle(numbered(1003, 3), 1)
    units = [resolve_barrier(plan, epoch, InlineExecutor()) for epoch in range(3)]
    parts = [[(unit.name, unit.num_rows) for unit in each] for each in units]
    assert parts[0] == parts[1] == parts[2]
    assert len(parts[0]) > 10
    assert {num_rows for _, num_rows in parts[0]} <= {1003 // len(parts[0]), 1003 // len(parts[0]) + 1}


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(0, 10), st.booleans())
def test_a_hash_is_found_by_its_rank(sizes, seed, crowded):
    every = hash_indices(np.arange(sum(sizes)), seed)
    if crowded:  # far from even, so that the place it is looked for first is wrong
        every = every >> np.uint64(30)
    chunks = [np.sort(part) for part in np.split(every, np.cumsum(sizes)[:-1])]
    ranks = sorted({0, len(every) // 3, len(every) - 1} - {-1}) if len(every) else []
    found = hashes_at_ranks(chunks, len(every), ranks)
    assert [np.count_nonzero(every < np.uint64(first)) for first in found] == ranks
