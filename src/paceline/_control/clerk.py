"""Deals with what people ask of a run while it is driven: stop it, show its stacks, profile it.

The controller calls `tick` in its loop and passes on what ranks answer. Nothing here waits: what is asked of ranks has
a date by which it is answered with what has come until then, and files are written by the storage thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline._control.events import FileMade
from paceline._control.made_files import profile_written, stacks_written
from paceline._control.reception import Reception
from paceline._control.replies import after_end, profiles_answer, stacks_answer, without_workers
from paceline._control.requests import MAX_SECONDS, MOST_RANKS, Answer, MadeFile, Profile, Stacks, Stop, Want
from paceline._control.run import Run, Running, Stopping
from paceline._core.clock import Clock
from paceline._core.errors import RunHeldError
from paceline._core.system import Condition
from paceline._engine import messages
from paceline._engine.messages import Profiled, Sample, Sampled, ToWorker
from paceline._storage.depot import Depot

log = logging.getLogger("paceline")

FIRST_NUMBER = 1 << 40
"""Above all that the watch over hangs numbers its samples with."""
STACKS_WITHIN_S = 5.0
STOPPED_WITHIN_S = 1.0
"""How long a rank is waited for that the system says is stopped."""
PROFILES_WITHIN_S = 45.0
"""After the time that they were to take: a trace of many operations is written for a while."""


@dataclass(frozen=True)
class Hands:
    """What the controller does for its clerk."""

    run: Run
    send: Callable[[int, ToWorker], None]
    condition: Callable[[int], Condition | None]
    in_background: Callable[[Callable[[], None]], None]


@dataclass
class _Asking:
    """Ranks that were asked, and what they have answered."""

    id: str
    want: Stacks | Profile
    number: int
    attempt: int
    ranks: tuple[int, ...]
    since: float
    until: float
    note: str = ""
    samples: dict[int, Sampled] = field(default_factory=dict)
    profiles: dict[int, Profiled] = field(default_factory=dict)

    @property
    def unanswered(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.samples and rank not in self.profiles]


class Clerk:
    def __init__(self, reception: Reception, depot: Depot, clock: Clock, stop: Callable[[bool], None]) -> None:
        """`stop` asks the run to end, at the next report or (True) now."""
        self._reception = reception
        self._depot = depot
        self._clock = clock
        self._stop = stop
        self._number = FIRST_NUMBER
        self._asking: list[_Asking] = []
        self._stopping: list[str] = []
        self._made: deque[tuple[str, Answer]] = deque()
        """What the storage thread is done with."""
        self._writing: set[str] = set()

    def tick(self, hands: Hands) -> list[FileMade]:
        """Take what people ask, and answer what can be; the files that were made meanwhile."""
        for id, want in self._reception.due(hands.in_background):
            self._begin(id, want, hands)
        now = self._clock.now()
        for asking in list(self._asking):
            if self._is_over(asking, hands, now):
                self._asking.remove(asking)
                self._finish(asking, hands)
        return self._answered()

    def heard(self, said: Sampled | Profiled) -> bool:
        """Whether that was an answer to what this asked for."""
        for asking in self._asking:
            if asking.number == said.number and asking.attempt == said.attempt:
                if isinstance(said, Sampled):
                    asking.samples[said.rank] = said
                else:
                    asking.profiles[said.rank] = said
        return said.number >= FIRST_NUMBER

    def wind_up(self, hands: Hands) -> list[FileMade]:
        """The run has ended: finish with what has come. Its storage thread is still there."""
        for asking in self._asking:
            self._finish(asking, hands)
        self._asking.clear()
        return []

    def settle(self, hands: Hands) -> list[FileMade]:
        """The same once the storage thread has ended."""
        self._reception.leave_thread()
        return self._answered()

    def close(self, run: Run, error: BaseException | None = None) -> None:
        """Answer everybody who still waits, as the driver leaves; `error`: what it leaves with."""
        self._reception.leave_thread()
        end = after_end(run, self._depot.layout.root.name, error)
        for id in [*self._stopping, *self._writing, *(asking.id for asking in self._asking)]:
            self._reception.answer(id, end(id in self._stopping))
        # Where another driver has the run, what is asked there is asked of that one.
        if not isinstance(error, RunHeldError):
            self._reception.close(lambda want: end(isinstance(want, Stop)))

    def _begin(self, id: str, want: Want, hands: Hands) -> None:
        match want:
            case Stop(now=now):
                self._stopping.append(id)
                how = "it ends now" if now else "it ends at the next report"
                self._reception.answer(id, Answer(state="taken", text=f"the driver has been told: {how}"))
                self._stop(now)
            case Stacks() | Profile():
                if refusal := self._refusal(want, hands.run):
                    self._reception.answer(id, Answer(state="refused", text=refusal))
                else:
                    self._ask(id, want, hands)

    def _refusal(self, want: Stacks | Profile, run: Run) -> str:
        if not isinstance(run.phase, Running | Stopping):
            return without_workers(run)
        if unknown := [rank for rank in want.ranks if not 0 <= rank < run.size]:
            return f"there is no rank {unknown[0]}: the run has {run.size}, counted from 0"
        if isinstance(want, Stacks):
            return ""
        if not 0.0 < want.seconds <= MAX_SECONDS:
            return f"a profile of {want.seconds:g} s cannot be taken: it may last up to {MAX_SECONDS:g} s"
        if any(isinstance(asking.want, Profile) for asking in self._asking) or self._writing:
            return "the run is being profiled already\n\nhint: ask again when that is done"
        return ""

    def _ask(self, id: str, want: Stacks | Profile, hands: Hands) -> None:
        run, now, note = hands.run, self._clock.now(), ""
        ranks = tuple(sorted(set(want.ranks))) or tuple(range(run.size))
        message: ToWorker
        self._number += 1
        if isinstance(want, Profile):
            if not want.ranks and run.size > MOST_RANKS:
                ranks = ranks[:MOST_RANKS]
                note = f"of {run.size} ranks the first {MOST_RANKS} are profiled: name others with --rank"
            message = messages.Profile(self._number, want.seconds)
            within_s = want.seconds + PROFILES_WITHIN_S
            self._reception.answer(id, Answer(state="taken", text=f"ranks are looked at for {want.seconds:g} s"))
        else:
            message = Sample(self._number)
            within_s = STACKS_WITHIN_S
        for rank in ranks:
            hands.send(rank, message)
        self._asking.append(_Asking(id, want, self._number, run.attempt, ranks, now, now + within_s, note))

    def _is_over(self, asking: _Asking, hands: Hands, now: float) -> bool:
        waited_for = asking.unanswered
        if not waited_for or now >= asking.until or hands.run.attempt != asking.attempt:
            return True
        if not isinstance(hands.run.phase, Running | Stopping):
            return True
        if isinstance(asking.want, Profile) or now - asking.since < STOPPED_WITHIN_S:
            return False
        known = [hands.condition(rank) for rank in waited_for]
        return all(each is not None and each.state in ("T", "t", "Z", "X") for each in known)

    def _finish(self, asking: _Asking, hands: Hands) -> None:
        conditions = {rank: hands.condition(rank) for rank in asking.unanswered}
        id, layout, at = asking.id, self._depot.layout, self._clock.wall()
        self._writing.add(id)
        if isinstance(asking.want, Stacks):
            answer = stacks_answer(asking.ranks, asking.samples, conditions)
            path = layout.stacks(asking.attempt)
            self._submit(hands, id, lambda: self._noted(answer, stacks_written(self._depot, path, answer.text, at)))
            return
        seconds, stamp = asking.want.seconds, asking.number - FIRST_NUMBER
        profiles, ranks, note = asking.profiles, asking.ranks, asking.note

        def write() -> Answer:
            files: list[MadeFile] = []
            for _, said in sorted(profiles.items()):
                files += profile_written(self._depot, said, at=at, number=stamp, seconds=seconds)
            return profiles_answer(ranks, profiles, conditions, files, note, self._depot.uri)

        self._submit(hands, id, write)

    def _submit(self, hands: Hands, id: str, write: Callable[[], Answer]) -> None:
        def work() -> None:
            try:
                self._made.append((id, write()))
            except Exception as error:  # noqa: BLE001  of what a person asked for: the run goes on
                told = f"the files could not be made: {type(error).__name__}: {error}"
                self._made.append((id, Answer(state="refused", text=told)))

        hands.in_background(work)

    @staticmethod
    def _noted(answer: Answer, made: MadeFile | str) -> Answer:
        if isinstance(made, str):
            return Answer(state=answer.state, text=answer.text, stacks=answer.stacks, problems=(made,))
        return Answer(state=answer.state, text=answer.text, stacks=answer.stacks, files=(made,))

    def _answered(self) -> list[FileMade]:
        notes = []
        while self._made:
            id, answer = self._made.popleft()
            self._writing.discard(id)
            self._reception.answer(id, answer)
            notes += [FileMade(made.kind, made.path, made.rank, made.at, made.seconds) for made in answer.files]  # type: ignore[arg-type]
        return notes
