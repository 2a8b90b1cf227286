"""The sender of a request: where it leaves it, how long it waits, and what it makes of the driver's answers."""

from types import SimpleNamespace

import pytest

from paceline._control import requests
from paceline._control.requests import Answer, ProfileRequest, StacksRequest, StopRequest, decode_request, send_request
from paceline._storage.lease import LeaseHolder
from paceline._storage.mailbox import DiskMailbox

POLL_S = 0.125
TAKEN, DONE = Answer(state="taken", text="at it"), Answer(state="done", text="here")


class Sender:
    """Its clock stands still but for its sleeps, and after each of them the driver acts as `plan` says."""

    name, uri = "run", "/runs/run"

    def __init__(self, tmp_path, monkeypatch, *, is_alive=True, has_store=False):
        self.now = 100.0
        self.sleeps = []
        self.plan = {}
        self.holder = LeaseHolder(7, pid=4711, host="node-a", renewed_at=100.0)
        self.near = DiskMailbox(tmp_path / "near")
        self.far = DiskMailbox(tmp_path / "far") if has_store else None
        self.near.open()
        if self.far is not None:
            self.far.open()
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(requests, "time", clock)
        monkeypatch.setattr(requests, "_POLL_S", POLL_S)
        monkeypatch.setattr(requests, "is_holder_alive", lambda holder: is_alive)

    def open_lease_store(self):
        return SimpleNamespace(read=lambda: SimpleNamespace(holder=self.holder) if self.holder else None)

    def open_mailboxes(self):
        return self.near, self.far

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps.append(seconds)
        for at in [at for at in self.plan if at <= self.waited_s]:
            self.plan.pop(at)()

    @property
    def waited_s(self):
        return self.now - 100.0

    def answer(self, answer, mailbox=None):
        def write():
            mailbox_ = mailbox or self.near
            [self.id] = mailbox_.list_waiting()
            self.envelope = decode_request(mailbox_.read(self.id))
            mailbox_.write_answer(self.id, requests.encode(answer))

        return write

    def lose(self, number=None):
        self.holder = LeaseHolder(number, renewed_at=self.now) if number is not None else None


@pytest.fixture
def sender(tmp_path, monkeypatch):
    return Sender(tmp_path, monkeypatch)


def test_an_answer_is_returned_at_once_and_nothing_is_left(sender):
    sender.plan = {0.25: sender.answer(DONE)}
    assert send_request(sender, StacksRequest((1,)), 5.0) == DONE
    assert sender.waited_s == 0.25
    assert sender.envelope == requests.RequestEnvelope(7, 100.0, StacksRequest((1,)), 5.0)
    assert sender.near.list_waiting() == []
    assert sender.near.read_answer(sender.id) is None


def test_a_long_request_is_announced_once_and_given_up_at_its_timeout(sender):
    accepted = []
    sender.plan = {0.25: sender.answer(TAKEN)}
    assert send_request(sender, ProfileRequest(1.0), 3.0, on_accepted=accepted.append) == TAKEN
    assert accepted == [TAKEN]
    assert sender.waited_s == 3.0
    sender.plan = {4.0: sender.answer(TAKEN), 5.0: sender.answer(DONE)}
    assert send_request(sender, ProfileRequest(1.0)) == DONE, "with nobody to tell that it was taken"


@pytest.mark.parametrize(("has_store", "waited_s", "poll_s"), [(False, 15.0, POLL_S), (True, 36.0, 2.0)])
def test_a_driver_that_does_not_answer_is_waited_for_as_long_as_such_a_request_takes(
    tmp_path, monkeypatch, has_store, waited_s, poll_s
):
    sender = Sender(tmp_path, monkeypatch, is_alive=None if has_store else True, has_store=has_store)
    answer = send_request(sender, StacksRequest())
    assert answer.state == "silent"
    assert "process 4711 on node-a, did not answer within" in answer.text
    assert (sender.waited_s, set(sender.sleeps)) == (waited_s, {poll_s})


@pytest.mark.parametrize(("answer", "when"), [(None, "before it answered"), (TAKEN, "before it finished the request")])
@pytest.mark.parametrize("next_driver", [None, 8])
def test_a_driver_that_is_gone_is_not_waited_for(sender, answer, when, next_driver):
    sender.plan = {0.5: lambda: sender.lose(next_driver)}
    if answer is not None:
        sender.plan[0.25] = sender.answer(answer)
    answer = send_request(sender, StacksRequest(), 60.0)
    assert answer == Answer(state="gone", text=f"the driver of run, process 4711 on node-a, ended {when}")
    assert sender.waited_s == 1.0, "it is looked for once a second"


def test_an_answer_that_was_written_before_the_driver_ended_counts(sender):
    sender.plan = {0.875: sender.answer(DONE), 1.0: sender.lose}
    sender.near.list_waiting()
    assert send_request(sender, StacksRequest(), 60.0) == DONE


@pytest.mark.parametrize(
    ("request_", "answer", "plan", "waited_s"),
    [
        (StopRequest(), DONE, {2.0: None}, 2.0),
        (StopRequest(), DONE, {2.0: 8}, 2.0),
        (StopRequest(), DONE, {}, 10.25),
        (StopRequest(), Answer(state="refused", text="no"), {}, 0.25),
        (StacksRequest(), DONE, {}, 0.25),
    ],
)
def test_a_stop_is_over_once_the_run_is_released(sender, request_, answer, plan, waited_s):
    sender.plan = {at: lambda number=number: sender.lose(number) for at, number in plan.items()}
    sender.plan[0.25] = sender.answer(answer)
    assert send_request(sender, request_, 60.0) == answer
    assert sender.waited_s == waited_s


def test_a_run_without_a_driver_or_with_one_that_just_ended_is_undriven(sender):
    sender.near.close()
    assert send_request(sender, StopRequest()).state == "undriven"
    sender.lose()
    assert send_request(sender, StopRequest()).text.startswith("run has no driver")
    assert sender.sleeps == []


@pytest.mark.parametrize(
    ("is_alive", "is_near_open", "is_near"), [(True, True, True), (True, False, False), (None, True, False)]
)
def test_a_run_in_a_store_is_asked_through_it_unless_its_driver_is_here(
    tmp_path, monkeypatch, is_alive, is_near_open, is_near
):
    sender = Sender(tmp_path, monkeypatch, is_alive=is_alive, has_store=True)
    if not is_near_open:
        sender.near.close()
    sender.plan = {0.125: sender.answer(DONE, sender.near if is_near else sender.far)}
    assert send_request(sender, StacksRequest()) == DONE
    assert sender.sleeps == [POLL_S if is_near else 2.0]
