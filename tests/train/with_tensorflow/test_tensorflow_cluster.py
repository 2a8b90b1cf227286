"""How workers learn where all servers will be: ports that are held, and addresses that are gathered."""

import socket
import threading
from types import SimpleNamespace

import pytest

from paceline.train.tensorflow import cluster


class Barrier:
    """Stands for the driver: all ranks meet, and go on with what each brought."""

    def __init__(self, world_size):
        self._meeting = threading.Barrier(world_size, timeout=30)
        self._brought = [b""] * world_size

    def context(self, rank, num_nodes=1):
        def gather(data):
            self._brought[rank] = data
            self._meeting.wait()
            return tuple(self._brought)

        begin = SimpleNamespace(rank=rank, num_nodes=num_nodes, node_address="127.0.0.1")
        return SimpleNamespace(begin=begin, gather=gather)


def gathered(world_size, num_nodes=1):
    """What each rank was told, and whether its own port was held at that time."""
    barrier, told, held = Barrier(world_size), {}, {}

    def worker(rank):
        with cluster.addresses(barrier.context(rank, num_nodes)) as addresses:
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
    with cluster.addresses(Barrier(1).context(0)) as (address,), socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("", int(address.rpartition(":")[2])))
        server.listen()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
