"""The messages of a data service: each arrives as the struct that was sent, and its tag stays what it is."""

import selectors
import socket

import msgspec
import pytest

from paceline.data.exec import message_socket, messages
from paceline.data.exec.arena import ArenaPool
from paceline.data.exec.message_socket import MessageSocket, ServiceSocket
from paceline.data.exec.packed_blocks import BlockLayout

LAYOUT = BlockLayout(3, 64, ("x",))


@pytest.fixture
def ends():
    """The service's end of a connection, and the other one."""
    ours, theirs = socket.socketpair()
    selector = selectors.DefaultSelector()
    pair = ServiceSocket(ours, messages.FromMember, selector), MessageSocket(theirs, messages.ToMember)
    yield pair
    for end in (*pair, selector):
        end.close()


def test_messages_arrive_as_structs_with_the_arenas_they_name_first(ends):
    service, member = ends
    pool = ArenaPool(1 << 20)
    arena = pool.lend_arena(7, 64)
    for unit in range(2):
        service.post(messages.BlockAnnounced(1, 7, unit, 5, arena.number, LAYOUT), arena)
    assert [member.take_message() for _ in range(2)] == [
        messages.BlockAnnounced(1, 7, 0, 5, arena.number, LAYOUT, arenas=[arena.number]),
        messages.BlockAnnounced(1, 7, 1, 5, arena.number, LAYOUT),
    ]
    assert list(member.memory) == [arena.number]
    member.send_message(messages.BlockPassed(1, 2, 0.5, released={3: [7]}))
    assert list(service.exchange(selectors.EVENT_READ)) == [messages.BlockPassed(1, 2, 0.5, released={3: [7]})]
    service.forget_arenas([arena.number])
    service.post(messages.StreamEnded(1))
    assert member.take_message() == messages.StreamEnded(1, forget=[arena.number])
    assert not member.memory
    pool.close()


def test_an_arena_that_was_freed_on_the_way_is_not_mapped(ends):
    service, member = ends
    pool = ArenaPool(0)
    arena = pool.lend_arena(7, 64)
    service.post(messages.BlockAnnounced(1, 7, 0, 0, arena.number, LAYOUT), arena)
    pool.free_block(7)
    assert pool.take_freed() == [arena.number]
    assert member.take_message().arenas == [arena.number]
    assert not member.memory


def test_a_message_of_an_unknown_kind_is_refused(ends):
    service, member = ends
    member.send_message(messages.ProcessReady())
    with pytest.raises(msgspec.ValidationError, match="ready"):
        list(service.exchange(selectors.EVENT_READ))


def test_all_that_a_process_sent_before_it_died_is_taken(ends, monkeypatch):
    monkeypatch.setattr(message_socket, "_RECEIVE", 100)  # less than the first message has
    service, process = ends
    sent = [messages.BlockPassed(1, 0, 0.0, released={3: [*range(500)]}), messages.BlockPassed(1, 1, 0.0)]
    for message in sent:
        process.send_message(message)
    assert list(service.take_rest()) == sent, "the other end is still open, as if a child had inherited it"
    assert not service.is_open
