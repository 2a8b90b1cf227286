"""This process's connection to a Ray cluster, the only place that initialises Ray, and the cluster's object store."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import ipaddress
import logging
import socket
import sys
import threading
from types import ModuleType
from typing import Any

from paceline._core import settings
from paceline._core.engine_choice import is_ray_in_use
from paceline._engine.ray import authentication

_REACHABLE_TIMEOUT_S = 5.0
_EXTRA = 'pip install "paceline[ray]"'
QUIET_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
"""Of `ray.init`: log nothing below errors."""


def import_ray() -> ModuleType:
    """Import Ray; if it is missing, raise an error that names what to install."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(f"the Ray engine needs Ray, which is not installed\n\nhint: {_EXTRA}") from None
    return ray


def create_placement_group(bundles: list[dict[str, float]], strategy: str) -> Any:
    """Reserve bundles on the cluster that this process is connected to; returns at once, before they are there."""
    ray = import_ray()
    if not ray.is_initialized():
        raise RuntimeError(
            "to_placement_group() needs a connection to a Ray cluster\n\n"
            "hint: call paceline.init(engine='ray') or ray.init() first"
        )
    return ray.util.placement_group(bundles, strategy=strategy)


CONNECT_LOCK = threading.RLock()
"""Held while this process connects: a worker may connect for its dataset rows while its function does too."""


def connect_to_cluster(address: str | None, namespace: str | None = None) -> Any:
    """Return Ray, initialised: as it is, with the cluster at an address, or with a new cluster on this machine."""
    if address is None and settings.load().ray_address is None and not is_ray_in_use():
        authentication.require_token_of_new_cluster()
    ray = import_ray()
    if address is not None and address.startswith("ray://"):
        raise ValueError(
            f"address must not be a Ray Client address, got {address!r}\n\n"
            "hint: run the script on a machine of the cluster, with its address as host:port or 'auto', "
            "or submit it with `ray job submit`"
        )
    with CONNECT_LOCK:
        if ray.is_initialized():
            if address not in (None, "auto") and not is_same_cluster(
                address, gcs_address(), ray.util.get_node_ip_address()
            ):
                raise ValueError(
                    f"address is {address!r}, but Ray is already connected to another cluster, {gcs_address()}\n\n"
                    "hint: leave the address out, or call ray.shutdown() first"
                )
            return ray
        options = QUIET_OPTIONS if namespace is None else {**QUIET_OPTIONS, "namespace": namespace}
        try:
            _check_reachable(address)
            ray.init(address=address, **options)
        except PermissionError:
            raise
        except OSError as error:
            raise ConnectionError(
                f"cannot reach a Ray cluster at {address!r}: {str(error).splitlines()[0]}\n\n"
                "hint: start one with `ray start --head`, or use another: paceline.init(engine='ray', address=...)"
            ) from error
        return ray


def is_same_cluster(address: str, cluster: str, here: str) -> bool:
    """Whether an address names a cluster, on a machine whose own address is `here`.

    Ray knows a cluster by one address only: one reached as `localhost:6379` by that of the machine.
    """
    if address == cluster:
        return True
    (host, _, port), (its_host, _, its_port) = address.rpartition(":"), cluster.rpartition(":")
    if port != its_port:
        return False
    try:
        addresses = [ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)]
    except (OSError, ValueError):
        return False
    return any(str(ip) == its_host or (ip.is_loopback and its_host == here) for ip in addresses)


def _check_reachable(address: str | None) -> None:
    """Fail fast if nothing listens there, or if it asks for a token that is not here: Ray would try for a minute."""
    host, separator, port = (address or settings.load().ray_address or "").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_REACHABLE_TIMEOUT_S).close()
        authentication.check_access(f"{host}:{port}")


def gcs_address() -> str:
    """Return the address at which other processes find the same cluster."""
    address: str = import_ray().get_runtime_context().gcs_address
    return address


def detach_from_lost_cluster() -> None:
    """Let this process exit as if it had never connected to the lost cluster.

    Ray's hook for uncaught errors first reports them to the cluster, and waits for it until Ray ends the process. And a
    call that still waits in a thread, woken by the shutdown at exit, would look for another cluster to ask.
    """
    ray: Any = sys.modules.get("ray")
    if ray is not None:
        atexit.unregister(ray.shutdown)
    if getattr(sys.excepthook, "__module__", "").startswith("ray."):
        sys.excepthook = sys.__excepthook__
    # Ray's pending native work crashes when its memory is torn down, so exit before that. By then Python has finished
    # cleanly.
    libc: Any = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


def is_driver() -> bool:
    """Whether this process is not a Ray task or actor, so that its environment is the user's."""
    runtime = import_ray().get_runtime_context()
    return runtime.get_task_id() is None and runtime.get_actor_id() is None


@contextlib.contextmanager
def quiet_ray_logging() -> Any:
    """Silence Ray's loggers below errors inside a block."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def put_object(value: Any, address: str | None = None) -> tuple[Any, bytes]:
    """Put a value into the store. Return a reference, which keeps it there while held, and its pickle for sending."""
    ray = connect_to_cluster(address)
    reference = ray.put(value)
    return reference, ray.cloudpickle.dumps(reference)


def get_object(packed: bytes) -> Any:
    """Return the value, in a worker of the cluster; large arrays in it are read-only views of the store."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init()  # Patched to find the cluster: see `ray_in_worker`.
    return ray.get(ray.cloudpickle.loads(packed))
