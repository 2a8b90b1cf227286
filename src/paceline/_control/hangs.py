"""When a run that says nothing is asked what it does, and when that is called a hang. Pure.

A report, a barrier, a stored file is a sign of life. Longer without one than this run's own reports let expect, all
ranks are asked for their stacks every few seconds, and one that is seen to move has given a sign of life too. Told is
only a rank that stands at one place in every sample and does not compute: a slow step is slow, not hung.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from paceline._control.events import (
    CheckpointStaged,
    CommitFailed,
    Committed,
    Event,
    Failure,
    HangAction,
    HangPassed,
    HangSuspected,
    Reported,
    WorkerReady,
    WorkerReturned,
)
from paceline._control.run import Run, Running
from paceline._control.sightings import Rank, Seen
from paceline._control.verdict import (
    WAITS_FOR_OTHERS,
    Stance,
    Surroundings,
    Verdict,
    is_debugged,
    stacks_text,
    stance,
    verdict,
    waits_for_validation,
)
from paceline._core.system import Condition
from paceline._engine.messages import Joined, Sampled

FLOOR_S = 30.0
FACTOR = 12.0
"""A step may take ten times as long as the longest so far, on a machine throttled to a tenth all of them do."""
BEFORE_FIRST = 4.0
"""How many times as long a rank may take to its first report: it loads, connects and compiles."""
SAME_AGAIN = 2.0
"""A silence that was told and passed by itself was no hang: it takes twice its length to be told again."""
APART_S = 5.0
LOOK_S = 0.1
"""At least; while all is well ranks are looked at once in a threshold, for there may be ten thousand of them."""
OTHERS_MOVE_S = 45.0
"""How much longer a rank is watched while others move: it may be waiting for them in a way of its own."""
COMPUTES = 4.0
"""How many times the threshold a rank may compute at one place: a large operation, a compiler."""


@dataclass(frozen=True)
class Ask:
    """Send `Sample(number)` to all ranks, after telling `found` of those that did not answer the one before."""

    number: int
    unanswered: tuple[int, ...]


@dataclass(frozen=True)
class Told:
    event: HangSuspected | HangPassed
    stacks: str = ""


@dataclass(frozen=True)
class _Hang:
    """What was told and has not passed."""

    rank: int
    silent_since: float
    told_at: float
    suspects: frozenset[int]
    """A report from any of these ends it, and any sign of life from the rank itself."""


class Watch:
    """Over the ranks of a run, from attempt to attempt. `timeout_s`: instead of what is learned."""

    def __init__(self, timeout_s: float | None, action: HangAction, storage: str) -> None:
        self._timeout_s = timeout_s
        self._action = action
        self._storage = storage
        self._longest = 0.0
        self._passed = 0.0
        self._ranks: list[Rank] = []
        self._asked_at: float | None = None
        self._number = 0
        self._told: _Hang | None = None
        self._ticked_at = 0.0
        self._look_at = 0.0
        """Before that no rank can have been silent for too long."""

    def began(self, size: int, now: float) -> None:
        """The workers of an attempt are being started."""
        self._ranks = [Rank(now) for _ in range(size)]
        self._asked_at = self._told = None
        self._ticked_at = now
        self._look_at = 0.0

    def saw(self, event: Event, now: float) -> None:
        """An event took effect: perhaps a sign of life."""
        if isinstance(event, Reported):
            rank = self._ranks[event.rank]
            if rank.reported_at is not None and now - rank.reported_at > self._longest:
                self._learn(event.rank, now - rank.reported_at)
            rank.sign = rank.reported_at = now
            rank.last = event
        elif isinstance(event, CheckpointStaged):
            self._ranks[event.staged.rank].sign = now
        elif isinstance(event, WorkerReady):
            self._ranks[event.rank].sign = now
            self._ranks[event.rank].pid = event.pid
        elif isinstance(event, WorkerReturned):
            self._ranks[event.rank].sign = now
            self._ranks[event.rank].returned = True
        elif isinstance(event, Committed | CommitFailed):
            for rank in self._ranks:
                rank.sign = now

    def joined(self, event: Joined, now: float) -> None:
        self._ranks[event.rank].sign = now

    def rests(self, rank: int, now: float) -> None:
        """A rank has nothing to do until it gets an order: from now on its silence means nothing."""
        self._ranks[rank].sign = now
        self._ranks[rank].returned = True

    def ordered(self, now: float) -> None:
        """All ranks have got an order. How long they rested is not how long they take to a report."""
        for rank in self._ranks:
            rank.sign, rank.reported_at, rank.returned = now, None, False
        self._look_at = 0.0

    def sampled(self, sample: Sampled, now: float) -> None:
        """A rank has answered."""
        rank = self._ranks[sample.rank]
        if self._asked_at is not None and not rank.returned:
            rank.answered = sample.number
            rank.look(Seen(now, sample, sample.condition))

    def found(self, rank: int, condition: Condition | None, now: float) -> None:
        """A rank has not answered, and this is what the system says of it."""
        self._ranks[rank].look(Seen(now, None, condition))

    def tick(self, run: Run, now: float, wall: float) -> Ask | Told | None:
        """What is to be done now, if anything. To be called often."""
        self._forgive(now)
        if not isinstance(run.phase, Running):
            return None
        if self._told is not None:
            return self._recovered(run, now)
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        suspects = self._silent(now)
        if not suspects:
            self._asked_at = None
            self._look_at = max(self._look_at, self._silent_from())
            return None
        if self._asked_at is None:
            for rank in self._ranks:
                rank.seen.clear()
            return self._ask(now, ())
        if self._debugged() or (run.validating is not None and self._validated_for()):
            for rank in self._ranks:
                rank.sign = now
            return None
        found = self._found_standing(suspects, now)
        if found:
            return self._tell(run, run.phase, found, suspects, now, wall)
        if now - self._asked_at >= self._apart_s():
            active = (at for at, rank in enumerate(self._ranks) if not rank.returned)
            return self._ask(now, tuple(at for at in active if self._ranks[at].answered < self._number))
        return None

    def threshold_s(self, *, first: bool) -> float:
        """How long no sign of life is no matter; `first`: before the first report."""
        floor_s = self._timeout_s if self._timeout_s is not None else FLOOR_S
        learned_s = FACTOR * self._longest if self._timeout_s is None else 0.0
        return max(floor_s * (BEFORE_FIRST if first else 1.0), learned_s, SAME_AGAIN * self._passed)

    def _first(self) -> bool:
        """Whether this attempt still has its first report before it."""
        return all(rank.reported_at is None for rank in self._ranks)

    def _limit_s(self) -> float:
        return self.threshold_s(first=self._first())

    def _learn(self, rank: int, interval_s: float) -> None:
        if self._told is not None and rank in self._told.suspects:
            self._passed = max(self._passed, interval_s)
        else:
            self._longest = interval_s

    def _forgive(self, now: float) -> None:
        """Time in which this driver itself stood still says nothing about its ranks."""
        late_s = now - self._ticked_at
        self._ticked_at = now
        if late_s > LOOK_S and self._told is None and late_s > min(APART_S, self.threshold_s(first=False) / 2):
            for rank in self._ranks:
                rank.sign = min(now, rank.sign + late_s)
                rank.seen.clear()

    def _silent(self, now: float) -> list[int]:
        """The ranks to be looked at: all if nobody gives a sign of life, else those that fell silent alone."""
        active = [at for at, rank in enumerate(self._ranks) if not rank.returned]
        first = self._first()
        limit_s = self.threshold_s(first=first)
        if all(now - rank.sign > limit_s for rank in self._ranks):
            return active
        # One that never reports, while others do, is not expected to.
        return [
            at
            for at in active
            if now - self._ranks[at].sign > limit_s and (first or self._ranks[at].reported_at is not None)
        ]

    def _silent_from(self) -> float:
        """When a rank can be silent for too long at the earliest: signs of life and thresholds only ever rise.

        But for one threshold, that of an attempt without a report; so the one that holds after the first is taken.
        """
        ranks, first = self._ranks, self._first()
        expected = [rank.sign for rank in ranks if not rank.returned and (first or rank.reported_at is not None)]
        return min([*expected, max(rank.sign for rank in ranks)]) + self.threshold_s(first=False)

    def _apart_s(self) -> float:
        return min(APART_S, max(0.2, self.threshold_s(first=False) / 6))

    def _ask(self, now: float, unanswered: tuple[int, ...]) -> Ask:
        self._asked_at = now
        self._number += 1
        return Ask(self._number, unanswered)

    def _debugged(self) -> bool:
        return any(is_debugged(seen.sample, seen.condition) for rank in self._ranks for seen in rank.seen)

    def _validated_for(self) -> bool:
        """Whether a rank waits for checkpoints to be validated: that has a time limit of its own."""
        return any(waits_for_validation(rank.seen[-1].sample) for rank in self._ranks if rank.seen)

    def _found_standing(self, suspects: list[int], now: float) -> list[int]:
        """Those of the suspects that are beyond doubt."""
        active = [rank for rank in self._ranks if not rank.returned]
        all_stand = all(rank.stands(now) for rank in active)
        if all_stand and not any(rank.computes() for rank in active):
            return suspects
        return [at for at in suspects if self._ranks[at].stands(now) and self._beyond_doubt(at, all_stand, now)]

    def _beyond_doubt(self, at: int, all_stand: bool, now: float) -> bool:
        """Of a rank that stands while others, or itself, move or compute."""
        rank = self._ranks[at]
        limit_s = self._limit_s()
        silent_s = now - rank.sign
        waits = self._stance(at, now).doing in WAITS_FOR_OTHERS
        if not waits and not rank.computes():
            return silent_s >= limit_s + min(OTHERS_MOVE_S, (COMPUTES - 1) * limit_s)
        # From here on it either computes or waits for one that does: that is given several times as long.
        if silent_s < COMPUTES * limit_s or now - rank.since < limit_s:
            return False
        if not waits or all_stand:
            return True
        return any(o.reported_at is not None and now - o.reported_at < limit_s for o in self._ranks)

    def _stance(self, at: int, now: float) -> Stance:
        rank = self._ranks[at]
        seen = rank.seen[-1] if rank.seen else None
        last = rank.last.where if rank.last is not None else ""
        sample, condition = (seen.sample, seen.condition) if seen is not None else (None, None)
        return stance(at, sample, condition, last, now - rank.sign)

    def _tell(self, run: Run, phase: Running, found: list[int], suspects: list[int], now: float, wall: float) -> Told:
        active = [at for at, rank in enumerate(self._ranks) if not rank.returned]
        stances = []
        for at in active:
            # One that moves, or computes, is not what the others wait for in vain.
            stands = at in found or (self._ranks[at].stands(now) and not self._ranks[at].computes())
            computes = bool(self._ranks[at].seen) and self._ranks[at].computes()
            stances.append(replace(self._stance(at, now), stands=stands, computes=computes))
        what = verdict(stances, self._surroundings(run, phase))
        self._told = _Hang(what.rank, self._ranks[what.rank].sign, now, frozenset(suspects))
        self._asked_at = None
        return Told(self._event(run, what, wall), f"{_date(wall)}: {what.sentence}\n\n{self._stacks(active)}\n")

    def _surroundings(self, run: Run, phase: Running) -> Surroundings:
        behind = {}
        if phase.pending:
            seq = phase.pending[0].seq
            behind = {at: phase.progress[at] for at in range(run.size) if phase.progress[at] < seq}
        returned = tuple(at for at, rank in enumerate(self._ranks) if rank.returned)
        return Surroundings(self._storage, phase.pending, behind, run.committing, returned)

    def _event(self, run: Run, what: Verdict, wall: float) -> HangSuspected:
        action = self._action if what.curable else "warn"
        failure = Failure(
            what.rank,
            "hang",
            what.sentence,
            at=wall,
            pid=self._ranks[what.rank].pid,
            frames=what.frames,
            retriable=self._action == "restart",
        )
        return HangSuspected(run.attempt, failure, action)

    def _stacks(self, active: list[int]) -> str:
        latest = {at: self._ranks[at].seen[-1] for at in active if self._ranks[at].seen}
        return stacks_text(
            {at: seen.sample for at, seen in latest.items()}, {at: seen.condition for at, seen in latest.items()}
        )

    def _recovered(self, run: Run, now: float) -> Told | None:
        assert self._told is not None
        told = self._told
        reported = (self._ranks[at].reported_at or 0.0 for at in told.suspects)
        if max(self._ranks[told.rank].sign, *reported) <= told.told_at:
            return None
        self._told = None
        return Told(HangPassed(run.attempt, told.rank, now - told.silent_since))


def _date(wall: float) -> str:
    return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M:%S} UTC"
