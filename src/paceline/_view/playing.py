"""The lines of a run's journal, played: its state as a driver would find it, its reports, its story and what it used.

The state is what `Replay` makes of all events. Most lines are reports that only tell metrics: of those, `step` is given
the ones whose effect lasts, which are the last of each rank and those that some rank or checkpoint waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import Any

import msgspec
from msgspec.structs import replace

from paceline._control import journal
from paceline._control.events import (
    CheckpointsFound,
    Described,
    DriverStarted,
    Event,
    FileMade,
    Measured,
    Note,
    Reported,
    TimeTold,
    WorkerReturned,
)
from paceline._control.gathering import Gathering, Report
from paceline._control.recover import Replay
from paceline._control.run import RECENT, Progress, Run, Running, Stopping
from paceline._core.errors import StorageError
from paceline._core.reductions import How, Path
from paceline._view.decoding import ABSENT, AnyLine, Line, Lines
from paceline._view.reports import Reports
from paceline._view.story import Story
from paceline._view.usage import Usage

_MOST_HELD = 10_000


class Play:
    def __init__(self, where: str) -> None:
        """`where`: for people, in what is said of a line that is not understood."""
        self.replay = Replay()
        self.reports = Reports()
        self.story = Story()
        self.usage = Usage()
        self.about: dict[str, Any] = {}
        """What the last driver that described itself said."""
        self.files: list[FileMade] = []
        self.problem: str | None = None
        """Why lines were left out from some point on."""
        self.num_lines = 0
        self._where = where
        self._at = 0.0
        self._gathering: Gathering | None = None
        """Once some rank has reported what is reduced."""
        self._behind: dict[int, tuple[int, bytes]] = {}
        """By rank, the last report that `step` has not been given: number and payload."""
        self._behind_of_first: deque[tuple[int, bytes]] = deque(maxlen=RECENT)
        """The same of rank 0, as many as a checkpoint may refer to."""
        self._awaited: dict[int, bytes] = {}
        """Of rank 0 too: those that a checkpoint waits for, by number."""
        self._open: list[tuple[int, int, bytes]] = []
        """Of all ranks, by number and rank: those that say where datasets stand and that some rank has not come to."""
        self._first_seq: int | None = None
        self._held: list[Reported] = []
        """The same once something is reduced: all of them, in order."""
        self._reached: dict[int, int] = {}
        """By rank, the number of the last of these."""
        self._returned: list[WorkerReturned] = []
        """Of the attempt that goes on."""

    @property
    def run(self) -> Run:
        """The run after all lines so far."""
        self._catch_up()
        return self.replay.run

    @property
    def updated_at(self) -> float:
        return max(self._at, self.story.last_at)

    def take(self, lines: Lines) -> None:
        """Lines in order. After one that cannot be played nothing more is taken."""
        start = 0
        for at in (*lines.special, len(lines.lines)):
            if start < at and self.problem is None:
                self._plain(lines, start, at)
            if at < len(lines.lines) and self.problem is None:
                self._single(lines.payloads[at])
            start = at + 1

    def take_unread(self, lines: Lines) -> None:
        """What a worker of the last attempt wrote to a file of its own; most of it is known already."""
        run = self.run
        phase = run.phase
        if not isinstance(phase, Running | Stopping):
            return
        progress = (phase if isinstance(phase, Running) else phase.running).progress
        for payload, line in zip(lines.payloads, lines.lines, strict=True):
            is_new = isinstance(line, AnyLine) and (
                line.type == "CheckpointStaged" or (line.type == "Reported" and _is_ahead(line, run, progress))
            )
            if is_new and self.problem is None:
                self._single(payload)

    def find(self, survey: CheckpointsFound) -> None:
        """Storage was looked through, and may tell otherwise than the journal."""
        self._catch_up()
        self._hear(survey)

    def gather_rest(self) -> None:
        """There is no driver, and nothing more to come: reports that not every rank has made count as they are."""
        self._catch_up()
        if self._gathering is not None:
            self._add(self._gathering.rest())

    def _plain(self, lines: Lines, start: int, end: int) -> None:
        """Some that do nothing but tell metrics."""
        some = lines.lines[start:end]
        if not self._are_simple(some):
            for payload in lines.payloads[start:end]:
                if self.problem is None:
                    self._single(payload)
            return
        self.num_lines += len(some)
        first = some
        if self.replay.run.size > 1:
            last: dict[int, int] = {line.rank: at for at, line in enumerate(some)}
            first = [line for line in some if line.rank == 0]
            of_first = [at for at, line in enumerate(some) if line.rank == 0][-RECENT:]
        else:
            last, of_first = {0: len(some) - 1}, [*range(max(0, len(some) - RECENT), len(some))]
        for rank, at in last.items():
            self._behind[rank] = some[at].seq, lines.payloads[start + at]
        self._behind_of_first.extend((some[at].seq, lines.payloads[start + at]) for at in of_first)
        if awaited := self._seqs_awaited():
            self._awaited |= {
                line.seq: lines.payloads[start + at]
                for at, line in enumerate(some)
                if line.rank == 0 and line.seq in awaited
            }
        if any(line.data is not ABSENT for line in some):
            self._open += [
                (line.seq, line.rank, lines.payloads[start + at])
                for at, line in enumerate(some)
                if line.data is not ABSENT
            ]
            least = self._least()
            self._open = [one for one in self._open if one[0] > least or one[0] in awaited]
        if first:
            self._first_seq = first[0].seq if self._first_seq is None else self._first_seq
            self.reports.add_many(
                self.replay.run.attempt,
                [line.seq for line in first],
                [line.at for line in first],
                [line.metrics for line in first],
                lines.names,
            )
        self._at = max(self._at, some[-1].at)

    def _are_simple(self, some: Sequence[Line]) -> bool:
        """Whether they are new, and of the attempt that goes on."""
        run = self.replay.run
        phase = run.phase
        if self._gathering is not None or not isinstance(phase, Running | Stopping):
            return False
        live = phase if isinstance(phase, Running) else phase.running
        if {line.attempt for line in some} != {run.attempt}:
            return False
        ranks = {line.rank for line in some}
        if not 0 <= min(ranks) <= max(ranks) < run.size:
            return False
        reached = {rank: self._behind[rank][0] if rank in self._behind else live.progress[rank] for rank in ranks}
        if len(ranks) == 1:
            seqs = [line.seq for line in some]
            return seqs[0] > reached[some[0].rank] and all(map(lt, seqs, islice(seqs, 1, None)))
        for line in some:
            if line.seq <= reached[line.rank]:
                return False
            reached[line.rank] = line.seq
        return True

    def _least(self) -> int:
        """The report that every rank has come to."""
        progress = self._live().progress
        ranks = range(self.replay.run.size)
        return min(self._behind[rank][0] if rank in self._behind else progress[rank] for rank in ranks)

    def _seqs_awaited(self) -> set[int]:
        return {pending.seq for pending in self._live().pending}

    def _single(self, payload: bytes) -> None:
        self.num_lines += 1
        try:
            event: Event = journal.decoded(payload, self._where, self.num_lines)
        except journal.JournalVersionError as problem:
            self.problem = str(problem)
            return
        if isinstance(event, Note):
            self._note(event)
            return
        if isinstance(event, Reported) and self._may_wait(event):
            self._hold(event)
            return
        self._catch_up()
        self._hear(event)

    def _may_wait(self, event: Reported) -> bool:
        """Whether it is a report for the reduced metrics of a run, and `step` need not be given it at once."""
        run = self.replay.run
        if event.reduce and self._gathering is None:
            self._catch_up()
            run = self.replay.run
            self._gathering = self._begun_gathering(run)
        return (
            self._gathering is not None
            and isinstance(run.phase, Running | Stopping)
            and event.checkpoint is None
            and event.attempt == run.attempt
            and 0 <= event.rank < run.size
        )

    def _hold(self, event: Reported) -> None:
        assert self._gathering is not None
        run = self.replay.run
        rank = event.rank
        reached = self._reached.get(rank)
        if event.seq <= (reached if reached is not None else self._live().progress[rank]):
            return  # Said twice.
        self._reached[rank] = event.seq
        self._held.append(event)
        self._at = max(self._at, event.at)
        self._add(self._gathering.hear(event, run))
        if len(self._held) >= _MOST_HELD:
            self._catch_up()

    def _let_go(self) -> None:
        """Give `step` those that were held and whose effect lasts: what not every rank has made, what a checkpoint
        waits for, and the last of each rank; or all of them, should ranks differ in how they reduce."""
        held, self._held = self._held, []
        last, self._reached = self._reached, {}
        live = self._live()
        hows: dict[Path, How] = {}
        told = [*(how for reducing in live.reducing.values() for how in reducing.hows)]
        told += [(mark.path, mark.how) for event in held for mark in event.reduce]
        is_uniform = all(hows.setdefault(path, how) == how for path, how in told)
        ranks = range(self.replay.run.size)
        least = min(last[rank] if rank in last else live.progress[rank] for rank in ranks)
        awaited = self._seqs_awaited()
        before = live.recent
        of_first = []
        for event in held:
            rank, seq = event.rank, event.seq
            if rank == 0:
                of_first.append((seq, event.metrics))
                if (chapter := self.story.now) is not None and not chapter.first_report:
                    chapter.first_report = seq
            if not is_uniform or seq > least or seq in awaited or seq == last[rank]:
                run = self.replay.run
                if self._heard(event):
                    self.story.reached(rank, seq)
                    if not is_uniform:
                        self.story.hear(event, run, self.replay.run, self._at)
        self._remember((*before, *of_first)[-RECENT:])

    def _live(self) -> Running:
        phase = self.replay.run.phase
        assert isinstance(phase, Running | Stopping)
        return phase if isinstance(phase, Running) else phase.running

    def _note(self, note: Note) -> None:
        match note:
            case TimeTold(at=at):
                self._at = at
            case Described(about=about):
                said = msgspec.json.decode(about)
                self.about = said if isinstance(said, dict) else {}
            case Measured():
                self._at = max(self._at, note.at)
                self.usage.hear(note)
            case FileMade():
                self.files.append(note)

    def _catch_up(self) -> None:
        """Give `step` what was left out so far."""
        if self._held:
            self._let_go()
        if not self._behind:
            return
        behind, self._behind = self._behind, {}
        recent, self._behind_of_first = self._behind_of_first, deque(maxlen=RECENT)
        awaited, self._awaited = self._awaited, {}
        if (chapter := self.story.now) is not None and not chapter.first_report and self._first_seq is not None:
            chapter.first_report = self._first_seq
        self._first_seq = None
        before = self._live().recent
        given = {(seq, 0): payload for seq, payload in awaited.items()}
        given |= {(seq, rank): payload for seq, rank, payload in self._open}
        given |= {(seq, rank): payload for rank, (seq, payload) in behind.items()}
        self._open = []
        for key in sorted(given):
            event = journal.decoded(given[key], self._where)
            if self._heard(event):
                self.story.reached(event.rank, event.seq)
        # As if rank 0's had all been given.
        of_first = [(seq, _metrics(payload).metrics) for seq, payload in recent]
        self._remember((*before, *of_first)[-RECENT:])

    def _remember(self, recent: tuple[tuple[int, msgspec.Raw], ...]) -> None:
        phase = self.replay.run.phase
        if isinstance(phase, Running):
            self.replay.run = replace(self.replay.run, phase=replace(phase, recent=recent))
        elif isinstance(phase, Stopping):
            live = replace(phase.running, recent=recent)
            self.replay.run = replace(self.replay.run, phase=replace(phase, running=live))

    def _hear(self, event: Event) -> None:
        if isinstance(event, DriverStarted | Reported):
            self._at = max(self._at, event.at) if isinstance(event, Reported) else event.at or self._at
        before = self.replay.run
        if not self._heard(event):
            return
        after = self.replay.run
        if after.attempt != before.attempt:
            self._returned = []
        if isinstance(event, WorkerReturned):
            self._returned.append(event)
        if isinstance(event, Reported):
            self.story.reached(event.rank, event.seq)
        self.story.hear(event, before, after, self._at)
        if self._gathering is not None:
            self._add(self._gathering.hear(event, after))
        elif isinstance(event, Reported) and event.rank == 0:
            self._add([Report((event,))])

    def _heard(self, event: Event) -> bool:
        """Whether it changed anything."""
        self.replay.num_events = self.num_lines - 1
        try:
            return self.replay.hear(event)
        except StorageError as problem:
            self.problem = str(problem)
            return False

    def _begun_gathering(self, run: Run) -> Gathering:
        """From here on reports wait for other ranks: those which these have made already are known."""
        gathering = Gathering()
        phase = run.phase
        if isinstance(phase, Running | Stopping):
            progress = (phase if isinstance(phase, Running) else phase.running).progress
            for rank in range(1, run.size):
                for seq in range(progress[0] + 1, progress[rank] + 1):
                    gathering.hear(Reported(run.attempt, rank, seq, msgspec.Raw(b"{}"), 0.0, ""), run)
            for returned in self._returned:
                gathering.hear(returned, run)
        return gathering

    def _add(self, ready: Sequence[Report]) -> None:
        for report in ready:
            self.reports.add(report.attempt, report.seq, report.at, report.metrics)


class _Metrics(msgspec.Struct):
    metrics: msgspec.Raw


_metrics = msgspec.json.Decoder(_Metrics).decode


def _is_ahead(line: Line, run: Run, progress: Progress) -> bool:
    return line.attempt == run.attempt and 0 <= line.rank < run.size and line.seq > progress[line.rank]
