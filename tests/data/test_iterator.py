"""DataIterator: epochs, formats, where it stands, and what it says to wrong arguments."""

import gc
import json
import pickle
import threading

import jax  # noqa: F401  it sets variables of the environment when it is first imported
import numpy as np
import pyarrow as pa
import pytest

from numbered_rows import Rows
from paceline.data.iterator import DataIterator
from paceline.data.order.sharding import Cursor, WorkerShard


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def flat(batches):
    return [row for batch in batches for row in batch["id"].tolist()]


def collect_until_error(error, message, batches):
    """The batches that came before an error did."""
    taken = []
    with pytest.raises(error, match=message):
        taken.extend(batches)
    return taken


def test_each_iteration_is_the_next_epoch_in_whatever_way_one_iterates():
    feeds = Rows([2, 2], reorder=True)
    it = DataIterator(feeds)
    batches = it.iter_batches(batch_size=2)
    iter(batches)
    assert feeds.opened == [], "nothing is begun before the first batch is asked for"
    orders = [ids(batches) for _ in range(6)]
    assert [ids(DataIterator(Rows([2, 2], reorder=True)).iter_batches(batch_size=2))] == orders[:1]
    assert {tuple(map(tuple, order)) for order in orders} == {((0, 1), (2, 3)), ((2, 3), (0, 1))}
    list(it.iter_rows())
    list(it.iter_batches(batch_format="pandas"))
    assert [epoch for epoch, _, _ in feeds.opened] == [*range(8)]
    assert it.get_state()["epoch"] == 8
    assert [len(pair) for pair in zip(batches, batches, strict=True)] == [2, 2]
    assert [epoch for epoch, _, _ in feeds.opened[8:]] == [8, 9], "two at a time are two epochs"
    assert it.get_state()["epoch"] == 10


@pytest.mark.parametrize("options", [{}, {"_collate_fn": lambda batch: batch}], ids=["at once", "ahead"])
def test_an_epoch_that_is_left_early_is_over_and_its_stream_closed(options):
    streams = []

    class Kept(Rows):
        def open(self, *place):
            streams.append(super().open(*place))
            return streams[-1]

    feeds = Kept([10])
    batches = DataIterator(feeds).iter_batches(batch_size=2, **options)
    for _ in batches:
        break
    assert (len(streams), feeds.num_open) == (1, 0), "closed, though somebody else knows the stream"
    assert ids(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [epoch for epoch, _, _ in feeds.opened] == [0, 1]


def test_a_state_stands_where_a_break_was_and_one_set_inside_a_loop_is_for_the_next():
    it = DataIterator(Rows([10]))
    for batch in it.iter_batches(batch_size=2):
        if batch["id"][0] == 4:
            break
    assert it.cursor().epoch == 1, "for a checkpoint, the epoch is over"
    it.set_state(it.get_state())
    assert ids(it.iter_batches(batch_size=2)) == [[6, 7], [8, 9]]
    assert it.get_state()["epoch"] == 1
    it = DataIterator(Rows([8]))
    start = it.get_state()
    for number, _ in enumerate(it.iter_batches(batch_size=2)):
        if number == 1:
            it.set_state(start)
    assert it.get_state() == start
    assert ids(it.iter_batches(batch_size=8)) == [list(range(8))]


@pytest.mark.parametrize("options", [{}, {"_collate_fn": dict, "prefetch_batches": 3}], ids=["at once", "ahead"])
def test_a_batch_counts_as_used_once_it_is_handed_out_and_no_sooner(options):
    it = DataIterator(Rows([10]))
    batches = iter(it.iter_batches(batch_size=2, **options))
    for used in (2, 4, 6, 8, 10):
        next(batches)
        assert it.get_state()["row"] == used
    assert next(batches, None) is None
    assert (it.get_state()["epoch"], it.get_state().get("row", 0)) == (1, 0)
    assert it.get_state()["total"] == 10


def test_many_rows_are_cut_and_counted_right():
    it = DataIterator(Rows([10_000], block_rows=9_000))
    for number, row in enumerate(it.iter_rows()):
        assert row == {"id": number}
        if number in (0, 4095, 4096, 8999, 9000, 9999):
            assert it.get_state()["row"] == number + 1


def test_batches_of_one_block_are_views_of_it():
    table = pa.table({"id": pa.array(range(8)), "maybe": pa.array([1, None, 3, 4, 5, None, 7, 8])})
    feeds = Rows([8], block_rows=8, columns=lambda n: {name: table.column(name) for name in table.column_names})
    batches = list(DataIterator(feeds, WorkerShard(1, 2, "equal")).iter_batches(batch_size=2))
    assert ids(batches) == [[2, 3], [6, 7]]
    assert all(np.shares_memory(batch["id"], table["id"].to_numpy()) for batch in batches)
    assert pa.concat_tables(DataIterator(feeds).iter_batches(batch_size=3, batch_format="pyarrow")) == table
    assert list(DataIterator(feeds).iter_rows()) == table.to_pylist()


def test_without_a_batch_size_it_is_256_or_the_share_of_the_global_one():
    assert [*map(len, ids(DataIterator(Rows([600])).iter_batches()))] == [256, 256, 88]
    shard = DataIterator(Rows([100]), WorkerShard(1, 4, "equal"), global_batch_size=40)
    assert ids(shard.iter_batches())[0] == ids(shard.iter_batches(batch_size=10))[0] == list(range(10, 20))
    everything = DataIterator(Rows([100]), WorkerShard(1, 4, "all"), global_batch_size=40)
    assert ids(everything.iter_batches())[0] == list(range(10))


def test_a_state_of_other_data_and_what_is_no_state_are_refused():
    state = DataIterator(Rows([4])).get_state()
    other = DataIterator(Rows([5]), name="train")
    with pytest.raises(ValueError, match=r"dataset 'train' has changed since[\s\S]*hint"):
        other.set_state(state)
    with pytest.raises(ValueError, match="has changed since"):
        DataIterator(Rows([5]), cursor=Cursor(fingerprint="0"))
    del state["fingerprint"]
    other.set_state(state)
    ahead = {"row": 0, "leads": [[3, "x"]], "chunk": 2, "world": 2}
    for wrong, message in (({"row": -1}, "row"), ({"rows": 1}, "rows"), ([], "object"), ({"ahead": ahead}, "leads")):
        with pytest.raises(ValueError, match=rf"not from get_state\(\)[\s\S]*{message}"):
            other.set_state(wrong)


def test_a_changed_window_waits_for_the_next_epoch():
    """The rest of an epoch is in the order it was begun with."""
    feeds = Rows([40])
    whole = DataIterator(feeds)
    orders = [flat(whole.iter_batches(local_shuffle_buffer_size=16)) for _ in range(2)]
    it = DataIterator(feeds)
    next(iter(it.iter_batches(batch_size=5, local_shuffle_buffer_size=16)))
    state = json.loads(json.dumps(it.get_state()))
    for options in ({"local_shuffle_buffer_size": 7, "local_shuffle_seed": 3}, {}):
        again = DataIterator(feeds)
        again.set_state(state)
        assert flat(again.iter_batches(**options)) == orders[0][5:]
        assert flat(again.iter_batches(**options)) != orders[1]


@pytest.mark.parametrize("sizes", [[5, 0, 6], []])
def test_a_part_can_be_made_a_dataset_in_memory(sizes):
    it = DataIterator(Rows(sizes), WorkerShard(1, 2, "exact"), name="train")
    rows = [row["id"] for row in it.iter_rows()]
    assert it.schema() is None if not sizes else it.schema().names == ["id"]
    assert repr(it) == "DataIterator(train, worker 1 of 2)"
    kept = it.materialize()
    assert [row["id"] for row in kept.iter_rows()] == rows
    assert it.get_state()["epoch"] == 2


def test_an_iterator_continues_in_another_process():
    it = DataIterator(Rows([8], columns=_numbered), WorkerShard(1, 2, "equal"))
    batches = iter(it.iter_batches(batch_size=1))
    next(batches)
    again = pickle.loads(pickle.dumps(it))
    assert again.cursor() == it.cursor()
    assert ids(again.iter_batches(batch_size=1)) == ids(batches) == [[3], [5], [7]]


def _numbered(numbers):
    return {"id": numbers}


def test_prefetches_no_more_batches_than_requested():
    made = []
    taken = threading.Semaphore(0)

    def collate(batch):
        made.append(batch["id"][0])
        taken.release()
        return batch

    batches = iter(DataIterator(Rows([20])).iter_batches(batch_size=1, prefetch_batches=2, _collate_fn=collate))
    for number in range(5):
        next(batches)
        # The one that was handed out, and two beside it.
        while len(made) < number + 3:
            assert taken.acquire(timeout=240)
        assert len(made) <= number + 3
    batches.close()
    assert len(made) <= 8


@pytest.mark.parametrize("leave", ["close", "collect"])
def test_the_thread_ends_with_the_iteration(leave):
    before = threading.active_count()
    feeds = Rows([1000])
    batches = iter(DataIterator(feeds).iter_batches(batch_size=1, prefetch_batches=4, _collate_fn=lambda batch: batch))
    next(batches)
    assert threading.active_count() == before + 1
    if leave == "close":
        batches.close()
    else:
        cycle = [batches]
        cycle.append(cycle)
        del batches, cycle
        gc.collect()
    assert threading.active_count() == before
    assert feeds.num_open == 0


@pytest.mark.parametrize("options", [{}, {"prefetch_batches": 0}, {"prefetch_batches": 5}], ids=str)
def test_what_collate_or_a_reader_raises_comes_where_the_batch_was_to_come(options):
    def collate(batch):
        if batch["id"][0] == 6:
            raise RuntimeError("no sixth")
        return batch

    def columns(numbers):
        if numbers[0] >= 8:
            raise OSError("disk")
        return {"id": numbers}

    it = DataIterator(Rows([10]))
    batches = it.iter_batches(batch_size=2, _collate_fn=collate, **options)
    assert ids(collect_until_error(RuntimeError, "no sixth", batches)) == [[0, 1], [2, 3], [4, 5]]
    assert it.get_state()["row"] == 6
    for more in ({}, {"_collate_fn": lambda batch: batch}):
        batches = DataIterator(Rows([5, 5], columns=columns)).iter_batches(batch_size=2, **options, **more)
        assert ids(collect_until_error(OSError, "disk", batches)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
