"""Faults of the messages between driver and workers, in one direction: lost, late, duplicated, out of order.

Each worker keeps its own order, as on a socket: later messages wait behind a delayed one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

from paceline._engine.messages import CheckpointStaged, PreemptionNoticeReceived, UsageReported
from paceline.testing.faults.moments import StrikeLog
from paceline.testing.faults.values import Faults, MessageFault, select_faults

_MAX_ROUNDS_LATE = 3
"""How many rounds of the driver's loop reordering may delay a message."""


class FaultyWire:
    def __init__(self, faults: Faults, strike_log: StrikeLog, direction: str) -> None:
        self._faults: dict[int, MessageFault] = select_faults(faults, MessageFault)
        self._strike_log = strike_log
        self._dice = random.Random(f"{faults.seed} {direction}")
        self._queues: dict[int, deque[tuple[float, int, Any]]] = {}
        """By rank: the earliest time, the earliest round, the message."""
        self._round = 0

    @property
    def is_empty(self) -> bool:
        return not any(self._queues.values())

    def clear(self) -> None:
        self._queues.clear()

    def put(self, rank: int, message: Any, now: float) -> None:
        """Take a message from its sender."""
        queue = self._queues.setdefault(rank, deque())
        copies, due, round_ = 1, now, self._round
        for index, fault in self._faults.items():
            is_affected = _is_affected(fault, rank, message)
            if not is_affected or (fault.times is not None and not self._strike_log.claim(index, fault.times)):
                continue
            match fault.how:
                case "drop":
                    copies = 0
                case "duplicate":
                    copies += 1
                case "delay":
                    due += fault.delay_s
                case "reorder":
                    round_ += self._dice.randint(0, _MAX_ROUNDS_LATE)
        queue.extend([(due, round_, message)] * copies)

    def take_arrived(self, now: float) -> Iterator[tuple[int, Any]]:
        """Yield what has arrived by now, rank by rank; reordering shuffles the ranks."""
        self._round += 1
        ranks = list(self._queues)
        if any(fault.how == "reorder" for fault in self._faults.values()):
            self._dice.shuffle(ranks)
        for rank in ranks:
            queue = self._queues[rank]
            while queue and queue[0][0] <= now and queue[0][1] < self._round:
                yield rank, queue.popleft()[2]

    def next_arrival_s(self, now: float) -> float | None:
        """Return the seconds until the next message can arrive; None if none is held."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        return min((max(0.0, due - now) for due, _, _ in heads), default=None)


def find_rank(message: Any) -> int:
    """Return the rank that a message belongs to."""
    match message:
        case CheckpointStaged(staged=staged):
            return staged.rank
        case PreemptionNoticeReceived(ranks=ranks):
            return ranks[0] if ranks else 0
        case UsageReported(usage=use):
            return use.rank
    rank: int = message.rank
    return rank


def _find_number(message: Any) -> int | None:
    holders = (message, getattr(message, "record", None))
    return next((getattr(each, name) for each in holders for name in ("seq", "number") if hasattr(each, name)), None)


def _is_affected(fault: MessageFault, rank: int, message: Any) -> bool:
    kind = type(message).__name__
    return fault.message in ("*", kind) and fault.rank in (None, rank) and fault.number in (None, _find_number(message))
