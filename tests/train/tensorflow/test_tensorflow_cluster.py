"""How workers learn where all servers will be: ports that are held, and addresses that rank 0 gathers."""

import contextlib
import json
import socket
import threading
from types import SimpleNamespace

import pytest

from paceline.train.tensorflow import cluster


class Barrier:
    """Stands for the driver: all ranks meet, and go on with what rank 0 brought."""

    def __init__(self, world_size):
        self._meeting = threading.Barrier(world_size, timeout=30)
        self.brought = b""

    def context(self, rank, world_size, num_nodes=1):
        def join(data):
            if rank == 0:
                self.brought = data
            self._meeting.wait()
            return self.brought

        begin = SimpleNamespace(rank=rank, world_size=world_size, num_nodes=num_nodes, node_address="127.0.0.1")
        return SimpleNamespace(begin=begin, join=join)


def gathered(world_size, between=lambda barrier, rank: None, num_nodes=1):
    """What each rank was told, and whether its own port was held at that time."""
    barrier, told, held = Barrier(world_size), {}, {}

    def worker(rank):
        context = barrier.context(rank, world_size, num_nodes)
        join = context.join
        context.join = lambda data: (join(data), between(barrier, rank))[0]
        with cluster.addresses(context) as addresses:
            told[rank] = addresses
            held[rank] = not can_be_taken(int(addresses[rank].rpartition(":")[2]))

    threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told, held


def can_be_taken(port):
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.parametrize(("world_size", "num_nodes"), [(1, 1), (2, 1), (9, 3)])
def test_all_ranks_are_told_the_same_addresses_and_hold_their_own(world_size, num_nodes):
    told, held = gathered(world_size, num_nodes=num_nodes)
    assert all(told[rank] == told[0] for rank in range(world_size))
    assert len(set(told[0])) == world_size
    assert all(held.values())


def test_a_port_is_free_again_when_the_function_is_over():
    told, _ = gathered(1)
    assert can_be_taken(int(told[0][0].rpartition(":")[2]))


def test_a_server_that_shares_the_port_can_listen_beside_its_holder():
    with cluster.addresses(Barrier(1).context(0, 1)) as (address,), socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("", int(address.rpartition(":")[2])))
        server.listen()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n\n",
        b'["guess", 1, "198.51.100.1:1"]\n',
        b"[1]\n",
        b"\xff\n",
        '["ö", 1, ""]\n'.encode(),
    ],
)
def test_who_does_not_know_the_word_is_passed_over(said):
    strangers = contextlib.ExitStack()

    def intrude(barrier, rank):
        # In the place of rank 1, and before it.
        if rank == 1:
            host, port, _ = json.loads(barrier.brought)
            stranger = strangers.enter_context(socket.create_connection((host, port)))
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)

    with strangers:
        told, _ = gathered(2, between=intrude)
    assert told[0] == told[1]
    assert "198.51.100.1:1" not in told[0]


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(cluster, "_PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError, match="address of rank 1 did"):
        cluster._collected(server, "word", 2, "127.0.0.1:1")


def test_a_rank_0_that_cannot_be_reached_is_named():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(OSError, match=rf"rank 3 cannot reach rank 0 at 127\.0\.0\.1:{port}"):
            cluster._told_by(("127.0.0.1", port, "word"), 3, "127.0.0.1:1")
