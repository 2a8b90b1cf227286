"""The entry of a process that a fresh interpreter becomes: see `spares`.

It imports what it was told to, waits for its order, and is a worker from then on. While it waits it is nobody's: it
ends when its driver does.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from paceline._core import system
from paceline._core.codec import FrameReader
from paceline._core.process import import_ahead

NUM_FDS = 3
"""What comes with an order: the control socket, the log file, the job."""


def spawned() -> None:
    """Arguments: the descriptor that the order comes by, the driver's pid, modules to import, and its `sys.path`."""
    system.in_worker = True
    fd, driver, modules, path = sys.argv[1:]
    sys.path[:] = json.loads(path)
    # Before the imports take their time: of a driver that has ended meanwhile the system knows nothing any more.
    gone = system.exit_watch(int(driver))
    if os.getppid() != int(driver):
        return
    import_ahead(json.loads(modules))
    with socket.socket(fileno=int(fd)) as line:
        given = _order(line, gone)
    if given is None:
        return
    order, (control, log, job) = given
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(driver):
        return
    sys.path[:] = order["path"]
    sys.argv[:] = order["argv"]
    with contextlib.suppress(OSError):  # It may have been removed.
        os.chdir(order["cwd"])
    main = importlib.import_module(order["module"])
    os._exit(main.run(control_fd=control, log_fd=log, job_fd=job))


def _order(line: socket.socket, gone: int | None) -> tuple[dict[str, Any], list[int]] | None:
    """What to be, and the descriptors for it; None once the driver is gone."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    if gone is not None:
        # A process that the driver forked may hold the other end of the line beyond the driver's own end.
        poll.register(gone, select.POLLIN)
    frames = FrameReader()
    fds: list[int] = []
    while True:
        ready = [ready for ready, _ in poll.poll()]
        if line.fileno() not in ready:
            return None
        data, more, _, _ = socket.recv_fds(line, 1 << 16, NUM_FDS)
        if not data:
            return None
        fds += more
        for payload in frames.feed(data):
            return json.loads(payload), fds
