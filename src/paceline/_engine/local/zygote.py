"""The process that workers are forked from, started by `launchers.ZygoteProcess`.

It imports what workers need once, and forks on request. Requests come from the driver over a socket, with the file
descriptors for the new worker; the pid and the exit status of each worker go back. When the driver exits, so do this
process and all its workers.

No thread may ever start here, and no framework may compute anything: a process forked from one whose thread pool has
run hangs at its first operation, and after a parent has touched CUDA its children cannot use it.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from paceline._core import settings, system
from paceline._core.codec import encode_frame
from paceline._core.process_setup import drop_exit_handlers, preload_modules
from paceline._engine.local import zygote_channel
from paceline._engine.local.spawn_entry import NUM_FDS, run_ordered_module

_DRIVER_DIED = signal.SIGHUP
_REAP_INTERVAL_S = 0.005


class ZygoteChannel(zygote_channel.Channel):
    """One engine's connection to this process: its requests and its workers."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self.workers: dict[int, int] = {}  # pid -> token
        self.unsent = bytearray()

    def add_answer(self, answer: dict[str, Any]) -> None:
        self.unsent += encode_frame(json.dumps(answer).encode())

    def send_answers(self) -> None:
        """Send what the socket takes. Never blocks: the peer may itself block until its requests are read."""
        with contextlib.suppress(BlockingIOError):
            try:
                while self.unsent:
                    del self.unsent[: self.socket.send(self.unsent, socket.MSG_DONTWAIT)]
            except ConnectionError:
                self.unsent.clear()

    def kill_workers(self, token: int | None = None) -> None:
        for pid, owner in self.workers.items():
            if token is None or owner == token:
                _kill_group(pid)


class Zygote:
    def __init__(self, driver: socket.socket, driver_pid: int) -> None:
        self._driver = ZygoteChannel(driver)
        self._driver_pid = driver_pid
        self._driver_exit = system.open_exit_watch(driver_pid)
        self._channels: dict[int, ZygoteChannel] = {}
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_w.setblocking(False)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Handle requests until the driver is gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(_DRIVER_DIED, _exit_on_driver_death)
        signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)
        system.adopt_orphans()
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._attach(self._driver)
        if self._driver_exit is not None:
            self._selector.register(self._driver_exit, selectors.EVENT_READ)
        while True:
            ready = set()
            for key, events in self._selector.select():
                if events & selectors.EVENT_WRITE:
                    self._send_answers(self._channels[key.fd])
                if events & selectors.EVENT_READ:
                    ready.add(key.fd)
            if self._driver_exit in ready:
                return
            if self._wake_r.fileno() in ready:
                self._wake_r.recv(4096)
            # Reap first: a worker that died before a kill request died by itself.
            self._reap()
            for fd in ready & self._channels.keys():
                channel = self._channels[fd]
                requests = channel.receive()
                if requests is not None:
                    for request in requests:
                        self._handle_request(channel, request)
                elif channel is self._driver:
                    return
                else:
                    self._detach(channel)

    def close(self) -> None:
        """Kill all workers forked here, and everything they started: a worker may have a zygote of its own.

        This process adopts the orphans of a process before that process's own exit is visible, so once no child is
        left, nothing is.
        """
        # The death signal may arrive after we have noticed the death, and must not interrupt the cleanup.
        signal.pthread_sigmask(signal.SIG_BLOCK, (_DRIVER_DIED,))
        for channel in self._channels.values():
            channel.kill_workers()
        while True:
            for pid in system.child_pids(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            except ChildProcessError:
                return
            time.sleep(_REAP_INTERVAL_S)  # The list of children may miss one while it changes.

    def _attach(self, channel: ZygoteChannel) -> None:
        self._channels[channel.socket.fileno()] = channel
        self._selector.register(channel.socket, selectors.EVENT_READ)
        self._send_answers(channel)

    def _answer(self, channel: ZygoteChannel, answer: dict[str, Any]) -> None:
        channel.add_answer(answer)
        self._send_answers(channel)

    def _send_answers(self, channel: ZygoteChannel) -> None:
        channel.send_answers()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
        if self._selector.get_key(channel.socket).events != events:
            self._selector.modify(channel.socket, events)

    def _detach(self, channel: ZygoteChannel) -> None:
        channel.kill_workers()
        self._selector.unregister(channel.socket)
        del self._channels[channel.socket.fileno()]
        channel.socket.close()

    def _handle_request(self, channel: ZygoteChannel, request: dict[str, Any]) -> None:
        match request["do"]:
            case "attach":
                self._attach(ZygoteChannel(socket.socket(fileno=channel.fds.popleft())))
            case "preload":
                _preload(request)
            case "successor":
                self._fork_successor(request, channel.fds.popleft())
            case "fork":
                self._fork_worker(channel, request, [channel.fds.popleft() for _ in range(NUM_FDS)])
            case "kill":
                channel.kill_workers(request["token"])

    def _fork_worker(self, channel: ZygoteChannel, request: dict[str, Any], fds: list[int]) -> None:
        own_pid = os.getpid()
        ours, theirs = socket.socketpair()
        # Here, not in the worker: it would copy each page of memory that it writes to.
        unset, changed = settings.compare_environment(request["env"])
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._become_worker(request, fds, theirs, own_pid, unset, changed)
        theirs.close()
        for fd in fds:
            os.close(fd)
        # The worker can request a zygote of its own over this connection.
        self._attach(ZygoteChannel(ours))
        channel.workers[pid] = request["token"]
        self._answer(channel, {"forked": request["token"], "pid": pid})

    def _fork_successor(self, request: dict[str, Any], fd: int) -> None:
        """Fork a zygote that imports more modules and then serves; meanwhile this one keeps serving.

        It replaces this zygote, or it serves the worker that requested it, which is then its driver.
        """
        own_pid = os.getpid()
        if os.fork() != 0:
            os.close(fd)
            return
        try:
            os.setpgid(0, 0)
            system.die_with_parent(signal.SIGKILL)
            if os.getppid() == own_pid:
                self._close_inherited()
                successor = Zygote(socket.socket(fileno=fd), request.get("driver", self._driver_pid))
                _preload_when_idle(request)
                successor._driver.add_answer({"ready": os.getpid()})
                try:
                    successor.serve()
                finally:
                    successor.close()
        finally:
            os._exit(0)

    def _close_inherited(self) -> None:
        """Close this zygote's descriptors, in a process forked from it."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for end in (self._wake_r, self._wake_w, *(channel.socket for channel in self._channels.values())):
            end.close()
        if self._driver_exit is not None:
            os.close(self._driver_exit)

    def _become_worker(
        self,
        request: dict[str, Any],
        fds: list[int],
        line: socket.socket,
        parent: int,
        unset: list[str],
        changed: dict[str, str],
    ) -> NoReturn:
        """`unset` and `changed`: how the worker's environment differs from this zygote's."""
        code = 70
        try:
            os.setsid()
            system.die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(70)
            self._close_inherited()
            zygote_channel.to_parent_zygote = zygote_channel.Channel(line)
            for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, _DRIVER_DIED):
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for name in unset:
                del os.environ[name]
            os.environ.update(changed)
            code = run_ordered_module(request, fds)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for channel in self._channels.values():
                token = channel.workers.pop(pid, None)
                if token is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)  # Processes that the worker started die with it.
                    code = os.waitstatus_to_exitcode(status)
                    self._answer(channel, {"exited": token, "pid": pid, "code": code, "at": time.time()})


def _preload(request: dict[str, Any]) -> None:
    sys.path[:] = request["path"]
    if request["modules"]:
        preload_modules(request["modules"])
        _prepare_for_forks()


def _prepare_for_forks() -> None:
    """Do here once what each worker would do at its start, and what copies memory that it shares with this process."""
    drop_exit_handlers()  # This process exits without calling them.
    system.num_oom_kills()  # Finds the control groups, which stay known.


def _preload_when_idle(request: dict[str, Any]) -> None:
    """Preload in the time that the processors have left over: the users of this machine train meanwhile.

    In a thread of its own, which has ended before anything is forked: without privileges a process cannot leave the
    idle class again, and workers would inherit it.
    """

    def preload() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        preload_modules(request["modules"])
        _prepare_for_forks()

    sys.path[:] = request["path"]
    thread = threading.Thread(target=preload)
    thread.start()
    thread.join()
    while len(os.listdir("/proc/self/task")) > 1:  # Python is done with it, but the system may not be yet.
        time.sleep(_REAP_INTERVAL_S)


def _kill_group(pid: int) -> None:
    # The process group exists only after the worker has called setsid; before that there is only the worker.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _exit_on_driver_death(*_: object) -> NoReturn:
    # Each ending thread of a threaded driver may send this signal; only the first may interrupt.
    signal.pthread_sigmask(signal.SIG_BLOCK, (_DRIVER_DIED,))
    raise SystemExit(0)


def main() -> None:
    """Arguments: the descriptor of the driver's socket, the driver's pid, and flags.

    `bound`: receive a signal when the driver dies. `apart`: be a grandchild of the driver, whose child only waits.
    """
    system.in_worker = True
    # Ctrl-C and preemption notices go to the whole job; the driver and the workers handle them.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    fd, driver_pid, *flags = sys.argv[1:]
    if "bound" in flags and "apart" not in flags:
        system.die_with_parent(_DRIVER_DIED)
    if os.getppid() != int(driver_pid):
        return
    if "apart" in flags and (child := os.fork()):
        os.close(int(fd))
        os.waitpid(child, 0)
        os._exit(0)
    zygote = Zygote(socket.socket(fileno=int(fd)), int(driver_pid))
    try:
        zygote.serve()
    finally:
        zygote.close()
        os._exit(0)


if __name__ == "__main__":
    main()
