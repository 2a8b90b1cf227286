"""Every worker gets its rows: no row lost or doubled, whatever the sizes."""

import itertools

import pytest

from numbered_rows import Rows
from paceline.data.iterator import DataIterator
from paceline.data.order.sharding import WorkerShard

SIZES = [*range(15), 20, 27, 33, 40]
WORKERS = range(1, 5)
BATCHES = range(1, 9)


def units(num_rows):
    """Some units of different sizes, empty ones at the beginning, in the middle and at the end among them."""
    parts = [num_rows // 2, 0, num_rows - num_rows // 2 - num_rows // 5, num_rows // 5]
    return [0, *parts, 0]


def epochs_of(feeds, world, mode, batch_size, num_epochs, **options):
    """For each epoch, the batches of each worker."""
    splits = [WorkerShard(rank, world, mode) for rank in range(world)]
    shards = [DataIterator(feeds, split).iter_batches(batch_size=batch_size, **options) for split in splits]
    return [[[batch["id"].tolist() for batch in shard] for shard in shards] for _ in range(num_epochs)]


def flat(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("world", WORKERS)
@pytest.mark.parametrize("without", [None, 5], ids=["all rows", "filtered"])
@pytest.mark.parametrize("mode", ["equal", "exact"])
def test_exact_parts_have_every_row_and_equal_ones_leave_out_less_than_one_for_each_worker(world, without, mode):
    for num_rows, batch_size in itertools.product(SIZES, [*BATCHES, None]):
        feeds = Rows(units(num_rows), without=without)
        order, seen = feeds.order(0), set()
        for shards in epochs_of(feeds, world, mode, batch_size, 2):
            rows = sorted(itertools.chain(*map(flat, shards)))
            assert len(set(rows)) == len(rows) == len(order) - (len(order) % world if mode == "equal" else 0)
            assert set(rows) <= set(order)
            lengths = [*map(len, map(flat, shards))]
            assert max(lengths) - min(lengths) <= (mode == "exact")
            assert mode == "exact" or len({tuple(map(len, batches)) for batches in shards}) == 1
            sizes = [*map(len, shards[0])]
            assert all(batch for batches in shards for batch in batches)
            assert batch_size is None or sizes[:-1] == [batch_size] * len(sizes[:-1])
            assert batch_size is None or all(size <= batch_size for size in sizes)
            seen.update(rows)
        assert seen == set(order) or len(order) < world, "over epochs, no row is left out for good"


@pytest.mark.parametrize("window", [1, 4, 7, 1000])
def test_a_window_moves_rows_within_itself_only(window):
    for num_rows in SIZES:
        feeds = Rows(units(num_rows))
        first, second = epochs_of(feeds, 1, "equal", 3, 2, local_shuffle_buffer_size=window)
        for order in (flat(first[0]), flat(second[0])):
            for begin in range(0, num_rows, window):
                stop = min(begin + window, num_rows)
                assert sorted(order[begin:stop]) == list(range(begin, stop))
        if window > 6 and num_rows > 20:
            assert flat(first[0]) != flat(second[0]) != list(range(num_rows))
            options = [{"local_shuffle_buffer_size": window, "local_shuffle_seed": seed} for seed in (None, 0, 1, 1)]
            seeded = [flat(epochs_of(feeds, 1, "equal", 3, 1, **each)[0][0]) for each in options]
            assert seeded[0] == seeded[1] == flat(first[0]) != seeded[2] == seeded[3]


@pytest.mark.parametrize("mode", ["equal", "exact", "all"])
def test_with_drop_last_all_batches_are_full_and_no_full_one_is_dropped(mode):
    for num_rows, world, batch_size in itertools.product(range(0, 41, 3), WORKERS, BATCHES):
        [shards] = epochs_of(Rows(units(num_rows)), world, mode, batch_size, 1, drop_last=True)
        parts = 1 if mode == "all" else world
        assert {len(batch) for batches in shards for batch in batches} <= {batch_size}
        assert {*map(len, shards)} == {num_rows // (batch_size * parts)}


@pytest.mark.parametrize("without", [None, 5], ids=["all rows", "filtered"])
@pytest.mark.parametrize("mode", ["equal", "exact", "all"])
@pytest.mark.parametrize("reads_rows", [False, True])
def test_rows_that_an_epoch_drops_are_counted_once_and_not_again_after_resuming(without, mode, reads_rows):
    feeds, told = Rows(units(40), without=without), []
    total = len(feeds.order(0))
    iterator = DataIterator(feeds, WorkerShard(1, 3, mode))
    iterator._attach_to_worker("x", global_batch_size=None, default_device=None, on_dropped=lambda *n: told.append(n))
    for _ in range(2):
        for _ in iterator.iter_rows() if reads_rows else iterator.iter_batches(batch_size=2):
            pass
    assert told == ([(total % 3, total)] if mode == "equal" else [])
    resumed = DataIterator(feeds, WorkerShard(1, 3, mode), cursor=iterator.cursor())
    resumed._attach_to_worker("x", global_batch_size=None, default_device=None, on_dropped=lambda *n: told.append(n))
    assert [*resumed.iter_rows()]
    assert len(told) == (mode == "equal")
