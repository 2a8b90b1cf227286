"""How workers learn where all servers will be: ports that are held, and addresses that are gathered."""

import socket
from types import SimpleNamespace

import pytest

from paceline.train.tensorflow import config


def can_be_taken(port):
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_a_port_is_held_until_the_function_is_over_for_a_server_that_shares_it(num_nodes):
    begin = SimpleNamespace(rank=0, num_nodes=num_nodes, node_address="127.0.0.1")
    context = SimpleNamespace(begin=begin, gather=lambda data: (data, b"10.0.0.2:4711"))
    with config.exchange_addresses(context) as (address, other):
        assert other == "10.0.0.2:4711"
        port = int(address.removeprefix("127.0.0.1:"))
        assert not can_be_taken(port)
    assert can_be_taken(port)
    with config.exchange_addresses(context) as (address, _), socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("", int(address.removeprefix("127.0.0.1:"))))
        server.listen()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
