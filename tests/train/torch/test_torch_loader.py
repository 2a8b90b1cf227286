"""Loaders on many workers: each rank has its part, epochs are counted, and what the user brought is kept."""

import inspect
import itertools
import time

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from paceline._core import time_accounting
from paceline._core.time_accounting import DATA, USER_CODE, TimeAccounting
from paceline.train.torch import enable_reproducibility, prepare_data_loader
from paceline.train.torch.loader import GlobalBatchSampler, _warn_about_repeated_rows

ROWS = range(16)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: a loader that copies ahead, not checked")


def plain_order(rank, epoch, *, seed=0):
    """What plain torch gives a rank in an epoch."""
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_ranks_see_parts_that_are_disjoint_and_cover_the_dataset(on_each):
    def function():
        shuffled = prepare_data_loader(DataLoader(range(16), batch_size=3, shuffle=True))
        ordered = prepare_data_loader(DataLoader(range(16), batch_size=3))
        single = prepare_data_loader(DataLoader(range(16), batch_size=None, shuffle=True))
        return [
            [[batch.tolist() for batch in shuffled] for _ in range(3)],
            [batch.tolist() for batch in ordered],
            [int(row) for row in single],
            [len(shuffled), len(ordered), len(single)],
        ]

    (shuffled, ordered, single, lengths), (shuffled_1, ordered_1, single_1, _) = on_each(function)
    for mine, others in zip(shuffled, shuffled_1, strict=True):
        assert sorted(itertools.chain(*mine, *others)) == list(ROWS)
        assert [len(batch) for batch in mine] == [3, 3, 2]
    assert len({str(epoch) for epoch in shuffled}) == 3, "each epoch has an order of its own"
    assert ordered == [[0, 2, 4], [6, 8, 10], [12, 14]]
    assert ordered_1 == [[1, 3, 5], [7, 9, 11], [13, 15]]
    assert sorted(single + single_1) == list(ROWS)
    assert lengths == [3, 3, 8]


@pytest.mark.parametrize(
    ("num_rows", "options", "num_repeated"),
    [
        (41, {"batch_size": 3}, 1),
        (42, {}, 0),
        (41, {"batch_size": 4, "drop_last": True}, 0),
        (41, {"batch_size": 7, "drop_last": True}, 1),
        (41, {"global_batch_size": 16}, 7),
        (41, {"global_batch_size": 16, "drop_last": True}, 0),
    ],
)
def test_rows_that_are_repeated_are_named_once(as_worker, caplog, num_rows, options, num_repeated):
    _warn_about_repeated_rows.cache_clear()
    options, yielded = dict(options), []
    size = options.pop("global_batch_size", None)
    for rank in (0, 1):
        as_worker(rank=rank, world_size=2, global_batch_size=size)
        loaders = [prepare_data_loader(DataLoader(range(num_rows), **options)) for _ in range(2)]
        yielded += [int(row) for batch in loaders[0] for row in batch]
    assert len(yielded) - len(set(yielded)) == num_repeated
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (1 if num_repeated else 0)
    assert all(f"repeats {num_repeated} of {num_rows} rows" in text and "sampler=range(" in text for text in said)


def test_an_explicit_epoch_wins_and_counting_goes_on_from_it(on_each):
    def function():
        loader = prepare_data_loader(DataLoader(range(16), batch_size=4, shuffle=True))

        def epochs(num_epochs):
            return [[int(row) for batch in loader for row in batch] for _ in range(num_epochs)]

        seen = epochs(2)
        loader.sampler.set_epoch(7)
        seen += epochs(2)
        for _ in range(2):
            loader.sampler.set_epoch(7)
            seen += epochs(1)
        persistent = DataLoader(range(16), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
        next(iter(persistent))  # Its process is running by now, in an order of its own.
        loader = prepare_data_loader(persistent)
        return seen + epochs(2)

    for rank, seen in enumerate(on_each(function)):
        assert seen == [plain_order(rank, epoch) for epoch in (0, 1, 7, 8, 7, 7, 0, 1)]


def test_a_sampler_that_the_user_brought_is_kept_and_counted(on_each):
    def function():
        data = range(16)
        sampler = DistributedSampler(data, seed=5)
        sampler.set_epoch(2)
        loader = prepare_data_loader(DataLoader(data, batch_size=4, sampler=sampler))
        in_batches = DistributedSampler(data, seed=5)
        batches = prepare_data_loader(DataLoader(data, batch_sampler=BatchSampler(in_batches, 4, False)))
        seen = [[int(row) for batch in each for row in batch] for each in (loader, loader, batches, batches)]
        sampler.set_epoch(4)
        in_batches.set_epoch(4)
        seen += [[int(row) for batch in each for row in batch] for each in (loader, batches)]
        # The same sampler again: it goes on counting from where it was.
        again = prepare_data_loader(DataLoader(data, batch_size=4, sampler=sampler))
        seen += [[int(row) for batch in each for row in batch] for each in (again, loader)]
        return [loader.sampler is sampler, seen]

    for rank, (kept, seen) in enumerate(on_each(function)):
        assert kept
        assert seen == [plain_order(rank, epoch, seed=5) for epoch in (2, 3, 0, 1, 4, 4, 5, 6)]


def test_the_order_follows_from_the_seed_of_the_loader_or_of_the_run(on_each):
    def function():
        def orders(generator, **options):
            loader = prepare_data_loader(DataLoader(range(16), generator=generator, **options))
            return [[int(row) for row in loader] for _ in range(2)]

        return [
            orders(torch.Generator().manual_seed(3), shuffle=True),
            orders(None, sampler=RandomSampler(range(16), generator=torch.Generator().manual_seed(3))),
            # Added to the number of an epoch, it is more than a generator takes.
            orders(torch.Generator().manual_seed((1 << 64) - 1), shuffle=True),
            enable_reproducibility(3),
            orders(None, shuffle=True),
        ]

    found = on_each(function)
    for rank, (given, in_sampler, _, _, of_the_run) in enumerate(found):
        assert given == in_sampler == of_the_run == [plain_order(rank, epoch, seed=3) for epoch in range(2)]
    for mine, others in zip(found[0][2], found[1][2], strict=True):
        assert sorted(mine + others) == list(ROWS)


def test_a_prepared_loader_keeps_its_type_and_every_argument(on_each):
    def function():
        given = {
            "batch_size": 3,
            "num_workers": 1,
            "collate_fn": list,
            "pin_memory": True,
            "drop_last": True,
            "timeout": 60,
            "worker_init_fn": print,
            "multiprocessing_context": "spawn",
            "generator": torch.Generator(),
            "prefetch_factor": 5,
            "persistent_workers": True,
            "pin_memory_device": "cuda",
            "in_order": False,
        }
        parameters = set(inspect.signature(DataLoader.__init__).parameters)
        about_samplers = {"self", "dataset", "shuffle", "sampler", "batch_sampler"}
        assert parameters - about_samplers == given.keys(), "torch's DataLoader has other arguments now"

        default, loader = DataLoader(range(16)), DataLoader(range(16), **given)
        prepared = prepare_data_loader(loader)
        for name in given:
            assert getattr(loader, name) != getattr(default, name), f"{name}: this would not be missed"
            assert getattr(prepared, name) == getattr(loader, name), name
        assert prepared.dataset is loader.dataset
        assert isinstance(prepared.sampler, DistributedSampler)
        assert isinstance(loader.sampler, SequentialSampler), "the loader that was given is left alone"
        batches = prepared.batch_sampler
        assert batches.sampler is prepared.sampler
        assert (batches.batch_size, batches.drop_last) == (3, True)
        assert len(prepared) == 2

        class Loader(DataLoader):
            def __init__(self, data, *, note):
                super().__init__(data, batch_size=4, shuffle=True)
                self.note = note

        prepared = prepare_data_loader(Loader(range(16), note="mine"))
        assert isinstance(prepared, Loader)
        assert (type(prepared).__name__, prepared.note, len(prepared)) == ("Loader", "mine", 2)
        assert prepare_data_loader(prepared) is prepared
        with pytest.raises(TypeError, match=r"data_loader must be a torch\.utils\.data\.DataLoader"):
            prepare_data_loader([1, 2])

    on_each(function)


class Doubles(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(0, 8, 2))


class EveryOther(Sampler):
    def __iter__(self):
        return iter(range(0, 16, 2))


class Pairs(Sampler):
    def __iter__(self):
        return iter([[0, 1], [2, 3]])


def test_what_the_user_brought_is_kept_and_said_once(on_each):
    def function():
        import logging

        data, weights = range(16), [1.0] * 16
        loaders = {
            "iterable": DataLoader(Doubles()),
            "distributed": DataLoader(data, sampler=DistributedSampler(data)),
            "distributed batches": DataLoader(data, batch_sampler=BatchSampler(DistributedSampler(data), 4, True)),
            "own": DataLoader(data, sampler=EveryOther()),
            "own batches": DataLoader(data, batch_sampler=Pairs()),
            "weighted": DataLoader(data, sampler=torch.utils.data.WeightedRandomSampler(weights, 16)),
            "replacing": DataLoader(data, sampler=RandomSampler(data, replacement=True)),
            "a part": DataLoader(data, sampler=SequentialSampler(range(4))),
        }
        messages = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())
        logging.getLogger("paceline").addHandler(handler)
        found = {}
        for name, loader in loaders.items():
            prepared = prepare_data_loader(loader)
            assert prepared.sampler is loader.sampler
            assert prepared.batch_sampler is loader.batch_sampler
            found[name] = [*messages]
            messages.clear()
        quiet = prepare_data_loader(loaders["weighted"], add_dist_sampler=False)
        plain = prepare_data_loader(DataLoader(data), add_dist_sampler=False)
        assert quiet.sampler is loaders["weighted"].sampler
        assert isinstance(plain.sampler, SequentialSampler)
        assert not messages
        rows = [int(row) for row in prepare_data_loader(loaders["iterable"])]
        return [found, rows]

    (found, rows), (found_1, rows_1) = on_each(function)
    assert rows == rows_1 == [0, 2, 4, 6], "an iterable dataset divides itself"
    assert not any(found_1.values()), "one rank says it for all"
    lines = {name: line for name, [line] in ((name, messages) for name, messages in found.items() if messages)}
    assert found.keys() - lines.keys() == {"iterable", "distributed", "distributed batches"}
    for name, sampler in {"own": "EveryOther", "own batches": "Pairs"}.items():
        assert f"does not shard the loader's {sampler}: it decides which rows each rank sees" in lines.pop(name)
    for line in lines.values():
        assert "every rank draws from the whole dataset" in line


def test_one_worker_keeps_its_samplers(as_worker):
    as_worker()
    loader = DataLoader(range(16), batch_size=4, shuffle=True)
    prepared = prepare_data_loader(loader)
    assert prepared.sampler is loader.sampler
    assert sorted(int(row) for batch in prepared for row in batch) == list(ROWS)


def test_loader_processes_draw_the_same_in_each_run_and_epoch(on_each):
    def function(*, epochs, num_draws_before):
        import random

        import numpy

        class Noise:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]

        enable_reproducibility(1)
        sampler = DistributedSampler(Noise(), shuffle=False)
        loader = DataLoader(Noise(), batch_size=None, num_workers=1, sampler=sampler)
        prepared = prepare_data_loader(loader)
        # Other code of the same program draws numbers too; more of them in one version than in the next.
        torch.rand(num_draws_before)
        sampler.set_epoch(epochs[0])
        return [list(prepared) for _ in epochs]

    first = on_each(lambda: function(epochs=[0, 1], num_draws_before=1))
    again = on_each(lambda: function(epochs=[1], num_draws_before=2))
    assert [[epochs[1]] for epochs in first] == again, "an epoch draws the same wherever a run begins"
    drawn = [str(row) for epochs in first for rows in epochs for row in rows]
    assert len(drawn) == len(set(drawn)) == 8, "no two ranks or epochs draw the same"


@pytest.mark.parametrize("gpus_per_worker", [0, pytest.param(0.5, marks=needs_gpu)])
def test_a_loader_goes_on_from_where_its_loop_stood(on_each, gpus_per_worker):
    """Also on a GPU, where batches are copied ahead: those do not count as used."""

    def function():
        def make_loader():
            return prepare_data_loader(DataLoader(range(40), batch_size=3, shuffle=True, num_workers=1))

        loader = make_loader()
        assert loader.state_dict() == {"epoch": 0, "num_batches": 0}
        all_batches = [[batch.tolist() for batch in loader] for _ in range(2)]
        assert loader.state_dict() == {"epoch": 2, "num_batches": 0}
        loader, seen = make_loader(), []
        for _ in loader:
            pass
        for batch in loader:
            seen.append(batch.tolist())
            if len(seen) == 3:
                break
        state = loader.state_dict()
        assert state == {"epoch": 1, "num_batches": 3}
        loader = make_loader()
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert seen + [batch.tolist() for batch in loader] == all_batches[1]
        assert loader.state_dict() == {"epoch": 2, "num_batches": 0}

    on_each(function, gpus_per_worker=gpus_per_worker, backend="gloo")


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_global_batches_do_not_depend_on_the_number_of_ranks(shuffle, drop_last):
    for length in range(1, 30):
        for epoch in (0, 3):
            alone = batches_of(length, 0, 1, shuffle, drop_last, epoch)
            for world_size in (2, 3, 6):
                ranks = range(world_size)
                parts = [batches_of(length, rank, world_size, shuffle, drop_last, epoch) for rank in ranks]
                together = [[*itertools.chain(*batch)] for batch in zip(*parts, strict=True)]
                assert together == alone
            seen = [index for batch in alone for index in batch]
            assert len(seen) % 6 == 0
            if drop_last:
                assert len(set(seen)) == len(seen) == length // 6 * 6
            else:
                assert set(seen) == set(range(length))


def batches_of(length, rank, world_size, shuffle, drop_last, epoch):
    sampler = GlobalBatchSampler(
        length, 6, rank=rank, world_size=world_size, seed=7 if shuffle else None, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    assert len(list(sampler)) == len(sampler)
    all_batches = list(sampler)
    if len(sampler) > 1:
        sampler.first = 1
        assert list(sampler) == all_batches[1:]
    return all_batches


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


def test_time_until_a_batch_is_there_is_spent_on_data_and_the_rest_is_not(as_worker):
    as_worker()
    clock = TimeAccounting()
    time_accounting.attach_clock(clock)
    loader = prepare_data_loader(DataLoader(Slow(), batch_size=2), add_dist_sampler=False)
    with clock.at(USER_CODE):
        for _ in loader:
            time.sleep(0.1)
    time_accounting.detach_clock(clock)
    _, sums = clock.read()
    assert sums[DATA] >= 0.2
    assert sums[USER_CODE] >= 0.2
