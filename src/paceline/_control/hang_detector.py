"""Decides when to sample the stacks of a silent run, and when to report a hang. Pure.

A report, a barrier or a stored file is a sign of life. If there is none for longer than this run's own reports suggest,
all ranks are asked for their stacks every few seconds, and a rank that moves has given a sign of life too. A hang is
only reported for a rank that is at the same place in every sample and does not compute: a slow step is slow, not hung.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from paceline._control import events, hang_diagnosis
from paceline._control.events import Event, HangAction, Reported
from paceline._control.run import Run, Running
from paceline._core.system import ProcessStatus
from paceline._engine.messages import DataProcessSampled, Joined, StacksSampled

MIN_THRESHOLD_S = 30.0
INTERVAL_FACTOR = 12.0
"""A step may take ten times as long as the longest so far: on a machine throttled to a tenth, all of them do."""
FIRST_REPORT_FACTOR = 4.0
"""How many times as long a rank may take for its first report: it loads, connects and compiles."""
CLEARED_FACTOR = 2.0
"""A reported silence that cleared by itself was not a hang: report the next one only after twice its length."""
SAMPLE_INTERVAL_S = 5.0
CHECK_INTERVAL_S = 0.1
"""The minimum. While all is well, ranks are checked once per threshold, because there may be ten thousand of them."""
OTHERS_MOVING_EXTRA_S = 45.0
"""How much longer to watch a rank while others move: it may be waiting for them in its own way."""
COMPUTING_FACTOR = 4.0
"""How many times the threshold a rank may compute at one place: a large operation, or a compiler."""
NUM_SAMPLES = 3
MUTE_S = 3.0
"""How late an answer may be on a busy machine before it counts as missing."""
BUSY_CORES = 0.1
"""In cores; a waiting rank uses about 0.01."""
BUSY_BYTES = 1 << 20


@dataclass(frozen=True)
class RankObservation:
    at: float
    sample: StacksSampled | None
    condition: ProcessStatus | None

    @property
    def location(self) -> object:
        if self.sample is None:
            return None
        return self.sample.main, self.sample.called


class ProcessTracker:
    """A process that is sampled."""

    def __init__(self, now: float) -> None:
        self.last_sign_at = now
        self.last_answered = 0
        self.standing_since = now
        self.observations: deque[RankObservation] = deque(maxlen=NUM_SAMPLES)
        """Samples at the place where the process has been since `standing_since`."""

    def add_observation(self, observation: RankObservation) -> None:
        if self.observations:
            before, sample = self.observations[-1], observation.sample
            answers = before.sample is not None and sample is not None
            if sample is not None and (
                sample.has_moved or (answers and (sample.is_new_call or observation.location != before.location))
            ):
                self.last_sign_at = observation.at
            if observation.location != before.location or self.last_sign_at == observation.at:
                self.observations.clear()
        elif observation.sample is not None and observation.sample.has_moved:
            self.last_sign_at = observation.at
        if not self.observations:
            self.standing_since = observation.at
        self.observations.append(observation)

    def is_computing(self) -> bool:
        first, last = self.observations[0], self.observations[-1]
        if last.condition is None or first.condition is None or last.at <= first.at:
            return False
        cpu = (last.condition.cpu_s - first.condition.cpu_s) / (last.at - first.at)
        num_bytes = last.condition.num_bytes - first.condition.num_bytes
        return cpu >= BUSY_CORES or num_bytes >= BUSY_BYTES or last.condition.state == "R"


class RankTracker(ProcessTracker):
    """One rank in this attempt."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.reported_at: float | None = None
        self.last_report: Reported | None = None
        self.has_returned = False
        self.host = ""
        self.pid = 0

    def is_standing(self, now: float) -> bool:
        if len(self.observations) < NUM_SAMPLES or self.last_sign_at > self.standing_since:
            return False
        return self.observations[-1].sample is not None or now - self.standing_since >= MUTE_S


class DataProcessTracker(ProcessTracker):
    """A data process at one piece of work."""

    last: DataProcessSampled

    def add_sample(self, sample: DataProcessSampled, now: float) -> None:
        self.last_answered = sample.number
        self.add_observation(RankObservation(now, sample.sample, sample.process_status))

    def is_busy(self) -> bool:
        """Whether it works on rows: it moves, or computes, or was just seen for the first time."""
        return not self.last.is_waiting and (len(self.observations) < 2 or self.is_computing())

    def is_stuck(self) -> bool:
        return not self.last.is_waiting and not self.is_busy()


@dataclass(frozen=True)
class SampleRequest:
    """Send `SampleStacks(number)` to all ranks, after `add_missing_sample` for those in `unanswered`."""

    number: int
    unanswered: tuple[int, ...]


@dataclass(frozen=True)
class HangReport:
    event: events.HangSuspected | events.HangCleared
    stacks: str = ""


@dataclass(frozen=True)
class _ReportedHang:
    """A reported hang that has not cleared."""

    rank: int
    silent_since: float
    reported_at: float
    suspects: frozenset[int]
    """A report from any of these ranks clears the hang, as does any sign of life from the rank itself."""


class HangDetector:
    """Watches the ranks of a run, across attempts. `timeout_s` replaces the learned threshold."""

    def __init__(self, timeout_s: float | None, action: HangAction, storage: str) -> None:
        self._timeout_s = timeout_s
        self._action = action
        self._storage = storage
        self._longest_interval_s = 0.0
        self._longest_cleared_s = 0.0
        self._ranks: list[RankTracker] = []
        self._data: dict[int, DataProcessTracker] = {}
        """By pid, the data processes that are at work."""
        self._asked_at: float | None = None
        self._number = 0
        self._reported_hang: _ReportedHang | None = None
        self._ticked_at = 0.0
        self._next_check_at = 0.0
        """No rank can be silent for too long before this time."""

    def start_attempt(self, size: int, now: float) -> None:
        """Start over: the workers of an attempt are starting."""
        self._ranks = [RankTracker(now) for _ in range(size)]
        self._data = {}
        self._asked_at = self._reported_hang = None
        self._ticked_at = now
        self._next_check_at = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """Record the signs of life in an event that took effect."""
        if isinstance(event, Reported):
            rank = self._ranks[event.rank]
            interval_s = now - rank.reported_at if rank.reported_at is not None else 0.0
            if interval_s > self._longest_interval_s:
                if self._reported_hang is not None and event.rank in self._reported_hang.suspects:
                    self._longest_cleared_s = max(self._longest_cleared_s, interval_s)
                else:
                    self._longest_interval_s = interval_s
            rank.last_sign_at = rank.reported_at = now
            rank.last_report = event
        elif isinstance(event, events.CheckpointStaged):
            self._ranks[event.staged.rank].last_sign_at = now
        elif isinstance(event, events.WorkerReady):
            self._ranks[event.rank].last_sign_at = now
            self._ranks[event.rank].pid, self._ranks[event.rank].host = event.pid, event.host
        elif isinstance(event, events.WorkerReturned):
            self._ranks[event.rank].last_sign_at = now
            self._ranks[event.rank].has_returned = True
        elif isinstance(event, events.Committed | events.CommitFailed):
            for rank in self._ranks:
                rank.last_sign_at = now

    def on_barrier_joined(self, event: Joined, now: float) -> None:
        self._ranks[event.rank].last_sign_at = now

    def mark_idle(self, rank: int, now: float) -> None:
        """From now on its silence means nothing: it waits for a task."""
        self._ranks[rank].last_sign_at = now
        self._ranks[rank].has_returned = True

    def mark_all_busy(self, now: float) -> None:
        """Mark all ranks as having received a task. Their idle time does not count towards the report interval."""
        for rank in self._ranks:
            rank.last_sign_at, rank.reported_at, rank.has_returned = now, None, False
        self._next_check_at = 0.0

    def add_sample(self, sample: StacksSampled, now: float) -> None:
        rank = self._ranks[sample.rank]
        if self._asked_at is not None and not rank.has_returned:
            rank.last_answered = sample.number
            rank.add_observation(RankObservation(now, sample, sample.process_status))

    def add_missing_sample(self, rank: int, condition: ProcessStatus | None, now: float) -> None:
        """Record that a rank did not answer, with what the operating system says about its process."""
        self._ranks[rank].add_observation(RankObservation(now, None, condition))

    def add_data_samples(self, samples: Iterable[DataProcessSampled], now: float) -> None:
        """Add what the data processes that are at work have answered; one that is not among them is done."""
        before, self._data = self._data, {}
        for sample in samples:
            tracker = before.get(sample.pid)
            if tracker is None or tracker.last.work != sample.work:
                tracker = DataProcessTracker(now)
            self._data[sample.pid], tracker.last = tracker, sample
            if sample.number > tracker.last_answered:
                tracker.add_sample(sample, now)

    def tick(self, run: Run, now: float, wall: float) -> SampleRequest | HangReport | None:
        """Return what to do now, if anything. Call this often."""
        self._forgive_driver_pause(now)
        if not isinstance(run.phase, Running):
            return None
        if self._reported_hang is not None:
            return self._check_cleared(run, now)
        if now < self._next_check_at:
            return None
        self._next_check_at = now + CHECK_INTERVAL_S
        suspects = self._silent_ranks(now)
        if not suspects:
            self._asked_at = None
            self._next_check_at = max(self._next_check_at, self._earliest_silence())
            return None
        if self._asked_at is None:
            for rank in self._ranks:
                rank.observations.clear()
            self._data.clear()
            return self._request_samples(now, ())
        if self._is_any_debugged() or (run.validating is not None and self._is_any_waiting_for_validation()):
            for rank in self._ranks:
                rank.last_sign_at = now
            return None
        confirmed = self._confirmed_ranks(suspects, now)
        if confirmed:
            return self._report_hang(run, run.phase, confirmed, suspects, now, wall)
        if now - self._asked_at >= min(SAMPLE_INTERVAL_S, max(0.2, self.threshold_s(first=False) / 6)):
            active = (at for at, rank in enumerate(self._ranks) if not rank.has_returned)
            return self._request_samples(
                now, tuple(at for at in active if self._ranks[at].last_answered < self._number)
            )
        return None

    def threshold_s(self, *, first: bool) -> float:
        """How long a rank may be silent; `first`: before the first report."""
        floor_s = self._timeout_s if self._timeout_s is not None else MIN_THRESHOLD_S
        learned_s = INTERVAL_FACTOR * self._longest_interval_s if self._timeout_s is None else 0.0
        return max(
            floor_s * (FIRST_REPORT_FACTOR if first else 1.0), learned_s, CLEARED_FACTOR * self._longest_cleared_s
        )

    def _is_before_first_report(self) -> bool:
        return all(rank.reported_at is None for rank in self._ranks)

    def _forgive_driver_pause(self, now: float) -> None:
        """Ignore time in which the driver itself was paused: it says nothing about the ranks."""
        late_s = now - self._ticked_at
        self._ticked_at = now
        if (
            late_s > CHECK_INTERVAL_S
            and self._reported_hang is None
            and late_s > min(SAMPLE_INTERVAL_S, self.threshold_s(first=False) / 2)
        ):
            for rank in self._ranks:
                rank.last_sign_at = min(now, rank.last_sign_at + late_s)
                rank.observations.clear()

    def _silent_ranks(self, now: float) -> list[int]:
        """The ranks to check: all if no rank gives a sign of life, otherwise those that fell silent alone."""
        active = [at for at, rank in enumerate(self._ranks) if not rank.has_returned]
        first = self._is_before_first_report()
        limit_s = self.threshold_s(first=first)
        if all(now - rank.last_sign_at > limit_s for rank in self._ranks):
            return active
        # A rank that never reports, while others do, is not expected to.
        return [
            at
            for at in active
            if now - self._ranks[at].last_sign_at > limit_s and (first or self._ranks[at].reported_at is not None)
        ]

    def _earliest_silence(self) -> float:
        """The earliest time at which a rank can be silent for too long: signs of life and thresholds only increase.

        The exception is the threshold before the first report, so the one after the first report is used.
        """
        ranks, first = self._ranks, self._is_before_first_report()
        expected = [
            rank.last_sign_at for rank in ranks if not rank.has_returned and (first or rank.reported_at is not None)
        ]
        return min([*expected, max(rank.last_sign_at for rank in ranks)]) + self.threshold_s(first=False)

    def _request_samples(self, now: float, unanswered: tuple[int, ...]) -> SampleRequest:
        self._asked_at = now
        self._number += 1
        return SampleRequest(self._number, unanswered)

    def _is_any_debugged(self) -> bool:
        return any(
            hang_diagnosis.is_debugged(each.sample, each.condition)
            for rank in self._ranks
            for each in rank.observations
        )

    def _is_any_waiting_for_validation(self) -> bool:
        """Whether a rank waits for validations, which have their own timeout."""
        return any(
            hang_diagnosis.is_waiting_for_validation(rank.observations[-1].sample)
            for rank in self._ranks
            if rank.observations
        )

    def _confirmed_ranks(self, suspects: list[int], now: float) -> list[int]:
        active = [rank for rank in self._ranks if not rank.has_returned]
        all_stand = all(rank.is_standing(now) for rank in active)
        if all_stand and not any(rank.is_computing() for rank in active) and not self._is_waiting_for_busy_data(now):
            return suspects
        return [at for at in suspects if self._ranks[at].is_standing(now) and self._is_confirmed(at, all_stand, now)]

    def _is_waiting_for_busy_data(self, now: float) -> bool:
        if not any(tracker.is_busy() for tracker in self._data.values()):
            return False
        active = (at for at, rank in enumerate(self._ranks) if not rank.has_returned)
        return any(self._infer_activity(at, now).doing == "rows" for at in active)

    def _is_confirmed(self, at: int, all_stand: bool, now: float) -> bool:
        """Decide for a rank that stands still while others move, or while it or others compute."""
        rank = self._ranks[at]
        limit_s = self.threshold_s(first=self._is_before_first_report())
        silent_s = now - rank.last_sign_at
        waits = self._infer_activity(at, now).doing in hang_diagnosis.WAITS_FOR_OTHERS
        if not waits and not rank.is_computing():
            return silent_s >= limit_s + min(OTHERS_MOVING_EXTRA_S, (COMPUTING_FACTOR - 1) * limit_s)
        # From here on it computes, or waits for a rank that does: allow several times as long.
        if silent_s < COMPUTING_FACTOR * limit_s or now - rank.standing_since < limit_s:
            return False
        if not waits or all_stand:
            return True
        return any(o.reported_at is not None and now - o.reported_at < limit_s for o in self._ranks)

    def _infer_activity(self, at: int, now: float) -> hang_diagnosis.RankActivity:
        rank = self._ranks[at]
        observation = rank.observations[-1] if rank.observations else None
        last = rank.last_report.where if rank.last_report is not None else ""
        sample, condition = (observation.sample, observation.condition) if observation is not None else (None, None)
        return hang_diagnosis.infer_activity(at, sample, condition, last, now - rank.last_sign_at)

    def _report_hang(
        self, run: Run, phase: Running, confirmed: list[int], suspects: list[int], now: float, wall: float
    ) -> HangReport:
        active = [at for at, rank in enumerate(self._ranks) if not rank.has_returned]
        has_several_hosts = len({rank.host for rank in self._ranks if rank.host}) > 1
        activities = []
        for at in active:
            rank = self._ranks[at]
            # A rank that moves or computes is not the one that blocks the others.
            stands = at in confirmed or (rank.is_standing(now) and not rank.is_computing())
            computes = bool(rank.observations) and rank.is_computing()
            activity = replace(self._infer_activity(at, now), is_standing=stands, is_computing=computes)
            activities.append(replace(activity, host=rank.host if has_several_hosts else ""))
        diagnosis = hang_diagnosis.diagnose_hang(activities, self._hang_context(run, phase))
        silent_since = self._ranks[diagnosis.rank].last_sign_at
        self._reported_hang = _ReportedHang(diagnosis.rank, silent_since, now, frozenset(suspects))
        self._asked_at = None
        date = f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M:%S} UTC"
        last = [(at, self._ranks[at].observations[-1]) for at in active if self._ranks[at].observations]
        stacks = hang_diagnosis.format_stacks(
            {at: each.sample for at, each in last},
            {at: each.condition for at, each in last},
            [tracker.last for tracker in self._data.values()],
        )
        stacks = f"{date}: {diagnosis.sentence}\n\n{stacks}\n"
        return HangReport(self._hang_event(run, diagnosis, wall), stacks)

    def _hang_context(self, run: Run, phase: Running) -> hang_diagnosis.HangContext:
        behind = {}
        if phase.pending:
            seq = phase.pending[0].seq
            behind = {at: phase.progress[at] for at in range(run.size) if phase.progress[at] < seq}
        returned = tuple(at for at, rank in enumerate(self._ranks) if rank.has_returned)
        stuck = tuple(
            hang_diagnosis.infer_data_activity(tracker.last) for tracker in self._data.values() if tracker.is_stuck()
        )
        return hang_diagnosis.HangContext(self._storage, phase.pending, behind, run.committing, returned, stuck)

    def _hang_event(self, run: Run, diagnosis: hang_diagnosis.HangDiagnosis, wall: float) -> events.HangSuspected:
        action = self._action if diagnosis.is_curable else "warn"
        failure = events.WorkerFailure(
            diagnosis.rank,
            "hang",
            diagnosis.sentence,
            at=wall,
            pid=self._ranks[diagnosis.rank].pid,
            frames=diagnosis.frames,
            retriable=self._action == "restart",
        )
        return events.HangSuspected(run.attempt, failure, action)

    def _check_cleared(self, run: Run, now: float) -> HangReport | None:
        assert self._reported_hang is not None
        hang = self._reported_hang
        reported = (self._ranks[at].reported_at or 0.0 for at in hang.suspects)
        if max(self._ranks[hang.rank].last_sign_at, *reported) <= hang.reported_at:
            return None
        self._reported_hang = None
        return HangReport(events.HangCleared(run.attempt, hang.rank, now - hang.silent_since))
