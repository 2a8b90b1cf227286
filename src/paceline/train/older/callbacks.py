"""The callbacks of one `run()`: told of it as those of `RunConfig(callbacks=...)` are told of all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from paceline._control.events import Event, RetentionSet
from paceline._control.run import Run
from paceline._storage.depot import Depot
from paceline.train.callbacks import Callback, TrainRunContext
from paceline.train.failures import CallbackObserver, LoggerObserver, TracingObserver, observers_of

log = logging.getLogger("paceline")


def checked(callbacks: Any) -> list[Callback]:
    given = list(callbacks or ())
    for callback in given:
        if not isinstance(callback, Callback):
            raise ValueError(
                f"callbacks holds {callback!r}, which is not a paceline.train.TrainingCallback, UserCallback "
                "or LoggerCallback"
            )
    return given


class RunCallbacks:
    """One that raises is dropped with its traceback, and training goes on."""

    def __init__(self, callbacks: list[Callback], about: TrainRunContext, depot: Depot) -> None:
        # They come in the middle of a run: what was reported before is in its journal.
        self._observers: list[CallbackObserver | LoggerObserver | TracingObserver] = observers_of(
            callbacks, about, depot, continues=True
        )

    @contextlib.contextmanager
    def during(self, run: Run) -> Iterator[None]:
        # Nothing has happened, and nothing follows from it; but they begin with the first event that they are told.
        self.saw(RetentionSet(run.attempt, run.retention), run)
        failed = True
        try:
            yield
            failed = False
        finally:
            for observer in self._observers:
                observer.close(failed)

    def saw(self, event: Event, run: Run) -> None:
        for observer in list(self._observers):
            try:
                observer.saw(event, run)
            except (Exception, SystemExit):
                self._observers.remove(observer)
                log.exception("%s raised and is dropped; training goes on", observer)
