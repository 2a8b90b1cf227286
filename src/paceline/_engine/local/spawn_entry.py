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
from paceline._core.process_setup import preload_modules
from paceline._engine.local.zygote_channel import Channel

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
    with contextlib.closing(Channel(socket.socket(fileno=int(fd)))) as channel:
        order = _receive_order(channel, driver_exit)
    if order is None:
        return
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != int(driver):
        return
    os._exit(run_ordered_module(order, list(channel.fds)))


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


def _receive_order(channel: Channel, driver_exit: int | None) -> dict[str, Any] | None:
    """Return the order, or None once the driver is gone."""
    poll = select.poll()
    poll.register(channel.socket, select.POLLIN)
    if driver_exit is not None:
        # A process forked by the driver may hold the other end of the socket after the driver has exited.
        poll.register(driver_exit, select.POLLIN)
    while channel.socket.fileno() in [fd for fd, _ in poll.poll()]:
        orders = channel.receive()
        if orders is None:
            return None
        if orders:
            return orders[0]
    return None
