"""`num_workers=0`: the function runs in the calling thread, and the controller in another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from paceline._control.run import Run
from paceline._engine.local.launchers import InlineLauncher
from paceline._engine.messages import WorkerInit
from paceline._worker.context import WorkerContext
from paceline._worker.link import DriverLink
from paceline._worker.main import Job, make_message_handler, work
from paceline._worker.signals import forward_signals
from paceline._worker.usage import UsageMeter


def run_inline(launcher: InlineLauncher, drive: Callable[[], Run], job: Job, stop: Callable[[], None]) -> Run:
    """Drive the run in a thread, and act as its only worker until it ends. `stop` asks the run to end now."""
    outcome: list[Run | BaseException] = []

    def drive_in_thread() -> None:
        try:
            outcome.append(drive())
        except BaseException as error:  # noqa: BLE001  raised again below, in the user's thread
            outcome.append(error)

    thread = threading.Thread(target=drive_in_thread, name="paceline-controller", daemon=True)
    thread.start()
    with _reraise_interrupt() as interrupted:
        while (end := _wait_for_worker(launcher, stop, interrupted)) is not None:
            link = DriverLink(end, on_gone=lambda: None)
            begin = link.receive()
            assert isinstance(begin, WorkerInit)
            context = WorkerContext(begin, link)
            usage = UsageMeter(context, shared=True)
            link.listen(make_message_handler(context, link, usage), context.handle_signal)
            with forward_signals(link):
                code = work(context, link, usage, lambda: job)
            interrupted(context.error)
            launcher.report_exit(code)
            link.close()
            usage.close()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _wait_for_worker(
    launcher: InlineLauncher, stop: Callable[[], None], interrupted: Callable[[BaseException | None], None]
) -> socket.socket | None:
    """Wait for the next worker's connection. Ctrl-C while no worker runs, as during validations, stops the run."""
    while True:
        try:
            return launcher.wait_for_worker()
        except KeyboardInterrupt as error:
            interrupted(error)
            stop()


@contextlib.contextmanager
def _reraise_interrupt() -> Iterator[Callable[[BaseException | None], None]]:
    """Report a Ctrl-C in the function as its failure, then raise it to the caller as a `KeyboardInterrupt`."""
    is_interrupted = False

    def note_error(error: BaseException | None) -> None:
        nonlocal is_interrupted
        is_interrupted = is_interrupted or isinstance(error, KeyboardInterrupt)

    yield note_error
    if is_interrupted:
        raise KeyboardInterrupt
