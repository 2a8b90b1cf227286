"""What befalls the messages between driver and workers, in one direction: lost, late, twice, out of order.

Each worker keeps its own order, as a socket does: what follows a message that is held back waits behind it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

from paceline._engine.messages import CheckpointStaged, PreemptionTold, Used
from paceline.testing.faults.fired import Fired
from paceline.testing.faults.values import Faults, MessageFault

_ROUNDS = 3
"""How many rounds of the driver's loop a message may be late for the sake of another order."""


class Wire:
    def __init__(self, faults: Faults, fired: Fired, direction: str) -> None:
        self._faults = {i: f for i, f in enumerate(faults.all) if isinstance(f, MessageFault)}
        self._fired = fired
        self._dice = random.Random(f"{faults.seed} {direction}")
        self._held: dict[int, deque[tuple[float, int, Any]]] = {}
        """By rank: not before this time, not before this round, the message."""
        self._round = 0

    @property
    def is_empty(self) -> bool:
        return not any(self._held.values())

    def clear(self) -> None:
        self._held.clear()

    def put(self, rank: int, message: Any, now: float) -> None:
        """Take a message from its sender."""
        queue = self._held.setdefault(rank, deque())
        copies, due, round_ = 1, now, self._round
        for index, fault in self._faults.items():
            if not _concerns(fault, rank, message):
                continue
            if fault.times is not None and not self._fired.claim(index, fault.times):
                continue
            match fault.how:
                case "drop":
                    copies = 0
                case "duplicate":
                    copies += 1
                case "delay":
                    due += fault.delay_s
                case "reorder":
                    round_ += self._dice.randint(0, _ROUNDS)
        queue.extend([(due, round_, message)] * copies)

    def arrived(self, now: float) -> Iterator[tuple[int, Any]]:
        """What gets through by now, rank by rank in an order of its own."""
        self._round += 1
        ranks = list(self._held)
        if any(fault.how == "reorder" for fault in self._faults.values()):
            self._dice.shuffle(ranks)
        for rank in ranks:
            queue = self._held[rank]
            while queue and queue[0][0] <= now and queue[0][1] < self._round:
                yield rank, queue.popleft()[2]

    def patience(self, now: float) -> float | None:
        """How long nothing more can arrive; None where nothing is held."""
        heads = [queue[0] for queue in self._held.values() if queue]
        return min((max(0.0, due - now) for due, _, _ in heads), default=None)


def rank_of(message: Any) -> int:
    """Whose message it is."""
    match message:
        case CheckpointStaged(staged=staged):
            return staged.rank
        case PreemptionTold(ranks=ranks):
            return ranks[0] if ranks else 0
        case Used(use=use):
            return use.rank
    rank: int = message.rank
    return rank


def _number_of(message: Any) -> int | None:
    for holder in (message, getattr(message, "record", None)):
        for name in ("seq", "number"):
            if hasattr(holder, name):
                number: int = getattr(holder, name)
                return number
    return None


def _concerns(fault: MessageFault, rank: int, message: Any) -> bool:
    kind = type(message).__name__
    return fault.message in ("*", kind) and fault.rank in (None, rank) and fault.number in (None, _number_of(message))
