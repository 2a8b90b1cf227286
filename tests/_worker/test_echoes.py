"""Which exceptions tell of another rank's end, and which of one that others never came to."""

import pytest

from paceline._worker.main import _is_secondary


@pytest.mark.parametrize(
    ("error", "is_echo"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (BrokenPipeError(32, "Broken pipe"), True),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv"), False),
        (
            RuntimeError("NCCL: Watchdog caught collective operation timeout: ran for 600 s before timing out"),
            False,
        ),
        (ValueError("loss is nan"), False),
    ],
)
def test_a_broken_connection_is_an_echo_and_a_collective_that_times_out_is_none(error, is_echo):
    assert _is_secondary(error) is is_echo
