"""Members of a group take one stream together, in processes of their own; none of them costs another a row."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from exec_plans import Failing, Numbers, Scaled, collect_column, numbers, plan

from paceline.data import DataError
from paceline.data.exec.service_client import RemoteFeeds
from paceline.data.planning.barriers import RandomShuffle
from paceline.data.planning.plan import Map, ReorderUnits, Union
from processes import wait_until

MEMBER = """
import sys
from paceline.data.exec.service_client import RemoteFeeds

address, member, members, epochs, *mode = sys.argv[1:]
feeds = RemoteFeeds(address, "train", int(member), int(members), False)
for epoch in range(int(epochs)):
    seen = []
    for delivered in feeds.open(epoch, 0, 0):
        if mode == ["hold"] and not seen:
            print("holding", flush=True)
            sys.stdin.readline()
        seen += delivered.block.column("number").tolist()
    print(len(seen), sum(seen), flush=True)
feeds.close()
"""
"""Prints for each epoch how many numbers it saw, and their sum; waits for a line after the first block if told to."""


@pytest.fixture(autouse=True)
def _wait_long_for_other_members(monkeypatch):
    monkeypatch.setattr("paceline.data.exec.streams.PATIENCE_S", 600.0)


def all_of(feeds, epoch=0, unit=0, offset=0):
    return collect_column(feeds.open(epoch, unit, offset))


def expected(units):
    return [number for unit in units for block in unit.read() for number in block.column("number").tolist()]


@pytest.fixture
def start():
    """Starts members; those that are left are ended."""
    started = []

    def begin(service, member, members, *mode, epochs=1):
        arguments = [service.address, str(member), str(members), str(epochs), *mode]
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", MEMBER, *arguments], **ends, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def connect():
    """Opens feeds of a dataset, and closes them."""
    opened = []

    def begin(service, *member, dataset="train", **options):
        opened.append(RemoteFeeds(service.address, dataset, *member, **options))
        return opened[-1]

    yield begin
    for feeds in opened:
        feeds.close()


def test_members_in_processes_of_their_own_read_each_unit_once_for_all(make_service, start, tmp_path):
    # An epoch is larger than the budget: none finishes it before the other has begun, and would find nothing kept.
    service = make_service(budget=300_000)
    service.add_dataset("train", plan(numbers(12, (500,), width=64, notes=str(tmp_path)), Scaled(by=2)))
    members = [start(service, rank, 2, epochs=2) for rank in range(2)]
    rows = expected(numbers(12, (500,)))
    for member in members:
        assert member.communicate(timeout=240)[0] == f"{len(rows)} {sum(rows)}\n" * 2
    assert len(list(tmp_path.iterdir())) == 24


def test_members_share_the_processes_and_units_of_a_shuffle(service, connect, tmp_path):
    units = numbers(6, (50,), notes=str(tmp_path))
    service.add_dataset("train", Map(RandomShuffle(plan(units), seed=5), Scaled(by=2)))
    opened = [connect(service, rank, 2).open(0, 0, 0) for rank in range(2)]
    # Both ask at once: the second while the first is being opened.
    first = [next(each).block.column("number").tolist() for each in opened]
    rows = [begin + collect_column(rest) for begin, rest in zip(first, opened, strict=True)]
    assert rows[0] == rows[1]
    assert sorted(rows[0]) == expected(numbers(6, (50,))) != rows[0]
    assert len(list(tmp_path.glob("*-*"))) == 6


def test_a_member_that_comes_too_late_gets_a_stream_of_its_own(make_service, connect, monkeypatch, tmp_path):
    monkeypatch.setattr("paceline.data.exec.streams.PATIENCE_S", 0.05)
    service = make_service(budget=300_000)
    service.add_dataset("train", plan(numbers(20, (500,), width=64, notes=str(tmp_path))))
    for rank in range(2):
        assert all_of(connect(service, rank, 2)) == expected(numbers(20, (500,)))
    assert len(list(tmp_path.iterdir())) == 40


@pytest.mark.parametrize("shared", [True, False])
def test_a_lone_member_reads_any_epoch_from_any_position_and_asks_about_the_dataset(service, connect, shared):
    service.add_dataset("train", ReorderUnits(Union((plan(numbers(5)), plan((Numbers(90_000),), Scaled()))), seed=3))
    feeds = connect(service, 0, 1, shared)
    orders = [all_of(feeds, epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == expected((*numbers(5), Numbers(90_000)))
    for unit, offset in ((2, 0), (2, 7), (5, 14), (6, 0)):
        assert all_of(feeds, 1, unit, offset) == orders[1][unit * 15 + offset :], (unit, offset)
    assert feeds.num_rows() == 90
    assert feeds.schema().names == ["number", "matrix", "text"]
    assert feeds.fingerprint() == feeds.fingerprint() != ""
    assert "read: " in feeds.stats()
    first = next(feeds.open(0, 0, 0))
    assert first.block.column("number").flags.writeable is not shared, "only rows of one's own can be written to"


def test_failures_are_raised_in_every_member_and_a_wrong_name_lists_the_right_ones(service, connect):
    service.add_dataset("train", plan(numbers(3), Failing(1003)))
    for rank in range(2):
        with pytest.raises(ValueError, match="cannot do 1003"):
            all_of(connect(service, rank, 2))
    with pytest.raises(KeyError, match="unknown dataset 'valid'; the datasets are 'train'"):
        all_of(connect(service, dataset="valid"))


def test_a_service_that_has_ended_is_an_error(service, connect):
    service.add_dataset("train", plan(numbers(30)))
    opened = connect(service).open(0, 0, 0)
    next(opened)
    service.close()
    with pytest.raises(DataError, match="has ended"):
        list(opened)
    with pytest.raises(DataError, match="cannot reach the data service"):
        all_of(RemoteFeeds(service.address, "train"))


def test_killed_members_cost_the_others_no_row_and_the_data_processes_stay(make_service, start):
    service = make_service(budget=1 << 20)
    service.add_dataset("train", plan(numbers(30, (200,), width=64)))
    rows = expected(numbers(30, (200,)))
    pids = set()
    for num_killed in (2, 1):
        members = [start(service, rank, 2, "hold") for rank in range(2)]
        for member in members:
            assert member.stdout.readline() == "holding\n"
        for member in members[:num_killed]:
            member.send_signal(signal.SIGKILL)
            member.wait(60)
        for member in members[num_killed:]:
            assert member.communicate("\n", timeout=240)[0] == f"{len(rows)} {sum(rows)}\n"
        pids = pids or set(service.pids())
        assert pids <= set(service.pids())
    wait_until(lambda: service._schedule.in_flight == 0 and not service._arena_pool.blocks)


DRIVER = """
import sys, time
sys.path.insert(0, {here!r})
from exec_plans import numbers, plan
from paceline.data.exec.service_client import RemoteFeeds
from paceline.data.exec.service import DataService

service = DataService()
service.add_dataset("train", plan(numbers(50, (1000,), width=64)))
feeds = RemoteFeeds(service.address, "train")
opened = feeds.open(0, 0, 0)
next(opened)
print(*service.pids(), flush=True)
{then}
"""
PORTABLE = {"PACELINE_PORTABLE": "1"}
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def start_driver(tmp_path, then, env):
    source = tmp_path / "driver.py"
    source.write_text(DRIVER.format(here=str(Path(__file__).parent), then=then))
    env = {**os.environ, "TMPDIR": str(tmp_path), **env}
    return subprocess.Popen([sys.executable, str(source)], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env)


@pytest.mark.parametrize("env", [{}, slow({"PACELINE_START_METHOD": "spawn"}), slow(PORTABLE)], ids=str)
def test_a_killed_driver_leaves_no_process_and_no_memory(tmp_path, env, processes_in):
    before = set(os.listdir("/dev/shm"))
    driver = start_driver(tmp_path, "time.sleep(1000)", env)
    assert driver.stdout.readline().split()
    made = set(os.listdir("/dev/shm")) - before  # perhaps some of another test, which goes soon as well
    driver.kill()
    driver.communicate()
    wait_until(lambda: not processes_in(tmp_path) and made.isdisjoint(os.listdir("/dev/shm")))
    if env != PORTABLE:
        assert os.listdir(tmp_path) == ["driver.py"]
