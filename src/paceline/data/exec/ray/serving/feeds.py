"""The worker side: asks the service of the run for the worker's own rows, and fetches them.

A worker is not a Ray process. It connects to the cluster at its start, in a separate thread: in the main thread, Ray
would replace the signal handlers. A few pieces are prefetched to this node.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import cloudpickle
import msgspec
import numpy as np

from paceline._core.errors import DataError
from paceline._engine.ray.connection import connect_to_cluster, quiet_ray_logging
from paceline.data.block import Block
from paceline.data.exec.failure import DataFailure
from paceline.data.exec.ray.ray_values import unpack_from_ray
from paceline.data.exec.ray.serving.row_protocol import OpenRowsRequest, PiecesReply, assemble_piece, copy_writable
from paceline.data.exec.service_client import ServedFacts
from paceline.data.order.row_ownership import EpochDivision, PartialDelivery, SparseBlock
from paceline.data.order.sharding import Cursor, RowDelivery

_NUM_PREFETCHED = 3


class RowServiceClient:
    """A client of the service at an address, for this process."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        _, namespace, name, self._token = parts.path.split("/")
        self._owner = os.getpid()
        self._problem: BaseException | None = None
        self._actor: Any = None
        self.ray: Any = None
        self._thread = threading.Thread(
            target=self._connect, args=(parts.netloc, namespace, name), name="paceline-ray-connect", daemon=True
        )
        self._thread.start()

    def call(self, method: str, *arguments: Any) -> Any:
        """Start the call and return a reference to its answer."""
        if self._owner != os.getpid():
            raise DataError(
                "a forked child of the worker cannot read a dataset on a Ray cluster: connections to Ray do not "
                "survive a fork\n\nhint: iterate over the dataset in the worker itself, or start processes by spawn"
            )
        self._thread.join()
        if self._problem is not None:
            raise DataError(f"cannot reach the data service: {self._problem}") from self._problem
        # Idempotent calls are retried while the service restarts. Pieces are delivered only once.
        retries = -1 if method in ("fetch_fact", "open") else 0
        return getattr(self._actor, method).options(max_task_retries=retries).remote(self._token, *arguments)

    def leave(self, number: int) -> None:
        if self._owner == os.getpid() and self.ray.is_initialized():
            self.call("leave", number)

    def get(self, ref: Any) -> Any:
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise DataError(f"cannot cut rows out of a block: {error}") from error
        except self.ray.exceptions.RayError as error:
            raise DataError(f"lost the rows on the cluster, or their service: {_first_line(error)}") from error

    def fetch_fact(self, attempt: int, dataset: str, fact: str) -> Any:
        value, failure = self.get(self.call("fetch_fact", attempt, dataset, fact))
        if failure:
            raise msgspec.msgpack.decode(failure, type=DataFailure).to_exception()
        return cloudpickle.loads(value)

    def _connect(self, cluster: str, namespace: str, name: str) -> None:
        try:
            with quiet_ray_logging():
                self.ray = connect_to_cluster(cluster, namespace)
            self._actor = self.ray.get_actor(name, namespace=namespace)
        except BaseException as problem:  # noqa: BLE001
            self._problem = problem


@lru_cache(maxsize=4)
def get_service_client(address: str) -> RowServiceClient:
    """One client for all datasets of this process. It starts to connect at once."""
    return RowServiceClient(address)


class RayFeeds(ServedFacts):
    """The rows of a dataset served at an address, for one worker of a group."""

    def __init__(self, address: str, dataset: str, attempt: int = 0) -> None:
        self._address = address
        self._dataset = dataset
        self._attempt = attempt
        get_service_client(address)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address, self._dataset, self._attempt)

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[RowDelivery]:
        division = EpochDivision(Cursor(epoch=epoch, unit=unit, offset=offset), "all", 1)
        for partial in self.open_part(division, 0):
            assert isinstance(partial.block, Block)
            yield RowDelivery(partial.unit, partial.offset, partial.block)

    def open_part(self, division: EpochDivision, rank: int) -> Iterator[PartialDelivery]:
        service = get_service_client(self._address)
        request = OpenRowsRequest(self._dataset, division, rank, self._attempt, secrets.token_hex(8))
        number = service.get(service.call("open", msgspec.msgpack.encode(request)))
        is_shared = division.mode == "all" and division.world > 1
        try:
            for num, ((unit, offset, num_rows, is_whole), ref) in enumerate(_receive_pieces(service, number), 1):
                yield PartialDelivery(unit, offset, _load_block(service, ref, num_rows, is_whole, is_shared))
                service.call("mark_passed", number, num)
        finally:
            service.leave(number)

    def _fetch_fact(self, name: str) -> Any:
        return get_service_client(self._address).fetch_fact(self._attempt, self._dataset, name)


def _receive_pieces(service: RowServiceClient, number: int) -> Iterator[tuple[tuple[int, int, int, bool], Any]]:
    """Yield what the worker gets of each block, in order."""
    pieces: deque[tuple[tuple[int, int, int, bool], Any]] = deque()
    last: PiecesReply | None = None
    pending = service.call("take", number)
    while pieces or last is None:
        has_room = len(pieces) < _NUM_PREFETCHED
        if last is None and (not pieces or (has_room and service.ray.wait([pending], timeout=0)[0])):
            encoded, refs = service.get(pending)
            reply = msgspec.msgpack.decode(encoded, type=PiecesReply)
            pieces.extend(zip(reply.pieces, refs, strict=True))
            if reply.ended or reply.failure is not None:
                last = reply
            else:
                pending = service.call("take", number)
            continue
        ahead = [ref for _, ref in list(pieces)[:_NUM_PREFETCHED] if ref is not None]
        if ahead:
            service.ray.wait(ahead, num_returns=len(ahead), timeout=0)
        yield pieces.popleft()
    if last.failure is not None:
        raise last.failure.to_exception()


def _load_block(
    service: RowServiceClient, ref: Any, num_rows: int, is_whole: bool, is_shared: bool
) -> Block | SparseBlock:
    if ref is None:
        return SparseBlock(num_rows, np.empty(0, np.int64), Block.empty())
    value = service.get(ref)
    if not is_whole:
        return assemble_piece(value, num_rows)
    # Rows that all workers read must not be written to, so they need no copy.
    return unpack_from_ray(value) if is_shared else copy_writable(unpack_from_ray(value))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
