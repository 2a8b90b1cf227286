"""Where rows are run for one process alone: small ones here, others in data processes that it shares."""

import os
import sys

import psutil
import pytest
from exec_plans import Failing, Numbers, NumbersSource, Scaled, numbers

from paceline.data.context import DataContext
from paceline.data.exec import processes
from paceline.data.exec.inline import InlineExecutor
from paceline.data.feeds import LocalFeeds
from paceline.data.plan import Map, Read, Reorder
from paceline.data.transform import Pool


@pytest.fixture(autouse=True)
def _own_context(monkeypatch):
    monkeypatch.setattr(DataContext, "_current", DataContext(inline_below=1000))
    yield
    processes.shutdown()


def plan(units, *transforms):
    node = Read(NumbersSource(tuple(units)))
    for transform in transforms:
        node = Map(node, transform)
    return node


def column(deliveries, name="number"):
    return [value for delivered in deliveries for value in delivered.block.column(name).tolist()]


def test_a_small_dataset_is_run_here_and_a_larger_one_is_not():
    small, large = numbers(2, (3,)), numbers(2, (300,))
    assert set(column(LocalFeeds(plan(small, Scaled(tell_process=True))).open(0, 0, 0), "pid")) == {os.getpid()}
    assert os.getpid() not in column(LocalFeeds(plan(large, Scaled(tell_process=True))).open(0, 0, 0), "pid")


def test_a_transform_with_processes_of_its_own_gets_them_however_small_the_dataset():
    feeds = LocalFeeds(plan(numbers(1, (3,)), Scaled(pool=Pool(1, 1), tell_process=True)))
    assert os.getpid() not in column(feeds.open(0, 0, 0), "pid")


def test_feeds_of_a_process_share_its_data_processes():
    pids = [set(column(LocalFeeds(plan(numbers(4, (300,)), Scaled(tell_process=True))).open(0, 0, 0), "pid"))] * 2
    assert pids[0] == pids[1]
    assert processes.shared_service() is processes.shared_service()


def test_a_changed_context_is_heeded_by_the_next_stream():
    before = processes.shared_service()
    DataContext.get_current().execution_options.resource_limits.cpu = 1
    after = processes.shared_service()
    assert after is not before
    assert not before.alive


@pytest.mark.parametrize("rows", [(3,), (300,)], ids=["small", "large"])
def test_epochs_positions_and_what_is_known_beforehand(rows):
    feeds = LocalFeeds(Reorder(plan(numbers(8, rows)), seed=1))
    first, second = column(feeds.open(0, 0, 0)), column(feeds.open(1, 0, 0))
    assert first != second
    assert sorted(first) == sorted(second)
    assert column(feeds.open(1, 3, 2)) == second[3 * rows[0] + 2 :]
    assert feeds.num_rows() == 8 * rows[0]
    assert feeds.fingerprint() == LocalFeeds(Reorder(plan(numbers(8, rows)), seed=1)).fingerprint()
    assert feeds.fingerprint() != LocalFeeds(Reorder(plan(numbers(7, rows)), seed=1)).fingerprint()
    assert feeds.schema().names == ["number", "matrix", "text"]
    assert "rows" in feeds.stats()


def test_the_number_of_rows_is_not_known_where_a_transform_may_change_it():
    assert LocalFeeds(plan(numbers(3), Scaled())).num_rows() == 45
    assert LocalFeeds(plan(numbers(3), Failing(1, skip=True))).num_rows() is None


@pytest.mark.parametrize("rows", [(5,), (300,)], ids=["small", "large"])
def test_skipped_rows_are_there_for_who_asks(rows):
    feeds = LocalFeeds(plan(numbers(3, rows), Failing(1002, skip=True)))
    assert 1002 not in column(feeds.open(0, 0, 0))
    assert [(skipped.unit, skipped.row) for skipped in feeds.skipped] == [("numbers from 1000", 2)]


def test_a_given_executor_is_used():
    feeds = LocalFeeds(plan(numbers(3, (300,)), Scaled(tell_process=True)), InlineExecutor())
    assert set(column(feeds.open(0, 0, 0), "pid")) == {os.getpid()}


def test_a_fork_has_a_service_of_its_own(run_script):
    script = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from exec_plans import NumbersSource, Scaled, numbers
from paceline.data.feeds import LocalFeeds
from paceline.data.plan import Map, Read
from paceline.data.exec import processes
from paceline.data.context import DataContext
DataContext.get_current().inline_below = 0
feeds = LocalFeeds(Map(Read(NumbersSource(numbers(3))), Scaled(tell_process=True)))
def pids():
    return {{pid for each in feeds.open(0, 0, 0) for pid in each.block.column("pid").tolist()}}
ours = pids()
child = os.fork()
if not child:
    code = 1
    try:
        theirs = pids()
        code = 0 if theirs and not theirs & ours else 2
        processes.shutdown()
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(pids() <= ours)
"""
    ended = run_script(script, env={"PYTHONWARNINGS": "ignore"})
    assert ended.stdout.split() == ["0", "True"], ended.stderr


def test_the_process_that_data_processes_are_forked_from_has_one_thread():
    feeds = LocalFeeds(plan([Numbers(0, (400,))], Scaled(tell_process=True)))
    (pid, *_) = column(feeds.open(0, 0, 0), "pid")
    zygote = psutil.Process(pid).parent()
    assert zygote.num_threads() == 1
    if sys.platform == "linux":
        assert any("libarrow" in each.path for each in zygote.memory_maps())
