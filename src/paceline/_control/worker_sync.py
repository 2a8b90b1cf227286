"""What all workers of an attempt do together: barriers, and the tasks of persistent workers. Not persisted.

A task is dispatched once all ranks are ready, and again to every new group: workers that restart after a failure get it
again. Only `TaskQueue.submit` is thread-safe.
"""

from paceline._control.attempt_reports import make_mismatch
from paceline._control.run import Run, Running
from paceline._engine.messages import Joined, Release, RunTask, TaskAnswered, WorkerFailure


class Barriers:
    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: dict[int, dict[int, Joined]] = {}
        self._num_released = 0
        self._returned: dict[int, None] = {}
        self._mismatch_reported = False

    def join(self, event: Joined) -> Release | None:
        """Add a rank; return the release for all ranks once the last has joined."""
        if event.number <= self._num_released:
            return None  # Duplicate.
        joined = self._waiting.setdefault(event.number, {})
        joined[event.rank] = event
        # Ranks that call different functions are never released: `find_mismatch` reports them.
        if len(joined) < self._size or any(each.call != event.call for each in joined.values()):
            return None
        del self._waiting[event.number]
        self._num_released = event.number
        if any(each.gathers for each in joined.values()):
            return Release(event.number, joined[0].data, tuple(joined[rank].data for rank in range(self._size)))
        return Release(event.number, joined[0].data)

    def mark_returned(self, rank: int) -> None:
        self._returned[rank] = None

    def clear_returned(self) -> None:
        """The ranks have received another task."""
        self._returned.clear()

    def find_mismatch(self, wall: float) -> WorkerFailure | None:
        """Find a rank that waits in a collective call which another rank will never join. Reported once."""
        if self._mismatch_reported:
            return None
        for number, joined in self._waiting.items():
            first, *others = joined.values()
            other = next((each for each in others if each.call != first.call), None)
            absent = next((rank for rank in self._returned if rank not in joined), None)
            if other is not None:
                message = (
                    f"in collective call {number} rank {first.rank} calls {first.call or 'a collective'} at "
                    f"{first.where}, but rank {other.rank} calls {other.call or 'a collective'} at {other.where}: "
                    "all ranks must make the same calls in the same order"
                )
            elif absent is not None:
                message = (
                    f"rank {first.rank} waits for every rank in collective call {number}, "
                    f"made at {first.where}, but rank {absent} has returned without it"
                )
            else:
                continue
            self._mismatch_reported = True
            message = f"ReportMismatchError: {message}"
            return WorkerFailure(first.rank, "mismatch", message, at=wall, frames=(first.where,), retriable=False)
        return None


class TaskQueue:
    def __init__(self) -> None:
        self._number = 0
        self._task: RunTask | None = None
        self._dispatched_attempt = 0
        """The attempt whose workers have received the task."""
        self._answers: dict[int, TaskAnswered] = {}
        self._mismatch_reported = False

    def submit(self, job: bytes) -> None:
        self._number += 1
        self._answers = {}
        self._dispatched_attempt = 0
        self._task = RunTask(self._number, job)

    def take_due(self, run: Run) -> RunTask | None:
        """The task to send to all ranks now, or None."""
        task, phase = self._task, run.phase
        if task is None or self._dispatched_attempt == run.attempt or not isinstance(phase, Running):
            return None
        if phase.num_ready < run.size or phase.failed:
            return None
        self._dispatched_attempt, self._answers, self._mismatch_reported = run.attempt, {}, False
        return task

    def add_answer(self, answer: TaskAnswered, run: Run) -> bool:
        """Record an answer; False for a duplicate, or one from workers that are gone."""
        current = answer.attempt == run.attempt == self._dispatched_attempt and answer.number == self._number
        if not current or answer.rank in self._answers:
            return False
        self._answers[answer.rank] = answer
        return True

    def take_answers(self, run: Run) -> tuple[TaskAnswered, ...] | None:
        """Return the answers of all ranks, in rank order, once all have arrived; only once."""
        if self._task is None or self._dispatched_attempt != run.attempt or len(self._answers) < run.size:
            return None
        if not isinstance(run.phase, Running):
            return None
        answers = tuple(self._answers[rank] for rank in range(run.size))
        self._task = None
        return answers

    def find_mismatch(self, run: Run, wall: float) -> WorkerFailure | None:
        """Find a checkpoint that waits for the report of a rank whose task ended without it. Reported once."""
        if self._mismatch_reported or self._task is None or not isinstance(run.phase, Running):
            return None
        for pending in run.phase.pending:
            for answer in self._answers.values():
                if answer.num_reports < pending.seq:
                    self._mismatch_reported = True
                    return make_mismatch(pending, answer.rank, answer.num_reports, answer.where, wall)
        return None
