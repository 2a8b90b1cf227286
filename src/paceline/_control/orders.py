"""What a group of workers that stands by is told to do: one order after the other, and what each rank answers.

An order is passed on once all ranks are ready, and to every group anew: workers that were started again after a
failure get it again. Only `give` is for other threads.
"""

from paceline._control.run import Run, Running
from paceline._engine.messages import Answered, Failure, Order


class Orders:
    def __init__(self) -> None:
        self._number = 0
        self._order: Order | None = None
        self._passed_to = 0
        """The attempt whose workers have got it."""
        self._answers: dict[int, Answered] = {}
        self._told = False

    def give(self, job: bytes) -> None:
        self._number += 1
        self._answers = {}
        self._passed_to = 0
        self._order = Order(self._number, job)

    def due(self, run: Run) -> Order | None:
        """What all ranks are to be told now, if anything."""
        order, phase = self._order, run.phase
        if order is None or self._passed_to == run.attempt or not isinstance(phase, Running):
            return None
        if phase.num_ready < run.size or phase.failed:
            return None
        self._passed_to, self._answers, self._told = run.attempt, {}, False
        return order

    def answered(self, said: Answered, run: Run) -> bool:
        """Take an answer in; False for one that was said twice, or by workers that are gone."""
        current = said.attempt == run.attempt == self._passed_to and said.number == self._number
        if not current or said.rank in self._answers:
            return False
        self._answers[said.rank] = said
        return True

    def taken(self, run: Run) -> tuple[Answered, ...] | None:
        """The answers of all ranks, in order, as soon as there are so many; once."""
        if self._order is None or self._passed_to != run.attempt or len(self._answers) < run.size:
            return None
        if not isinstance(run.phase, Running):
            return None
        answers = tuple(self._answers[rank] for rank in range(run.size))
        self._order = None
        return answers

    def mismatch(self, run: Run, wall: float) -> Failure | None:
        """A checkpoint waits for the report of a rank that has done its order without it. Told once."""
        if self._told or self._order is None or not isinstance(run.phase, Running):
            return None
        for pending in run.phase.pending:
            for said in self._answers.values():
                if said.num_reports < pending.seq:
                    self._told = True
                    last = f"; the last at {said.where}" if said.where else ""
                    message = (
                        f"ReportMismatchError: rank {pending.rank} waits for every rank in report {pending.seq} with "
                        f"a checkpoint, called at {pending.where}, but rank {said.rank} has returned after "
                        f"{said.num_reports} reports{last}"
                    )
                    where = (pending.where,)
                    return Failure(pending.rank, "mismatch", message, at=wall, frames=where, retriable=False)
        return None
