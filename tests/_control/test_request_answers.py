"""Requests to a driver: which are taken and when, how long they wait for ranks, and what is answered."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from paceline._control import requests
from paceline._control.events import DiagnosticFileWritten
from paceline._control.flame_graph import render_flame_page
from paceline._control.request_handler import (
    FIRST_QUERY_NUMBER,
    PROFILES_TIMEOUT_S,
    RequestHandler,
    build_profiles_answer,
    build_stacks_answer,
    explain_no_workers,
    make_final_answer,
)
from paceline._control.request_inbox import LOOK_EVERY_S, LOOK_FAR_EVERY_S, RequestInbox
from paceline._control.requests import (
    Answer,
    DiagnosticFile,
    ProfileRequest,
    RankStacks,
    RequestEnvelope,
    StackLine,
    StacksRequest,
    StopRequest,
    Thread,
    decode_answer,
    decode_request,
    encode,
)
from paceline._control.run import BackingOff, Finished, RankProgress, Restoring, Run, Running, Validating, Waiting
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import RunHeldError
from paceline._core.system import ProcessStatus
from paceline._engine.messages import (
    DataProcessSampled,
    ProfileRecorded,
    RecordProfile,
    SampleStacks,
    StackFrame,
    StacksSampled,
    WorkerFailure,
)
from paceline._storage.files import LocalFiles
from paceline._storage.lease import MAX_CLOCK_SKEW_S, LeaseHolder
from paceline._storage.mailbox import DiskMailbox
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.testing import FakeClock

LEASE = 7
RECORD = CheckpointRecord(3, "checkpoint_000003", 1, msgspec.Raw(b"{}"))


class Driver:
    """A run of three workers, as far as the handler of its requests knows it. Background work is done at once."""

    def __init__(self, tmp_path, data_inspector=None):
        self.clock = FakeClock(100.0)
        self.run = Run(size=3, attempt=2, phase=Running(RankProgress.start_at(3, 0)))
        self.layout = RunLayout(tmp_path)
        self.store = DiskRunStore(LocalFiles(), self.layout)
        self.engine = SimpleNamespace(send=lambda *sent: self.sent.append(sent), condition=lambda r: self.status.get(r))
        self.status = {}
        self.sent, self.notes, self.stops = [], [], []
        self.record_note = self.notes.append
        self.request_stop = lambda *, now: self.stops.append(now)
        self.run_in_background = lambda work: work()
        self.mailbox = DiskMailbox(tmp_path / ".requests")
        self.handler = RequestHandler((self.mailbox, None), LEASE, data_inspector)
        self.handler.attach(self)

    def ask(self, request, id="a", *, after_s=1.0, **envelope):
        """Return the answer so far."""
        self.mailbox.open()
        self.mailbox.put(id, encode(RequestEnvelope(LEASE, self.clock.wall(), request, **envelope)))
        self.clock.advance(after_s)
        return self.poll(id=id)

    def poll(self, after_s=0.0, id="a"):
        self.clock.advance(after_s)
        self.handler.poll()
        data = self.mailbox.read_answer(id)
        return decode_answer(data) if data is not None else None

    def answer(self, rank, **values):
        assert self.handler.on_message(StacksSampled(2, rank, self.sent[-1][1].number, **values))


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path)


def test_stacks_are_answered_once_all_ranks_have_and_written_to_a_file(driver):
    assert driver.ask(StacksRequest()) is None
    assert driver.sent == [(rank, SampleStacks(FIRST_QUERY_NUMBER + 1)) for rank in range(3)]
    for rank in (2, 0):
        driver.answer(rank)
        assert driver.poll() is None
    assert driver.handler.on_message(StacksSampled(1, 1, FIRST_QUERY_NUMBER + 1)), "late, of another attempt"
    assert not driver.handler.on_message(StacksSampled(2, 1, 1)), "for the hang detector"
    assert driver.poll() is None
    driver.answer(1)
    answer = driver.poll()
    assert (answer.state, [each.rank for each in answer.stacks]) == ("done", [0, 1, 2])
    [file] = answer.files
    assert (driver.layout.root / file.path).read_text().endswith(f"{answer.text}\n")
    assert driver.notes == [DiagnosticFileWritten("stacks", file.path, -1, driver.clock.wall(), 0.0)]


@pytest.mark.parametrize(
    ("request_", "states", "least_s"),
    [
        (StacksRequest((1, 2)), "TZ", 1.0),
        (StacksRequest((1, 2)), "TS", 5.0),
        (StacksRequest((1, 2)), "T", 5.0),
        (ProfileRequest(2.0, (1, 2)), "TT", 2.0 + PROFILES_TIMEOUT_S),
    ],
)
def test_a_rank_that_does_not_answer_is_waited_for_unless_its_process_is_stopped(driver, request_, states, least_s):
    driver.status = {rank: ProcessStatus(state) for rank, state in enumerate(states, 1)}
    driver.ask(request_)
    driver.clock = driver.handler.control.clock = FakeClock(101.0 + least_s - 0.125)
    assert getattr(driver.poll(), "state", "taken") == "taken"
    answer = driver.poll(0.125)
    assert answer.state == ("refused" if isinstance(request_, ProfileRequest) else "done")


@pytest.mark.parametrize("change", [{"attempt": 3}, {"phase": Waiting()}])
def test_a_query_ends_with_the_workers_that_it_was_sent_to(driver, change):
    driver.ask(StacksRequest())
    driver.run = msgspec.structs.replace(driver.run, **change)
    assert not any(each.answers for each in driver.poll().stacks)


def test_the_end_of_the_run_answers_what_is_pending_with_what_has_arrived(driver):
    driver.ask(StacksRequest())
    driver.answer(1)
    driver.handler.on_run_ended()
    driver.handler.on_storage_closed()
    assert [each.answers for each in driver.poll().stacks] == [False, True, False]


class Inspector:
    """Of one data process, whose last answer is to this request."""

    def __init__(self, number):
        self.number = number

    def request_samples(self):
        return 5

    def read_samples(self):
        sample = StacksSampled(0, 0, self.number)
        return [DataProcessSampled(number=self.number, pid=77, work=1, stage="read", unit="part-3", sample=sample)]


@pytest.mark.parametrize(("number", "waits"), [(4, True), (5, False), (6, False)])
def test_data_processes_are_waited_for_a_second_longer_than_the_ranks(tmp_path, number, waits):
    driver = Driver(tmp_path, Inspector(number))
    driver.ask(StacksRequest())
    for rank in range(3):
        driver.answer(rank)
    assert (driver.poll(0.875) is None) == waits
    answer = driver.poll(0.125)
    assert [(each.rank, each.data_process, each.answers) for each in answer.stacks[3:]] == [
        (-1, "data process 77, read of part-3", not waits)
    ]
    driver.ask(StacksRequest((1,)), "b")
    driver.answer(1)
    assert len(driver.poll(id="b").stacks) == 1, "of one rank, without the data processes"


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (StacksRequest((3,)), "unknown rank 3; the ranks are 0 to 2"),
        (StacksRequest((-1,)), "unknown rank -1; the ranks are 0 to 2"),
        (ProfileRequest(0.0), "seconds must be a positive number of at most 600, got 0"),
        (ProfileRequest(600.5), "seconds must be a positive number of at most 600, got 600.5"),
        (ProfileRequest(-1.0), "seconds must be a positive number of at most 600, got -1"),
        (ProfileRequest(600.0), None),
        (StacksRequest((2,)), None),
    ],
)
def test_a_request_out_of_range_is_refused(driver, request_, refusal):
    answer = driver.ask(request_)
    assert bool(driver.sent) == (refusal is None)
    assert refusal is None or answer == Answer(state="refused", text=refusal)


def test_one_profile_at_a_time_of_eight_ranks_unless_others_are_chosen(driver):
    driver.run = Run(size=9, attempt=2, phase=Running(RankProgress.start_at(9, 0)))
    assert driver.ask(ProfileRequest(2.0)).text == "profiling for 2 s"
    assert driver.sent == [(rank, RecordProfile(FIRST_QUERY_NUMBER + 1, 2.0)) for rank in range(8)]
    assert driver.ask(ProfileRequest(2.0), "b").text.startswith("the run is being profiled already")
    for rank in range(8):
        files = (("folded.txt", b"a;b 2"), ("unknown", b"x")) if rank == 1 else ()
        driver.handler.on_message(ProfileRecorded(2, rank, FIRST_QUERY_NUMBER + 1, files, "" if files else "no\ud800"))
    answer = driver.poll()
    assert answer.problems[:2] == (
        "profiling only the first 8 of 9 ranks: choose others with --rank",
        "rank 0: no\\ud800",
    )
    assert [(file.kind, file.rank, file.seconds) for file in answer.files] == [("stacks-folded", 1, 2), ("flame", 1, 2)]
    assert all((driver.layout.root / file.path).stat().st_size == file.num_bytes for file in answer.files)
    driver.ask(ProfileRequest(2.0, (8, 8)), "c")
    assert driver.sent[8:] == [(8, RecordProfile(FIRST_QUERY_NUMBER + 2, 2.0))]


@pytest.mark.parametrize("now", [True, False])
def test_a_stop_is_passed_on_and_answered_at_the_end(driver, now):
    when = "now" if now else "at the next report"
    assert driver.ask(StopRequest(now)) == Answer(state="taken", text=f"the run will stop {when}")
    assert driver.stops == [now]
    driver.ask(ProfileRequest(2.0), "profile")
    driver.run = Run(num_reports=1, phase=Finished("interrupted"))
    driver.ask(StacksRequest(), "late", after_s=0.0)
    driver.handler.close()
    assert decode_answer(driver.mailbox.read_answer("a")).ending == "interrupted"
    for id in ("profile", "late"):
        assert decode_answer(driver.mailbox.read_answer(id)).state == "refused"


def test_a_driver_that_lost_the_run_leaves_new_requests_to_the_next(driver):
    driver.ask(StopRequest())
    driver.ask(StacksRequest(), "late", after_s=0.0)
    driver.handler.close(RunHeldError("taken over"))
    assert decode_answer(driver.mailbox.read_answer("a")).state == "refused"
    assert driver.mailbox.list_waiting() == ["late"]


@pytest.mark.parametrize(
    ("run", "error", "to_stop", "text"),
    [
        (Run(num_reports=1, phase=Finished("complete")), None, True, "run r finished after 1 report"),
        (Run(num_reports=2, phase=Finished("failed", reason="no")), None, True, "run r failed after 2 reports: no"),
        (
            Run(phase=Finished("failed", (WorkerFailure(0, "user", "ValueError"),), "no")),
            None,
            True,
            "run r failed after 0 reports: ValueError",
        ),
        (
            Run(checkpoints=(RECORD,), phase=Finished("preempted")),
            None,
            True,
            "run r was preempted after 0 reports; run its script again to resume from checkpoint_000003 (report 3)",
        ),
        (Run(), None, True, "run r has stopped after 0 reports; run its script again to resume from the beginning"),
        (
            Run(phase=Finished("complete")),
            None,
            False,
            "run r finished after 0 reports, before the request was done",
        ),
        (Run(), ValueError("no\ud800"), True, "the driver of run r ended with ValueError: no\\ud800"),
    ],
)
def test_the_last_answer_says_how_the_run_ended(run, error, to_stop, text):
    answer = make_final_answer(run, "r", error)(to_stop)
    assert answer.text == text
    assert answer.state == ("done" if to_stop and error is None else "refused")
    if answer.ok:
        ending = run.phase.ending if isinstance(run.phase, Finished) else None
        latest = run.latest.name if run.latest else None
        assert (answer.ending, answer.num_reports, answer.checkpoint) == (ending, run.num_reports, latest)


def test_a_run_without_workers_says_what_it_waits_for():
    phases = [BackingOff(1.0, 2.0), Restoring(RECORD), Waiting(), Validating(), Finished("complete")]
    reasons = [explain_no_workers(Run(phase=phase)).removeprefix("the run has no workers: ") for phase in phases]
    assert reasons == [
        "it waits before the next attempt",
        "they start once its checkpoint is verified",
        "it waits for capacity",
        "training is complete, and validations run",
        "it is starting or ending",
    ]


def test_stacks_show_every_thread_of_ranks_that_answer_and_the_process_of_those_that_do_not():
    own = StackFrame("train", "train_fn", "train.py:41", is_user_code=True)
    status = ProcessStatus("S", 2.5)
    sample = StacksSampled(2, 1, 1, (own,), "time.sleep", others=(("up\x1b", ()),), process_status=status)
    statuses = {0: None, 2: ProcessStatus("D", 1.0, kernel_function="nfs_wait"), 3: ProcessStatus("?")}
    answer = build_stacks_answer(range(4), {1: sample}, statuses)
    threads = (
        Thread("main thread", (StackLine("train_fn", "train.py:41", own=True),), "time.sleep"),
        Thread("up\\x1b", ()),
    )
    silent = [RankStacks(rank=rank, answers=False, condition=answer.stacks[rank].condition) for rank in (0, 2, 3)]
    assert [answer.stacks[rank] for rank in (0, 2, 3)] == silent
    assert [each.condition for each in silent] == [
        "its process has ended or is not visible from here",
        "its process waits in the kernel for a disk or another device (nfs_wait); state D, 1.00 s of CPU",
        "its process does not answer; state ?, 0.00 s of CPU",
    ]
    assert answer.stacks[1] == RankStacks(rank=1, answers=True, condition="state S, 2.50 s of CPU", threads=threads)


def test_the_answer_counts_the_profiles_and_says_who_sent_none() -> None:
    file = DiagnosticFile(kind="trace", path="x", rank=0, at=0.0)
    texts = [build_profiles_answer([], {}, {}, [file] * count, "", "/run").text for count in range(3)]
    assert texts == ["no profile was recorded", "1 file in /run/profiles", "2 files in /run/profiles"]
    answer = build_profiles_answer([0, 1], {0: ProfileRecorded(1, 0, 1)}, {}, [], "", "/run")
    problem = "rank 1 sent no profile: its process has ended or is not visible from here"
    assert (answer.state, answer.problems) == ("refused", (problem,))
    assert answer.text == f"no profile was recorded: {problem}"


def test_boxes_of_a_flame_graph_lie_side_by_side_above_their_caller() -> None:
    page = render_flame_page("a;b 1\na;c 3\nd 4\n", "t")
    boxes = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["nodes"]
    assert sorted(boxes) == [["a", 1, 0, 4], ["all", 0, 0, 8], ["b", 2, 0, 1], ["c", 2, 1, 3], ["d", 1, 4, 4]]


def test_requests_are_looked_for_twice_a_second_and_those_in_a_store_every_ten(tmp_path):
    clock, submitted = FakeClock(100.0), []
    near, far = DiskMailbox(tmp_path / "near"), DiskMailbox(tmp_path / "far")
    inbox = RequestInbox(near, far, LEASE, clock)

    def take(mailbox, id, after_s):
        mailbox.open()
        mailbox.put(id, encode(RequestEnvelope(LEASE, clock.wall(), StopRequest())))
        clock.advance(after_s)
        return [id for id, _ in inbox.take_due(submitted.append)]

    assert take(near, "a", 0.0) == ["a"]
    assert take(near, "b", LOOK_EVERY_S - 0.125) == []
    assert take(near, "c", 0.125) == ["b", "c"]
    assert near.list_waiting() == []
    assert take(far, "d", LOOK_FAR_EVERY_S - LOOK_EVERY_S - 0.125) == []
    assert submitted == []
    assert take(near, "e", 0.125) == []
    assert take(near, "f", LOOK_FAR_EVERY_S) == ["e", "f"]
    [collect] = submitted  # Not again before it is done.
    submitted.clear()
    collect()
    assert take(near, "g", 1.0) == ["g", "d"]
    inbox.answer("d", Answer(state="done", text="far"))
    assert far.read_answer("d") is None
    write = submitted[-1]
    write()
    assert decode_answer(far.read_answer("d")).text == "far"
    inbox.answer("a", Answer(state="done", text="near"))
    assert decode_answer(near.read_answer("a")).text == "near"


@pytest.mark.parametrize(("age_s", "is_taken"), [(5.0 + MAX_CLOCK_SKEW_S, True), (5.125 + MAX_CLOCK_SKEW_S, False)])
def test_a_request_expires_when_its_sender_no_longer_waits(driver, age_s, is_taken):
    driver.ask(StopRequest(), after_s=age_s, valid_s=5.0)
    assert bool(driver.stops) == is_taken


def test_a_request_that_cannot_be_removed_is_taken_once(driver, monkeypatch):
    monkeypatch.setattr(driver.mailbox, "remove", lambda id: None)
    driver.ask(StopRequest())
    driver.poll(1.0)
    assert driver.stops == [False]


def test_values_that_another_version_does_not_send_have_defaults():
    envelope = decode_request(b'{"lease":1,"at":2,"request":{"type":"profile_request"}}')
    assert envelope == RequestEnvelope(1, 2.0, ProfileRequest(10.0, ()), 60.0, 1)
    assert msgspec.json.decode(b'{"type":"stop_request"}', type=StopRequest) == StopRequest(now=False)
    assert msgspec.json.decode(b'{"function":"f","where":"w"}', type=StackLine) == StackLine("f", "w", own=False)
    file = msgspec.json.decode(b'{"kind":"k","path":"p","rank":0,"at":0}', type=DiagnosticFile)
    assert (file.seconds, file.num_bytes) == (0, 0)
    waits = [requests._default_timeout_s(each) for each in (StopRequest(True), StopRequest(), StacksRequest())]
    assert waits == [30, 60, 15]
    assert requests._default_timeout_s(ProfileRequest(20.0)) == 80


@pytest.mark.parametrize(
    ("is_alive", "age_s", "released", "is_found"),
    [
        (True, 1e6, False, True),
        (False, 0.0, False, False),
        (True, 0.0, True, False),
        (None, 30.0 + MAX_CLOCK_SKEW_S, False, True),
        (None, 30.125 + MAX_CLOCK_SKEW_S, False, False),
    ],
)
def test_a_driver_on_another_machine_is_lost_when_its_lease_has_run_out(
    monkeypatch, is_alive, age_s, released, is_found
):
    holder = LeaseHolder(1, renewed_at=1000.0, released=released)
    monkeypatch.setattr(requests, "is_holder_alive", lambda holder: is_alive)
    monkeypatch.setattr(requests, "time", SimpleNamespace(time=lambda: 1000.0 + age_s))
    lease_store = SimpleNamespace(read=lambda: SimpleNamespace(holder=holder))
    location = SimpleNamespace(open_lease_store=lambda: lease_store)
    assert requests.find_holder(location) == (holder if is_found else None)
