"""Pipelines in real data processes: what comes is what comes without them, and no death of a process changes that."""

import contextlib
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from exec_plans import (
    Dying,
    EvenOnly,
    Failing,
    Holding,
    InBatches,
    Numbers,
    Scaled,
    collect_column,
    collect_rows,
    numbers,
    pipeline,
)

from paceline.data import DataError
from paceline.data.block import Block
from paceline.data.exec.pipeline import InlineExecutor, Pipeline, PipelineTask
from paceline.data.exec.service import ProcessExecutor
from paceline.data.planning.plan import PoolSpec
from processes import wait_until

TWO_CHAINS = Pipeline(
    tuple(PipelineTask(unit, index % 2) for index, unit in enumerate(numbers(6))),
    ((Scaled(by=2), Scaled(by=3, pool=PoolSpec(1, 2))), (Scaled(by=2), InBatches(size=4), Scaled(by=3))),
)

PIPELINES = {
    "nothing but reading": pipeline(numbers()),
    "no units": pipeline(()),
    "fused transforms": pipeline(numbers(), Scaled(by=2), EvenOnly(), InBatches(size=4)),
    "two pools": pipeline(numbers(), Scaled(pool=PoolSpec(2, 2)), InBatches(size=7, pool=PoolSpec(1, 1)), Scaled(by=3)),
    "units of no rows": pipeline([Numbers(0, ()), Numbers(10, (5,)), Numbers(20, (0, 3))], Scaled(by=2)),
    "blocks of no rows left": pipeline([Numbers(1, (1,)), Numbers(3, (1, 2)), Numbers(7, (1,))], EvenOnly()),
    "two chains": TWO_CHAINS,
}


@pytest.mark.parametrize("cpu", [1, 3])
def test_what_comes_is_what_comes_without_processes(make_service, cpu):
    executor = ProcessExecutor(make_service(cpu=cpu))
    for name, run in PIPELINES.items():
        for unit, offset in ((0, 0), (1, 0), (2, 3), (len(run.tasks) - 1, 2), (len(run.tasks), 0)):
            if 0 <= unit <= len(run.tasks):
                expected = collect_rows(InlineExecutor().run(run, unit, offset))
                assert collect_rows(executor.run(run, unit, offset)) == expected, (name, unit, offset)


def test_large_blocks_are_cut(make_service):
    service = make_service(target_max_block_size=4000)
    run = pipeline(numbers(3, (1000, 10)))
    deliveries = list(ProcessExecutor(service).run(run))
    assert collect_rows(deliveries) == collect_rows(InlineExecutor().run(run))
    assert max(delivered.block.nbytes for delivered in deliveries) <= 5000


def test_a_stage_with_a_pool_runs_in_processes_of_its_own_that_stay_for_the_next_stream(service):
    executor = ProcessExecutor(service)
    reading = pipeline(numbers(8), Scaled(by=2, tell_process=True), Scaled(by=3, pool=PoolSpec(1, 2)))
    pooled = pipeline(numbers(8), Scaled(by=2), Scaled(by=3, pool=PoolSpec(1, 2), tell_process=True))
    first, there = set(collect_column(executor.run(reading), "pid")), set(service.pids())
    second = set(collect_column(executor.run(pooled), "pid"))
    assert os.getpid() not in first | second
    assert not first & second
    assert 1 <= len(second) <= 2
    assert first <= there <= set(service.pids())


def test_blocks_that_are_kept_stay_what_they_are(make_service):
    service = make_service(budget=1 << 20)
    kept = list(ProcessExecutor(service).run(pipeline(numbers(40, (200, 300), width=32), Scaled(by=2))))
    assert sum(delivered.block.nbytes for delivered in kept) > 2 << 20
    for _ in range(2):
        for delivered in kept:
            expected = np.arange(delivered.block.num_rows) + delivered.unit * 1000 + delivered.offset
            assert np.array_equal(delivered.block.column("by_2"), expected * 2)
            assert np.array_equal(delivered.block.column("matrix"), np.repeat(expected, 32).reshape(-1, 32))
        service.close()


def test_memory_is_used_again(make_service):
    service = make_service(budget=1 << 20)
    for delivered in ProcessExecutor(service).run(pipeline(numbers(60, (500,), width=64))):
        assert delivered.block.num_rows
        del delivered
    assert next(service._arena_pool._numbers) <= 12


def test_a_consumer_that_stops_stops_the_readers(make_service):
    service = make_service(budget=1 << 20)
    deliveries = ProcessExecutor(service).run(pipeline(numbers(60, (1000,), width=64)))
    next(deliveries)
    wait_until(lambda: service._schedule.in_flight > (1 << 20) - 300_000)
    assert sum(delivered.block.num_rows for delivered in deliveries) == 59_000
    assert service._schedule.peak <= (1 << 20) + 300_000


def test_two_streams_at_once_do_not_hold_each_other_up(make_service):
    service = make_service(budget=1 << 20)
    run = pipeline(numbers(30, (1000,), width=64))
    stalled = ProcessExecutor(service).run(run)
    next(stalled)
    expected = collect_column(InlineExecutor().run(run))
    for _ in range(3):
        assert collect_column(ProcessExecutor(service).run(run)) == expected
    assert collect_column(stalled) == expected[1000:]


def test_streams_of_several_threads(service):
    run = pipeline(numbers(10), Scaled(by=2))
    executor = ProcessExecutor(service)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: collect_column(executor.run(run)), range(4)))
    assert found == [collect_column(InlineExecutor().run(run))] * 4


def test_closing_an_iterator_ends_the_work(make_service, tmp_path):
    service = make_service(budget=1 << 20)
    deliveries = ProcessExecutor(service).run(pipeline(numbers(200, (500,), width=64, notes=str(tmp_path))))
    next(deliveries)
    deliveries.close()
    wait_until(lambda: not service.is_busy and service._schedule.in_flight == 0)
    assert len(list(tmp_path.iterdir())) < 100


@pytest.mark.parametrize(("pool", "times"), [(None, 3), (PoolSpec(1, 2), 1)], ids=["fused", "pool"])
def test_a_unit_whose_process_dies_is_done_again_and_no_row_comes_twice(service, tmp_path, pool, times):
    run = pipeline(numbers(6, (3, 4, 5, 6)), Scaled(by=2), Dying(at=2008, notes=str(tmp_path), times=times, pool=pool))
    plain = pipeline(numbers(6, (3, 4, 5, 6)), Scaled(by=2))
    assert collect_rows(ProcessExecutor(service).run(run)) == collect_rows(InlineExecutor().run(plain))
    assert len(list(tmp_path.glob("died-*"))) == times


def test_too_many_deaths_at_one_unit_are_an_error_that_names_it_and_how(make_service, tmp_path):
    service = make_service(max_unit_failures=2)
    run = pipeline(numbers(6), Dying(at=2003, notes=str(tmp_path), times=100))
    with pytest.raises(DataError, match=r"numbers from 2000: .* died 3 times; the last one was killed by SIGKILL"):
        list(ProcessExecutor(service).run(run))
    assert collect_column(ProcessExecutor(service).run(pipeline(numbers(2))))


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def test_an_exception_comes_in_its_place_in_the_order_with_where_it_happened(service):
    executor, found = ProcessExecutor(service), []

    def take_all():
        for delivered in executor.run(pipeline(numbers(6), Failing(3011))):
            found.extend(delivered.block.column("number").tolist())

    with pytest.raises(ValueError, match="cannot do 3011") as caught:
        take_all()
    assert found == collect_column(InlineExecutor().run(pipeline(numbers(3)))) + list(range(3000, 3010))
    notes = "\n".join(caught.value.__notes__)
    assert "numbers from 3000" in notes
    assert "exec_plans.py" in notes
    unpicklable = pipeline(numbers(3), Failing(1001, Unpicklable))
    with pytest.raises(DataError, match=r"numbers from 1000: Unpicklable: cannot do 1001 \(.*exec_plans.py:\d+ in "):
        list(executor.run(unpicklable))


def test_what_cannot_be_sent_is_an_error_of_its_own_stream_alone(service):
    executor = ProcessExecutor(service)
    for run in (pipeline(numbers(2), Scaled(by=threading.Lock())), pipeline([Numbers(threading.Lock())])):
        with pytest.raises(TypeError, match="pickle"):
            list(executor.run(run))
    assert collect_column(executor.run(pipeline(numbers(2))))


def test_statistics_count_what_each_stage_gave_and_what_was_skipped(service):
    executor = ProcessExecutor(service)
    list(executor.run(pipeline(numbers(4), Failing(1004, skip=True), Scaled(by=3, pool=PoolSpec(1, 1)))))
    wait_until(lambda: sum(stage.num_units for stage in executor.stats().stages) == 8)
    read, scaled = executor.stats().stages
    assert (read.name, scaled.name) == ("read -> failing", "scaled(3)")
    assert read.num_rows == scaled.num_rows == 59
    assert scaled.num_bytes > read.num_bytes > 0
    assert executor.stats().limited_by in ("read -> failing", "scaled(3)")
    wait_until(lambda: executor.stats().skipped)
    assert [(skipped.unit, skipped.row) for skipped in executor.stats().skipped] == [("numbers from 1000", 4)]
    assert "skipped: 1 rows" in str(executor.stats())


def test_killed_processes_at_any_moment_change_nothing(make_service, monkeypatch):
    # However often the same unit, or a process that only just starts, happens to be hit.
    monkeypatch.setattr("paceline.data.exec.schedule.MAX_STARTS", 1000)
    service = make_service(max_unit_failures=1000)
    run = pipeline(numbers(30, (50, 50)), Scaled(by=2), Scaled(by=3, pool=PoolSpec(1, 2)))
    found = []
    for count, delivered in enumerate(ProcessExecutor(service).run(run)):
        found += collect_rows([delivered])
        if count % 10 == 5:
            for pid in service.pids()[count // 10 % 2 :: 2]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert found == collect_rows(InlineExecutor().run(run))


def test_the_zygote_may_die(service):
    executor = ProcessExecutor(service)
    run = pipeline(numbers(6), Scaled(by=2, tell_process=True))
    zygote = psutil.Process(collect_column(executor.run(run), "pid")[0]).parent()
    zygote.kill()
    zygote.wait(60)
    assert collect_column(executor.run(run)) == collect_column(InlineExecutor().run(run))


def test_pools_shrink_to_their_least_and_the_rest_goes_when_nobody_uses_it(service, monkeypatch):
    monkeypatch.setattr("paceline.data.exec.process_supervisor.IDLE_S", 0.2)
    list(ProcessExecutor(service).run(pipeline(numbers(20), Scaled(by=2, pool=PoolSpec(1, 3)))))
    wait_until(lambda: service.pids() == [])


def test_a_view_that_lives_longer_than_its_stream_is_released_in_the_end(service):
    executor = ProcessExecutor(service)
    deliveries = executor.run(pipeline(numbers(3)))
    view = next(deliveries).block.column("number")
    deliveries.close()
    assert view.tolist() == list(range(10))
    wait_until(lambda: len(service._arena_pool.blocks) == 1)
    del view
    gc.collect()
    assert collect_column(executor.run(pipeline(numbers(1))))
    wait_until(lambda: len(service._arena_pool.blocks) == 0)


def test_a_process_in_a_users_function_does_not_hold_up_other_streams(make_service, tmp_path):
    service = make_service(cpu=1)
    held = ProcessExecutor(service).run(pipeline(numbers(3), Holding(1000, str(tmp_path))))
    next(held)
    wait_until((tmp_path / "held").exists)
    held.close()
    assert collect_column(ProcessExecutor(service).run(pipeline(numbers(3))))
    (tmp_path / "go").touch()


def test_data_processes_see_the_context_of_their_driver_and_start_no_others(make_service):
    class Told(Scaled):
        def apply(self, blocks, scope):
            from paceline.data.context import DataContext

            context = DataContext.get_current()
            for _ in blocks:
                yield Block({"told": [context.max_unit_failures, int(context.in_data_process)]})

    service = make_service(max_unit_failures=17)
    assert collect_column(ProcessExecutor(service).run(pipeline(numbers(1, (1,)), Told())), "told") == [17, 1]


class HeldNumbers(Numbers):
    def read(self):
        while not (Path(self.notes) / "go").exists():
            time.sleep(0.005)
        yield from super().read()


@pytest.mark.parametrize(
    ("make_pipeline", "expected"),
    [
        (lambda path: pipeline(numbers(2), Scaled(), Holding(1000, path), Scaled()), ("holding", "1000", False, "act")),
        (lambda path: pipeline((*numbers(1), HeldNumbers(1000, notes=path))), ("read", "1000", False, "read")),
        (lambda path: pipeline(numbers(1, (10**6,)), Scaled()), ("read", "0", True, "receive_messages")),
    ],
    ids=["transform", "unit", "room"],
)
def test_a_process_says_what_it_is_doing(make_service, tmp_path, make_pipeline, expected):
    service = make_service(cpu=1, budget=1 << 20)
    with contextlib.closing(ProcessExecutor(service).run(make_pipeline(str(tmp_path)))) as rows:
        next(rows)

        def has_answered():
            service.request_samples()
            samples = [each for each in service.read_samples() if each.sample is not None]
            found = [
                (each.stage, each.unit.split()[-1], each.is_waiting, each.sample.main[-1].function) for each in samples
            ]
            return found == [expected]

        wait_until(has_answered)
        (tmp_path / "go").touch()
    wait_until(lambda: not service.read_samples())
