"""The process that workers are forked from: started by `launch.ZygoteProcess`.

It imports what workers need once, keeps to a single thread, runs no operation of any framework, and forks on
request. Requests come over a socket from the driver, with the descriptors that the new worker is to have; the pid and
the exit status of each worker go back. When the driver ends, so does this process, and with it every worker.

No thread may ever start here and no framework may compute anything: a forked child of a process whose thread pool has
run hangs at its first operation, and one that touched CUDA cannot use it in its children.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from typing import Any, NoReturn

from paceline._core import system
from paceline._core.codec import FrameReader, frame
from paceline._core.process import import_ahead
from paceline._engine.local import ancestry

NUM_FDS = 3
"""What comes with each request to fork: the control socket, the log file, the job."""

_DRIVER_DIED = signal.SIGHUP
_LOOK_AGAIN_S = 0.005


class Channel:
    """One engine's line to this process: its requests, and the workers it asked for."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.frames = FrameReader()
        self.fds: deque[int] = deque()
        self.workers: dict[int, int] = {}  # pid -> token

    def requests(self) -> list[dict[str, Any]] | None:
        """What was asked since the last time; None once the other side is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.end, 1 << 16, 64)
        except ConnectionError:
            return None
        self.fds.extend(fds)
        return [json.loads(payload) for payload in self.frames.feed(data)] if data else None

    def say(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):
            self.end.sendall(frame(json.dumps(answer).encode()))

    def kill(self, token: int | None = None) -> None:
        for pid, owner in self.workers.items():
            if token is None or owner == token:
                _kill_group(pid)


class Zygote:
    def __init__(self, driver: socket.socket, driver_pid: int) -> None:
        self._driver = Channel(driver)
        self._driver_pid = driver_pid
        self._driver_exit = system.exit_watch(driver_pid)
        self._channels: dict[int, Channel] = {}
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_w.setblocking(False)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Work until the driver is gone."""
        self._serve()
        # The death signal may be later than the news of the death, and must not interrupt what follows from it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (_DRIVER_DIED,))

    def _serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(_DRIVER_DIED, _leave)
        signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)
        system.adopt_orphans()
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._attach(self._driver)
        if self._driver_exit is not None:
            self._selector.register(self._driver_exit, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            if self._driver_exit in ready:
                return
            if self._wake_r.fileno() in ready:
                self._wake_r.recv(4096)
            # Deaths first: one that came before a request to kill is a death of its own.
            self._reap()
            for fd in ready & self._channels.keys():
                channel = self._channels[fd]
                requests = channel.requests()
                if requests is not None:
                    for request in requests:
                        self._obey(channel, request)
                elif channel is self._driver:
                    return
                else:
                    self._detach(channel)

    def close(self) -> None:
        """End all that were forked here, and all that these have started: a worker may have a zygote of its own.

        What a process leaves behind is ours before its own end can be seen, so nothing is left when no child is.
        """
        for channel in self._channels.values():
            channel.kill()
        while True:
            for pid in system.children(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            except ChildProcessError:
                return
            time.sleep(_LOOK_AGAIN_S)  # The list of children may lack one, while it changes.

    def _attach(self, channel: Channel) -> None:
        self._channels[channel.end.fileno()] = channel
        self._selector.register(channel.end, selectors.EVENT_READ)

    def _detach(self, channel: Channel) -> None:
        channel.kill()
        self._selector.unregister(channel.end)
        del self._channels[channel.end.fileno()]
        channel.end.close()

    def _obey(self, channel: Channel, request: dict[str, Any]) -> None:
        match request["do"]:
            case "attach":
                self._attach(Channel(socket.socket(fileno=channel.fds.popleft())))
            case "preload":
                _preload(request)
            case "heir":
                self._fork_heir(request, channel.fds.popleft())
            case "fork":
                self._fork(channel, request, [channel.fds.popleft() for _ in range(NUM_FDS)])
            case "kill":
                channel.kill(request["token"])

    def _fork(self, channel: Channel, request: dict[str, Any], fds: list[int]) -> None:
        me = os.getpid()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._become_worker(request, fds, theirs, me)
        theirs.close()
        for fd in fds:
            os.close(fd)
        # By which the worker may ask for a zygote of its own.
        self._attach(Channel(ours))
        channel.workers[pid] = request["token"]
        channel.say({"forked": request["token"], "pid": pid})

    def _fork_heir(self, request: dict[str, Any], fd: int) -> None:
        """Fork a zygote that imports more, and serves once it has; meanwhile this one goes on serving.

        It serves in the stead of this one, or the worker that has asked for it, which is its driver then.
        """
        me = os.getpid()
        if os.fork() != 0:
            os.close(fd)
            return
        try:
            os.setpgid(0, 0)
            system.die_with_parent(signal.SIGKILL)
            if os.getppid() == me:
                self._forget()
                heir = Zygote(socket.socket(fileno=fd), request.get("driver", self._driver_pid))
                _preload(request)
                heir._driver.say({"ready": os.getpid()})
                try:
                    heir.serve()
                finally:
                    heir.close()
        finally:
            os._exit(0)

    def _forget(self) -> None:
        """Close what belongs to this zygote, in a process forked from it."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for end in (self._wake_r, self._wake_w, *(channel.end for channel in self._channels.values())):
            end.close()
        if self._driver_exit is not None:
            os.close(self._driver_exit)

    def _become_worker(self, request: dict[str, Any], fds: list[int], line: socket.socket, parent: int) -> NoReturn:
        code = 70
        try:
            os.setsid()
            system.die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(70)
            self._forget()
            ancestry.line = line
            for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, _DRIVER_DIED):
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.clear()
            os.environ.update(request["env"])
            sys.path[:] = request["path"]
            sys.argv[:] = request["argv"]
            with contextlib.suppress(OSError):
                os.chdir(request["cwd"])
            main = importlib.import_module(request["module"])
            code = main.run(control_fd=fds[0], log_fd=fds[1], job_fd=fds[2])
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
                        os.killpg(pid, signal.SIGKILL)  # What the worker itself started goes with it.
                    code = os.waitstatus_to_exitcode(status)
                    channel.say({"exited": token, "pid": pid, "code": code, "at": time.time()})


def _preload(request: dict[str, Any]) -> None:
    sys.path[:] = request["path"]
    if request["modules"]:
        import_ahead(request["modules"])
        gc.collect()
        gc.freeze()


def _kill_group(pid: int) -> None:
    # The group exists from the moment the worker has made its session; before that there is only the worker.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _leave(*_: object) -> NoReturn:
    # Of a driver with threads each one that ends may send it, and the first alone is to interrupt.
    signal.pthread_sigmask(signal.SIG_BLOCK, (_DRIVER_DIED,))
    raise SystemExit(0)


def main() -> None:
    """Arguments: the descriptor of the driver's socket, its pid, and how to stand to it.

    `bound`: told of its death by signal. `apart`: not a child of it, but of one that only waits.
    """
    system.in_worker = True
    # Ctrl-C and notices of preemption go to the whole job, and are the driver's and the workers' to answer.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    fd, driver_pid, *stands = sys.argv[1:]
    if "bound" in stands and "apart" not in stands:
        system.die_with_parent(_DRIVER_DIED)
    if os.getppid() != int(driver_pid):
        return
    if "apart" in stands and (child := os.fork()):
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
