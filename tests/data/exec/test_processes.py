"""Pipelines in real data processes: what comes is what comes without them, and no death of a process changes that."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from exec_plans import Dying, EvenOnly, Failing, Holding, InBatches, Numbers, Scaled, numbers, pipeline

from paceline.data import DataError
from paceline.data.block import Block
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.pipeline import Pipeline, Task
from paceline.data.exec.processes import ProcessExecutor
from paceline.data.transform import Pool

TWO_CHAINS = Pipeline(
    tuple(Task(unit, index % 2) for index, unit in enumerate(numbers(6))),
    ((Scaled(by=2), Scaled(by=3, pool=Pool(1, 2))), (Scaled(by=2), InBatches(size=4), Scaled(by=3))),
)

PIPELINES = {
    "nothing but reading": pipeline(numbers()),
    "no units": pipeline(()),
    "fused transforms": pipeline(numbers(), Scaled(by=2), EvenOnly(), InBatches(size=4)),
    "a pool": pipeline(numbers(), Scaled(by=2), InBatches(size=4, pool=Pool(1, 2)), Scaled(by=5)),
    "two pools": pipeline(numbers(), Scaled(by=2, pool=Pool(2, 2)), InBatches(size=7, pool=Pool(1, 1)), Scaled(by=3)),
    "units of no rows": pipeline([Numbers(0, ()), Numbers(10, (5,)), Numbers(20, (0, 3))], Scaled(by=2)),
    "blocks of no rows left": pipeline([Numbers(1, (1,)), Numbers(3, (1, 2)), Numbers(7, (1,))], EvenOnly()),
    "two chains": TWO_CHAINS,
}


def rows_of(deliveries):
    """By unit and row of the unit, so that it does not matter how rows are cut into blocks."""
    found = []
    for delivered in deliveries:
        for index, row in enumerate(delivered.block.rows()):
            found.append((delivered.unit, delivered.offset + index, {name: _plain(row[name]) for name in row}))
    return found


def _plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def columns_of(deliveries, name):
    parts = [delivered.block.column(name) for delivered in deliveries]
    return np.concatenate(parts).tolist() if parts else []


@pytest.mark.parametrize("run", PIPELINES.values(), ids=PIPELINES.keys())
def test_what_comes_is_what_comes_without_processes(service, run):
    executor = ProcessExecutor(service)
    expected = rows_of(InlineExecutor().run(run))
    assert rows_of(executor.run(run)) == expected
    for unit, offset in ((1, 0), (2, 3), (len(run.tasks) - 1, 2), (len(run.tasks), 0)):
        if 0 <= unit <= len(run.tasks):
            assert rows_of(executor.run(run, unit, offset)) == rows_of(InlineExecutor().run(run, unit, offset))


def test_large_blocks_are_cut(make_service):
    service = make_service(target_max_block_size=4000)
    run = pipeline(numbers(3, (1000, 10)))
    deliveries = list(ProcessExecutor(service).run(run))
    assert rows_of(deliveries) == rows_of(InlineExecutor().run(run))
    assert max(delivered.block.nbytes for delivered in deliveries) <= 5000


def test_one_process_or_more_make_no_difference(make_service):
    run = PIPELINES["a pool"]
    found = [rows_of(ProcessExecutor(make_service(cpu=cpu)).run(run)) for cpu in (1, 3)]
    assert found[0] == found[1]


def test_a_stage_with_a_pool_runs_in_processes_of_its_own(service):
    run = pipeline(
        numbers(8), Scaled(by=2, tell_process=True), Scaled(by=3, pool=Pool(1, 2)), Scaled(by=5, pool=Pool(1, 1))
    )
    first = set(columns_of(ProcessExecutor(service).run(run), "pid"))
    run = pipeline(numbers(8), Scaled(by=2), Scaled(by=3, pool=Pool(1, 2), tell_process=True))
    second = set(columns_of(ProcessExecutor(service).run(run), "pid"))
    assert os.getpid() not in first | second
    assert not first & second
    assert 1 <= len(second) <= 2


def test_processes_stay_for_the_next_stream(service):
    executor = ProcessExecutor(service)
    run = pipeline(numbers(), Scaled(by=2, tell_process=True))
    # One of them may have read all before another was there.
    first, there = set(columns_of(executor.run(run), "pid")), set(service.pids())
    assert first <= there
    assert set(columns_of(executor.run(run), "pid")) <= set(service.pids())
    assert there <= set(service.pids())


def test_blocks_that_are_kept_stay_what_they_are(make_service):
    service = make_service(budget=1 << 20)
    run = pipeline(numbers(40, (200, 300), width=32), Scaled(by=2))
    kept = list(ProcessExecutor(service).run(run))
    assert sum(delivered.block.nbytes for delivered in kept) > 2 << 20
    assert rows_of(kept) == rows_of(InlineExecutor().run(run))
    service.close()
    assert rows_of(kept) == rows_of(InlineExecutor().run(run))


def test_memory_is_used_again(make_service):
    service = make_service(budget=1 << 20)
    for delivered in ProcessExecutor(service).run(pipeline(numbers(60, (500,), width=64))):
        assert delivered.block.num_rows
        del delivered
    assert next(service._stock._numbers) <= 12


def test_a_consumer_that_stops_stops_the_readers(make_service, tmp_path):
    service = make_service(budget=1 << 20)
    units = numbers(60, (1000,), width=64, notes=str(tmp_path))
    deliveries = ProcessExecutor(service).run(pipeline(units))
    next(deliveries)
    _until_quiet(tmp_path)
    assert len(list(tmp_path.iterdir())) <= 12
    assert service._schedule.peak <= (1 << 20) + 300_000
    assert sum(delivered.block.num_rows for delivered in deliveries) == 59_000
    assert service._schedule.peak <= (1 << 20) + 300_000


def test_a_block_larger_than_the_budget_comes_all_the_same(make_service):
    service = make_service(budget=100_000)
    run = pipeline(numbers(6, (2000,), width=64), Scaled(by=2), Scaled(by=3, pool=Pool(1, 2)))
    assert columns_of(ProcessExecutor(service).run(run), "number") == columns_of(InlineExecutor().run(run), "number")


def test_two_streams_at_once_do_not_hold_each_other_up(make_service):
    service = make_service(budget=1 << 20)
    run = pipeline(numbers(30, (1000,), width=64))
    stalled = ProcessExecutor(service).run(run)
    next(stalled)
    expected = columns_of(InlineExecutor().run(run), "number")
    for _ in range(3):
        assert columns_of(ProcessExecutor(service).run(run), "number") == expected
    assert columns_of(stalled, "number") == expected[1000:]


def test_streams_of_several_threads(service):
    run = pipeline(numbers(10), Scaled(by=2))
    expected = columns_of(InlineExecutor().run(run), "number")
    found = []
    executor = ProcessExecutor(service)
    threads = [threading.Thread(target=lambda: found.append(columns_of(executor.run(run), "number"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_closing_an_iterator_ends_the_work(make_service, tmp_path):
    service = make_service(budget=1 << 20)
    deliveries = ProcessExecutor(service).run(pipeline(numbers(200, (500,), width=64, notes=str(tmp_path))))
    next(deliveries)
    deliveries.close()
    _until(lambda: not service.busy)
    _until_quiet(tmp_path)
    assert len(list(tmp_path.iterdir())) < 100
    _until(lambda: service._schedule.in_flight == 0)


@pytest.mark.parametrize("pool", [None, Pool(1, 2)], ids=["fused", "pool"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_unit_whose_process_dies_is_done_again_and_no_row_comes_twice(service, tmp_path, pool, times):
    run = pipeline(numbers(6, (3, 4, 5, 6)), Scaled(by=2), Dying(at=2008, notes=str(tmp_path), times=times, pool=pool))
    plain = pipeline(numbers(6, (3, 4, 5, 6)), Scaled(by=2))
    assert rows_of(ProcessExecutor(service).run(run)) == rows_of(InlineExecutor().run(plain))
    assert len(list(tmp_path.glob("died-*"))) == times


def test_too_many_deaths_at_one_unit_are_an_error_that_names_it_and_how(make_service, tmp_path):
    service = make_service(max_unit_failures=2)
    run = pipeline(numbers(6), Dying(at=2003, notes=str(tmp_path), times=100))
    with pytest.raises(DataError, match=r"numbers from 2000: .* died 3 times; the last one was killed by SIGKILL"):
        list(ProcessExecutor(service).run(run))
    assert columns_of(ProcessExecutor(service).run(pipeline(numbers(2))), "number")


def test_an_exception_comes_in_its_place_in_the_order_with_where_it_happened(service):
    found = []

    def take_all():
        for delivered in ProcessExecutor(service).run(pipeline(numbers(6), Failing(3011))):
            found.extend(delivered.block.column("number").tolist())

    with pytest.raises(ValueError, match="cannot do 3011") as caught:
        take_all()
    assert found == columns_of(InlineExecutor().run(pipeline(numbers(3))), "number") + list(range(3000, 3010))
    notes = "\n".join(caught.value.__notes__)
    assert "numbers from 3000" in notes
    assert "exec_plans.py" in notes


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def test_an_exception_that_cannot_be_pickled_is_told_by_its_text_and_the_users_line(service):
    with pytest.raises(DataError, match=r"numbers from 1000: Unpicklable: cannot do 1001 \(.*exec_plans.py:\d+ in "):
        list(ProcessExecutor(service).run(pipeline(numbers(3), Failing(1001, Unpicklable))))


def test_what_cannot_be_sent_is_an_error_for_who_asked_and_nobody_else(service):
    executor = ProcessExecutor(service)
    with pytest.raises(TypeError, match="pickle"):
        list(executor.run(pipeline(numbers(2), Scaled(by=threading.Lock()))))
    with pytest.raises(TypeError, match="pickle"):
        list(executor.run(pipeline([Numbers(threading.Lock())])))
    assert columns_of(executor.run(pipeline(numbers(2))), "number")


def test_skipped_rows_are_known(service):
    executor = ProcessExecutor(service)
    rows = columns_of(executor.run(pipeline(numbers(3), Failing(1004, skip=True))), "number")
    assert 1004 not in rows
    _until(lambda: executor.stats().skipped)
    (skipped,) = executor.stats().skipped
    assert (skipped.unit, skipped.row) == ("numbers from 1000", 4)
    assert "skipped: 1 rows" in str(executor.stats())


def test_statistics_count_what_each_stage_gave(service):
    executor = ProcessExecutor(service)
    list(executor.run(pipeline(numbers(4), Scaled(by=2), Scaled(by=3, pool=Pool(1, 1)))))
    _until(lambda: sum(stage.num_units for stage in executor.stats().stages) == 8)
    read, scaled = executor.stats().stages
    assert (read.name, scaled.name) == ("read -> scaled(2)", "scaled(3)")
    assert read.num_rows == scaled.num_rows == 60
    assert scaled.num_bytes > read.num_bytes > 0
    assert executor.stats().limited_by in ("read -> scaled(2)", "scaled(3)")


def test_killed_processes_at_any_moment_change_nothing(service):
    run = pipeline(numbers(30, (50, 50)), Scaled(by=2), Scaled(by=3, pool=Pool(1, 2)))
    expected = rows_of(InlineExecutor().run(run))
    found = []
    for count, delivered in enumerate(ProcessExecutor(service).run(run)):
        found += rows_of([delivered])
        if count % 10 == 5:
            for pid in service.pids()[count // 10 % 2 :: 2]:
                with _gone_is_fine():
                    os.kill(pid, signal.SIGKILL)
    assert found == expected


def test_the_zygote_may_die(service):
    executor = ProcessExecutor(service)
    run = pipeline(numbers(6), Scaled(by=2, tell_process=True))
    pids = set(columns_of(executor.run(run), "pid"))
    zygote = psutil.Process(pids.pop()).parent()
    zygote.kill()
    zygote.wait(5)
    assert columns_of(executor.run(run), "number") == columns_of(InlineExecutor().run(run), "number")


def test_pools_shrink_to_their_least_and_the_rest_goes_when_nobody_uses_it(service, monkeypatch):
    monkeypatch.setattr("paceline.data.exec.service.IDLE_S", 0.2)
    executor = ProcessExecutor(service)
    list(executor.run(pipeline(numbers(20), Scaled(by=2, pool=Pool(1, 3)))))
    _until(lambda: service.pids() == [])


def test_a_view_that_lives_longer_than_its_stream_is_released_in_the_end(service):
    executor = ProcessExecutor(service)
    deliveries = executor.run(pipeline(numbers(3)))
    view = next(deliveries).block.column("number")
    deliveries.close()
    assert view.tolist() == list(range(10))
    _until(lambda: len(service._blocks) == 1)
    del view
    gc.collect()
    assert columns_of(executor.run(pipeline(numbers(1))), "number")
    _until(lambda: len(service._blocks) == 0)


def test_a_process_in_a_users_function_does_not_hold_up_other_streams(make_service, tmp_path):
    service = make_service(cpu=1)
    held = ProcessExecutor(service).run(pipeline(numbers(3), Holding(1000, str(tmp_path))))
    next(held)
    _until((tmp_path / "held").exists)
    held.close()
    assert columns_of(ProcessExecutor(service).run(pipeline(numbers(3))), "number")
    (tmp_path / "go").touch()


def test_data_processes_see_the_context_of_their_driver_and_start_no_others(make_service):
    class Told(Scaled):
        def apply(self, blocks, scope):
            from paceline.data.context import DataContext

            context = DataContext.get_current()
            for _ in blocks:
                yield Block({"told": [context.max_unit_failures, int(context.in_data_process)]})

    service = make_service(max_unit_failures=17)
    assert columns_of(ProcessExecutor(service).run(pipeline(numbers(1, (1,)), Told())), "told") == [17, 1]


def _until(condition, within_s=10.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def _until_quiet(directory: Path) -> None:
    """Until nothing new has been noted for a while."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        if (now := len(list(directory.iterdir()))) != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.02)


def _gone_is_fine():
    import contextlib

    return contextlib.suppress(ProcessLookupError)
