"""From every place, on every number of workers, the rest of the run is what an uninterrupted one would have given."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numbered_rows import Rows
from paceline.data.iterator import DataIterator
from paceline.data.order.sharding import Cursor, WorkerShard, merge_cursors

WORKERS = range(1, 5)


class Group:
    """Workers that go on from a cursor, each at its own pace."""

    def __init__(self, feeds, world, mode, batch_size=2, *, window=None, seed=None, cursor=None):
        self.mode = mode
        self.world = world
        self.shards = [DataIterator(feeds, WorkerShard(rank, world, mode), cursor=cursor) for rank in range(world)]
        if batch_size == "rows":
            self.batches = [shard.iter_rows() for shard in self.shards]
        else:
            options = {"local_shuffle_buffer_size": window, "local_shuffle_seed": seed}
            self.batches = [shard.iter_batches(batch_size=batch_size, **options) for shard in self.shards]
        self.running = [None] * world
        self.used = []  # epoch, rows

    def step(self, rank):
        """One batch; false where the worker's epoch was at its end, or where it is too far ahead of the others."""
        if self.shards[rank].cursor().epoch > min(shard.cursor().epoch for shard in self.shards) + 1:
            return False
        if self.running[rank] is None:
            self.running[rank] = iter(self.batches[rank])
        batch = next(self.running[rank], None)
        if batch is None:
            self.running[rank] = None
            return False
        ids = batch["id"]
        epoch = self.shards[rank].cursor().epoch
        self.used += [(epoch, row) for row in (ids.tolist() if hasattr(ids, "tolist") else [ids])]
        return True

    def finish(self, epochs):
        """All workers to the end of that many epochs."""
        while any(shard.cursor().epoch < epochs for shard in self.shards):
            for rank, shard in enumerate(self.shards):
                if shard.cursor().epoch < epochs:
                    self.step(rank)

    def cursor(self):
        cursor = merge_cursors([shard.cursor() for shard in self.shards])
        text = msgspec.json.encode(cursor)
        assert len(text) < 1024
        return msgspec.json.decode(text, type=Cursor)


def tail(feeds, world, mode, batch_size, cursor, **options):
    """What each worker gets of the rest of the cursor's epoch, in batches."""
    shards = [DataIterator(feeds, WorkerShard(rank, world, mode), cursor=cursor) for rank in range(world)]
    return [[b["id"].tolist() for b in shard.iter_batches(batch_size=batch_size, **options)] for shard in shards]


@pytest.mark.parametrize("mode", ["equal", "exact", "all"])
@pytest.mark.parametrize("window", [None, 5, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("without", [None, 3], ids=["all rows", "filtered"])
def test_the_rest_is_the_tail_from_every_place_of_two_epochs(mode, window, without):
    """In step and on as many workers: the same batches. On others: the rows that were left, each once."""
    options = {"local_shuffle_buffer_size": window}
    for num_rows, world, batch_size in itertools.product([0, 1, 5, 13], WORKERS, [1, 3]):
        feeds = Rows([num_rows // 3, 0, num_rows - num_rows // 3], without=without, reorder=True)
        shards = [DataIterator(feeds, WorkerShard(rank, world, mode)) for rank in range(world)]
        batches = [shard.iter_batches(batch_size=batch_size, **options) for shard in shards]
        for epoch in range(2):
            positions = [merge_cursors([shard.cursor() for shard in shards])]
            given = []
            for turn in itertools.zip_longest(*batches):
                given.append([None if batch is None else batch["id"].tolist() for batch in turn])
                positions.append(merge_cursors([shard.cursor() for shard in shards]))
            left = {row for turn in given for batch in turn if batch for row in batch}
            for place, cursor in enumerate(positions[: len(given) + 1]):
                rest = tail(feeds, world, mode, batch_size, cursor, **options)
                if cursor.epoch == epoch:
                    expected = [[turn[rank] for turn in given[place:] if turn[rank]] for rank in range(world)]
                    assert rest == expected, (num_rows, world, batch_size, place, cursor)
                if place:
                    left -= {row for batch in given[place - 1] if batch for row in batch}
                if cursor.epoch != epoch or mode == "all":
                    continue
                for other in WORKERS:
                    rows = sorted(itertools.chain(*itertools.chain(*tail(feeds, other, mode, 2, cursor, **options))))
                    assert len(rows) == len(set(rows))
                    if mode == "exact":
                        assert rows == sorted(left)
                    else:
                        used = set().union(*(batch for turn in given[:place] for batch in turn if batch))
                        unused = set(feeds.order(epoch)) - used
                        assert set(rows) <= unused
                        assert len(unused) - len(rows) < world + other - 1


@pytest.mark.parametrize("mode", ["equal", "exact"])
@pytest.mark.parametrize("batch_size", [1, 2, None, "rows"])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_workers_out_of_step_lose_and_double_nothing(mode, batch_size, num_rows):
    """Every way in which two workers can stand apart, continued on every number of workers, and once more on two."""
    feeds = Rows([num_rows // 2, num_rows - num_rows // 2])
    for lead, behind, rank, other in itertools.product(range(7), range(2), range(2), WORKERS):
        group = Group(feeds, 2, mode, batch_size)
        for _ in range(behind):
            group.step(1 - rank)
        for _ in range(lead):
            group.step(rank)
        second = Group(feeds, other, mode, batch_size, cursor=group.cursor())
        for _ in range(lead % 3):
            second.step(other - 1)
            second.step(0)
        epoch = max(shard.cursor().epoch for shard in (*group.shards, *second.shards))
        third = Group(feeds, 2, mode, batch_size, cursor=second.cursor())
        third.finish(epoch + 1)
        check(feeds, [group, second, third], epoch + 1)


def check(feeds, groups, num_epochs):
    """No row twice in an epoch, and none missing but those that keep parts equal."""
    used = [entry for group in groups for entry in group.used]
    assert len(used) == len(set(used)), sorted(entry for entry in set(used) if used.count(entry) > 1)
    for epoch in range(num_epochs):
        rows = {row for at, row in used if at == epoch}
        order = set(feeds.order(epoch))
        assert rows <= order
        spare = sum(group.world - 1 for group in groups) if groups[0].mode == "equal" else 0
        assert len(order - rows) <= spare, (epoch, order - rows)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_history_of_interruptions_uses_every_row_once(data):
    draw = data.draw
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5), label="sizes")
    feeds = Rows(
        sizes,
        block_rows=draw(st.integers(1, 5), label="block_rows"),
        without=draw(st.sampled_from([None, 2, 3]), label="without"),
        reorder=draw(st.booleans(), label="reorder"),
    )
    mode = draw(st.sampled_from(["equal", "exact"]), label="mode")
    groups, cursor = [], None
    for _ in range(draw(st.integers(1, 4), label="interruptions")):
        group = Group(
            feeds,
            draw(st.integers(1, 4), label="world"),
            mode,
            draw(st.sampled_from([1, 2, 3, None, "rows"]), label="batch_size"),
            window=draw(st.sampled_from([None, 1, 4, 50]), label="window"),
            seed=draw(st.sampled_from([None, 1]), label="seed"),
            cursor=cursor,
        )
        groups.append(group)
        for rank in draw(st.lists(st.integers(0, group.world - 1), max_size=16), label="steps"):
            group.step(rank)
        cursor = group.cursor()
    last = Group(feeds, draw(st.integers(1, 4), label="last world"), mode, 2, cursor=cursor)
    epochs = max(shard.cursor().epoch for group in groups for shard in group.shards) + 1
    last.finish(epochs)
    check(feeds, [*groups, last], epochs)


def test_what_is_done_is_not_read_again():
    feeds = Rows([10] * 10)
    it = DataIterator(feeds)
    for batch in it.iter_batches(batch_size=5):
        if batch["id"][0] == 85:
            break
    state = it.get_state()
    feeds.num_delivered = 0
    again = DataIterator(feeds)
    again.set_state(state)
    assert [batch["id"].tolist() for batch in again.iter_batches(batch_size=10)] == [list(range(90, 100))]
    assert feeds.opened[-1] == (0, 8, 10)
    assert feeds.num_delivered == 4


def test_a_cursor_of_many_workers_out_of_step_stays_small():
    shards = [DataIterator(Rows([4000]), WorkerShard(rank, 64, "equal")) for rank in range(64)]
    running = [iter(shard.iter_batches(batch_size=1)) for shard in shards]
    for rank, batches in enumerate(running):
        for _ in range(rank % 13):
            next(batches)
    cursor = merge_cursors([shard.cursor() for shard in shards])
    assert len(msgspec.json.encode(cursor)) < 1024
    used = {step * 64 + rank for rank in range(64) for step in range(rank % 13)}
    [rest] = tail(Rows([4000]), 1, "equal", 100, cursor)
    assert used | set(itertools.chain(*rest)) == set(range(4000)), "no row is lost"


@pytest.mark.parametrize("mode", ["equal", "exact"])
def test_a_global_batch_is_the_same_on_every_number_of_workers(mode):
    feeds = Rows([13, 12])

    def global_batches(world, cursor=None):
        splits = [WorkerShard(rank, world, mode) for rank in range(world)]
        shards = [DataIterator(feeds, split, cursor=cursor, global_batch_size=12) for split in splits]
        turns = itertools.zip_longest(*(shard.iter_batches() for shard in shards))
        return [[row for batch in turn if batch for row in batch["id"].tolist()] for turn in turns]

    assert global_batches(1)[:2] == global_batches(2)[:2] == global_batches(4)[:2]
    cursor = Cursor(row=12, unit=0, offset=12, at=12)
    assert global_batches(3, cursor)[0] == global_batches(1)[1]
