"""Handles requests from people to a running driver: stop the run, show its stacks, profile it.

Nothing here blocks: a query to ranks has a deadline, at which it is answered with what has arrived, and files are
written on the storage thread. The functions at the end build the answers; they have no effects.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from paceline._control import requests
from paceline._control.events import DiagnosticFileWritten, Event
from paceline._control.extensions import Extension, Interrupts
from paceline._control.hang_diagnosis import describe_data_process, format_stacks
from paceline._control.request_inbox import RequestInbox
from paceline._control.requests import Answer, DiagnosticFile, RankStacks, StackLine, Thread
from paceline._control.retry_policy import first_failure
from paceline._control.run import BackingOff, Finished, Restoring, Run, Running, Stopping, Validating, Waiting
from paceline._control.storage_thread import write_profile_files, write_stacks_file
from paceline._core.errors import RunHeldError
from paceline._core.frames import display_name
from paceline._core.plain_values import to_printable
from paceline._core.system import ProcessStatus
from paceline._engine import messages
from paceline._engine.base import DataInspector
from paceline._engine.messages import (
    DataProcessSampled,
    ProfileRecorded,
    SampleStacks,
    StackFrame,
    StacksSampled,
    ToWorker,
)
from paceline._storage.mailbox import Mailbox

if TYPE_CHECKING:
    from paceline._control.controller import Controller


log = logging.getLogger("paceline")

FIRST_QUERY_NUMBER = 1 << 40
"""Above all sample numbers of the hang detector."""
STACKS_TIMEOUT_S = 5.0
STOPPED_RANK_TIMEOUT_S = 1.0
"""How long to wait for a rank whose process is stopped."""
DATA_TIMEOUT_S = 1.0
"""How much longer than for the ranks to wait for data processes."""
PROFILES_TIMEOUT_S = 45.0
"""Beyond the duration of the profile: writing a trace of many operations takes a while."""


@dataclass
class _RankQuery:
    """A query to ranks, and their answers so far."""

    id: str
    request: requests.StacksRequest | requests.ProfileRequest
    number: int
    attempt: int
    ranks: tuple[int, ...]
    asked_at: float
    deadline: float
    note: str = ""
    data_number: int | None = None
    """The number of the request to the data processes, if they are asked too."""
    samples: dict[int, StacksSampled] = field(default_factory=dict)
    profiles: dict[int, ProfileRecorded] = field(default_factory=dict)

    @property
    def missing_ranks(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.samples and rank not in self.profiles]


class RequestHandler(Extension):
    def __init__(
        self, mailboxes: tuple[Mailbox, Mailbox | None], lease: int, data_inspector: DataInspector | None = None
    ) -> None:
        self._mailboxes = mailboxes
        self._data_inspector = data_inspector
        self._lease = lease
        self.interrupts: Interrupts | None = None
        """Counts the stops that are requested here, too."""
        self._number = FIRST_QUERY_NUMBER
        self._pending_queries: list[_RankQuery] = []
        self._stopping: list[str] = []
        self._ready_answers: deque[tuple[str, Answer]] = deque()
        """Answers from the storage thread."""
        self._being_written: set[str] = set()

    def attach(self, control: Controller) -> None:
        super().attach(control)
        self._request_inbox = RequestInbox(*self._mailboxes, self._lease, control.clock)

    def poll(self) -> Sequence[Event]:
        """Accept new requests and answer those that are ready."""
        for id, request in self._request_inbox.take_due(self.control.run_in_background):
            self._start_request(id, request)
        now = self.control.clock.now()
        for query in list(self._pending_queries):
            if self._is_complete(query, now):
                self._pending_queries.remove(query)
                self._prepare_answer(query)
        self._send_answers()
        return ()

    def on_message(self, message: Any) -> bool:
        if not isinstance(message, StacksSampled | ProfileRecorded):
            return False
        for query in self._pending_queries:
            if query.number == message.number and query.attempt == message.attempt:
                if isinstance(message, StacksSampled):
                    query.samples[message.rank] = message
                else:
                    query.profiles[message.rank] = message
        # Nobody waits for a late profile any more. Other samples are for the hang detector.
        return message.number >= FIRST_QUERY_NUMBER or isinstance(message, ProfileRecorded)

    def on_run_ended(self) -> None:
        """Finish all queries with what has arrived."""
        for query in self._pending_queries:
            self._prepare_answer(query)
        self._pending_queries.clear()

    def on_storage_closed(self) -> None:
        self._request_inbox.work_inline()
        self._send_answers()

    def close(self, error: BaseException | None = None) -> None:
        """Answer everybody who still waits."""
        self._request_inbox.work_inline()
        end = make_final_answer(self.control.run, self.control.store.layout.root.name, error)
        for id in [*self._stopping, *self._being_written, *(query.id for query in self._pending_queries)]:
            self._request_inbox.answer(id, end(id in self._stopping))
        # If another driver holds the run, requests in the mailbox are for that one.
        if not isinstance(error, RunHeldError):
            self._request_inbox.close(lambda request: end(isinstance(request, requests.StopRequest)))

    def _start_request(self, id: str, request: requests.UserRequest) -> None:
        match request:
            case requests.StopRequest(now=now):
                self._stopping.append(id)
                when = "now" if now else "at the next report"
                self._request_inbox.answer(id, Answer(state="taken", text=f"the run will stop {when}"))
                stop = self.interrupts.on_stop_request if self.interrupts is not None else self.control.request_stop
                stop(now=now)
            case requests.StacksRequest() | requests.ProfileRequest():
                if refusal := self._refusal_reason(request, self.control.run):
                    self._request_inbox.answer(id, Answer(state="refused", text=refusal))
                else:
                    self._ask_ranks(id, request)

    def _refusal_reason(self, request: requests.StacksRequest | requests.ProfileRequest, run: Run) -> str:
        if not isinstance(run.phase, Running | Stopping):
            return explain_no_workers(run)
        if unknown := [rank for rank in request.ranks if not 0 <= rank < run.size]:
            return f"unknown rank {unknown[0]}; the ranks are 0 to {run.size - 1}"
        if isinstance(request, requests.StacksRequest):
            return ""
        if not 0.0 < request.seconds <= requests.MAX_PROFILE_S:
            return f"seconds must be a positive number of at most {requests.MAX_PROFILE_S:g}, got {request.seconds:g}"
        if (
            any(isinstance(query.request, requests.ProfileRequest) for query in self._pending_queries)
            or self._being_written
        ):
            return "the run is being profiled already\n\nhint: try again when that is done"
        return ""

    def _ask_ranks(self, id: str, request: requests.StacksRequest | requests.ProfileRequest) -> None:
        run, now, note = self.control.run, self.control.clock.now(), ""
        ranks = tuple(sorted(set(request.ranks))) or tuple(range(run.size))
        message: ToWorker
        self._number += 1
        if isinstance(request, requests.ProfileRequest):
            if not request.ranks and run.size > requests.MAX_PROFILED_RANKS:
                ranks = ranks[: requests.MAX_PROFILED_RANKS]
                note = f"profiling only the first {len(ranks)} of {run.size} ranks: choose others with --rank"
            message = messages.RecordProfile(self._number, request.seconds)
            timeout_s = request.seconds + PROFILES_TIMEOUT_S
            self._request_inbox.answer(id, Answer(state="taken", text=f"profiling for {request.seconds:g} s"))
        else:
            message = SampleStacks(self._number)
            timeout_s = STACKS_TIMEOUT_S
        for rank in ranks:
            self.control.engine.send(rank, message)
        query = _RankQuery(id, request, self._number, run.attempt, ranks, now, now + timeout_s, note)
        if isinstance(request, requests.StacksRequest) and not request.ranks and self._data_inspector is not None:
            query.data_number = self._data_inspector.request_samples()
        self._pending_queries.append(query)

    def _is_complete(self, query: _RankQuery, now: float) -> bool:
        run, missing = self.control.run, query.missing_ranks
        if not missing and now - query.asked_at < DATA_TIMEOUT_S and not self._have_data_processes_answered(query):
            return False
        if not missing or now >= query.deadline or run.attempt != query.attempt:
            return True
        if not isinstance(run.phase, Running | Stopping):
            return True
        if isinstance(query.request, requests.ProfileRequest) or now - query.asked_at < STOPPED_RANK_TIMEOUT_S:
            return False
        statuses = [self.control.engine.condition(rank) for rank in missing]
        return all(each is not None and each.state in ("T", "t", "Z", "X") for each in statuses)

    def _read_data_samples(self, query: _RankQuery) -> list[DataProcessSampled]:
        """What the data processes have answered; older answers are none."""
        if query.data_number is None or self._data_inspector is None:
            return []
        number, samples = query.data_number, self._data_inspector.read_samples()
        return [each if each.number >= number else replace(each, sample=None) for each in samples]

    def _have_data_processes_answered(self, query: _RankQuery) -> bool:
        samples = self._read_data_samples(query)
        return query.data_number is None or (bool(samples) and all(each.sample is not None for each in samples))

    def _prepare_answer(self, query: _RankQuery) -> None:
        conditions = {rank: self.control.engine.condition(rank) for rank in query.missing_ranks}
        id, store, at = query.id, self.control.store, self.control.clock.wall()
        self._being_written.add(id)
        if isinstance(query.request, requests.StacksRequest):
            answer = build_stacks_answer(query.ranks, query.samples, conditions, self._read_data_samples(query))
            path = store.layout.stacks(query.attempt)

            def write_stacks() -> Answer:
                file = write_stacks_file(store, path, answer.text, at)
                return replace(answer, problems=(file,)) if isinstance(file, str) else replace(answer, files=(file,))

            self._submit_write(id, write_stacks)
            return
        seconds, stamp = query.request.seconds, query.number - FIRST_QUERY_NUMBER
        profiles, ranks, note = query.profiles, query.ranks, query.note

        def write() -> Answer:
            files: list[DiagnosticFile] = []
            for _, answer in sorted(profiles.items()):
                files += write_profile_files(store, answer, at=at, number=stamp, seconds=seconds)
            return build_profiles_answer(ranks, profiles, conditions, files, note, store.uri)

        self._submit_write(id, write)

    def _submit_write(self, id: str, write: Callable[[], Answer]) -> None:
        def work() -> None:
            try:
                self._ready_answers.append((id, write()))
            except Exception as error:  # noqa: BLE001
                text = f"cannot write the files: {type(error).__name__}: {error}"
                self._ready_answers.append((id, Answer(state="refused", text=text)))

        self.control.run_in_background(work)

    def _send_answers(self) -> None:
        while self._ready_answers:
            id, answer = self._ready_answers.popleft()
            self._being_written.discard(id)
            self._request_inbox.answer(id, answer)
            for file in answer.files:
                note = DiagnosticFileWritten(file.kind, file.path, file.rank, file.at, file.seconds)  # type: ignore[arg-type]
                self.control.record_note(note)


_STATE_TEXTS = {
    "T": "is stopped, by a signal such as SIGSTOP",
    "t": "is paused by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "R": "computes without answering: code outside Python holds the GIL",
    "D": "waits in the kernel for a disk or another device",
    "S": "waits in the kernel without answering: code outside Python holds the GIL",
}


def explain_no_workers(run: Run) -> str:
    match run.phase:
        case BackingOff():
            reason = "it waits before the next attempt"
        case Restoring():
            reason = "they start once its checkpoint is verified"
        case Waiting():
            reason = "it waits for capacity"
        case Validating():
            reason = "training is complete, and validations run"
        case _:
            reason = "it is starting or ending"
    return f"the run has no workers: {reason}"


def make_final_answer(run: Run, name: str, error: BaseException | None) -> Callable[[bool], Answer]:
    """Return a function that builds the answer after the end of the run, for a stop (True) or any other request."""

    def answer(to_stop: bool) -> Answer:
        if error is not None:
            text = f"the driver of run {name} ended with {type(error).__name__}: {to_printable(str(error))}"
            return Answer(state="refused", text=text)
        if not to_stop:
            return Answer(state="refused", text=f"{format_run_end(run, name)}, before the request was done")
        ending = run.phase.ending if isinstance(run.phase, Finished) else None
        return Answer(
            state="done",
            text=format_run_end(run, name),
            ending=ending,
            num_reports=run.num_reports,
            checkpoint=run.latest.name if run.latest is not None else None,
        )

    return answer


def format_run_end(run: Run, name: str) -> str:
    reports = f"{run.num_reports} report{'s' if run.num_reports != 1 else ''}"
    phase = run.phase
    ending = phase.ending if isinstance(phase, Finished) else "interrupted"
    if ending == "complete":
        return f"run {name} finished after {reports}"
    if ending == "failed":
        assert isinstance(phase, Finished)
        reason = first_failure(phase.failures).message if phase.failures else phase.reason
        return f"run {name} failed after {reports}: {reason}"
    since = f"from {run.latest.name} (report {run.latest.seq})" if run.latest is not None else "from the beginning"
    word = "was preempted" if ending == "preempted" else "has stopped"
    return f"run {name} {word} after {reports}; run its script again to resume {since}"


def build_stacks_answer(
    ranks: Iterable[int],
    samples: Mapping[int, StacksSampled],
    process_statuses: Mapping[int, ProcessStatus | None],
    data: Sequence[DataProcessSampled] = (),
) -> Answer:
    statuses = {rank: process_statuses.get(rank) for rank in ranks}
    for rank, sample in samples.items():
        statuses[rank] = sample.process_status
    stacks = [_to_rank_stacks(rank, "", samples.get(rank), statuses[rank]) for rank in ranks]
    text = format_stacks({rank: samples.get(rank) for rank in ranks}, statuses, data)
    stacks += [_to_rank_stacks(-1, describe_data_process(each), each.sample, each.process_status) for each in data]
    return Answer(state="done", text=text, stacks=tuple(stacks))


def _to_rank_stacks(
    rank: int, data_process: str, sample: StacksSampled | None, status: ProcessStatus | None
) -> RankStacks:
    if sample is None:
        condition = _describe_process(status)
        return RankStacks(rank=rank, data_process=data_process, answers=False, condition=condition)
    others = (Thread(display_name(name), _to_stack_lines(frames)) for name, frames in sample.others)
    threads = (Thread("main thread", _to_stack_lines(sample.main), display_name(sample.called)), *others)
    condition = _format_cpu_use(status)
    return RankStacks(rank=rank, data_process=data_process, answers=True, condition=condition, threads=threads)


def _to_stack_lines(frames: Sequence[StackFrame]) -> tuple[StackLine, ...]:
    return tuple(
        StackLine(display_name(frame.function), display_name(frame.where), frame.is_user_code) for frame in frames
    )


def _format_cpu_use(status: ProcessStatus | None) -> str:
    return f"state {status.state or '?'}, {status.cpu_s:.2f} s of CPU" if status is not None else ""


def _describe_process(status: ProcessStatus | None) -> str:
    if status is None:
        return "its process has ended or is not visible from here"
    if status.is_host_silent:
        return "its host does not answer"
    location = f" ({status.kernel_function})" if status.kernel_function else ""
    return f"its process {_STATE_TEXTS.get(status.state, 'does not answer')}{location}; {_format_cpu_use(status)}"


def build_profiles_answer(
    ranks: Sequence[int],
    profiles: Mapping[int, ProfileRecorded],
    process_statuses: Mapping[int, ProcessStatus | None],
    files: Sequence[DiagnosticFile],
    note: str,
    uri: str,
) -> Answer:
    problems = [note] if note else []
    for rank in ranks:
        profile = profiles.get(rank)
        if profile is None:
            problems.append(f"rank {rank} sent no profile: {_describe_process(process_statuses.get(rank))}")
        elif profile.problem:
            problems.append(f"rank {rank}: {to_printable(profile.problem)}")
    plural = "s" if len(files) != 1 else ""
    text = f"{len(files)} file{plural} in {uri}/profiles" if files else "no profile was recorded"
    state = "done" if files else "refused"
    if not files and problems:
        text += ": " + "; ".join(problems)
    return Answer(state=state, text=text, files=tuple(files), problems=tuple(problems))  # type: ignore[arg-type]
