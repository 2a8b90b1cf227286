"""Several addresses may name the same cluster."""

import pytest

from paceline._engine.ray.connection import is_same_cluster


@pytest.mark.parametrize(
    ("address", "cluster", "here", "same"),
    [
        ("10.0.0.1:6379", "10.0.0.1:6379", "10.0.0.2", True),
        ("127.0.0.1:6379", "10.0.0.1:6379", "10.0.0.1", True),
        ("localhost:6379", "10.0.0.1:6379", "10.0.0.1", True),
        ("localhost:6379", "10.0.0.1:6379", "10.0.0.2", False),
        ("127.0.0.1:6380", "10.0.0.1:6379", "10.0.0.1", False),
        ("local", "10.0.0.1:6379", "10.0.0.1", False),
        ("no such host:6379", "10.0.0.1:6379", "10.0.0.1", False),
    ],
)
def test_an_address_is_that_of_a_cluster(address: str, cluster: str, here: str, same: bool) -> None:
    assert is_same_cluster(address, cluster, here) is same
