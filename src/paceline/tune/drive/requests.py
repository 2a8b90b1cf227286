"""What people ask of a search while it is driven: to stop. Its trials are runs, and asked by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline._control.reception import Reception, Submit
from paceline._control.requests import Answer, Stop, Want
from paceline._core.errors import RunHeldError
from paceline._core.plain import printable
from paceline.tune.drive.state import Search

log = logging.getLogger("paceline")


class SearchRequests:
    def __init__(self, reception: Reception, name: str, stop: Callable[[bool], None]) -> None:
        """`stop` asks the search to end, at the next report of each trial or (True) now."""
        self._reception: Reception | None = reception
        self._name = name
        self._stop = stop
        self._stopping: list[str] = []

    def tick(self, submit: Submit) -> None:
        if self._reception is None:
            return
        try:
            for id, want in self._reception.due(submit):
                self._begin(self._reception, id, want)
        except Exception:
            log.exception("requests to this search are not answered any more; it goes on")
            self._reception = None

    def close(self, search: Search, error: BaseException | None = None) -> None:
        """Answer everybody, as the driver leaves; `error`: what it leaves with."""
        reception, self._reception = self._reception, None
        if reception is None:
            return
        reception.leave_thread()
        ended = self._ended(search, error)
        for id in self._stopping:
            reception.answer(id, ended)
        if not isinstance(error, RunHeldError):
            refused = Answer(state="refused", text=ended.text)
            reception.close(lambda want: ended if isinstance(want, Stop) else refused)

    def _begin(self, reception: Reception, id: str, want: Want) -> None:
        if not isinstance(want, Stop):
            told = f"{self._name} is a search: its trials have ranks\n\nhint: ask for one, as {self._name}/trial_00000"
            reception.answer(id, Answer(state="refused", text=told))
            return
        self._stopping.append(id)
        how = "its trials end now" if want.now else "its trials end at their next reports"
        reception.answer(id, Answer(state="taken", text=f"the driver has been told: {how}"))
        self._stop(want.now)

    def _ended(self, search: Search, error: BaseException | None) -> Answer:
        if error is not None:
            told = f"the driver of search {self._name} ended with {type(error).__name__}: {printable(str(error))}"
            return Answer(state="refused", text=told)
        over = sum(trial.is_over for trial in search.trials.values())
        trials = f"{over} of {len(search.trials)} trials over"
        if search.is_complete:
            return Answer(state="done", text=f"search {self._name} is complete, {trials}", ending="complete")
        text = f"search {self._name} has stopped, {trials}; its script continues it"
        return Answer(state="done", text=text, ending="interrupted")
