"""Workers that receive only their own rows cut the same batches that they would cut from all rows."""

import itertools
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numbered_rows import Rows
from paceline.data.block import Block
from paceline.data.iterator import DataIterator
from paceline.data.order import sharding
from paceline.data.order.batch_cutter import BatchCutter
from paceline.data.order.row_ownership import EpochDivision, OwnershipTracker, PartialDelivery, RowOwners, SparseBlock
from paceline.data.order.sharding import Cursor, RowDelivery, WorkerShard, merge_cursors, replace_cursor, with_order


def dealt(deliveries, division):
    """For each rank, what it is sent of some blocks; how many blocks waited at most; and how often rows were sent."""
    blocks = [delivered for delivered in deliveries if delivered.block.num_rows]
    plan = OwnershipTracker(division)
    spans, waiting = [], 0
    for delivered in blocks:
        spans += plan.add_block(delivered.block.num_rows)
        waiting = max(waiting, plan.num_uncertain)
    spans += plan.finish()
    assert [span.num_rows for span in spans] == [delivered.block.num_rows for delivered in blocks]
    sent, num_sent = [[] for _ in range(division.num_parts)], 0
    for span, delivered in zip(spans, blocks, strict=True):
        whole = delivered.block.with_numpy_numbers()
        for rank, rows in enumerate(RowOwners.for_division(division).rows_by_rank(span)):
            sparse = SparseBlock(whole.num_rows, rows, whole.take(rows))
            sent[rank].append(PartialDelivery(delivered.unit, delivered.offset, sparse))
            num_sent += len(rows)
    return sent, waiting, num_sent


def describe_cuts(cutter, deliveries):
    """All that comes of cutting, types included."""

    def as_list(values):
        return values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()

    cuts = [
        (
            [(name, type(values), as_list(values)) for name, values in cut.block.columns.items()],
            (str(cut.block.schema), len(cut.parts), cut.cursor, cut.is_partial),
        )
        for cut in cutter.cut(deliveries)
    ]
    return cuts, cutter.total


def started(cursor, division, feeds):
    """The cursor with which an epoch is begun: as in `EpochIterator`."""
    total = feeds.num_rows() if cursor.total is None and cursor.row == 0 else cursor.total
    start = with_order(cursor, division["window"], division["seed"])
    return replace_cursor(start, total=total, chunk=division["chunk"] or division["parts"], world=division["parts"])


def columns(ids):
    """Numbers, texts with and without nulls, tensors; other types in other blocks."""
    first = int(ids[0]) if len(ids) else 0
    return {
        "id": ids,
        "number": ids.astype(np.float32) if first % 2 else ids,
        "text": pa.chunked_array([pa.array([None if i % 4 == 0 else f"text {i}" for i in ids.tolist()], pa.string())]),
        "arrow": pa.chunked_array([pa.array([None if i % 7 == 0 else i for i in ids.tolist()], pa.int64())]),
        "image": np.stack([ids, ids + 1], axis=1),
    } | ({"extra": ids * 2} if first % 3 == 0 else {})


def history(draw, feeds, mode):
    """A cursor at which some group of workers was interrupted, in step or not, once or twice."""
    cursor = None
    for _ in range(draw(st.integers(0, 2), label="interruptions")):
        world = draw(st.integers(1, 4), label="world before")
        options = {"local_shuffle_buffer_size": draw(st.sampled_from([None, 4, 11]), label="window before")}
        size = draw(st.sampled_from([1, 2, 3, None]), label="batch before")
        shards = [DataIterator(feeds, WorkerShard(rank, world, mode), cursor=cursor) for rank in range(world)]
        running = [iter(shard.iter_batches(batch_size=size, **options)) for shard in shards]
        for rank in draw(st.lists(st.integers(0, world - 1), max_size=9), label="steps"):
            next(running[rank], None)
        cursor = merge_cursors([shard.cursor() for shard in shards])
    return cursor or Cursor()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_batches_of_own_rows_alone_are_those_of_all_rows(data):
    draw = data.draw
    feeds = Rows(
        draw(st.lists(st.integers(0, 17), min_size=1, max_size=6), label="sizes"),
        block_rows=draw(st.integers(1, 9), label="block_rows"),
        without=draw(st.sampled_from([None, 2, 3]), label="without"),
        reorder=draw(st.booleans(), label="reorder"),
        columns=columns,
    )
    mode = draw(st.sampled_from(["equal", "exact"]), label="mode")
    world = draw(st.integers(2, 5), label="world")
    batch = draw(st.sampled_from([1, 2, 3, 7, 40, None]), label="batch")
    chunk = None if batch is None else batch * world
    how = {
        "window": draw(st.sampled_from([0, 1, 4, 13, 100]), label="window"),
        "seed": draw(st.integers(-1, 2), label="seed"),
        "chunk": chunk,
        "parts": world,
    }
    start = started(history(draw, feeds, mode), how, feeds)
    division = msgspec.json.decode(msgspec.json.encode(EpochDivision(start, mode, world, chunk)), type=EpochDivision)
    whole = list(feeds.open(start.epoch, start.unit, start.offset))
    sent, _, num_sent = dealt(whole, division)
    given_rows = 0
    for rank in range(world):
        split = WorkerShard(rank, world, mode)
        expected = describe_cuts(BatchCutter(split, chunk, start), whole)
        assert describe_cuts(BatchCutter(split, chunk, start), sent[rank]) == expected
        given_rows += sum(cut.block.num_rows for cut in BatchCutter(split, chunk, start).cut(whole))
    assert num_sent == given_rows  # and nobody was sent a row too many


@pytest.mark.parametrize("mode", ["equal", "exact"])
def test_a_block_waits_for_no_more_than_the_batch_it_ends_in(mode):
    for batch, world, block_rows in itertools.product([1, 4, 10], [2, 3], [1, 5, 64]):
        chunk = batch * world
        division = EpochDivision(Cursor(total=640, chunk=chunk, world=world), mode, world, chunk)
        deliveries = [RowDelivery(unit, 0, Block({"id": np.arange(block_rows)})) for unit in range(640 // block_rows)]
        _, waiting, _ = dealt(deliveries, division)
        assert waiting <= -(-chunk // block_rows)


def test_rows_that_a_worker_lacks_are_not_passed_over():
    sparse = SparseBlock(10, np.array([2, 3, 7]), Block({"id": np.array([2, 3, 7])}))
    with pytest.raises(AssertionError, match="rows of this worker are missing"):
        list(BatchCutter(WorkerShard(0, 2, "exact"), 4, Cursor()).cut([PartialDelivery(0, 0, sparse)]))


edges = st.tuples(st.integers(0, 30), st.integers(0, 30))
some = st.lists(edges, max_size=6)


def rows(found):
    return [row for begin, stop in found for row in range(begin, stop)]


@given(some)
def test_joined_ranges_are_sorted_and_apart(given):
    found = sharding.join_ranges(given)
    assert rows(found) == sorted({*rows(given)})
    assert all(stop < begin for (_, stop), (begin, _) in pairwise(found))
    assert sharding.num_rows_in(found) == len(rows(found))


@given(edges, some)
def test_what_is_left_of_a_range(span, gone):
    assert rows(sharding.subtract_ranges(span, gone)) == sorted({*rows([span])} - {*rows(gone)})


@given(some, some)
def test_what_both_have(first, second):
    assert rows(sharding.intersect_ranges(first, second)) == sorted({*rows(first)} & {*rows(second)})


@given(some, st.lists(st.integers(0, 12), max_size=5))
def test_drop_front_removes_the_first_rows(given, numbers):
    found = sharding.join_ranges(given)
    left, walk = rows(found), sharding.RangeCursor(found)
    for number in numbers:
        assert rows(sharding.take_head(walk.remaining, number)) == left[:number]
        assert rows(walk.take(number)) == left[:number]
        left = left[number:]
