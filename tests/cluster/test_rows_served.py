"""The service that sends rows to workers on a cluster, with all workers in this process."""

import contextlib
import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

import paceline.data
from paceline._core.errors import DataError
from paceline._engine.ray.code_bundle import CodeBundle
from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.exec.ray.serving import feeds as feeds_module
from paceline.data.exec.ray.serving.feeds import RayFeeds, get_service_client
from paceline.data.exec.ray.serving.row_service import serve_with_stats
from paceline.data.iterator import DataIterator
from paceline.data.order.feeds import LocalFeeds
from paceline.data.order.sharding import WorkerShard, merge_cursors
from processes import wait_until

MODES = ("equal", "exact", "all")


@contextlib.contextmanager
def serve(limit=None, **datasets):
    context = DataContext()
    if limit is not None:
        context = DataContext(ExecutionOptions(ExecutionResources(object_store_memory=limit)))
    plans = {name: dataset._plan for name, dataset in datasets.items()}
    with serve_with_stats(plans, context, CodeBundle(), lambda _: None) as (address, _):
        yield address


def shards(feeds, world, mode, cursor=None):
    return [DataIterator(feeds, WorkerShard(rank, world, mode), cursor=cursor) for rank in range(world)]


def collect_batches(its, **options):
    """The batches of each worker, and where it stands after each. They go side by side, as workers do."""
    collected = [[] for _ in its]
    running = [iter(it.iter_batches(**options)) for it in its]
    for turn in itertools.zip_longest(*running):
        for batch, it, noted in zip(turn, its, collected, strict=True):
            if batch is not None:
                noted.append((batch["id"].tolist(), it.get_state()))
    return collected


def read_flight_stats(address):
    service = get_service_client(address)
    return service.get(service.call("flight_stats"))


def wait_for_flight_stats(address, holds):
    """What is seen as soon as it is so. A service that is not there is asked again."""

    def look():
        with contextlib.suppress(DataError):
            now = read_flight_stats(address)
            return (now,) if holds(now) else None

    return wait_until(look)[0]


def wait_until_settled(address):
    """No pass is under way any more: those who left are noticed a moment later."""
    return wait_for_flight_stats(address, lambda now: now[2] == 0)


def wait_until_restarted(address):
    """The service was killed, and is there again: Ray kills a moment after it is asked to."""
    wait_for_flight_stats(address, lambda now: now == (0, 0, 0, 0))


@pytest.mark.slow
def test_every_worker_has_the_batches_and_the_places_that_it_has_on_one_machine():
    dataset = paceline.data.range(53, override_num_blocks=7).randomize_block_order(seed=3).filter(expr="id != 13")
    here = LocalFeeds(dataset._plan, InlineExecutor())
    with serve(rows=dataset) as address:
        feeds = RayFeeds(address, "rows")
        known = [(each.fingerprint(), each.num_rows(), str(each.schema())) for each in (feeds, here)]
        assert known[0] == known[1]
        for mode, size, window in itertools.product(MODES, (3, None), (None, 10)):
            options = {"batch_size": size, "local_shuffle_buffer_size": window, "local_shuffle_seed": 5}
            ours, theirs = shards(feeds, 3, mode), shards(here, 3, mode)
            for _ in range(2):
                assert collect_batches(ours, **options) == collect_batches(theirs, **options), (mode, size, window)

        for world in (2, 3):
            places = [interrupt(each) for each in (feeds, here)]
            assert places[0] == places[1]
            assert places[0].ahead is not None
            rest = [collect_batches(shards(each, world, "exact", places[0]), batch_size=5) for each in (feeds, here)]
            assert rest[0] == rest[1]
        assert wait_until_settled(address)[0] == 0


def interrupt(feeds):
    """Where two workers stand that are not in step, and leave in the middle of an epoch."""
    its = shards(feeds, 2, "exact")
    running = [iter(it.iter_batches(batch_size=4, local_shuffle_buffer_size=10)) for it in its]
    for rank in (0, 1, 1):
        next(running[rank])
    place = merge_cursors([it.cursor() for it in its])
    for batches in running:
        batches.close()
    return place


@pytest.mark.slow
def test_the_users_functions_run_once_for_all_workers_and_their_rows_are_cut_in_place(tmp_path):
    def doubled(batch, path=str(tmp_path)):
        import os
        import uuid

        Path(path, uuid.uuid4().hex).write_text(str(os.getpid()))
        return {"id": batch["id"] * 2, "text": np.array([f"row {number}" for number in batch["id"]])}

    def failing(batch):
        if batch["id"][0] >= 20:
            raise ValueError("no such thing as 20")
        return batch

    dataset = paceline.data.range(60, override_num_blocks=6)
    doubling, broken = dataset.map_batches(doubled, batch_size=None), dataset.map_batches(failing, batch_size=None)
    with serve(rows=doubling, broken=broken) as address:
        options = {"batch_size": 7, "local_shuffle_buffer_size": 25}
        got = collect_batches(shards(RayFeeds(address, "rows"), 2, "equal"), **options)
        assert len(list(tmp_path.iterdir())) == 6
        assert got == collect_batches(shards(LocalFeeds(doubling._plan, InlineExecutor()), 2, "equal"), **options)

        # Workers have the batches before the one that fails, as on one machine.
        it = shards(RayFeeds(address, "broken"), 2, "equal")[1]
        batches = []
        with pytest.raises(ValueError, match="no such thing as 20") as caught:
            batches.extend(batch["id"].tolist() for batch in it.iter_batches(batch_size=4))
        assert batches == [[4, 5, 6, 7], [12, 13, 14, 15]]
        assert "test_rows_served.py" in "".join(caught.value.__notes__)
        assert wait_until_settled(address)[0] == 0


@pytest.mark.slow
def test_bytes_in_flight_are_bounded_and_each_worker_fetches_its_own_rows_alone(monkeypatch):
    fetched = {}
    get = feeds_module.RowServiceClient.get

    def counted(self, ref):
        value = get(self, ref)
        if isinstance(value, tuple) and len(value) == 2 and hasattr(value[1], "nbytes"):
            name = threading.current_thread().name
            fetched[name] = fetched.get(name, 0) + value[1].nbytes
        return value

    monkeypatch.setattr(feeds_module.RowServiceClient, "get", counted)
    num_rows, row_bytes, num_blocks, limit = 3_600, 800, 30, 500_000
    dataset = paceline.data.range_tensor(num_rows, shape=(row_bytes // 8,), override_num_blocks=num_blocks)
    with serve(limit, rows=dataset) as address:
        feeds = RayFeeds(address, "rows")
        firsts = {rank: [] for rank in range(3)}
        # In step, as workers are that share their gradients. One that is ahead of others is not held back for them.
        step = threading.Barrier(3, timeout=240)

        def take(rank):
            for batch in DataIterator(feeds, WorkerShard(rank, 3, "equal")).iter_batches(batch_size=20):
                firsts[rank].append(int(batch["data"][0, 0]))
                step.wait()

        ranks = [threading.Thread(target=take, args=(rank,), name=f"rank {rank}") for rank in range(3)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        assert firsts == {rank: list(range(rank * 20, num_rows, 60)) for rank in range(3)}
        total = num_rows * row_bytes
        assert fetched.keys() == {"rank 0", "rank 1", "rank 2"}
        assert all(total / 3 <= number < 1.1 * total / 3 for number in fetched.values())
        in_flight, peak, num_passes, _ = wait_until_settled(address)
        assert (in_flight, num_passes) == (0, 0)
        assert peak <= limit / 2 + 2 * total / num_blocks

        # Of workers that leave early nothing is held, whether they say so or are followed by another attempt.
        batches = iter(DataIterator(feeds, WorkerShard(0, 3, "equal")).iter_batches(batch_size=20))
        next(batches)
        assert read_flight_stats(address)[0] > 0
        other = iter(DataIterator(RayFeeds(address, "rows", attempt=2), WorkerShard(0, 1, "equal")).iter_batches())
        next(other)
        with pytest.raises(DataError, match="the service has restarted"):
            list(batches)
        other.close()
        assert wait_until_settled(address)[0] == 0


@pytest.mark.slow
def test_a_service_that_is_lost_begins_anew_and_serves_its_own_run_alone():
    import ray

    with serve(rows=paceline.data.range(30, override_num_blocks=3)) as address:
        feeds = RayFeeds(address, "rows", attempt=1)
        batches = iter(DataIterator(feeds, WorkerShard(0, 2, "exact")).iter_batches(batch_size=5))
        assert next(batches)["id"].tolist() == [0, 1, 2, 3, 4]
        name = address.split("/")[-2]
        ray.kill(ray.get_actor(name), no_restart=False)
        wait_until_restarted(address)
        again = RayFeeds(address, "rows", attempt=2)
        assert collect_batches(shards(again, 1, "exact"), batch_size=30)[0][0][0] == list(range(30))

        with pytest.raises(KeyError, match="unknown dataset 'valid'; the datasets are 'rows'"):
            RayFeeds(address, "valid").num_rows()
        with pytest.raises(DataError, match="belong to another run"):
            RayFeeds(address[:-1] + "?", "rows").num_rows()
        get_service_client(address)._owner = 0
        with pytest.raises(DataError, match="survive a fork"):
            again.num_rows()
        batches.close()
    with pytest.raises(ValueError, match=name):
        ray.get_actor(name)
