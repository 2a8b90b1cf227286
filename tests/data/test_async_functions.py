"""Async functions over rows, pools of processes, and functions that promise to keep the number of rows."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import data
from paceline.data import ActorPoolStrategy
from paceline.data.transforms.async_calls import call_ahead


class Meeting:
    """Calls wait for each other, so that they end only if `size` of them are in flight."""

    def __init__(self, size):
        self.size, self.num_waiting, self.all_here = size, 0, asyncio.Event()

    async def __call__(self, row):
        self.num_waiting += 1
        if self.num_waiting >= self.size:
            self.all_here.set()
        await asyncio.wait_for(self.all_here.wait(), 60)
        return row


async def double(row):
    await asyncio.sleep(0)
    return {"x": row["id"] * 2}


async def repeat(row):
    for _ in range(row["id"]):
        await asyncio.sleep(0)
        yield row


async def double_batch(batch):
    return {"x": batch["id"] * 2}


async def halves(batch):
    middle = len(batch["id"]) // 2
    yield {"x": batch["id"][:middle]}
    yield {"x": batch["id"][middle:]}


async def is_odd(row):
    return row["id"] % 2


async def refuse_three(row):
    await asyncio.sleep(0)
    if 3 in ([row["id"]] if isinstance(row["id"], int) else row["id"]):
        raise ValueError("three")
    return row


def values(ds):
    return [next(iter(row.values())) for row in ds.take_all()]


def test_async_functions_are_awaited_and_rows_keep_their_order():
    ds = data.range(5)
    assert values(ds.map(double)) == [0, 2, 4, 6, 8]
    assert values(ds.flat_map(repeat)) == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]
    assert values(ds.filter(is_odd)) == [1, 3]
    assert values(ds.map_batches(double_batch, batch_size=2)) == [0, 2, 4, 6, 8]
    assert values(ds.map_batches(halves, batch_size=3)) == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 5)), st.integers(1, 4))
def test_calls_overlap_up_to_the_limit_and_results_come_in_order(delays, limit):
    running = most = 0

    async def call(delay):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(delay):
            await asyncio.sleep(0)
        running -= 1
        return delay

    assert [(each, get()) for each, get in call_ahead(call, delays, limit)] == [(each, each) for each in delays]
    assert most <= limit
    assert most == min(limit, len(delays)) or 0 in delays


def test_a_pool_has_as_many_calls_in_flight_as_it_was_given():
    for option in ("max_concurrent_calls_per_actor", "max_tasks_in_flight_per_actor"):
        compute = ActorPoolStrategy(size=1, **{option: 3})
        ds = data.range(6, override_num_blocks=1).map(Meeting, compute=compute, fn_constructor_args=(3,))
        assert values(ds) == list(range(6))


def test_leaving_early_cancels_the_calls_in_flight():
    cancelled = []

    async def call(number):
        try:
            await asyncio.sleep(3600 if number else 0)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    calls = call_ahead(call, range(9), 4)
    next(calls)[1]()
    calls.close()
    assert sorted(cancelled) == [1, 2, 3]


@pytest.mark.parametrize("method", ["map", "map_batches"])
def test_errors_of_async_functions_name_the_row_and_can_be_skipped(method):
    ds = data.range(6, override_num_blocks=1)
    options = {"batch_size": 2} if method == "map_batches" else {}
    with pytest.raises(ValueError, match="three") as raised:
        getattr(ds, method)(refuse_three, **options).take_all()
    place = "rows 2 to 3" if options else "row 3"
    assert any(f"{method}(refuse_three), at {place} of" in note for note in raised.value.__notes__)
    assert any("in refuse_three: raise ValueError" in note for note in raised.value.__notes__)
    assert values(getattr(ds, method)(refuse_three, on_error="skip", **options)) == [0, 1, 2, 4, 5]


def test_runs_where_an_event_loop_is_running():
    async def main():
        return values(data.range(3).map(double))

    assert asyncio.run(main()) == [0, 2, 4]
