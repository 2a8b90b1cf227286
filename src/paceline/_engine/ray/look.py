"""What a Ray cluster has, as its own `ray status` knows it: nodes, what is free on each, whether it grows by itself.

A cluster that was started without a configuration for its autoscaler calls each node a type of its own, after the
node; only one that can bring nodes has types with names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from paceline._engine.ray.connect import gcs_address
from paceline._engine.ray.room import Cluster, Node

_OWN_TYPE = re.compile(r"node_[0-9a-f]+")
_STATUS = b"__autoscaling_status"
_GONE = ("DEAD", "DRAINING")
"""Nodes that take no more workers."""


def looked() -> Cluster:
    """The cluster as it is now; of what was taken or let go in the last moments it may not know yet."""
    sdk = _status_of_ray()
    state = sdk.get_cluster_resource_state(sdk.GcsClient(address=gcs_address()))
    nodes = [
        Node(each.node_id.hex(), dict(each.total_resources), dict(each.available_resources), dict(each.labels))
        for each in state.node_states
        if _status(each) not in _GONE
    ]
    return Cluster(tuple(sorted(nodes, key=lambda node: node.id)), grows())


def grows() -> bool:
    """Whether the cluster has an autoscaler that brings nodes."""
    from ray.experimental import internal_kv

    told = internal_kv._internal_kv_get(_STATUS)
    if told and has_named_types(_types_of_report(json.loads(told).get("autoscaler_report") or {})):
        return True
    status = _status_of_ray().get_cluster_status(gcs_address())
    if int(status.stats.autoscaler_version or 0) == 0:
        return False  # Nobody has reported as the newer autoscaler.
    nodes = [*status.active_nodes, *status.idle_nodes, *status.pending_nodes]
    return bool(status.pending_launches) or has_named_types(node.ray_node_type_name for node in nodes)


def has_named_types(types: Iterable[str]) -> bool:
    return any(name and not _OWN_TYPE.fullmatch(name) for name in types)


def _types_of_report(report: dict[str, Any]) -> list[str]:
    types = [*(report.get("active_nodes") or {}), *(report.get("pending_launches") or {})]
    return types + [name for name in (report.get("node_type_mapping") or {}).values() if isinstance(name, str)]


def _status_of_ray() -> Any:
    """What `ray status` calls."""
    from ray.autoscaler.v2 import sdk

    return sdk


def _status(state: Any) -> str:
    values = state.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
    name: str = values[state.status].name
    return name
