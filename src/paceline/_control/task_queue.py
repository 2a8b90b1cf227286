"""Tasks for persistent workers: one at a time, with the answer of each rank.

A task is dispatched once all ranks are ready, and again to every new group: workers that restart after a failure get it
again. Only `submit` is thread-safe.
"""

from paceline._control.run import Run, Running
from paceline._engine.messages import RunTask, TaskAnswered, WorkerFailure


class TaskQueue:
    def __init__(self) -> None:
        self._number = 0
        self._order: RunTask | None = None
        self._dispatched_attempt = 0
        """The attempt whose workers have received the task."""
        self._answers: dict[int, TaskAnswered] = {}
        self._mismatch_reported = False

    def submit(self, job: bytes) -> None:
        self._number += 1
        self._answers = {}
        self._dispatched_attempt = 0
        self._order = RunTask(self._number, job)

    def take_due(self, run: Run) -> RunTask | None:
        """The task to send to all ranks now, or None."""
        order, phase = self._order, run.phase
        if order is None or self._dispatched_attempt == run.attempt or not isinstance(phase, Running):
            return None
        if phase.num_ready < run.size or phase.failed:
            return None
        self._dispatched_attempt, self._answers, self._mismatch_reported = run.attempt, {}, False
        return order

    def add_answer(self, said: TaskAnswered, run: Run) -> bool:
        """Record an answer; False for a duplicate, or one from workers that are gone."""
        current = said.attempt == run.attempt == self._dispatched_attempt and said.number == self._number
        if not current or said.rank in self._answers:
            return False
        self._answers[said.rank] = said
        return True

    def take_answers(self, run: Run) -> tuple[TaskAnswered, ...] | None:
        """Return the answers of all ranks, in rank order, once all have arrived; only once."""
        if self._order is None or self._dispatched_attempt != run.attempt or len(self._answers) < run.size:
            return None
        if not isinstance(run.phase, Running):
            return None
        answers = tuple(self._answers[rank] for rank in range(run.size))
        self._order = None
        return answers

    def find_mismatch(self, run: Run, wall: float) -> WorkerFailure | None:
        """Find a checkpoint that waits for the report of a rank whose task ended without it. Reported once."""
        if self._mismatch_reported or self._order is None or not isinstance(run.phase, Running):
            return None
        for pending in run.phase.pending:
            for said in self._answers.values():
                if said.num_reports < pending.seq:
                    self._mismatch_reported = True
                    last = f"; the last at {said.where}" if said.where else ""
                    message = (
                        f"ReportMismatchError: rank {pending.rank} waits for every rank in report {pending.seq} with "
                        f"a checkpoint, called at {pending.where}, but rank {said.rank} has returned after "
                        f"{said.num_reports} reports{last}"
                    )
                    where = (pending.where,)
                    return WorkerFailure(pending.rank, "mismatch", message, at=wall, frames=where, retriable=False)
        return None
