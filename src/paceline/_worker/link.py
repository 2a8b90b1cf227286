"""The worker's end of its socket to the driver.

Any thread may send; sending does not wait for the driver, unless it is far behind. One thread listens, sends what the
socket did not take at once, and notices when the driver is gone: a worker never outlives its run.
"""

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable

from paceline._core.codec import FrameReader, frame
from paceline._engine.messages import FromWorker, ToWorker, decode_to_worker, encode

MAX_UNSENT = 64 << 20
"""How far a driver may fall behind, in bytes, before reports wait for it. They are in the worker's file already."""


class Link:
    def __init__(self, end: socket.socket, gone: Callable[[], None]) -> None:
        """`gone` is called, on the listening thread, when the driver is gone."""
        self._end = end
        self._gone = gone
        self._thread: threading.Thread | None = None
        self._signalled: Callable[[int], None] | None = None
        self._frames = FrameReader()
        self._first: list[bytes] = []
        self._unsent: deque[memoryview] = deque()
        self._num_unsent = 0
        self._lock = threading.Condition()  # protects `_unsent`, `_num_unsent` and the order of sending
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)

    def receive(self) -> ToWorker:
        """The next message, waited for; only before `listen`."""
        while not self._first:
            data = self._end.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the driver is gone")
            self._first += self._frames.feed(data)
        return decode_to_worker(self._first.pop(0))

    def listen(self, take: Callable[[ToWorker], None], signalled: Callable[[int], None] | None = None) -> None:
        """Pass on what is heard, and the signals that `wake` is called with, on a thread of its own."""
        self._signalled = signalled
        self._thread = threading.Thread(target=self._listen, args=(take,), name="paceline-link", daemon=True)
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """Where the number of a signal may be written, from a signal handler or by the system itself."""
        return self._wake_w

    def wake(self, signum: int = 0) -> None:
        try:
            os.write(self._wake_w, bytes((signum,)))
        except BlockingIOError:
            pass  # It is full of wakes already.

    def close(self) -> None:
        """Once the driver has closed its side."""
        if self._thread is not None:
            self._thread.join()
        self._end.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def send(self, message: FromWorker) -> None:
        self.send_payload(encode(message))

    def send_payload(self, payload: bytes) -> None:
        data = frame(payload)
        with self._lock:
            if not self._unsent:
                try:
                    sent = self._end.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except ConnectionError:
                    return  # The listening thread is about to end this process.
                if sent == len(data):
                    return
                data = data[sent:]
            while self._num_unsent > MAX_UNSENT:
                self._lock.wait()
            first = not self._unsent
            self._unsent.append(memoryview(data))
            self._num_unsent += len(data)
            if first:
                # After it is in the queue: the listening thread looks there once, when it wakes.
                self.wake()

    def flush(self) -> None:
        """Wait until the driver's side of the socket has everything."""
        with self._lock:
            while self._unsent:
                self._lock.wait()

    def _listen(self, take: Callable[[ToWorker], None]) -> None:
        for payload in self._first:
            take(decode_to_worker(payload))
        try:
            while True:
                for payload in self._heard():
                    take(decode_to_worker(payload))
        except ConnectionError:
            self._gone()

    def _heard(self) -> list[bytes]:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = dict(poll.poll())
        if self._wake_r in ready:
            for signum in set(os.read(self._wake_r, 4096)) - {0}:
                if self._signalled is not None:
                    self._signalled(signum)
        events = ready.get(self._end.fileno(), 0)
        if events & select.POLLOUT:
            self._send_unsent()
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return []
        data = self._end.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the driver is gone")
        return self._frames.feed(data)

    def _send_unsent(self) -> None:
        with self._lock:
            try:
                while self._unsent:
                    data = self._unsent[0]
                    sent = self._end.send(data, socket.MSG_DONTWAIT)
                    self._num_unsent -= sent
                    if sent < len(data):
                        self._unsent[0] = data[sent:]
                        break
                    self._unsent.popleft()
            except BlockingIOError:
                pass
            self._lock.notify_all()
