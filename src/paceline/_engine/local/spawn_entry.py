"""The entry point of a fresh interpreter: see `spare_interpreters`.

It imports the given modules, waits for its order and then becomes a worker. Until then it belongs to no run; it exits
when its driver does.
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
from paceline._core.process_setup import preload_modules

NUM_FDS = 3
"""File descriptors sent with each order: the control socket, the log file, the job."""


def run_spawned_worker() -> None:
    """Arguments: the descriptor that the order arrives on, the driver's pid, modules to import, and `sys.path`."""
    system.in_worker = True
    fd, driver, modules, path = sys.argv[1:]
    sys.path[:] = json.loads(path)
    # Before the slow imports: if the driver exits meanwhile, its pid can no longer be watched.
    driver_exit = system.open_exit_watch(int(driver))
    if os.getppid() != int(driver):
        return
    preload_modules(json.loads(modules))
    with socket.socket(fileno=int(fd)) as connection:
        received = _receive_order(connection, driver_exit)
    if received is None:
        return
    order, fds = received
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(driver):
        return
    os._exit(run_ordered_module(order, fds))


def run_ordered_module(order: dict[str, Any], fds: list[int]) -> int:
    """Take on what the driver sent, and call the module's `run`; return its exit code."""
    sys.path[:] = order["path"]
    sys.argv[:] = order["argv"]
    with contextlib.suppress(OSError):  # The directory may have been removed.
        os.chdir(order["cwd"])
    main = importlib.import_module(order["module"])
    control, log, job = fds
    code: int = main.run(control_fd=control, log_fd=log, job_fd=job)
    return code


def _receive_order(connection: socket.socket, driver_exit: int | None) -> tuple[dict[str, Any], list[int]] | None:
    """Return the order and its file descriptors, or None once the driver is gone."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if driver_exit is not None:
        # A process forked by the driver may hold the other end of the socket after the driver has exited.
        poll.register(driver_exit, select.POLLIN)
    frames = FrameReader()
    fds: list[int] = []
    while True:
        ready = [ready for ready, _ in poll.poll()]
        if connection.fileno() not in ready:
            return None
        data, more, _, _ = socket.recv_fds(connection, 1 << 16, NUM_FDS)
        if not data:
            return None
        fds += more
        for payload in frames.feed(data):
            return json.loads(payload), fds
