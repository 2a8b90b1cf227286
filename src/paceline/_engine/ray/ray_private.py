"""What Ray does not promise to keep: its private modules and undocumented names. No other module uses any.

Each function says which public call would replace it. All of them exist from the lowest version of Ray that we allow to
the highest, and the tests on a cluster run with both.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

_SIGNAL_HANDLER_MODULE = "ray._private.worker"
_AUTOSCALING_KEY = b"__autoscaling_status"
_GCS_METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"


def get_ray_version() -> tuple[int, ...]:
    """Major and minor, without importing Ray."""
    return tuple(int(part) for part in version("ray").split(".")[:2])


def get_draining_nodes() -> Mapping[str, int]:
    """The draining nodes, and their deadlines in milliseconds since the epoch; 0 if a node has none.

    Public: none. `ray.nodes()` does not say which nodes are draining.
    """
    from ray._private import state

    found: Mapping[str, int] = state.state.get_draining_nodes()
    return found


def get_node_states(address: str) -> Any:
    """Each node with its total and free resources, status and labels, as `ray status` has them.

    Public: none. `ray.nodes()` has no free resources, and `ray.available_resources()` only those of the whole cluster.
    """
    import ray.autoscaler.v2.sdk

    sdk: Any = ray.autoscaler.v2.sdk
    return sdk.get_cluster_resource_state(sdk.GcsClient(address=address)).node_states


def get_autoscaling_report() -> bytes | None:
    """The report of the first autoscaler, JSON; None if there was none.

    Public: none. `ray status` prints it.
    """
    from ray.experimental import internal_kv

    report: bytes | None = internal_kv._internal_kv_get(_AUTOSCALING_KEY)
    return report


def get_autoscaler_status(address: str) -> Any:
    """What the second autoscaler reported: nodes that it started, and those that it will start.

    Public: none. `ray status -v` prints it.
    """
    from ray.autoscaler.v2 import sdk

    return sdk.get_cluster_status(address)


def get_object_locations(refs: Sequence[Any]) -> Mapping[Any, Mapping[str, Any]]:
    """The nodes that each object is on, as `node_ids`; none for one that its owner keeps in its own memory.

    Public: none. `ray.util.state.list_objects()` asks all workers of the cluster, and needs `ray[default]`.
    """
    from ray import experimental

    found: Mapping[Any, Mapping[str, Any]] = experimental.get_object_locations(list(refs))
    return found


def start_execution(dataset: Any) -> tuple[Iterator[Any], Any]:
    """Start a `ray.data.Dataset`: an iterator over its bundles, and what executes it; None if it is computed already.

    Public: `Dataset.iter_internal_ref_bundles()`, which does the same and keeps the executor to itself.
    """
    if get_ray_version() < (2, 56):
        bundles, _, executor = dataset._plan.execute_to_iterator()
    else:
        bundles, _, executor = dataset._execute_to_iterator(capture_executor=False)
    return bundles, executor


def stop_execution(executor: Any, timeout_s: float) -> None:
    """Stop an execution, and wait until its thread has ended, which holds rows until then.

    Public: none. Ray stops it when its iterator is collected, and waits two seconds for the thread.
    """
    executor.shutdown(force=False)
    executor.join(timeout_s)


def is_signal_handler(handler: object) -> bool:
    """Whether a signal handler is the one that `ray.init()` installs, which ends the process.

    Public: none. `ray.init()` has no argument that leaves handlers alone.
    """
    return getattr(handler, "__module__", None) == _SIGNAL_HANDLER_MODULE


def is_token_mode() -> bool | None:
    """Whether this process shows a cluster its token; None if it authenticates itself in another way.

    Public: `RAY_AUTH_MODE`, which does not say what this version does without it. Ray reads it when it is imported.
    """
    import ray._raylet

    raylet: Any = ray._raylet
    mode, modes = raylet.get_authentication_mode(), raylet.AuthenticationMode
    return True if mode == modes.TOKEN else False if mode == modes.DISABLED else None


def is_caller_accepted(address: str, token: str | None, timeout_s: float) -> bool | None:
    """Whether the head at an address answers a caller with this token, or with none; None if that cannot be told.

    A call of gRPC by hand: Ray repeats a call that is refused for twenty seconds, and then says that nothing answers.

    Public: none. `ray.init()` takes as long, and raises the same error for a head that is not there.
    """
    host, _, port = address.rpartition(":")
    fields = [
        *((":method", "POST"), (":scheme", "http"), (":path", _GCS_METHOD), (":authority", address)),
        *(("content-type", "application/grpc"), ("te", "trailers")),
        *([("authorization", f"Bearer {token}")] if token is not None else []),
    ]
    call = b"".join(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _make_frame(_SETTINGS, 0, 0),
            _make_frame(_HEADERS, _END_HEADERS, 1, b"".join(_encode_field(*field) for field in fields)),
            _make_frame(_DATA, _END_STREAM, 1, bytes(5)),  # a message of no bytes
        )
    )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
            connection.sendall(call)
            with connection.makefile("rb") as answer:
                while len(head := answer.read(_FRAME_HEAD_BYTES)) == _FRAME_HEAD_BYTES:
                    payload = answer.read(int.from_bytes(head[:3], "big"))
                    if head[3] == _HEADERS:
                        # A call that fails is answered by trailers alone, which say why.
                        is_over = bool(head[4] & _END_STREAM)
                        return (False if _UNAUTHENTICATED in payload else None) if is_over else True
    except (OSError, ValueError):
        pass
    return None


# Frames of HTTP/2 (RFC 9113) and fields of HPACK (RFC 7541), as plain as they can be.

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_FRAME_HEAD_BYTES = 9
_UNAUTHENTICATED = b"\x0bgrpc-status\x0216"


def _make_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _encode_field(name: str, value: str) -> bytes:
    return b"\0" + _encode_text(name) + _encode_text(value)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest = len(data) - 127
    length = bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + data
