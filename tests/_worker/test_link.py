"""The worker's end of the socket: nothing is lost and nobody hangs when the driver reads slowly, or not at all."""

import socket
import threading

from paceline._core.codec import FrameReader, frame
from paceline._engine.messages import Hold, StopAt, WorkerReady, decode_from_worker, encode
from paceline._worker.link import Link


def test_a_slow_reader_gets_everything_in_order_and_the_sender_does_not_wait():
    ours, theirs = socket.socketpair()
    link = Link(theirs, gone=lambda: None)
    link.listen(lambda message: None)
    count = 20_000  # some megabytes: many times what the socket takes
    for number in range(count):
        link.send(WorkerReady(1, number, 0))
    frames, heard = FrameReader(), []
    while len(heard) < count:
        heard += frames.feed(ours.recv(1 << 16))
    assert [decode_from_worker(payload).rank for payload in heard] == list(range(count))
    ours.close()
    link.close()


def test_senders_that_fill_the_socket_again_and_again_never_wait_for_a_wake_that_was_lost():
    """Each time the queue has been emptied, the next message that does not fit must wake the listener anew."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link = Link(theirs, gone=lambda: None)
    link.listen(lambda message: None)
    count, heard, frames = 30_000, [], FrameReader()

    def read():
        while len(heard) < count:
            heard.extend(frames.feed(ours.recv(1024)))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(count):
        link.send(WorkerReady(1, number, 0))
    link.flush()
    reader.join()
    assert [decode_from_worker(payload).rank for payload in heard] == list(range(count))
    ours.close()
    link.close()


def test_the_end_of_the_driver_is_noticed():
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    link = Link(theirs, gone=gone.set)
    link.listen(lambda message: None)
    ours.close()
    assert gone.wait(10)
    link.send(WorkerReady(1, 0, 0))
    link.close()


def test_messages_that_came_with_the_first_are_not_lost():
    ours, theirs = socket.socketpair()
    ours.sendall(frame(encode(Hold())) + frame(encode(StopAt(3))))
    link = Link(theirs, gone=lambda: None)
    assert link.receive() == Hold()
    taken = []
    heard = threading.Event()
    link.listen(lambda message: (taken.append(message), heard.set()))
    assert heard.wait(10)
    assert taken == [StopAt(3)]
    ours.close()
    link.close()
