"""When silent ranks are asked, and when their silence is called a hang. Time is a number here."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control.events import CheckpointStaged, Committed, HangCleared, Reported, WorkerReady, WorkerReturned
from paceline._control.hang_detector import (
    BUSY_BYTES,
    INTERVAL_FACTOR,
    MIN_THRESHOLD_S,
    HangDetector,
    HangReport,
    RankObservation,
    RankTracker,
    SampleRequest,
)
from paceline._control.run import PendingCheckpoint, RankProgress, Run, Running
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._core.system import ProcessStatus
from paceline._engine.messages import DataProcessSampled, Joined, StackFrame, StacksSampled

RAW = msgspec.Raw(b"{}")


def asleep(line=41):
    return (StackFrame("train", "train_fn", f"train.py:{line}", is_user_code=True),), "time.sleep"


def in_collective(line=44):
    own = StackFrame("train", "train_fn", f"train.py:{line}", is_user_code=True)
    return (own, StackFrame("torch.distributed.distributed_c10d", "all_reduce", "c10d.py:1")), ""


def at_rows(line=50):
    own = StackFrame("train", "train_fn", f"train.py:{line}", is_user_code=True)
    return (own, StackFrame("paceline.data.exec.service_client", "stream_rows", "service_client.py:1")), ""


class DataProcess:
    """A data process in `map_batches(tokenize)`, and what becomes of it."""

    def __init__(self, pid=77, **state):
        self.pid, self.state = pid, {"is_waiting": False, "computes": False, "moves": False, "is_mute": False} | state

    def answer(self, number, now):
        state = self.state
        status = ProcessStatus("S", now if state["computes"] else 1.0)
        work = number if state["moves"] else 1
        own = StackFrame("prepare", "tokenize", "prepare.py:7", is_user_code=True)
        sample = (
            None if state["is_mute"] else StacksSampled(0, 0, number, (own,), "lock.acquire", process_status=status)
        )
        return DataProcessSampled(
            number=number,
            pid=self.pid,
            work=work,
            stage="map_batches(tokenize)",
            unit="part-3",
            is_waiting=state["is_waiting"],
            sample=sample,
            process_status=status,
        )


class Group:
    """Ranks that report and answer as they are told to, and the watch over them; one second at a time."""

    def __init__(self, size=2, *, timeout_s=None, action="warn", at=1000.0):
        self.run = Run(size=size, attempt=1, phase=Running(RankProgress.start_at(size, 0)))
        self.detector = HangDetector(timeout_s, action, "/storage/run")
        self.now = at
        self.detector.start_attempt(size, at)
        self.seq = 0
        self.doing = {rank: asleep() for rank in range(size)}
        self.computing, self.moving, self.fresh, self.traced = set(), set(), set(), set()
        self.mute = {}
        self.data = []
        self.requests, self.numbers = [], []
        self.reports = []

    def report(self, *ranks, where="train.py:40"):
        self.seq += 1
        for rank in ranks or range(self.run.size):
            self.detector.on_event(Reported(1, rank, self.seq, RAW, 0.0, where), self.now)

    def wait(self, seconds, step=1.0):
        """Let time pass; returns how many seconds after its beginning something was told, or None."""
        began = self.now
        while self.now < began + seconds:
            self.now += step
            decided = self.detector.tick(self.run, self.now, 0.0)
            if isinstance(decided, HangReport):
                self.reports.append(decided)
                return self.now - began
            if isinstance(decided, SampleRequest):
                self._answer(decided)
        return None

    def _answer(self, ask):
        self.requests.append(self.now)
        self.numbers.append(ask.number)
        self.detector.add_data_samples([each.answer(ask.number, self.now) for each in self.data], self.now)
        for rank in ask.unanswered:
            self.detector.add_missing_sample(rank, self.mute.get(rank), self.now)
        for rank in set(range(self.run.size)) - set(self.mute):
            main, called = self.doing[rank]
            cpu_s = self.now if rank in self.computing else 1.0
            condition = ProcessStatus("S", cpu_s, is_traced=rank in self.traced)
            moved = rank in self.moving
            fresh = rank in self.fresh
            sample = StacksSampled(
                1, rank, ask.number, main, called, has_moved=moved, is_new_call=fresh, process_status=condition
            )
            self.detector.add_sample(sample, self.now)

    @property
    def sentence(self):
        return self.reports[-1].event.failure.message


@pytest.mark.parametrize(("hosts", "who"), [(("host1", "host2"), "rank 1 on host2"), (("host1", "host1"), "rank 1")])
def test_the_host_of_the_rank_that_blocks_is_named_if_there_are_several(hosts, who):
    group = Group()
    for rank, host in enumerate(hosts):
        group.detector.on_event(WorkerReady(1, rank, pid=7, host=host), group.now)
    group.report()
    group.doing[0] = in_collective()
    assert group.wait(60) is not None
    assert group.sentence.startswith(f"{who} has been stuck at train.py:41")


def test_before_the_first_report_ranks_have_four_times_as_long():
    group = Group()
    assert group.wait(120) is None
    assert group.requests == []
    assert group.wait(60) is not None


@pytest.mark.parametrize(
    ("timeout_s", "interval_s", "cleared_s", "thresholds_s"),
    [
        (None, 0.0, 0.0, (120, 30)),
        (None, 5.0, 0.0, (120, 60)),
        (None, 20.0, 0.0, (240, 240)),
        (None, 0.0, 100.0, (200, 200)),
        (10.0, 20.0, 0.0, (40, 10)),
        (10.0, 0.0, 25.0, (50, 50)),
    ],
)
def test_the_threshold_grows_with_the_intervals_and_the_silences_that_were_no_hangs(
    timeout_s, interval_s, cleared_s, thresholds_s
):
    group = Group(1, timeout_s=timeout_s)
    for seconds in (0.0, interval_s, 1.0):
        group.now += seconds
        group.report()
    if cleared_s:
        assert group.wait(cleared_s - 1) is not None
        group.now += cleared_s - (group.now - 1001.0 - interval_s)
        group.report()
    assert tuple(group.detector.threshold_s(first=first) for first in (True, False)) == thresholds_s


def status(cpu_s=0.0, num_bytes=0, state="S"):
    return ProcessStatus(state, cpu_s, num_bytes)


@pytest.mark.parametrize(
    ("last", "at", "is_computing"),
    [
        (status(0.5), 5.0, True),
        (status(0.25), 5.0, False),
        (status(num_bytes=BUSY_BYTES), 5.0, True),
        (status(num_bytes=BUSY_BYTES - 1), 5.0, False),
        (status(state="R"), 5.0, True),
        (status(9.0), 0.0, False),
        (None, 5.0, False),
    ],
)
def test_a_rank_computes_if_it_uses_a_tenth_of_a_core_or_moves_a_megabyte(last, at, is_computing):
    tracker = RankTracker(0.0)
    for when, condition in ((0.0, status()), (at, last)):
        tracker.add_observation(RankObservation(when, None, condition))
    assert tracker.is_computing() == is_computing


@pytest.mark.parametrize(
    ("answers", "now", "is_standing"), [(True, 2.0, True), (False, 2.9, False), (False, 3.0, True)]
)
def test_a_rank_stands_after_three_samples_and_one_that_is_mute_after_three_seconds(answers, now, is_standing):
    tracker = RankTracker(0.0)
    for at in (0.0, 1.0, 2.0):
        assert not tracker.is_standing(10.0)
        tracker.add_observation(RankObservation(at, StacksSampled(1, 0, 1) if answers else None, None))
    assert tracker.is_standing(now) == is_standing
    tracker.last_sign_at = 0.5
    assert not tracker.is_standing(now)


def test_an_attempt_uses_the_threshold_that_the_one_before_learned():
    group = Group()
    group.report()
    group.wait(20)
    group.report()
    group.detector.start_attempt(2, group.now)
    assert group.wait(240) is None


def test_a_configured_timeout_is_used_and_nothing_is_learned():
    group = Group(timeout_s=10)
    group.report()
    group.wait(9)
    group.report()
    assert 10 < group.wait(60) < 20
    group = Group(timeout_s=0.5)
    group.report()
    group.wait(60, 0.125)
    assert group.requests == [1000.625, 1000.875, 1001.125], "a fifth of a second apart, at least"


def test_a_sleeping_rank_is_reported_within_a_minute_of_the_floor_with_who_waits_for_it():
    group = Group()
    group.doing[0] = in_collective()
    group.report()
    assert group.wait(30) is None
    assert group.requests == []
    assert group.wait(60) <= 15
    assert (group.requests, group.numbers) == ([1031.0, 1036.0, 1041.0], [1, 2, 3])
    assert group.sentence == (
        "rank 1 has been stuck at train.py:41 in train_fn (time.sleep) for 42 s; "
        "rank 0 waits for it in a collective (all_reduce) at train.py:44 in train_fn"
    )
    assert (group.reports[-1].event.failure.rank, group.reports[-1].event.failure.pid) == (1, 0)
    assert group.reports[-1].event.failure.frames == ("train.py:41 in train_fn",)
    assert "rank 1" in group.reports[-1].stacks


@pytest.mark.parametrize("sign", ["barrier", "files", "commit", "return"])
def test_every_sign_of_life_ends_the_silence(sign):
    group = Group()
    group.report()
    for _ in range(10):
        assert group.wait(25) is None
        match sign:
            case "barrier":
                for rank in (0, 1):
                    group.detector.on_barrier_joined(Joined(1, rank, 1, ""), group.now)
            case "files":
                for rank in (0, 1):
                    group.detector.on_event(CheckpointStaged(1, 1, StagedFiles(rank, ())), group.now)
            case "commit":
                group.detector.on_event(Committed(CheckpointRecord(1, "c", 1, RAW)), group.now)
            case "return":
                group.detector.on_event(WorkerReturned(1, 0, 1), group.now)
                break
    assert group.requests == []


@pytest.mark.parametrize("how", ["all move", "all are in another call of the same line", "one moves, one waits for it"])
def test_ranks_that_move_are_never_reported_however_long_they_are_silent(how):
    group = Group()
    group.report()
    match how:
        case "all move":
            group.moving = {0, 1}
        case "all are in another call of the same line":
            group.fresh = {0, 1}
        case _:
            group.moving = {0}
            group.doing[1] = in_collective()
    assert group.wait(3600) is None
    if how == "all move":
        assert len(group.requests) < 3600 / 30 + 5, "one that was seen to move is left alone for a while"
    group.moving = group.fresh = set()
    assert group.wait(100) is not None


def test_a_rank_that_answers_now_and_then_is_not_reported():
    group = Group(1)
    group.report()
    for _ in range(50):
        group.mute = {} if group.mute else {0: ProcessStatus("S")}
        assert group.wait(6) is None


@pytest.mark.parametrize(
    ("size", "computing", "least_s", "begins"),
    [
        (1, 0, 120, "rank 0 has been computing"),
        (2, 1, 120, "rank 1 has been computing"),
        (2, 0, 30, "rank 1 has been stuck"),
    ],
    ids=["alone", "others wait for it in a collective", "it waits in a collective for a sleeper"],
)
def test_a_rank_that_computes_at_one_place_has_four_times_as_long(size, computing, least_s, begins):
    group = Group(size)
    if size == 2:
        group.doing[0] = in_collective()
    group.computing = {computing}
    group.report()
    assert least_s <= group.wait(300) <= least_s + 60
    assert group.sentence.startswith(f"{begins} at train.py:41")
    assert ("rank 0 waits for it" in group.sentence) == (computing == 1)


def test_a_rank_that_falls_silent_alone_is_reported_within_a_minute_of_the_threshold():
    group = Group()
    group.report()
    while not group.reports and group.now < 1300:
        group.wait(2)
        if not group.reports:
            group.report(0)
    assert 30 < group.now - 1000 <= 90 + 2
    assert group.sentence.startswith("rank 1 has been stuck")


def test_a_rank_that_never_reports_is_not_expected_to():
    group = Group()
    group.moving = {0}
    for _ in range(100):
        group.report(0)
        assert group.wait(20) is None
    assert group.requests == []


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (ProcessStatus("T"), "rank 1 is stopped by a signal (SIGSTOP), silent for"),
        (
            ProcessStatus("S", kernel_function="futex_wait"),
            "holds the GIL, waiting in the kernel (futex_wait); its last report",
        ),
        (None, "rank 1 has been silent for"),
    ],
)
def test_a_rank_that_does_not_answer_is_described_by_its_process_status_and_its_last_report(condition, expected):
    group = Group()
    group.doing[0] = in_collective()
    group.mute[1] = condition
    group.report()
    assert 30 < group.wait(300) <= 90
    assert expected in group.sentence
    assert "its last report was made at train.py:40; rank 0 waits for it" in group.sentence


def test_a_hang_and_its_end_are_reported_once_and_the_same_silence_not_again():
    group = Group()
    group.report()
    assert group.wait(300) is not None
    assert group.wait(300) is None
    group.report()
    assert group.wait(300) == 1
    passed = group.reports[-1].event
    assert isinstance(passed, HangCleared)
    assert 340 < passed.after_s < 345
    for _ in range(5):
        assert group.wait(350) is None, "it has been that long before, and was no hang"
        group.report()


def test_a_worker_in_a_debugger_stops_the_clock_for_all():
    group = Group()
    group.doing[0] = in_collective()
    group.traced = {1}
    group.report()
    assert group.wait(3600) is None
    group.traced = set()
    frames, called = asleep()
    group.doing[1] = (*frames, StackFrame("pdb", "cmdloop", "pdb.py:1")), called
    assert group.wait(3600) is None
    group.doing[1] = asleep()
    assert group.wait(100) is not None


@pytest.mark.parametrize(("timeout_s", "silent_s", "paused_s"), [(None, 25, 1000), (4, 1, 3)])
def test_time_in_which_the_driver_itself_stood_still_is_not_counted(timeout_s, silent_s, paused_s):
    group = Group(timeout_s=timeout_s)
    group.report()
    group.wait(silent_s)
    group.now += paused_s
    assert group.wait(2) is None
    assert group.requests == []
    assert group.wait(100) is not None


def test_workers_are_not_restarted_for_a_commit_that_the_driver_cannot_finish():
    group = Group(action="restart")
    group.run = Run(size=2, attempt=1, phase=Running(RankProgress.start_at(2, 1)), committing=(1,))
    own = StackFrame("train", "train_fn", "train.py:44", is_user_code=True)
    committing = (own, StackFrame("paceline._worker.context", "report", "context.py:1")), ""
    group.doing = {0: committing, 1: committing}
    group.report()
    group.wait(100)
    assert "the checkpoint of report 1 has waited" in group.sentence
    assert group.reports[-1].event.action == "warn"


def test_of_several_pending_checkpoints_the_ranks_that_the_first_waits_for_are_named():
    group = Group(size=3)
    own = StackFrame("train", "train_fn", "train.py:44", is_user_code=True)
    group.doing = dict.fromkeys(range(3), ((own, StackFrame("paceline._worker.context", "report", "context.py:1")), ""))
    pending = tuple(PendingCheckpoint(seq, f"checkpoint_{seq}", 0, "train.py:44", RAW) for seq in (2, 4))
    group.run = Run(size=3, attempt=1, phase=Running(RankProgress((4, 3, 1), 1), pending=pending))
    group.report()
    group.wait(100)
    assert "in report 2 with a checkpoint at train.py:44 in train_fn: rank 2 has made 1 and waits" in group.sentence


def test_ranks_that_wait_for_a_validation_wait_as_long_as_it_runs():
    group = Group()
    own = StackFrame("train", "train_fn", "train.py:44", is_user_code=True)
    validated = (own, StackFrame("paceline._worker.context", "checkpoints", "context.py:1")), ""
    group.doing = {0: validated, 1: in_collective()}
    group.report()
    group.run = Run(size=2, attempt=1, phase=Running(RankProgress.start_at(2, 1)), validating=(1, 1))
    assert group.wait(3600) is None
    group.run = Run(size=2, attempt=1, phase=Running(RankProgress.start_at(2, 1)))
    assert group.wait(100) is not None


def test_nothing_is_asked_of_workers_that_are_being_ended():
    group = Group()
    group.report()
    group.run = Run(size=2, attempt=1)
    assert group.wait(1000) is None
    assert group.requests == []


intervals = st.lists(st.floats(0.1, 60.0), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), intervals, st.lists(st.floats(0.0, 10.0), max_size=6))
def test_reports_that_come_ten_times_later_than_any_before_raise_no_alarm(size, first, slower):
    group = Group(size)
    longest = 0.0
    group.report()
    for interval in first:
        interval = min(interval, max(MIN_THRESHOLD_S, 10 * longest))
        assert group.wait(interval, 0.5) is None
        longest = max(longest, interval)
        group.report()
    for times in slower:
        assert group.wait(min(times * longest, 5000), 2.0) is None
        group.report()
    assert group.requests == []


@settings(deadline=None, max_examples=50)
@given(st.data(), st.integers(1, 4), st.lists(st.floats(0.1, 2.0), max_size=8))
def test_a_silence_that_lasts_is_reported_within_a_minute_of_its_threshold(data, size, before):
    group = Group(size)
    for rank in range(size):
        group.doing[rank] = data.draw(st.sampled_from([asleep(), asleep(7), in_collective(), in_collective(50)]))
        if data.draw(st.booleans()):
            group.mute[rank] = data.draw(st.sampled_from([None, ProcessStatus("T"), ProcessStatus("S")]))
    group.report()
    for interval in before:
        group.wait(interval, 0.1)
        group.report()
    threshold_s = max(MIN_THRESHOLD_S, INTERVAL_FACTOR * (max(before, default=0) + 0.1))
    after_s = group.wait(threshold_s + 61)
    assert after_s is not None
    assert MIN_THRESHOLD_S < after_s <= threshold_s + 60
    assert "rank" in group.sentence
    assert group.wait(1000) is None, "and only once"


@settings(deadline=None, max_examples=50)
@given(st.data(), st.integers(1, 4))
def test_a_rank_that_just_moved_is_never_the_one_that_is_reported(data, size):
    group = Group(size)
    group.report()
    for _ in range(20):
        for rank in range(size):
            group.doing[rank] = data.draw(st.sampled_from([asleep(), in_collective()]))
        group.moving = {0} | set(data.draw(st.lists(st.integers(0, size - 1))))
        if group.wait(data.draw(st.integers(1, 40))) is not None:
            assert group.reports[-1].event.failure.rank != 0
            return


@pytest.fixture
def starving():
    """Ranks that wait for rows."""
    group = Group()
    group.doing = dict.fromkeys(range(2), at_rows())
    group.report()
    return group


@pytest.mark.parametrize(
    ("processes", "sentence"),
    [
        (
            [DataProcess(), DataProcess(78, is_waiting=True)],
            "the data process 77 has been stuck in map_batches(tokenize), on part-3, at prepare.py:7 in tokenize "
            "(lock.acquire) for 42 s; ranks 0 and 1 wait for it for rows of a dataset at train.py:50 in train_fn",
        ),
        (
            [DataProcess(), DataProcess(78)],
            "data processes 77, 78 have been stuck in map_batches(tokenize), on part-3, at prepare.py:7 in tokenize "
            "(lock.acquire) for 42 s; ranks 0 and 1 wait for them for rows of a dataset at train.py:50 in train_fn",
        ),
        (
            [DataProcess(is_mute=True)],
            "the data process 77 has been silent in map_batches(tokenize), on part-3, for 42 s: code outside Python "
            "holds the GIL; ranks 0 and 1 wait for it for rows of a dataset at train.py:50 in train_fn",
        ),
        (
            [DataProcess(is_waiting=True)],
            "ranks 0 and 1 have waited for rows of a dataset at train.py:50 in train_fn for 42 s, and nothing arrives",
        ),
    ],
)
def test_a_data_process_that_stands_is_blamed_for_the_rows_that_are_missing(starving, processes, sentence):
    starving.data = processes
    assert starving.wait(60) <= 45
    assert starving.sentence == sentence
    assert "data process 77, map_batches(tokenize) of part-3: state S" in starving.reports[-1].stacks
    if "tokenize (" in sentence:
        assert starving.reports[-1].event.failure.frames == ("prepare.py:7 in tokenize",)


@pytest.mark.parametrize("state", ["computes", "moves"])
def test_ranks_that_wait_for_a_data_process_at_work_have_several_times_as_long(starving, state):
    starving.data = [DataProcess(**{state: True})]
    assert starving.wait(4 * MIN_THRESHOLD_S - 1) is None
    assert starving.wait(60) is not None


def test_data_processes_at_work_are_no_excuse_for_ranks_that_need_no_rows():
    group = Group()
    group.data = [DataProcess(computes=True)]
    group.report()
    assert group.wait(60) <= 45
