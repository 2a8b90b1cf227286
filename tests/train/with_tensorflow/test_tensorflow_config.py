"""How workers of TensorFlow find each other, and what their exceptions say: which are another worker's end."""

import socket
from types import SimpleNamespace

import pytest

from paceline.train.tensorflow import TensorflowConfig, config
from paceline.train.tensorflow.config import KERAS_HINT, _environment, explain_error, extract_reason, is_secondary_error

GRAPH = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "/home/me/train.py", line 56, in <module>

  File "/home/me/train.py", line 52, in step

Collective ops is aborted by: failed to connect to all addresses
Additional GRPC error information from remote target /job:worker/replica:0/task:0
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_320]"""


def test_a_function_that_fails_in_a_graph_says_why(tf):
    @tf.function
    def function(x):
        tf.debugging.assert_less(x, 1, message="x has grown")
        return x

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(tf.constant(2))
    assert str(caught.value).startswith("Graph execution error:"), "else there is nothing to add"
    assert "x has grown" in explain_error(caught.value, 2)
    assert extract_reason("no heading\n\nand more") is extract_reason("Graph execution error:\n\n") is None
    assert not is_secondary_error(caught.value)


def test_a_collective_that_was_broken_off_is_an_echo(tf):
    errors = tf.errors
    assert is_secondary_error(errors.UnavailableError(None, None, GRAPH))
    assert is_secondary_error(errors.AbortedError(None, None, "Collective ops is aborted by: ..."))
    assert not is_secondary_error(errors.UnavailableError(None, None, "the bucket gs://data does not answer"))
    # What the ranks themselves got wrong ends collectives too, and is no echo.
    assert not is_secondary_error(errors.InvalidArgumentError(None, None, "Collective ops is aborted by: Shape"))
    assert not is_secondary_error(ValueError("Collective ops is aborted"))


@pytest.mark.parametrize(("kind", "folds"), [("UnavailableError", True), ("InvalidArgumentError", False)])
def test_an_echo_folds_beneath_its_cause_and_says_its_reason(tf, kind, folds):
    alone = begin(world_size=1, num_nodes=1, num_threads=1)
    context = SimpleNamespace(begin=alone, secondary_error=None, gather=lambda address: (address,))
    error = getattr(tf.errors, kind)(None, None, GRAPH)

    def fails():
        with TensorflowConfig().around(context):
            raise error

    with pytest.raises(tf.errors.OpError):
        fails()
    assert (context.secondary_error is error) == folds
    assert error.__notes__ == ["Collective ops is aborted by: failed to connect to all addresses"]


def test_the_hint_at_tf_keras_comes_only_with_keras_3_and_several_workers(tf):
    def failing(message):
        def loss(true, predicted):
            raise ValueError(message)

        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(loss=loss)
        with pytest.raises(ValueError, match=message) as caught:
            model.fit(tf.zeros((1, 1)), tf.zeros((1, 1)), verbose=0)
        return caught.value

    assert explain_error(failing("a PerReplica value"), 2) == KERAS_HINT
    assert explain_error(failing("a PerReplica value"), 1) is None
    assert explain_error(failing("a bug of one's own"), 2) is None
    assert explain_error(ValueError("a PerReplica value"), 2) is None, "it did not come from Keras"


def begin(**given):
    return SimpleNamespace(**{"rank": 1, "devices": (), **given})


def test_a_proxy_for_the_web_is_passed_by(monkeypatch):
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.setenv("no_proxy", "example.org")
    found = _environment(begin(), ["10.0.0.2:1", "10.0.0.1:2", "[fd00::1]:3"])
    assert found["no_grpc_proxy"] == "example.org,10.0.0.1,10.0.0.2,fd00::1"


def test_gpus_that_tensorflow_does_not_see_are_an_error(tf):
    number = len(tf.config.list_physical_devices("GPU"))
    with pytest.raises(RuntimeError, match=f"this worker has GPU {number}, but TensorFlow finds {number}"):
        config._set_visible_gpus(begin(devices=(number,)))


def test_a_worker_sees_its_own_gpu_only(tf, run_script):
    if len(tf.config.list_physical_devices("GPU")) < 2:
        pytest.skip("fewer than two GPUs: that a worker sees its own only was not checked")
    ended = run_script(
        "from types import SimpleNamespace\n"
        "import tensorflow as tf\n"
        "from paceline.train.tensorflow.config import _set_visible_gpus\n"
        "_set_visible_gpus(SimpleNamespace(devices=(1,)))\n"
        "assert [gpu.name for gpu in tf.config.get_visible_devices('GPU')] == ['/physical_device:GPU:1']\n"
        "assert len(tf.config.list_logical_devices('GPU')) == 1\n"
    )
    assert ended.returncode == 0, ended.stderr


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
