"""`num_workers=0`: the function runs in the calling thread, and the controller in another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from paceline._control.run import Run
from paceline._engine.local.launchers import InlineLauncher
from paceline._engine.messages import WorkerInit
from paceline._worker.context import WorkerContext
from paceline._worker.link import DriverLink
from paceline._worker.main import Job, make_message_handler, work
from paceline._worker.signals import forward_signals
from paceline._worker.usage import UsageMeter


def run_inline(launcher: InlineLauncher, drive: Callable[[], Run], job: Job, stop: Callable[[], None]) -> Run:
    """Drive the run in a thread, and act as its only worker until it ends. `stop` asks the run to end now.

    A Ctrl-C in the function is reported as its failure, and then raised to the caller as a `KeyboardInterrupt`.
    """
    outcome: Future[Run] = Future()

    def drive_in_thread() -> None:
        try:
            outcome.set_result(drive())
        except BaseException as error:  # noqa: BLE001  raised again below, in the user's thread
            outcome.set_exception(error)

    thread = threading.Thread(target=drive_in_thread, name="paceline-controller", daemon=True)
    thread.start()
    is_interrupted = False
    while True:
        try:
            end = launcher.wait_for_worker()
        except KeyboardInterrupt:  # No worker runs, as during validations.
            is_interrupted = True
            stop()
            continue
        if end is None:
            break
        link = DriverLink(end, on_gone=lambda: None)
        begin = link.receive()
        assert isinstance(begin, WorkerInit)
        context = WorkerContext(begin, link)
        usage = UsageMeter(context, shared=True)
        link.listen(make_message_handler(context, link, usage), context.handle_signal)
        with forward_signals(link):
            code = work(context, link, usage, lambda: job)
        is_interrupted |= isinstance(context.error, KeyboardInterrupt)
        launcher.report_exit(code)
        link.close()
        usage.close()
    if is_interrupted:
        raise KeyboardInterrupt
    thread.join()
    return outcome.result()
