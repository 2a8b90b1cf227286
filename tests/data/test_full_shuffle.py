"""A full shuffle: every row once, an order that depends on seed and epoch alone, and as good as random."""

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_of import BackwardsExecutor, Table, cut, reading, rows, run, tables

from paceline.data.barriers import RandomShuffle, Repartition, Sort
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec.bounds import hash_at
from paceline.data.exec.exchange import resolved
from paceline.data.exec.inline import InlineExecutor
from paceline.data.order import hashed, permutation
from paceline.data.plan import Node, Union
from paceline.data.quality import shuffle_quality


def order(plan: Node, epoch: int = 0, executor: object = None) -> np.ndarray:
    return np.array([row["id"] for row in rows(plan, epoch, executor)])


def numbered(count: int, units: int) -> Node:
    block = Block({"id": np.arange(count), "text": [f"row {index}" for index in range(count)]})
    return reading(cut(block, [count * unit // units for unit in range(1, units)]))


@given(tables(max_rows=60), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_every_row_comes_once_with_all_its_values(table: Table, seed: int, epoch: int) -> None:
    found = rows(RandomShuffle(table.plan, seed), epoch)
    assert sorted(row["id"] for row in found) == [*range(len(table.rows))]
    for row in found:
        np.testing.assert_equal([row["i"], row["s"]], [table.rows[row["id"]][name] for name in ("i", "s")])


@given(
    st.integers(0, 300), st.integers(1, 5), st.sampled_from([200, 1000, 32 << 20]), st.sampled_from([0, 3000, 1 << 30])
)
@settings(max_examples=40, deadline=None)
def test_the_order_is_the_same_whatever_the_memory_and_whoever_is_first(
    count: int, units: int, part_bytes: int, budget: int
) -> None:
    context = DataContext.get_current()
    plan = RandomShuffle(numbered(count, units), seed=5)
    context.target_max_block_size, context.execution_options.resource_limits.object_store_memory = 32 << 20, 1 << 30
    wanted = order(plan)
    context.target_max_block_size = part_bytes
    context.execution_options.resource_limits.object_store_memory = budget
    assert order(plan).tolist() == wanted.tolist()
    assert order(plan, executor=BackwardsExecutor()).tolist() == wanted.tolist()


def test_the_blocks_of_a_unit_do_not_matter(data_context: DataContext) -> None:
    block = Block({"id": np.arange(100)})
    whole, many = reading([block]), reading([[block.slice(begin, begin + 7) for begin in range(0, 100, 7)]])
    wanted = order(RandomShuffle(whole, 1)).tolist()
    assert order(RandomShuffle(many, 1)).tolist() == wanted
    data_context.target_max_block_size = 100  # each block is set aside by itself
    assert order(RandomShuffle(many, 1)).tolist() == wanted


def test_seed_and_epoch_make_another_order() -> None:
    plan = numbered(500, 3)
    orders = [order(RandomShuffle(plan, seed), epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(found) for found in orders}) == 4
    assert order(RandomShuffle(plan, 0, every_epoch=False), 0).tolist() == orders[0]
    assert order(RandomShuffle(plan, 0, every_epoch=False), 1).tolist() == orders[0]


def test_it_is_as_good_as_random(data_context: DataContext) -> None:
    data_context.target_max_block_size = 4000
    for epoch in range(5):
        found = order(RandomShuffle(numbered(5000, 7), 3), epoch)
        assert shuffle_quality(found) > 0.9


def test_every_row_comes_to_every_place() -> None:
    counts = np.zeros((6, 6), int)
    for seed in range(360):
        counts[np.arange(6), order(RandomShuffle(numbered(6, 2), seed))] += 1
    # 60 are expected in each of 36 places: six deviations of that.
    assert np.abs(counts - 60).max() < 6 * np.sqrt(60 * 5 / 6)


def test_the_parts_are_alike_in_all_epochs(data_context: DataContext) -> None:
    data_context.target_max_block_size = 1000
    parts = [
        [(unit.name, unit.num_rows) for unit in resolved(RandomShuffle(numbered(1003, 3), 1), epoch, InlineExecutor())]
        for epoch in range(3)
    ]
    assert parts[0] == parts[1] == parts[2]
    assert len(parts[0]) > 10
    assert {num_rows for _, num_rows in parts[0]} <= {1003 // len(parts[0]), 1003 // len(parts[0]) + 1}


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(0, 10), st.booleans())
def test_a_hash_is_found_by_its_rank(sizes: list[int], seed: int, crowded: bool) -> None:
    every = hashed(np.arange(sum(sizes)), seed)
    if crowded:  # far from even, so that the place it is looked for first is wrong
        every = every >> np.uint64(30)
    chunks = [np.sort(part) for part in np.split(every, np.cumsum(sizes)[:-1])]
    for rank in {0, len(every) // 3, len(every) - 1} - {-1}:
        if rank < len(every):
            assert np.count_nonzero(every < np.uint64(hash_at(chunks, len(every), rank))) == rank


def test_units_are_small_and_read_elsewhere_from_what_was_pickled() -> None:
    plan = RandomShuffle(Union((numbered(1000, 4), numbered(1000, 4))), 1)
    units = resolved(plan, 0, InlineExecutor())
    sent = cloudpickle.dumps(units)
    assert len(sent) < 5000
    found = [row["id"] for unit in cloudpickle.loads(sent) for block in unit.read() for row in block.rows()]
    assert found == [row["id"] for row in rows(plan)]


def test_a_shuffle_of_what_was_sorted_and_cut_is_one_plan(data_context: DataContext) -> None:
    data_context.target_max_block_size = 500
    plan = Repartition(RandomShuffle(Sort(numbered(200, 3), ("id",), (True,)), 4), 5)
    found = order(plan)
    assert sorted(found) == [*range(200)]
    assert found.tolist() == order(plan).tolist()


def test_tensors_and_texts_stay_with_their_rows(data_context: DataContext) -> None:
    data_context.target_max_block_size = 1000
    index = np.arange(300)
    block = Block(
        {"id": index, "tensor": np.stack([index, index + 1], 1).astype(np.float32), "text": [str(i) for i in index]}
    )
    for found in run(RandomShuffle(reading(cut(block, [100, 150])), 9)):
        ids = np.asarray(found.column("id"))
        np.testing.assert_array_equal(found.column("tensor"), np.stack([ids, ids + 1], 1))
        assert found.column("text").to_pylist() == [str(i) for i in ids]


def test_a_permutation_by_units_is_not_what_is_done() -> None:
    # One unit in the place of another would be the same rows in another order.
    assert order(RandomShuffle(numbered(40, 1), 0)).tolist() == permutation(40, 0).tolist()
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(order(RandomShuffle(numbered(40, 4), 0)), permutation(40, 0))
