"""What Ray does not promise to keep: its private modules and undocumented names. No other module uses any.

Each function says which public call would replace it. All of them exist from the lowest version of Ray that we allow to
the highest, and the tests on a cluster run with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIGNAL_HANDLER_MODULE = "ray._private.worker"
_AUTOSCALING_KEY = b"__autoscaling_status"


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


def is_signal_handler(handler: object) -> bool:
    """Whether a signal handler is the one that `ray.init()` installs, which ends the process.

    Public: none. `ray.init()` has no argument that leaves handlers alone.
    """
    return getattr(handler, "__module__", None) == _SIGNAL_HANDLER_MODULE
