"""Who drives a run has its datasets served: an actor, beside it, for as long as the run is driven."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from paceline._engine.ray.connect import gcs_address, imported
from paceline._engine.ray.travel import Luggage
from paceline.data.context import DataContext
from paceline.data.exec.ray.asked import address_of
from paceline.data.exec.ray.carry import Carried
from paceline.data.exec.ray.serving import RowService
from paceline.data.exec.ray.supply import Say
from paceline.data.exec.ray.watched import Watched
from paceline.data.plan import Node

_SMALL = 64 << 10
"""Bytes that go to an actor with the message that makes it."""


@contextlib.contextmanager
def serving(
    plans: Mapping[str, Node],
    context: DataContext,
    luggage: Luggage = Luggage(),  # noqa: B008  frozen
    say: Say = lambda _: None,
) -> Iterator[str]:
    """The address at which workers get the rows of datasets, from an actor that lives for so long.

    `say` is told what a person should see, in a thread of its own.
    """
    with watched(plans, context, luggage, say) as (address, _):
        yield address


@contextlib.contextmanager
def watched(
    plans: Mapping[str, Node], context: DataContext, luggage: Luggage, say: Say
) -> Iterator[tuple[str, Watched]]:
    """The same, and how it goes."""
    ray = imported()
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
    carried, kit = Carried.of(dict(plans)), msgspec.msgpack.encode(luggage.kit)
    is_small = not carried.refs and len(carried.pickled) + len(kit) + len(luggage.data) < _SMALL
    # Ray makes an actor again from what it was told; what lies in the object store may be gone by then.
    options["max_restarts"] = -1 if is_small else 0
    files = luggage.data if is_small else [ray.put(luggage.data)]
    actor = ray.remote(RowService).options(**options).remote(token, carried, context, kit, files)
    listening = threading.Thread(target=_listen, args=(actor, token, say), name="paceline-rows-said", daemon=True)
    listening.start()
    try:
        address = address_of(gcs_address(), ray.get_runtime_context().namespace, options["name"], token)
        yield address, Watched(actor, token)
    finally:
        ray.kill(actor)
        listening.join()


def _listen(actor: Any, token: str, say: Say) -> None:
    ray = imported()
    try:
        while True:
            say(ray.get(actor.said.remote(token)))
    except ray.exceptions.RayError:
        return  # it has ended, and the run with it; or it begins anew, and has nothing new to say
