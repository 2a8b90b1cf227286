"""Handles requests from people to a running driver: stop the run, show its stacks, profile it.

The controller calls `tick` in its loop and forwards the answers of ranks. Nothing here blocks: a query to ranks has a
deadline, at which it is answered with what has arrived, and files are written on the storage thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline._control.diagnostic_files import write_profile_files, write_stacks_file
from paceline._control.events import DiagnosticFileWritten
from paceline._control.request_answers import (
    build_profiles_answer,
    build_stacks_answer,
    explain_no_workers,
    make_final_answer,
)
from paceline._control.request_inbox import RequestInbox
from paceline._control.requests import (
    MAX_PROFILE_S,
    MAX_PROFILED_RANKS,
    Answer,
    DiagnosticFile,
    ProfileRequest,
    StacksRequest,
    StopRequest,
    UserRequest,
)
from paceline._control.run import Run, Running, Stopping
from paceline._core.clock import Clock
from paceline._core.errors import RunHeldError
from paceline._core.system import ProcessStatus
from paceline._engine import messages
from paceline._engine.messages import ProfileRecorded, SampleStacks, StacksSampled, ToWorker
from paceline._storage.run_store import RunStore

log = logging.getLogger("paceline")

FIRST_QUERY_NUMBER = 1 << 40
"""Above all sample numbers of the hang detector."""
STACKS_TIMEOUT_S = 5.0
STOPPED_RANK_TIMEOUT_S = 1.0
"""How long to wait for a rank whose process is stopped."""
PROFILES_TIMEOUT_S = 45.0
"""Beyond the duration of the profile: writing a trace of many operations takes a while."""


@dataclass(frozen=True)
class ControllerHandle:
    """What the request handler may use of the controller."""

    run: Run
    send: Callable[[int, ToWorker], None]
    process_status: Callable[[int], ProcessStatus | None]
    run_in_background: Callable[[Callable[[], None]], None]


@dataclass
class _RankQuery:
    """A query to ranks, and their answers so far."""

    id: str
    request: StacksRequest | ProfileRequest
    number: int
    attempt: int
    ranks: tuple[int, ...]
    asked_at: float
    deadline: float
    note: str = ""
    samples: dict[int, StacksSampled] = field(default_factory=dict)
    profiles: dict[int, ProfileRecorded] = field(default_factory=dict)

    @property
    def missing_ranks(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.samples and rank not in self.profiles]


class RequestHandler:
    def __init__(self, reception: RequestInbox, depot: RunStore, clock: Clock, stop: Callable[[bool], None]) -> None:
        """`stop` asks the run to end: at the next report, or now if True."""
        self._request_inbox = reception
        self._depot = depot
        self._clock = clock
        self._stop = stop
        self._number = FIRST_QUERY_NUMBER
        self._pending_queries: list[_RankQuery] = []
        self._stopping: list[str] = []
        self._ready_answers: deque[tuple[str, Answer]] = deque()
        """Answers from the storage thread."""
        self._being_written: set[str] = set()

    def tick(self, hands: ControllerHandle) -> list[DiagnosticFileWritten]:
        """Accept new requests and answer those that are ready; return the files written meanwhile."""
        for id, want in self._request_inbox.take_due(hands.run_in_background):
            self._start_request(id, want, hands)
        now = self._clock.now()
        for asking in list(self._pending_queries):
            if self._is_complete(asking, hands, now):
                self._pending_queries.remove(asking)
                self._prepare_answer(asking, hands)
        return self._send_answers()

    def accept_answer(self, said: StacksSampled | ProfileRecorded) -> bool:
        """Record an answer from a rank. Return whether it was for a query of this handler."""
        for asking in self._pending_queries:
            if asking.number == said.number and asking.attempt == said.attempt:
                if isinstance(said, StacksSampled):
                    asking.samples[said.rank] = said
                else:
                    asking.profiles[said.rank] = said
        return said.number >= FIRST_QUERY_NUMBER

    def finish_pending(self, hands: ControllerHandle) -> list[DiagnosticFileWritten]:
        """Finish all queries with what has arrived: the run has ended. The storage thread still runs."""
        for asking in self._pending_queries:
            self._prepare_answer(asking, hands)
        self._pending_queries.clear()
        return []

    def flush_answers(self, hands: ControllerHandle) -> list[DiagnosticFileWritten]:
        """Send the remaining answers after the storage thread has ended."""
        self._request_inbox.work_inline()
        return self._send_answers()

    def close(self, run: Run, error: BaseException | None = None) -> None:
        """Answer everybody who still waits, as the driver exits; `error` is the exception it exits with."""
        self._request_inbox.work_inline()
        end = make_final_answer(run, self._depot.layout.root.name, error)
        for id in [*self._stopping, *self._being_written, *(asking.id for asking in self._pending_queries)]:
            self._request_inbox.answer(id, end(id in self._stopping))
        # If another driver holds the run, requests in the mailbox are for that one.
        if not isinstance(error, RunHeldError):
            self._request_inbox.close(lambda want: end(isinstance(want, StopRequest)))

    def _start_request(self, id: str, want: UserRequest, hands: ControllerHandle) -> None:
        match want:
            case StopRequest(now=now):
                self._stopping.append(id)
                how = "it ends now" if now else "it ends at the next report"
                self._request_inbox.answer(id, Answer(state="taken", text=f"the driver has been told: {how}"))
                self._stop(now)
            case StacksRequest() | ProfileRequest():
                if refusal := self._refusal_reason(want, hands.run):
                    self._request_inbox.answer(id, Answer(state="refused", text=refusal))
                else:
                    self._ask_ranks(id, want, hands)

    def _refusal_reason(self, want: StacksRequest | ProfileRequest, run: Run) -> str:
        if not isinstance(run.phase, Running | Stopping):
            return explain_no_workers(run)
        if unknown := [rank for rank in want.ranks if not 0 <= rank < run.size]:
            return f"there is no rank {unknown[0]}: the run has {run.size}, counted from 0"
        if isinstance(want, StacksRequest):
            return ""
        if not 0.0 < want.seconds <= MAX_PROFILE_S:
            return f"a profile of {want.seconds:g} s cannot be taken: it may last up to {MAX_PROFILE_S:g} s"
        if any(isinstance(asking.request, ProfileRequest) for asking in self._pending_queries) or self._being_written:
            return "the run is being profiled already\n\nhint: ask again when that is done"
        return ""

    def _ask_ranks(self, id: str, want: StacksRequest | ProfileRequest, hands: ControllerHandle) -> None:
        run, now, note = hands.run, self._clock.now(), ""
        ranks = tuple(sorted(set(want.ranks))) or tuple(range(run.size))
        message: ToWorker
        self._number += 1
        if isinstance(want, ProfileRequest):
            if not want.ranks and run.size > MAX_PROFILED_RANKS:
                ranks = ranks[:MAX_PROFILED_RANKS]
                note = f"of {run.size} ranks the first {MAX_PROFILED_RANKS} are profiled: name others with --rank"
            message = messages.RecordProfile(self._number, want.seconds)
            within_s = want.seconds + PROFILES_TIMEOUT_S
            self._request_inbox.answer(id, Answer(state="taken", text=f"ranks are looked at for {want.seconds:g} s"))
        else:
            message = SampleStacks(self._number)
            within_s = STACKS_TIMEOUT_S
        for rank in ranks:
            hands.send(rank, message)
        self._pending_queries.append(_RankQuery(id, want, self._number, run.attempt, ranks, now, now + within_s, note))

    def _is_complete(self, asking: _RankQuery, hands: ControllerHandle, now: float) -> bool:
        waited_for = asking.missing_ranks
        if not waited_for or now >= asking.deadline or hands.run.attempt != asking.attempt:
            return True
        if not isinstance(hands.run.phase, Running | Stopping):
            return True
        if isinstance(asking.request, ProfileRequest) or now - asking.asked_at < STOPPED_RANK_TIMEOUT_S:
            return False
        known = [hands.process_status(rank) for rank in waited_for]
        return all(each is not None and each.state in ("T", "t", "Z", "X") for each in known)

    def _prepare_answer(self, asking: _RankQuery, hands: ControllerHandle) -> None:
        conditions = {rank: hands.process_status(rank) for rank in asking.missing_ranks}
        id, layout, at = asking.id, self._depot.layout, self._clock.wall()
        self._being_written.add(id)
        if isinstance(asking.request, StacksRequest):
            answer = build_stacks_answer(asking.ranks, asking.samples, conditions)
            path = layout.stacks(asking.attempt)
            self._submit_write(
                hands, id, lambda: self._with_file(answer, write_stacks_file(self._depot, path, answer.text, at))
            )
            return
        seconds, stamp = asking.request.seconds, asking.number - FIRST_QUERY_NUMBER
        profiles, ranks, note = asking.profiles, asking.ranks, asking.note

        def write() -> Answer:
            files: list[DiagnosticFile] = []
            for _, said in sorted(profiles.items()):
                files += write_profile_files(self._depot, said, at=at, number=stamp, seconds=seconds)
            return build_profiles_answer(ranks, profiles, conditions, files, note, self._depot.uri)

        self._submit_write(hands, id, write)

    def _submit_write(self, hands: ControllerHandle, id: str, write: Callable[[], Answer]) -> None:
        def work() -> None:
            try:
                self._ready_answers.append((id, write()))
            except Exception as error:  # noqa: BLE001  of what a person asked for: the run goes on
                told = f"the files could not be made: {type(error).__name__}: {error}"
                self._ready_answers.append((id, Answer(state="refused", text=told)))

        hands.run_in_background(work)

    @staticmethod
    def _with_file(answer: Answer, made: DiagnosticFile | str) -> Answer:
        if isinstance(made, str):
            return Answer(state=answer.state, text=answer.text, stacks=answer.stacks, problems=(made,))
        return Answer(state=answer.state, text=answer.text, stacks=answer.stacks, files=(made,))

    def _send_answers(self) -> list[DiagnosticFileWritten]:
        notes = []
        while self._ready_answers:
            id, answer = self._ready_answers.popleft()
            self._being_written.discard(id)
            self._request_inbox.answer(id, answer)
            for file in answer.files:
                notes.append(DiagnosticFileWritten(file.kind, file.path, file.rank, file.at, file.seconds))  # type: ignore[arg-type]
        return notes
