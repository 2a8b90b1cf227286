"""What a Ray cluster has, from the API behind `ray status`: nodes, free resources, and whether it can grow.

In a cluster started without an autoscaler configuration, each node is a type of its own, named after the node; only
clusters that can add nodes have named types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from paceline._engine.ray.cluster_capacity import ClusterCapacity, NodeCapacity
from paceline._engine.ray.connection import gcs_address

_UNNAMED_TYPE = re.compile(r"node_[0-9a-f]+")
_STATUS_KEY = b"__autoscaling_status"
_GONE = ("DEAD", "DRAINING")
"""Statuses of nodes that take no more workers."""


def read_cluster() -> ClusterCapacity:
    """Return the current state of the cluster; changes of the last moments may be missing."""
    sdk = _autoscaler_sdk()
    state = sdk.get_cluster_resource_state(sdk.GcsClient(address=gcs_address()))
    nodes = [
        NodeCapacity(each.node_id.hex(), dict(each.total_resources), dict(each.available_resources), dict(each.labels))
        for each in state.node_states
        if _node_status(each) not in _GONE
    ]
    return ClusterCapacity(tuple(sorted(nodes, key=lambda node: node.id)), has_autoscaler())


def has_autoscaler() -> bool:
    from ray.experimental import internal_kv

    status_json = internal_kv._internal_kv_get(_STATUS_KEY)
    if status_json and has_named_types(_reported_node_types(json.loads(status_json).get("autoscaler_report") or {})):
        return True
    status = _autoscaler_sdk().get_cluster_status(gcs_address())
    if int(status.stats.autoscaler_version or 0) == 0:
        return False  # No version 2 autoscaler has reported.
    nodes = [*status.active_nodes, *status.idle_nodes, *status.pending_nodes]
    return bool(status.pending_launches) or has_named_types(node.ray_node_type_name for node in nodes)


def has_named_types(types: Iterable[str]) -> bool:
    return any(name and not _UNNAMED_TYPE.fullmatch(name) for name in types)


def _reported_node_types(report: dict[str, Any]) -> list[str]:
    types = [*(report.get("active_nodes") or {}), *(report.get("pending_launches") or {})]
    return types + [name for name in (report.get("node_type_mapping") or {}).values() if isinstance(name, str)]


def _autoscaler_sdk() -> Any:
    """Return the module that `ray status` uses."""
    from ray.autoscaler.v2 import sdk

    return sdk


def _node_status(state: Any) -> str:
    values = state.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
    name: str = values[state.status].name
    return name
