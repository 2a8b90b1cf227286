"""Requests from people to a running search: only stop. Its trials are runs and take their own requests."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline._control.request_inbox import RequestInbox, Submit
from paceline._control.requests import Answer, StopRequest, UserRequest
from paceline._core.errors import RunHeldError
from paceline._core.plain_values import to_printable
from paceline.tune.driver.search_state import Search

log = logging.getLogger("paceline")


class SearchRequestHandler:
    def __init__(self, inbox: RequestInbox, name: str, stop: Callable[[bool], None]) -> None:
        """`stop` asks the search to end, at the next report of each trial or (True) immediately."""
        self._request_inbox: RequestInbox | None = inbox
        self._name = name
        self._stop = stop
        self._stopping: list[str] = []

    def tick(self, submit: Submit) -> None:
        if self._request_inbox is None:
            return
        try:
            for id, request in self._request_inbox.take_due(submit):
                self._start_request(self._request_inbox, id, request)
        except Exception:
            log.exception("request handling disabled after an error")
            self._request_inbox = None

    def close(self, search: Search, error: BaseException | None = None) -> None:
        """Answer all open requests as the driver exits; `error` is the exception it exits with."""
        inbox, self._request_inbox = self._request_inbox, None
        if inbox is None:
            return
        inbox.work_inline()
        ended = self._make_final_answer(search, error)
        for id in self._stopping:
            inbox.answer(id, ended)
        if not isinstance(error, RunHeldError):
            refused = Answer(state="refused", text=ended.text)
            inbox.close(lambda request: ended if isinstance(request, StopRequest) else refused)

    def _start_request(self, inbox: RequestInbox, id: str, request: UserRequest) -> None:
        if not isinstance(request, StopRequest):
            text = f"{self._name} is a search, which only takes stop requests\n\nhint: use {self._name}/trial_00000"
            inbox.answer(id, Answer(state="refused", text=text))
            return
        self._stopping.append(id)
        when = "now" if request.now else "at their next reports"
        inbox.answer(id, Answer(state="taken", text=f"the driver stops its trials {when}"))
        self._stop(request.now)

    def _make_final_answer(self, search: Search, error: BaseException | None) -> Answer:
        if error is not None:
            text = f"the driver of search {self._name} ended with {type(error).__name__}: {to_printable(str(error))}"
            return Answer(state="refused", text=text)
        over = sum(trial.is_over for trial in search.trials.values())
        trials = f"{over} of {len(search.trials)} trials over"
        if search.is_complete:
            return Answer(state="done", text=f"search {self._name} finished, {trials}", ending="complete")
        text = f"search {self._name} has stopped, {trials}; run its script again to continue"
        return Answer(state="done", text=text, ending="interrupted")
