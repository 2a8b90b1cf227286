"""The worker's end of its socket to the driver.

Any thread may send; sending does not block unless the driver is far behind. One thread listens, sends what the socket
did not accept at once, and detects when the driver is gone: a worker never outlives its run.
"""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from paceline._core.codec import FrameReader, encode_frame, send_pending
from paceline._engine.messages import FromWorker, ToWorker, decode_to_worker, encode_message

MAX_UNSENT = 64 << 20
"""How far a driver may fall behind, in bytes, before reports block. They are already in the worker's file."""


class DriverLink:
    def __init__(self, end: socket.socket, on_gone: Callable[[], None]) -> None:
        """`on_gone` is called on the listening thread when the driver is gone."""
        self._socket = end
        self._on_driver_gone = on_gone
        self._thread: threading.Thread | None = None
        self._on_signal: Callable[[int], None] | None = None
        self._frames = FrameReader()
        self._early_payloads: list[bytes] = []
        self._call: tuple[float, Callable[[], None]] | None = None
        """What the listening thread is to call, and when."""
        self._unsent: deque[memoryview] = deque()
        self._num_unsent = 0
        self._lock = threading.Condition()  # protects `_unsent`, `_num_unsent` and the order of sending
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)

    def receive(self) -> ToWorker:
        """Wait for the next message; only before `listen`."""
        while not self._early_payloads:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the driver is gone")
            self._early_payloads += self._frames.feed(data)
        return decode_to_worker(self._early_payloads.pop(0))

    def listen(self, handle: Callable[[ToWorker], None], on_signal: Callable[[int], None] | None = None) -> None:
        """Pass on messages, and the signals that `wake` is called with, on a separate thread."""
        self._on_signal = on_signal
        self._thread = threading.Thread(target=self._listen, args=(handle,), name="paceline-link", daemon=True)
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """A descriptor for signal numbers, written by a signal handler or by the system itself."""
        return self._wake_w

    def wake(self, signum: int = 0) -> None:
        try:
            os.write(self._wake_w, bytes((signum,)))
        except BlockingIOError:
            pass  # It is full of wakes already.

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call a function on the listening thread, unless `cancel_call` comes first."""
        self._call = time.monotonic() + delay_s, function
        self.wake()

    def cancel_call(self) -> None:
        self._call = None

    def close(self) -> None:
        """Call this once the driver has closed its side."""
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def send(self, message: FromWorker) -> None:
        self.send_payload(encode_message(message))

    def send_payload(self, payload: bytes) -> None:
        data = encode_frame(payload)
        with self._lock:
            if not self._unsent:
                try:
                    sent = self._socket.send(data, socket.MSG_DONTWAIT)
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
                # Wake after queueing: the listening thread checks the queue once per wake.
                self.wake()

    def flush(self) -> None:
        """Wait until the socket has accepted everything."""
        with self._lock:
            while self._unsent:
                self._lock.wait()

    def _listen(self, handle: Callable[[ToWorker], None]) -> None:
        for payload in self._early_payloads:
            handle(decode_to_worker(payload))
        try:
            while True:
                for payload in self._receive_payloads():
                    handle(decode_to_worker(payload))
        except ConnectionError:
            self._on_driver_gone()

    def _wait_ms(self) -> float | None:
        """Make the call that is due; return how long to wait for the next one."""
        call = self._call
        if call is None:
            return None
        due, function = call
        left_s = due - time.monotonic()
        if left_s > 0:
            return left_s * 1000
        self._call = None
        function()
        return None

    def _receive_payloads(self) -> list[bytes]:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = dict(poll.poll(self._wait_ms()))
        if self._wake_r in ready:
            for signum in set(os.read(self._wake_r, 4096)) - {0}:
                if self._on_signal is not None:
                    self._on_signal(signum)
        events = ready.get(self._socket.fileno(), 0)
        if events & select.POLLOUT:
            with self._lock:
                self._num_unsent -= send_pending(self._socket, self._unsent)
                self._lock.notify_all()
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return []
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the driver is gone")
        return self._frames.feed(data)
