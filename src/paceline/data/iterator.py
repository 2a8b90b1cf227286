"""DataIterator: the rows of one worker, epoch by epoch, in the form that the train function asks for.

It knows where it stands. A batch counts as used from the moment it is handed out; what was only prepared ahead does
not. That place is a `Cursor`, which a checkpoint keeps and with which another iterator goes on, on as many workers as
there are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from paceline.data.batches.ahead import ahead
from paceline.data.batches.arguments import (
    DEFAULT,
    DEFAULT_BATCH_SIZE,
    Default,
    check_flag,
    check_format,
    check_function,
    check_seed,
    check_whole,
)
from paceline.data.block import Block, Schema
from paceline.data.feeds import Feeds
from paceline.data.position import Cursor, Cut, Cutter, Split, next_epoch, replace_cursor

Batch = Any


@dataclass(frozen=True)
class _Cutting:
    """How the rows are cut into batches."""

    chunk_rows: int | None
    window_rows: int | None
    seed: int
    drop_last: bool


@dataclass(frozen=True)
class _Form:
    """What becomes of the rows of a batch before it is handed out."""

    made: Callable[[Block], Batch]
    placed: Callable[[Iterator[Batch]], Iterator[Batch]] | None = None
    """Brings batches to where they are used, in order, in the thread that takes them."""
    num_ahead: int = 0
    """So many are made in a thread before they are asked for; 0: each when it is asked for."""


class _Iteration:
    """Where one pass over the rows stands."""

    def __init__(self, cursor: Cursor, *, begun: bool) -> None:
        self.cursor = cursor
        self.begun = begun
        """Rows of the cursor's epoch may have been handed out, and its iteration was not finished."""


class DataIterator:
    """The rows of a dataset, or of one worker's part of it, as batches or one by one.

    Each iteration is one epoch: the first is epoch 0, the next epoch 1. One that is left early has ended its epoch. On
    `set_state` the next iteration gives what the state's epoch has left.
    """

    default_device: ClassVar[Callable[[], Any]] = staticmethod(lambda: "cpu")
    """What `device="auto"` means here: set by whoever runs workers."""

    def __init__(
        self,
        feeds: Feeds,
        split: Split = Split(),  # noqa: B008  frozen
        *,
        cursor: Cursor | None = None,
        global_batch_size: int | None = None,
        name: str = "",
    ) -> None:
        self._feeds = feeds
        self._split = split
        self._name = name
        self._global_batch_size = global_batch_size
        self._iteration = _Iteration(Cursor(), begun=False)
        if global_batch_size is not None:
            check_whole("global_batch_size", global_batch_size, 1)
            if global_batch_size % split.world:
                raise ValueError(
                    f"global_batch_size={global_batch_size} cannot be divided among {split.world} workers: use a "
                    "multiple of their number"
                )
        if cursor is not None:
            self._go_to(cursor)

    # Where it stands

    def cursor(self) -> Cursor:
        """Where this worker stands: all that it was handed so far is used."""
        return replace_cursor(self._iteration.cursor, fingerprint=self._feeds.fingerprint())

    def get_state(self) -> dict[str, Any]:
        """The same as a plain dict, for `set_state`: small, and good as JSON.

        Inside a loop it counts the batch at hand as used. After a loop that was left early it stands at the batch where
        that was.
        """
        state: dict[str, Any] = msgspec.to_builtins(self.cursor())
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on from where a state was taken, on any number of workers."""
        try:
            cursor = msgspec.convert(state, Cursor)
        except msgspec.ValidationError as error:
            raise ValueError(f"this is no state that get_state() gave: {error}\n\nstate: {state!r}") from None
        self._go_to(cursor)

    def _go_to(self, cursor: Cursor) -> None:
        fingerprint = self._feeds.fingerprint()
        if cursor.fingerprint and cursor.fingerprint != fingerprint:
            raise ValueError(
                f"the state was taken from other data than dataset {self._name!r} has now: its files, or the rows in "
                f"them, have changed since (fingerprint {cursor.fingerprint}, now {fingerprint})\n\n"
                "hint: to begin anew, do not restore the state; to go on at the same place of the changed data, drop "
                "'fingerprint' from the state before set_state(state)"
            )
        self._iteration = _Iteration(cursor, begun=False)

    # Batches

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | Default | None = DEFAULT,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        _collate_fn: Callable[[Any], Any] | None = None,
    ) -> Iterable[Any]:
        """Batches as a dict of NumPy arrays (`"default"` or `"numpy"`), a DataFrame or an Arrow table.

        `batch_size` is 256, or the worker's share of the global batch size; None: as the rows come, in blocks. With
        `local_shuffle_buffer_size` rows change places within so many neighbours.
        """
        form = check_format(batch_format)
        check_function("_collate_fn", _collate_fn)

        def made(block: Block) -> Batch:
            batch = block.to_batch(form)
            return batch if _collate_fn is None else _collate_fn(batch)

        cutting = self._cutting(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed)
        check_whole("prefetch_batches", prefetch_batches, 0)
        return self._iterable(cutting, _Form(made, num_ahead=prefetch_batches if _collate_fn is not None else 0))

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """One row at a time, as a dict."""
        cutting = self._cutting(1, False, None, None, of_batches=False)
        return self._iterable(cutting, _Form(lambda block: next(block.rows())))

    def schema(self) -> Schema | None:
        return self._feeds.schema()

    def stats(self) -> str:
        return self._feeds.stats()

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "a DataIterator is not iterated itself\n\n"
            "hint: iterate over its batches, as in `for batch in it.iter_batches():`, or over `it.iter_rows()`"
        )

    def __repr__(self) -> str:
        return f"DataIterator({self._name or 'dataset'}, worker {self._split.rank} of {self._split.world})"

    def _cutting(
        self,
        batch_size: Any,
        drop_last: Any,
        window_rows: Any,
        seed: Any,
        *,
        of_batches: bool = True,
    ) -> _Cutting:
        share = None if self._global_batch_size is None else self._global_batch_size // self._split.world
        if isinstance(batch_size, Default):
            batch_size = share or DEFAULT_BATCH_SIZE
        check_whole("batch_size", batch_size, 1, or_none=True)
        if of_batches and share is not None and batch_size != share:
            raise ValueError(
                f"batch_size={batch_size} does not fit global_batch_size={self._global_batch_size}, of which each of "
                f"{self._split.world} workers has {share}\n\nhint: leave batch_size out"
            )
        check_flag("drop_last", drop_last)
        check_whole("local_shuffle_buffer_size", window_rows, 1, or_none=True)
        check_seed(seed)
        return _Cutting(
            chunk_rows=None if batch_size is None else batch_size * self._split.parts,
            window_rows=window_rows,
            seed=seed or 0,
            drop_last=drop_last,
        )

    def _iterable(self, cutting: _Cutting, form: _Form) -> Iterable[Any]:
        return _Epochs(lambda: self._epoch(cutting, form))

    def _epoch(self, cutting: _Cutting, form: _Form) -> Iterator[Batch]:
        iteration = self._next_iteration()
        start = iteration.cursor
        cutter = Cutter(self._split, cutting.chunk_rows, start, window_rows=cutting.window_rows, seed=cutting.seed)
        with ExitStack() as opened:
            deliveries = self._feeds.open(start.epoch, start.unit, start.offset)
            opened.callback(_close, deliveries)
            cuts = (cut for cut in cutter.cut(deliveries) if not (cutting.drop_last and cut.partial))
            batches = _formed(cuts, form, f"batches of {self._name or 'a dataset'}")
            opened.callback(_close, batches)
            for iteration.cursor, batch in batches:
                yield batch
        iteration.cursor = next_epoch(start, cutter.total)
        iteration.begun = False

    def _next_iteration(self) -> _Iteration:
        last = self._iteration
        start = next_epoch(last.cursor, last.cursor.total) if last.begun else last.cursor
        changes: dict[str, Any] = {"fingerprint": self._feeds.fingerprint()}
        if start.total is None and start.row == 0 and not start.leads:
            changes["total"] = self._feeds.num_rows()
        self._iteration = _Iteration(replace_cursor(start, **changes), begun=True)
        return self._iteration


class _Epochs:
    """Can be iterated again and again: each time is the next epoch."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def _formed(cuts: Iterator[Cut], form: _Form, name: str) -> Iterator[tuple[Cursor, Batch]]:
    """Batches as they are handed out, each with where the epoch then stands."""
    # A worker may have no part of a last, small chunk.
    made: Iterator[tuple[Cursor, Batch]] = ((cut.cursor, form.made(cut.block)) for cut in cuts if cut.block.num_rows)
    with ExitStack() as opened:
        opened.callback(_close, made)
        if form.num_ahead:
            made = ahead(made, form.num_ahead, name)
            opened.callback(_close, made)
        if form.placed is None:
            yield from made
            return
        cursors: list[Cursor] = []

        def batches() -> Iterator[Batch]:
            for cursor, batch in made:
                cursors.append(cursor)
                yield batch

        for batch in form.placed(batches()):
            yield cursors.pop(0), batch


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
