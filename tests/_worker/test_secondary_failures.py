"""Which exceptions are secondary: the consequence of another rank's exit."""

import pytest

from paceline._worker.main import _is_secondary


@pytest.mark.parametrize(
    ("error", "is_secondary"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (BrokenPipeError(32, "Broken pipe"), True),
        (ValueError("UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was pree"), True),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Read error [127.0.0.1]:4484: Connection reset by peer"), True),
        (ValueError("INVALID_ARGUMENT: shapes do not match"), False),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv"), False),
        (RuntimeError("NCCL: Watchdog caught collective operation timeout: ran for 600 s before timing out"), False),
        (ValueError("loss is nan"), False),
    ],
)
def test_a_broken_connection_is_secondary_and_a_collective_timeout_is_not(error, is_secondary):
    assert _is_secondary(error) is is_secondary
