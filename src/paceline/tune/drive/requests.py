"""Requests from people to a running search: only stop. Its trials are runs and take their own requests."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline._control.request_inbox import RequestInbox, Submit
from paceline._control.requests import Answer, StopRequest, UserRequest
from paceline._core.errors import RunHeldError
from paceline._core.plain_values import to_printable
from paceline.tune.drive.search_state import Search

log = logging.getLogger("paceline")


class SearchRequestHandler:
    def __init__(self, reception: RequestInbox, name: str, stop: Callable[[bool], None]) -> None:
        """`stop` asks the search to end, at the next report of each trial or (True) immediately."""
        self._request_inbox: RequestInbox | None = reception
        self._name = name
        self._stop = stop
        self._stopping: list[str] = []

    def tick(self, submit: Submit) -> None:
        if self._request_inbox is None:
            return
        try:
            for id, want in self._request_inbox.take_due(submit):
                self._start_request(self._request_inbox, id, want)
        except Exception:
            log.exception("requests to this search are not answered any more; it goes on")
            self._request_inbox = None

    def close(self, search: Search, error: BaseException | None = None) -> None:
        """Answer all open requests as the driver exits; `error` is the exception it exits with."""
        reception, self._request_inbox = self._request_inbox, None
        if reception is None:
            return
        reception.work_inline()
        ended = self._make_final_answer(search, error)
        for id in self._stopping:
            reception.answer(id, ended)
        if not isinstance(error, RunHeldError):
            refused = Answer(state="refused", text=ended.text)
            reception.close(lambda want: ended if isinstance(want, StopRequest) else refused)

    def _start_request(self, reception: RequestInbox, id: str, want: UserRequest) -> None:
        if not isinstance(want, StopRequest):
            told = f"{self._name} is a search: its trials have ranks\n\nhint: ask for one, as {self._name}/trial_00000"
            reception.answer(id, Answer(state="refused", text=told))
            return
        self._stopping.append(id)
        how = "its trials end now" if want.now else "its trials end at their next reports"
        reception.answer(id, Answer(state="taken", text=f"the driver has been told: {how}"))
        self._stop(want.now)

    def _make_final_answer(self, search: Search, error: BaseException | None) -> Answer:
        if error is not None:
            told = f"the driver of search {self._name} ended with {type(error).__name__}: {to_printable(str(error))}"
            return Answer(state="refused", text=told)
        over = sum(trial.is_over for trial in search.trials.values())
        trials = f"{over} of {len(search.trials)} trials over"
        if search.is_complete:
            return Answer(state="done", text=f"search {self._name} is complete, {trials}", ending="complete")
        text = f"search {self._name} has stopped, {trials}; its script continues it"
        return Answer(state="done", text=text, ending="interrupted")
