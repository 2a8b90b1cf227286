"""`num_workers=0`: the function runs in this thread, and the controller beside it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from paceline._control.run import Run
from paceline._engine.local.inline import InlineLauncher
from paceline._engine.messages import Begin
from paceline._worker.context import Context
from paceline._worker.link import Link
from paceline._worker.main import Job, hearing, work
from paceline._worker.signals import noticing
from paceline._worker.usage import Usage


def run_inline(launcher: InlineLauncher, drive: Callable[[], Run], job: Job, stop: Callable[[], None]) -> Run:
    """Drive the run in a thread, and be its only worker until it is over. `stop` asks the run to end now."""
    outcome: list[Run | BaseException] = []

    def controller() -> None:
        try:
            outcome.append(drive())
        except BaseException as error:  # noqa: BLE001  raised again below, in the user's thread
            outcome.append(error)

    thread = threading.Thread(target=controller, name="paceline-controller", daemon=True)
    thread.start()
    with _stopped_by_interrupt() as interrupted:
        while (end := _asked(launcher, stop, interrupted)) is not None:
            link = Link(end, gone=lambda: None)
            begin = link.receive()
            assert isinstance(begin, Begin)
            context = Context(begin, link)
            usage = Usage(context, shared=True)
            link.listen(hearing(context, link, usage), context.signalled)
            with noticing(link):
                code = work(context, link, usage, lambda: job)
            interrupted(context.error)
            launcher.ended(code)
            link.close()
            usage.close()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _asked(
    launcher: InlineLauncher, stop: Callable[[], None], interrupted: Callable[[BaseException | None], None]
) -> socket.socket | None:
    """The line of the next worker to be; a Ctrl-C while there is none, as when validations are waited for, stops."""
    while True:
        try:
            return launcher.asked()
        except KeyboardInterrupt as error:
            interrupted(error)
            stop()


@contextlib.contextmanager
def _stopped_by_interrupt() -> Iterator[Callable[[BaseException | None], None]]:
    """A Ctrl-C in the function is reported as its failure, and then raised to the caller as what it was."""
    seen = False

    def look(error: BaseException | None) -> None:
        nonlocal seen
        seen = seen or isinstance(error, KeyboardInterrupt)

    yield look
    if seen:
        raise KeyboardInterrupt
