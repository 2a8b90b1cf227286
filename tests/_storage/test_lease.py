"""Leases in a directory and in a store, with fake clocks."""

import os
import signal
import socket
import subprocess
import sys
import threading

import msgspec
import pytest

from paceline._core import system
from paceline._core.errors import RunHeldError, StorageError
from paceline._core.system import SystemClock
from paceline._storage.lease import LeaseHolder, acquire_lease, is_holder_alive
from paceline._storage.lease_stores import DiskLeaseStore, RemoteLeaseStore
from paceline.testing import FakeClock

TTL_S = 30.0


class MemoryStore:
    """Objects with conditional puts. `lose_answers`: that many puts succeed and seem to fail."""

    def __init__(self):
        self.objects = {}
        self.lock = threading.Lock()
        self.tags = 0
        self.lose_answers = 0
        self.broken = False

    def read_tagged(self, key):
        with self.lock:
            if key not in self.objects:
                raise FileNotFoundError(key)
            return self.objects[key]

    def create(self, key, data):
        with self.lock:
            if key in self.objects:
                return False
            return self._put(key, data) is not None

    def replace(self, key, data, tag):
        with self.lock:
            if self.broken:
                raise OSError("503 Slow Down")
            if key not in self.objects or self.objects[key][1] != tag:
                return None
            return self._put(key, data)

    def _put(self, key, data):
        self.tags += 1
        self.objects[key] = data, str(self.tags)
        if self.lose_answers:
            self.lose_answers -= 1
            return None
        return str(self.tags)


@pytest.fixture(params=["disk", "disk without links", "store", "store that loses answers"])
def lease_store(request, tmp_path, monkeypatch):
    """A function that opens the slot as another driver would."""
    if request.param == "disk without links":

        def link(*_):
            raise PermissionError(1, "no links here")

        monkeypatch.setattr("os.link", link)
    if "disk" in request.param:
        (tmp_path / "run").mkdir()
        return lambda: DiskLeaseStore(tmp_path / "run" / ".lease")
    store = MemoryStore()

    def opened():
        store.lose_answers = request.param.count("loses")
        return RemoteLeaseStore(store, "run")

    return opened


@pytest.fixture
def clock():
    return FakeClock()


def take(lease_store, clock, *, alive=None, wait=None, lines=None, ttl_s=TTL_S, controller=""):
    say = (lines if lines is not None else []).append
    options = {"wait": wait or clock.advance, "alive": lambda holder: alive, "controller": controller}
    return acquire_lease(lease_store, ttl_s=ttl_s, clock=clock, say=say, **options)


def test_numbers_count_the_drivers_and_a_dead_one_is_followed_at_once(lease_store, clock):
    for number in (1, 2, 3):
        lease = take(lease_store(), clock)
        assert lease.number == number
        lease.check()
        lease.close()
    take(lease_store(), clock)
    assert take(lease_store(), clock, alive=False).number == 5
    assert clock.now() == 0.0


@pytest.mark.parametrize("alive", [None, True])
def test_an_earlier_life_of_a_controller_is_followed_at_once_and_fenced_as_one_that_may_come_back(
    lease_store, clock, alive
):
    earlier = take(lease_store(), clock, controller="actor 1")
    lease = take(lease_store(), clock, alive=alive, controller="actor 1")
    assert lease.number == 2
    assert clock.now() == 0.0
    assert not lease.holder.alone, "it is left with a copy of its own of the journal"
    with pytest.raises(RunHeldError, match="was taken over by"):
        earlier.check()


def test_a_controller_is_followed_by_no_other_and_the_error_says_how_to_follow_its_run(lease_store, clock):
    take(lease_store(), clock, controller="actor 1")
    for controller in ("", "actor 2"):
        with pytest.raises(RunHeldError, match=r"by a detached controller, process \d+ .*\n\nhint: `paceline attach"):
            take(lease_store(), clock, alive=True, controller=controller)


def test_a_driver_that_is_alive_is_not_followed_and_the_error_says_all_about_it(lease_store, clock):
    holder_lease = take(lease_store(), clock)
    clock.advance(7)
    with pytest.raises(RunHeldError) as raised:
        take(lease_store(), clock, alive=True)
    message = str(raised.value)
    assert message.startswith(f"run 'run' is being written by process {os.getpid()} on {socket.gethostname()}, since ")
    assert f"kill {os.getpid()}" in message
    assert "expires in 23 s" in message
    assert clock.now() == 7, "at once"
    holder_lease.check()


def test_a_paused_driver_is_followed_when_its_lease_has_lapsed_and_learns_by_whom(lease_store, clock):
    paused = take(lease_store(), clock)
    clock.advance(TTL_S + 1)
    lease = take(lease_store(), clock, alive=True)
    assert lease.number == 2
    lease.check()
    for act in (paused.check_if_overdue, paused.check, paused.raise_if_lost):
        with pytest.raises(RunHeldError, match=rf"run 'run' was taken over by process {os.getpid()} on .*, since 20"):
            act()
    assert paused.is_lost
    paused.close()
    lease.check()


@pytest.mark.parametrize(("ttl_s", "pause_s"), [(TTL_S, 1.0), (5.0, 0.5)])
def test_a_driver_on_another_machine_is_watched_and_followed_when_it_stays_silent(lease_store, clock, ttl_s, pause_s):
    take(lease_store(), clock, ttl_s=ttl_s)
    clock.advance(5)
    lines, pauses = [], []
    assert take(lease_store(), clock, lines=lines, wait=lambda s: (pauses.append(s), clock.advance(s))).number == 2
    assert pauses[:-1] == [pause_s] * round(ttl_s / pause_s)
    assert sum(pauses) == pytest.approx(ttl_s + 0.001), "seen for as long as it may be silent, by our own clock"
    assert len(lines) == 1
    assert "run 'run' is held by process" in lines[0]
    assert f"waiting up to {ttl_s:.0f} s" in lines[0]


@pytest.mark.parametrize("ends", [False, True], ids=["renews", "ends"])
def test_a_driver_on_another_machine_is_refused_or_followed_as_soon_as_it_renews_or_ends(lease_store, clock, ends):
    holder_lease = take(lease_store(), clock)

    def wait(seconds):
        clock.advance(seconds)
        holder_lease.close() if ends else holder_lease.check()

    if ends:
        assert take(lease_store(), clock, wait=wait).number == 2
    else:
        with pytest.raises(RunHeldError, match="is being written by"):
            take(lease_store(), clock, wait=wait)
    assert clock.now() < 2


def test_a_lapsed_lease_that_nobody_took_is_renewed_again(lease_store, clock):
    lease = take(lease_store(), clock)
    clock.advance(1000)
    lease.check()
    with pytest.raises(RunHeldError):
        take(lease_store(), clock, alive=True)


def test_only_a_driver_whose_predecessors_all_ended_has_the_journal_to_itself(lease_store, clock):
    assert take(lease_store(), clock).holder.alone
    clock.advance(TTL_S + 1)
    second = take(lease_store(), clock, alive=True)
    assert not second.holder.alone, "the first may come back"
    third = take(lease_store(), clock, alive=False)
    assert not third.holder.alone, "the second died before it settled that"
    third.mark_alone()
    third.check()
    assert take(lease_store(), clock, alive=False).holder.alone


def test_of_drivers_that_come_at_the_same_instant_one_wins(lease_store, clock):
    for round_ in range(20):
        ready = threading.Barrier(4)
        won, raised = [], []

        def come(ready=ready, won=won, raised=raised):
            opened = lease_store()
            ready.wait()
            try:
                won.append(take(opened, clock, alive=True))
            except RunHeldError:
                raised.append(True)

        threads = [threading.Thread(target=come) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(raised)) == (1, 3), f"round {round_}"
        won[0].check()
        won[0].close()


def test_old_numbers_and_parts_are_removed_and_a_driver_that_comes_late_does_not_get_one(tmp_path, clock):
    path = tmp_path / "run" / ".lease"
    path.parent.mkdir()
    late = DiskLeaseStore(path)
    for _ in range(4):
        lease = take(DiskLeaseStore(path), clock)
        (path / "killed.part").write_text("half")
        lease.close()
    assert not (path / "000001.json").exists(), "its number is free again"
    assert late.try_acquire(LeaseHolder(1, pid=1, token="late"), None) is None
    take(DiskLeaseStore(path), clock)
    assert sorted(os.listdir(path)) == ["000004.json", "000005.json"], "the holder before is left for people"
    assert (path / "000005.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b'{"number": 4'])
def test_a_damaged_lease_file_holds_until_it_lapses(tmp_path, damage):
    path = tmp_path / "run" / ".lease"
    path.mkdir(parents=True)
    (path / "000004.json").write_bytes(damage)
    waited = []

    class Moving(FakeClock):
        def wall(self):
            return SystemClock().wall() + self.now()

    clock = Moving()
    lease = take(DiskLeaseStore(path), clock, wait=lambda s: (waited.append(s), clock.advance(s)), ttl_s=1.0)
    assert lease.number == 5
    assert sum(waited) > 29


def test_while_storage_cannot_be_written_an_act_is_refused_once_the_lease_may_have_lapsed_or_another_driver_came():
    store, clock = MemoryStore(), FakeClock()
    lease = take(RemoteLeaseStore(store, "run"), clock)
    store.broken = True
    lease.check()
    clock.advance(TTL_S + 1)
    with pytest.raises(
        StorageError, match=r"cannot renew the lease of run 'run', last renewed 31 s ago, .*: 503 Slow Down"
    ) as raised:
        lease.check()
    assert not isinstance(raised.value, RunHeldError), "nobody has taken it: the run is not over"
    store.broken = False
    lease.check()
    take(RemoteLeaseStore(store, "run"), clock, alive=False)
    store.broken = True
    with pytest.raises(RunHeldError, match="was taken over"):
        lease.check()


def test_a_store_whose_lease_cannot_be_read_is_an_error_with_its_name(clock):
    store = MemoryStore()
    store.create("lease.json", b"{")
    with pytest.raises(StorageError, match=r"cannot read lease.json of run 'run'"):
        take(RemoteLeaseStore(store, "run"), clock)


def test_the_renewal_thread_renews_and_notices_a_takeover(tmp_path):
    path = tmp_path / "run" / ".lease"
    path.parent.mkdir()
    lease_store = DiskLeaseStore(path)
    lease = acquire_lease(lease_store, ttl_s=0.03, clock=SystemClock(), say=pytest.fail)
    renewed = threading.Event()
    renew = lease_store.renew
    lease_store.renew = lambda holder, tag: (renew(holder, tag), renewed.set())[0]
    lease.start_renewing()
    assert renewed.wait(60)
    os.replace(path / "000001.json", path / "000009.json")
    lease._renewal_thread.join(60)
    with pytest.raises(RunHeldError, match="was taken over"):
        lease.raise_if_lost()
    lease.close()


def test_a_process_is_identified_by_its_start_and_a_zombie_is_dead():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = system.process_start_ticks(process.pid)
        me = LeaseHolder(1, process.pid, started, system.machine_id(), socket.gethostname())
        assert is_holder_alive(me)
        assert is_holder_alive(msgspec.structs.replace(me, started=started + 1)) is False, "another process"
        assert is_holder_alive(msgspec.structs.replace(me, host="elsewhere")) is None
        assert is_holder_alive(msgspec.structs.replace(me, machine="an earlier boot")) is None
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_holder_alive(me) is False, "it has ended, and nobody has asked how"
    assert is_holder_alive(me) is False


def test_without_proc_a_process_is_identified_by_its_number(monkeypatch):
    monkeypatch.setenv("PACELINE_PORTABLE", "1")
    assert system.machine_id() == ""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert system.is_running(os.getpid(), 0)
    assert not system.is_running(process.pid, 0)
