"""Where rows are run for one process alone: small ones here, others in data processes that it shares."""

import os
import sys

import psutil
import pytest
from exec_plans import Failing, Scaled, collect_column, numbers, plan

from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.exec.service import shared_service
from paceline.data.order.feeds import LocalFeeds
from paceline.data.planning.plan import PoolSpec, ReorderUnits
from processes import wait_until

SMALL, LARGE = (3,), (300,)
each_size = pytest.mark.parametrize("rows", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture(autouse=True)
def _run_small_datasets_here(data_context):
    data_context.inline_below = 1000


def pids_of(rows, executor=None, **options):
    feeds = LocalFeeds(plan(numbers(4, rows), Scaled(tell_process=True, **options)), executor)
    return set(collect_column(feeds.open(0, 0, 0), "pid"))


def test_only_a_small_dataset_without_a_pool_is_run_here():
    assert pids_of(SMALL) == pids_of(LARGE, InlineExecutor()) == {os.getpid()}
    assert os.getpid() not in pids_of(LARGE) | pids_of(SMALL, pool=PoolSpec(1, 1))


def test_streams_share_data_processes_until_the_context_changes(data_context):
    service = shared_service()
    assert pids_of(LARGE) <= set(service.pids())
    assert pids_of(LARGE) <= set(service.pids())
    wait_until(lambda: not service.is_busy)
    data_context.execution_options.resource_limits.cpu = 1
    assert shared_service() is not service
    assert not service.is_alive


@each_size
def test_epochs_positions_and_what_is_known_beforehand(rows):
    feeds = LocalFeeds(ReorderUnits(plan(numbers(8, rows)), seed=1))
    first, second = collect_column(feeds.open(0, 0, 0)), collect_column(feeds.open(1, 0, 0))
    assert first != second
    assert sorted(first) == sorted(second)
    assert collect_column(feeds.open(1, 3, 2)) == second[3 * rows[0] + 2 :]
    assert feeds.num_rows() == 8 * rows[0]
    assert feeds.fingerprint() == LocalFeeds(ReorderUnits(plan(numbers(8, rows)), seed=1)).fingerprint()
    assert feeds.fingerprint() != LocalFeeds(ReorderUnits(plan(numbers(7, rows)), seed=1)).fingerprint()
    assert feeds.schema().names == ["number", "matrix", "text"]
    assert "rows" in feeds.stats()


@each_size
def test_skipped_rows_are_listed_and_the_number_of_rows_is_not_known_beforehand(rows):
    feeds = LocalFeeds(plan(numbers(3, rows), Failing(1002, skip=True)))
    assert feeds.num_rows() is None
    assert 1002 not in collect_column(feeds.open(0, 0, 0))
    assert [(skipped.unit, skipped.row) for skipped in feeds.skipped_rows] == [("numbers from 1000", 2)]


@pytest.mark.slow
def test_a_fork_has_a_service_of_its_own(run_script):
    script = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from exec_plans import Scaled, collect_column, numbers, plan
from paceline.data.order.feeds import LocalFeeds
from paceline.data.exec.service import shared_service, shutdown
from paceline.data.context import DataContext
DataContext.get_current().inline_below = 0
feeds = LocalFeeds(plan(numbers(3), Scaled(tell_process=True)))
def pids():
    return set(collect_column(feeds.open(0, 0, 0), "pid"))
ours, service = pids(), shared_service()
child = os.fork()
if not child:
    code = 1
    try:
        theirs = pids()
        code = 0 if theirs and not theirs & ours else 2
        shutdown()
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(pids() <= set(service.pids()))
"""
    ended = run_script(script, env={"PYTHONWARNINGS": "ignore"})
    assert ended.stdout.split() == ["0", "True"], ended.stderr


def test_the_process_that_data_processes_are_forked_from_has_one_thread():
    zygote = psutil.Process(pids_of((400,)).pop()).parent()
    assert zygote.num_threads() == 1
    if sys.platform == "linux":
        assert any("libarrow" in each.path for each in zygote.memory_maps())
