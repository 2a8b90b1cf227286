"""The worker's end of the socket: nothing is lost and nobody hangs when the driver reads slowly, or not at all."""

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline._core.codec import FrameReader, encode_frame
from paceline._engine.messages import Hold, StopAt, WorkerReady, decode_from_worker, encode_message
from paceline._worker.link import DriverLink


@pytest.fixture
def gone():
    return threading.Event()


@pytest.fixture
def ends(gone):
    """The driver's end of the socket, and the worker's."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link = DriverLink(theirs, on_gone=gone.set)
    yield ours, link
    ours.close()
    link.close()


def read_ranks(ours, count):
    frames, messages = FrameReader(), []
    while len(messages) < count:
        messages += frames.feed(ours.recv(1024))
    return [decode_from_worker(payload).rank for payload in messages]


@pytest.mark.parametrize("reads", ["afterwards", "meanwhile"])
def test_a_slow_reader_gets_everything_in_order_and_the_sender_does_not_wait(ends, reads):
    """Each time the queue has been emptied, the next message that does not fit must wake the listener anew."""
    ours, link = ends
    link.listen(lambda message: None)
    count = 20_000  # some megabytes: many times what the socket takes
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(read_ranks, ours, count) if reads == "meanwhile" else None
        for number in range(count):
            link.send(WorkerReady(1, number, 0))
        if read is not None:
            link.flush()
        assert (read.result() if read is not None else read_ranks(ours, count)) == list(range(count))


def test_the_end_of_the_driver_is_noticed(ends, gone):
    ours, link = ends
    link.listen(lambda message: None)
    ours.close()
    assert gone.wait(60)
    link.send(WorkerReady(1, 0, 0))


def test_messages_that_came_with_the_first_are_not_lost(ends):
    ours, link = ends
    ours.sendall(encode_frame(encode_message(Hold())) + encode_frame(encode_message(StopAt(3))))
    assert link.receive() == Hold()
    messages = queue.SimpleQueue()
    link.listen(messages.put)
    assert messages.get(timeout=240) == StopAt(3)


def test_a_call_is_made_once_it_is_due_unless_it_was_cancelled(ends):
    ours, link = ends
    heard, called, cancelled = threading.Event(), threading.Event(), threading.Event()
    link.call_later(0.0, cancelled.set)
    link.cancel_call()
    link.listen(lambda message: heard.set())
    ours.sendall(encode_frame(encode_message(Hold())))
    assert heard.wait(60)
    link.call_later(0.01, called.set)
    assert called.wait(60)
    assert not cancelled.is_set()
