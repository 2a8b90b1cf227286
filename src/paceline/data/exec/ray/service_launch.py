"""Starts the actor that serves the datasets of a run, next to the driver and for as long as it drives the run."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from paceline._engine.ray.code_bundle import CodeBundle
from paceline._engine.ray.connection import gcs_address, import_ray
from paceline.data.context import DataContext
from paceline.data.exec.ray.row_messages import format_address
from paceline.data.exec.ray.row_service import RowService
from paceline.data.exec.ray.served_dataset import Say
from paceline.data.exec.ray.shipping import ShippedValue
from paceline.data.exec.ray.stats_poller import ServiceStatsPoller
from paceline.data.plan import PlanNode

_SMALL = 64 << 10
"""Arguments up to this many bytes are sent to the actor inline."""


@contextlib.contextmanager
def serve_datasets(
    plans: Mapping[str, PlanNode],
    context: DataContext,
    luggage: CodeBundle = CodeBundle(),  # noqa: B008  frozen
    say: Say = lambda _: None,
) -> Iterator[str]:
    """Serve datasets from an actor that lives as long as this context; yield the address for workers.

    `say` gets the lines to show to the user, in a separate thread.
    """
    with serve_with_stats(plans, context, luggage, say) as (address, _):
        yield address


@contextlib.contextmanager
def serve_with_stats(
    plans: Mapping[str, PlanNode], context: DataContext, luggage: CodeBundle, say: Say
) -> Iterator[tuple[str, ServiceStatsPoller]]:
    """Like `serve_datasets`, and also yield the service's statistics."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options: dict[str, Any] = {
        "name": f"paceline-rows-{secrets.token_hex(8)}",
        "num_cpus": 0,
        "max_concurrency": 100_000,
        "scheduling_strategy": here,
    }
    if luggage.runtime_env is not None:
        options["runtime_env"] = dict(luggage.runtime_env)
    token = secrets.token_hex(16)
    carried, kit = ShippedValue.from_value(dict(plans)), msgspec.msgpack.encode(luggage.config)
    is_small = not carried.refs and len(carried.pickled) + len(kit) + len(luggage.data) < _SMALL
    # Ray restarts an actor from its constructor arguments; those in the object store may be lost by then.
    options["max_restarts"] = -1 if is_small else 0
    files = luggage.data if is_small else [ray.put(luggage.data)]
    actor = ray.remote(RowService).options(**options).remote(token, carried, context, kit, files)
    listening = threading.Thread(
        target=_forward_lines, args=(actor, token, say), name="paceline-rows-said", daemon=True
    )
    listening.start()
    try:
        address = format_address(gcs_address(), ray.get_runtime_context().namespace, options["name"], token)
        yield address, ServiceStatsPoller(actor, token)
    finally:
        ray.kill(actor)
        listening.join()


def _forward_lines(actor: Any, token: str, say: Say) -> None:
    ray = import_ray()
    try:
        while True:
            say(ray.get(actor.next_line.remote(token)))
    except ray.exceptions.RayError:
        return  # the actor has ended with the run, or restarts and has nothing new to report
