"""Starts the actor that serves the datasets of a run, next to the driver and for as long as it drives the run.

`ServiceStatsPoller` has the statistics as the actor last reported them, and never waits for it.
"""

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
from paceline.data.exec.ray.serving.row_protocol import format_address
from paceline.data.exec.ray.serving.row_service import RowService
from paceline.data.exec.ray.serving.served_dataset import Say
from paceline.data.exec.ray.shipping import ShippedValue
from paceline.data.exec.stats import StreamStats
from paceline.data.planning.plan import PlanNode

_SMALL = 64 << 10
"""Arguments up to this many bytes are sent to the actor inline."""


@contextlib.contextmanager
def serve_with_stats(
    plans: Mapping[str, PlanNode], context: DataContext, code_bundle: CodeBundle, say: Say
) -> Iterator[tuple[str, ServiceStatsPoller]]:
    """Serve datasets from an actor that lives as long as this context; yield the address for workers, and statistics.

    `say` gets the lines to show to the user, in a separate thread.
    """
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options: dict[str, Any] = {
        "name": f"paceline-rows-{secrets.token_hex(8)}",
        "num_cpus": 0,
        "max_concurrency": 100_000,
        "scheduling_strategy": here,
    }
    if code_bundle.runtime_env is not None:
        options["runtime_env"] = dict(code_bundle.runtime_env)
    token = secrets.token_hex(16)
    shipped_plans, config = ShippedValue.from_value(dict(plans)), msgspec.msgpack.encode(code_bundle.config)
    is_small = not shipped_plans.refs and len(shipped_plans.pickled) + len(config) + len(code_bundle.data) < _SMALL
    # Ray restarts an actor from its constructor arguments; those in the object store may be lost by then.
    options["max_restarts"] = -1 if is_small else 0
    files = code_bundle.data if is_small else [ray.put(code_bundle.data)]
    actor = ray.remote(RowService).options(**options).remote(token, shipped_plans, context, config, files)
    listener = threading.Thread(
        target=_forward_lines, args=(actor, token, say), name="paceline-rows-lines", daemon=True
    )
    listener.start()
    try:
        address = format_address(gcs_address(), ray.get_runtime_context().namespace, options["name"], token)
        yield address, ServiceStatsPoller(actor, token)
    finally:
        ray.kill(actor)
        listener.join()


def _forward_lines(actor: Any, token: str, say: Say) -> None:
    ray = import_ray()
    try:
        while True:
            say(ray.get(actor.next_line.remote(token)))
    except ray.exceptions.RayError:
        return  # the actor has ended with the run, or restarts and has nothing new to report


_decode = msgspec.msgpack.Decoder(dict[str, StreamStats]).decode


class ServiceStatsPoller:
    """Each call returns the last known statistics and requests new ones."""

    def __init__(self, actor: Any, token: str) -> None:
        self._actor = actor
        self._token = token
        self._pending: Any = None
        self._last: dict[str, StreamStats] = {}

    def __call__(self) -> Mapping[str, StreamStats]:
        ray = import_ray()
        try:
            if self._pending is not None and ray.wait([self._pending], timeout=0)[0]:
                answered, self._pending = self._pending, None
                self._last = _decode(ray.get(answered))
            if self._pending is None:
                self._pending = self._actor.all_stats.remote(self._token)
        except ray.exceptions.RayError:
            self._pending = None  # The actor is lost or restarts; the workers get the error.
        return self._last
