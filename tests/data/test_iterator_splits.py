"""Every worker gets its rows: no row lost or doubled, whatever the sizes."""

import itertools

import pytest

from numbered_rows import Rows
from paceline.data.iterator import DataIterator
from paceline.data.position import Split

SIZES = range(41)
WORKERS = range(1, 5)
BATCHES = range(1, 9)


def units(num_rows):
    """Some units of different sizes, empty ones at the beginning, in the middle and at the end among them."""
    parts = [num_rows // 2, 0, num_rows - num_rows // 2 - num_rows // 5, num_rows // 5]
    return [0, *parts, 0]


def epochs_of(feeds, world, mode, batch_size, num_epochs, **options):
    """For each epoch, the batches of each worker."""
    shards = [
        DataIterator(feeds, Split(rank, world, mode)).iter_batches(batch_size=batch_size, **options)
        for rank in range(world)
    ]
    return [[[batch["id"].tolist() for batch in shard] for shard in shards] for _ in range(num_epochs)]


def flat(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("world", WORKERS)
@pytest.mark.parametrize("without", [None, 5], ids=["all rows", "filtered"])
def test_equal_parts_are_equal_and_leave_out_less_than_one_row_for_each_worker(world, without):
    for num_rows, batch_size in itertools.product(SIZES, BATCHES):
        feeds = Rows(units(num_rows), without=without)
        order = feeds.order(0)
        for shards in epochs_of(feeds, world, "equal", batch_size, 2):
            rows = sorted(itertools.chain(*map(flat, shards)))
            assert len(set(rows)) == len(rows) == len(order) - len(order) % world
            assert set(rows) <= set(order)
            assert len({tuple(map(len, batches)) for batches in shards}) == 1
            sizes = [*map(len, shards[0])]
            assert all(size == batch_size for size in sizes[:-1])
            assert all(0 < size <= batch_size for size in sizes)


@pytest.mark.parametrize("world", WORKERS)
def test_over_epochs_equal_parts_leave_out_no_row_for_good(world):
    for num_rows in range(world, 41):
        seen = set()
        for shards in epochs_of(Rows(units(num_rows)), world, "equal", 3, 2):
            seen.update(*map(flat, shards))
        assert seen == set(range(num_rows))


@pytest.mark.parametrize("world", WORKERS)
@pytest.mark.parametrize("batch_size", [*BATCHES, None])
def test_exact_parts_have_every_row_once(world, batch_size):
    for num_rows in SIZES:
        feeds = Rows(units(num_rows), block_rows=4)
        for shards in epochs_of(feeds, world, "exact", batch_size, 2):
            assert sorted(itertools.chain(*map(flat, shards))) == list(range(num_rows))
            assert all(batch for batches in shards for batch in batches)
            lengths = [*map(len, map(flat, shards))]
            assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("world", WORKERS)
def test_parts_of_blocks_are_equal_too(world):
    for num_rows in SIZES:
        for shards in epochs_of(Rows(units(num_rows), block_rows=5), world, "equal", None, 2):
            rows = sorted(itertools.chain(*map(flat, shards)))
            assert len(set(rows)) == len(rows) == num_rows - num_rows % world
            assert len({tuple(map(len, batches)) for batches in shards}) == 1


@pytest.mark.parametrize("mode", ["equal", "exact"])
def test_rows_one_by_one_go_round_the_workers(mode):
    for num_rows, world in itertools.product(SIZES, WORKERS):
        feeds = Rows(units(num_rows))
        shards = [
            [row["id"] for row in DataIterator(feeds, Split(rank, world, mode)).iter_rows()] for rank in range(world)
        ]
        whole = num_rows - num_rows % world
        assert [row for turn in zip(*shards, strict=False) for row in turn] == list(range(whole))
        assert sorted(itertools.chain(*shards)) == list(range(whole if mode == "equal" else num_rows))


def test_every_worker_can_have_all_rows():
    for shards in epochs_of(Rows([5, 0, 7]), 3, "all", 4, 2):
        assert shards == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]] * 3


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


def test_a_windows_order_follows_from_its_seed():
    def order(**options):
        return flat(epochs_of(Rows([20]), 1, "all", 4, 1, local_shuffle_buffer_size=20, **options)[0][0])

    assert order() == order(local_shuffle_seed=None) == order(local_shuffle_seed=0)
    assert order(local_shuffle_seed=1) == order(local_shuffle_seed=1) != order()


@pytest.mark.parametrize("mode", ["equal", "exact", "all"])
def test_with_drop_last_all_batches_are_full_and_no_full_one_is_dropped(mode):
    for num_rows, world, batch_size in itertools.product(range(0, 41, 3), WORKERS, BATCHES):
        [shards] = epochs_of(Rows(units(num_rows)), world, mode, batch_size, 1, drop_last=True)
        parts = 1 if mode == "all" else world
        assert {len(batch) for batches in shards for batch in batches} <= {batch_size}
        assert {*map(len, shards)} == {num_rows // (batch_size * parts)}
