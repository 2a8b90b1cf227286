"""Members of a group take one stream together, in processes of their own; none of them costs another a row."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from exec_plans import Failing, Numbers, NumbersSource, Scaled, numbers

from paceline.data import DataError
from paceline.data.barriers import RandomShuffle
from paceline.data.exec.remote import RemoteFeeds
from paceline.data.plan import Map, Read, Reorder, Union

MEMBER = str(Path(__file__).parent / "exec_member.py")


def dataset(units, *transforms):
    plan = Read(NumbersSource(tuple(units)))
    for transform in transforms:
        plan = Map(plan, transform)
    return plan


def all_of(feeds, epoch=0, unit=0, offset=0):
    return [number for block in feeds.open(epoch, unit, offset) for number in block.block.column("number").tolist()]


def expected(units):
    return [number for unit in units for block in unit.read() for number in block.column("number").tolist()]


@pytest.fixture
def start():
    """Starts members; those that are left are ended."""
    started = []

    def begin(service, member, members, *more, epochs=1, shared="split"):
        arguments = [service.address, "train", str(member), str(members), shared, str(epochs), *more]
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, MEMBER, *arguments], **ends, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_members_in_processes_of_their_own_read_each_unit_once_for_all(service, start, tmp_path):
    units = numbers(12, (100, 50), notes=str(tmp_path))
    service.add("train", dataset(units, Scaled(by=2)))
    # One that came when the other is through would find nothing of the first epoch kept, and have it read again.
    members = [start(service, rank, 2, "together", epochs=2) for rank in range(2)]
    rows = expected(numbers(12, (100, 50)))
    for member in members:
        assert member.stdout.readline() == "ready\n"
    for member in members:
        member.stdin.write("\n")
        member.stdin.flush()
    for member in members:
        assert member.communicate(timeout=60)[0] == f"{len(rows)} {sum(rows)}\n" * 2
    assert len(list(tmp_path.iterdir())) == 24


def test_members_of_one_process_share_a_stream_too(service, tmp_path):
    units = numbers(4, notes=str(tmp_path))
    service.add("train", dataset(units))
    feeds = [RemoteFeeds(service.address, "train", rank, 2) for rank in range(2)]
    opened = [each.open(0, 0, 0) for each in feeds]
    blocks = [next(each) for each in opened]
    assert np.shares_memory(blocks[0].block.column("number"), blocks[0].block.column("number"))
    rest = [[*each] for each in opened]
    assert [delivered.unit for delivered in rest[0]] == [delivered.unit for delivered in rest[1]]
    assert len(list(tmp_path.iterdir())) == 4
    for each in feeds:
        each.close()


def test_rows_are_writable_for_their_owner_and_not_for_those_who_share_them(service):
    service.add("train", dataset(numbers(1)))
    for shared in (True, False):
        feeds = RemoteFeeds(service.address, "train", 0, 1, shared=shared)
        (first, _) = list(feeds.open(0, 0, 0))
        assert first.block.column("number").flags.writeable is not shared
        feeds.close()


def test_a_member_that_comes_while_all_is_still_there_joins(service, tmp_path):
    units = numbers(3, notes=str(tmp_path))
    service.add("train", dataset(units))
    first, second = (RemoteFeeds(service.address, "train", rank, 2) for rank in range(2))
    opened = first.open(0, 0, 0)
    taken = [next(opened) for _ in range(4)]
    assert all_of(second) == expected(numbers(3))
    assert len(taken) + len(list(opened)) == 6
    assert len(list(tmp_path.iterdir())) == 3
    first.close()
    second.close()


def test_a_member_that_comes_too_late_gets_a_stream_of_its_own(make_service, monkeypatch, tmp_path):
    monkeypatch.setattr("paceline.data.exec.service.PATIENCE_S", 0.05)
    service = make_service(budget=300_000)
    units = numbers(20, (500,), width=64, notes=str(tmp_path))
    service.add("train", dataset(units))
    first, second = (RemoteFeeds(service.address, "train", rank, 2) for rank in range(2))
    assert all_of(first) == expected(numbers(20, (500,)))
    assert all_of(second) == expected(numbers(20, (500,)))
    assert len(list(tmp_path.iterdir())) == 40
    first.close()
    second.close()


def test_a_slow_member_holds_the_others_and_not_for_ever(make_service):
    service = make_service(budget=300_000)
    service.add("train", dataset(numbers(20, (500,), width=64)))
    fast, slow = (RemoteFeeds(service.address, "train", rank, 2) for rank in range(2))
    slow_rows, fast_rows = slow.open(0, 0, 0), fast.open(0, 0, 0)
    next(slow_rows)
    next(fast_rows)
    slow_rows.close()  # it leaves, and nothing is held back for it any more
    assert sum(delivered.block.num_rows for delivered in fast_rows) == 19 * 500
    fast.close()
    slow.close()


@pytest.mark.parametrize("unit_and_offset", [(0, 0), (2, 0), (2, 7), (5, 14), (6, 0)])
def test_a_stream_begins_where_it_is_asked_to(service, unit_and_offset):
    service.add("train", dataset(numbers()))
    feeds = RemoteFeeds(service.address, "train")
    unit, offset = unit_and_offset
    assert all_of(feeds, 0, unit, offset) == expected(numbers()[unit:])[offset:]
    feeds.close()


def test_epochs_have_their_own_order(service):
    service.add("train", Reorder(dataset(numbers(8)), seed=3))
    feeds = RemoteFeeds(service.address, "train")
    orders = [all_of(feeds, epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == expected(numbers(8))
    feeds.close()


def test_what_is_asked_about_a_dataset_is_answered(service):
    plan = Union((dataset(numbers(2)), dataset((Numbers(90_000, (3,)),), Scaled(by=2))))
    service.add("train", plan)
    feeds = RemoteFeeds(service.address, "train")
    assert feeds.num_rows() == 33
    assert feeds.schema().names == ["number", "matrix", "text"]
    assert feeds.fingerprint() == feeds.fingerprint() != ""
    list(feeds.open(0, 0, 0))
    assert "read: " in feeds.stats()
    feeds.close()


def test_failures_are_raised_in_every_member(service):
    service.add("train", dataset(numbers(3), Failing(1003)))
    for rank in range(2):
        feeds = RemoteFeeds(service.address, "train", rank, 2)
        with pytest.raises(ValueError, match="cannot do 1003"):
            all_of(feeds)
        feeds.close()


def test_a_dataset_that_is_not_there_is_an_error_that_names_those_that_are(service):
    service.add("train", dataset(numbers(3)))
    feeds = RemoteFeeds(service.address, "valid")
    with pytest.raises(KeyError, match="no dataset 'valid'; there are: 'train'"):
        all_of(feeds)
    feeds.close()


def test_a_service_that_has_ended_is_an_error(service):
    service.add("train", dataset(numbers(30)))
    feeds = RemoteFeeds(service.address, "train")
    opened = feeds.open(0, 0, 0)
    next(opened)
    service.close()
    with pytest.raises(DataError, match="has ended"):
        list(opened)
    with pytest.raises(DataError, match="cannot be reached"):
        all_of(RemoteFeeds(service.address, "train"))
    feeds.close()


def test_killed_members_are_replaced_while_the_data_processes_stay(service, start):
    service.add("train", dataset(numbers(30, (200,), width=64)))
    members = [start(service, rank, 2, "hold") for rank in range(2)]
    for member in members:
        assert member.stdout.readline() == "holding\n"
    pids = service.pids()
    for member in members:
        member.send_signal(signal.SIGKILL)
        member.wait(10)
    rows = expected(numbers(30, (200,)))
    members = [start(service, rank, 2) for rank in range(2)]
    for member in members:
        assert member.communicate(timeout=60)[0] == f"{len(rows)} {sum(rows)}\n"
    assert service.pids() == pids
    _until(lambda: service._schedule.in_flight == 0 and not service._blocks)


def test_one_killed_member_does_not_stop_the_other(make_service, start):
    service = make_service(budget=1 << 20)
    service.add("train", dataset(numbers(30, (200,), width=64)))
    held = start(service, 0, 2, "hold")
    other = start(service, 1, 2)
    assert held.stdout.readline() == "holding\n"
    held.kill()
    rows = expected(numbers(30, (200,)))
    assert other.communicate(timeout=60)[0] == f"{len(rows)} {sum(rows)}\n"


SCRIPT = """
import sys, time
sys.path.insert(0, {here!r})
from exec_plans import NumbersSource, numbers
from paceline.data.exec.remote import RemoteFeeds
from paceline.data.exec.service import Service
from paceline.data.plan import Read

service = Service()
service.add("train", Read(NumbersSource(numbers(50, (1000,), width=64))))
feeds = RemoteFeeds(service.address, "train")
opened = feeds.open(0, 0, 0)
next(opened)
print(*service.pids(), flush=True)
{then}
"""


def _script(tmp_path, then, **env):
    source = tmp_path / "driver.py"
    source.write_text(SCRIPT.format(here=str(Path(__file__).parent), then=then))
    return subprocess.Popen(
        [sys.executable, str(source)], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, **env}
    )


VARIANTS = [{}, {"PACELINE_START_METHOD": "spawn"}, {"PACELINE_PORTABLE": "1"}]


@pytest.mark.parametrize("env", VARIANTS, ids=["fork", "spawn", "portable"])
def test_a_killed_driver_leaves_no_process_and_no_memory(tmp_path, env, processes_in):
    driver = _script(tmp_path, "time.sleep(1000)", TMPDIR=str(tmp_path), **env)
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert pids
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    driver.kill()
    driver.communicate()
    psutil.wait_procs(processes, timeout=5)
    _until(lambda: not processes_in(tmp_path), 5.0)
    assert not [name for name in os.listdir("/dev/shm") if "paceline" in name]
    if "PACELINE_PORTABLE" not in env:
        assert os.listdir(tmp_path) == ["driver.py"]


@pytest.mark.parametrize("env", VARIANTS, ids=["fork", "spawn", "portable"])
def test_a_driver_that_ends_leaves_nothing(tmp_path, env, processes_in):
    driver = _script(tmp_path, "print(sum(1 for _ in opened)); service.close()", TMPDIR=str(tmp_path), **env)
    out, _ = driver.communicate(timeout=60)
    assert out.splitlines()[1] == "49"
    assert driver.returncode == 0
    _until(lambda: not processes_in(tmp_path), 5.0)
    assert os.listdir(tmp_path) == ["driver.py"]


def test_a_driver_that_forgets_to_close_ends_all_the_same(tmp_path, processes_in):
    driver = _script(tmp_path, "")
    driver.communicate(timeout=60)
    assert driver.returncode == 0
    _until(lambda: not processes_in(tmp_path), 5.0)


def _until(condition, within_s=10.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def test_rows_that_must_be_brought_together_are_by_the_same_processes(service, tmp_path):
    units = numbers(6, (50,), notes=str(tmp_path))
    service.add("train", Map(RandomShuffle(dataset(units), seed=5), Scaled(by=2)))
    feeds = [RemoteFeeds(service.address, "train", rank, 2) for rank in range(2)]
    opened = [each.open(0, 0, 0) for each in feeds]
    # Both are asked for at once: the second comes while the first is being opened.
    first = [next(each).block.column("number").tolist() for each in opened]
    rows = [
        row + [n for each in rest for n in each.block.column("number").tolist()]
        for row, rest in zip(first, opened, strict=True)
    ]
    assert rows[0] == rows[1]
    assert sorted(rows[0]) == expected(numbers(6, (50,))) != rows[0]
    assert len(list(tmp_path.glob("*-*"))) == 6
    for each in feeds:
        each.close()
