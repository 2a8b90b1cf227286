"""The epochs of one worker: each iteration is the next one, and where it stands is known at every batch.

A batch counts as used from the moment it is handed out; what was only prepared ahead does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline._core.spending import DATA, spent, waited_for
from paceline.data.batches.ahead import ahead
from paceline.data.block import Block
from paceline.data.cutting import Cut, Cutter
from paceline.data.feeds import Feeds, opened
from paceline.data.parts import Division
from paceline.data.position import Cursor, Delivered, Split, next_epoch, order_of, replaced
from paceline.data.sparse import Partial

Batch = Any

ROWS_AT_A_TIME = 4096
"""So many rows are made objects of Python at once."""


@dataclass(frozen=True)
class Cutting:
    """How the rows are cut into batches: see `Cutter` and `Cursor.window`."""

    chunk_rows: int | None = None
    window_rows: int = 0
    seed: int = 0
    drop_last: bool = False


@dataclass(frozen=True)
class Form:
    """What becomes of the rows of a batch before it is handed out."""

    made: Callable[[Block], Batch]
    placed: Callable[[Iterator[Batch]], Iterator[Batch]] | None = None
    """Brings batches to where they are used, in order, in the thread that takes them."""
    num_ahead: int = 0
    """So many are made in a thread before they are asked for; 0: each when it is asked for."""
    made_of_parts: Callable[[Sequence[Block]], Batch] | None = None
    """The same as `made`, for rows that do not lie in one block: they are copied once, to where they are needed."""

    def of(self, cut: Cut) -> Batch:
        return self.made(cut.block) if self.made_of_parts is None else self.made_of_parts(cut.parts)


class Epochs:
    def __init__(self, feeds: Feeds, split: Split, name: str) -> None:
        self._feeds = feeds
        self._split = split
        self._name = name
        self._iteration = _Iteration(Cursor(), begun=False)

    @cached_property
    def fingerprint(self) -> str:
        return self._feeds.fingerprint()

    @property
    def window(self) -> int:
        """Within how many rows they change places, in the epoch that was begun last."""
        return self._iteration.cursor.window

    def cursor(self) -> Cursor:
        return replaced(self._iteration.standing(), fingerprint=self.fingerprint)

    def next_cursor(self) -> Cursor:
        """Where what this worker does next begins: after an iteration that was left early, with the next epoch."""
        cursor = self.cursor()
        return next_epoch(cursor, cursor.total) if self._iteration.left else cursor

    def __getstate__(self) -> dict[str, Any]:
        """In another process the rest of the epoch is next: the iteration itself stays here."""
        return {**self.__dict__, "_iteration": _Iteration(self.next_cursor(), begun=False)}

    def go_to(self, cursor: Cursor) -> None:
        """The next iteration gives what is left of the cursor's epoch. One that goes on meanwhile counts no more."""
        self._iteration = _Iteration(cursor, begun=False)

    def batches(self, cutting: Cutting, form: Form) -> Iterable[Batch]:
        return _Again(lambda: self._batches(cutting, form))

    def rows(self) -> Iterable[dict[str, Any]]:
        return _Again(self._rows)

    def _batches(self, cutting: Cutting, form: Form) -> Iterator[Batch]:
        with self._next_epoch(cutting) as (iteration, cutter, deliveries):
            cuts = (cut for cut in cutter.cut(deliveries) if not (cutting.drop_last and cut.partial))
            with closing(_formed(cuts, form, f"batches of {self._name or 'a dataset'}")) as batches:
                for iteration.cursor, batch in waited_for(batches):
                    yield batch
            iteration.end(cutter.total)

    def _rows(self) -> Iterator[dict[str, Any]]:
        with self._next_epoch(Cutting()) as (iteration, cutter, deliveries):
            for cut in waited_for(cutter.cut(deliveries)):
                if cut.partial:
                    iteration.cursor = cut.cursor
                    yield from cut.block.rows()  # one, or none on some of the workers
                    continue
                iteration.cutter, iteration.used = cutter, 0
                for first in range(0, cut.block.num_rows, ROWS_AT_A_TIME):
                    rows = cut.block.slice(first, first + ROWS_AT_A_TIME).rows()
                    for iteration.used, row in enumerate(rows, first + 1):
                        yield row
                iteration.settle()
            iteration.end(cutter.total)

    @contextmanager
    def _next_epoch(self, cutting: Cutting) -> Iterator[tuple[_Iteration, Cutter, Iterator[Delivered | Partial]]]:
        """Leaves the epoch that an earlier iteration is in."""
        with spent(DATA):
            iteration, cutter, deliveries = self._begun(cutting)
        try:
            yield iteration, cutter, deliveries
        finally:
            iteration.settle()
            iteration.left = iteration.begun
            _close(deliveries)

    def _begun(self, cutting: Cutting) -> tuple[_Iteration, Cutter, Iterator[Delivered | Partial]]:
        start = self._iteration.standing()
        if self._iteration.begun:
            start = next_epoch(start, start.total)
        total = start.total
        if total is None and start.row == 0:
            total = self._feeds.num_rows()
        parts = self._split.parts
        chunk = cutting.chunk_rows or parts
        start = order_of(start, cutting.window_rows, cutting.seed)
        start = replaced(start, total=total, chunk=chunk, world=parts, fingerprint=self.fingerprint)
        self._iteration = iteration = _Iteration(start, begun=True)
        cutter = Cutter(self._split, cutting.chunk_rows, start)
        division = Division(start, self._split.mode, self._split.world, cutting.chunk_rows)
        return iteration, cutter, opened(self._feeds, division, self._split.rank)


class _Iteration:
    """Where one pass over the rows stands."""

    def __init__(self, cursor: Cursor, *, begun: bool) -> None:
        self.cursor = cursor
        self.begun = begun
        """It goes on in the cursor's epoch, or was left there."""
        self.left = False
        """It was left before its epoch's end."""
        self.cutter: Cutter | None = None
        """Has cut the rows that are handed out one by one,"""
        self.used = 0
        """and so many of them were."""

    def standing(self) -> Cursor:
        return self.cursor if self.cutter is None else self.cutter.cursor_within(self.used)

    def settle(self) -> None:
        """The cutter is not asked any more, and its memory can go."""
        self.cursor, self.cutter = self.standing(), None

    def end(self, total: int | None) -> None:
        """All rows of the epoch were handed out."""
        self.cursor, self.begun = next_epoch(self.cursor, total), False


class _Again:
    """Can be iterated again and again."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def _formed(cuts: Iterator[Cut], form: Form, name: str) -> Generator[tuple[Cursor, Batch]]:
    """Batches as they are handed out, each with where the epoch then stands."""
    # A worker may have no part of a last, small chunk.
    made: Iterator[tuple[Cursor, Batch]] = ((cut.cursor, form.of(cut)) for cut in cuts if cut.parts)
    with ExitStack() as closes:
        closes.callback(_close, made)
        if form.num_ahead:
            made = ahead(made, form.num_ahead, name)
            closes.callback(_close, made)
        if form.placed is None:
            yield from made
            return
        cursors: deque[Cursor] = deque()

        def batches() -> Iterator[Batch]:
            for cursor, batch in made:
                cursors.append(cursor)
                yield batch

        for batch in form.placed(batches()):
            yield cursors.popleft(), batch


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
