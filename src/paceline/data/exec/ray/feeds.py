"""The side of a worker: it asks the service of its run which rows are its own, and fetches those.

A worker is no process of Ray's. It connects to the cluster as it begins, in a thread beside it: Ray would take the
handlers of signals from the main one. A few pieces are on their way to this node before they are asked for.
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
from paceline._engine.ray.connect import connected, quietly
from paceline.data.block import Block, Schema
from paceline.data.exec.ray.asked import Opened, Told
from paceline.data.exec.ray.cut import pieced, writable
from paceline.data.exec.ray.values import unpacked
from paceline.data.exec.stats import StreamStats
from paceline.data.mixing import Mixing
from paceline.data.parts import Division
from paceline.data.position import Cursor, Delivered
from paceline.data.sparse import Partial, Sparse

_AHEAD = 3
"""So many pieces are brought to this node before they are used."""


class Service:
    """The service at an address, as seen from this process."""

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
        """A reference to the answer, which is under way."""
        if self._owner != os.getpid():
            raise DataError(
                "rows of a dataset on a Ray cluster were asked for in a fork of the worker, and no connection to Ray "
                "survives a fork\n\nhint: iterate over the dataset in the worker itself, or start processes by spawn"
            )
        self._thread.join()
        if self._problem is not None:
            raise DataError(f"the service that gives the rows cannot be reached: {self._problem}") from self._problem
        # What can be asked twice is, while the service begins anew. Of pieces each is told once.
        retries = -1 if method in ("known", "open") else 0
        return getattr(self._actor, method).options(max_task_retries=retries).remote(self._token, *arguments)

    def leave(self, number: int) -> None:
        if self._owner == os.getpid() and self.ray.is_initialized():
            self.call("leave", number)

    def get(self, ref: Any) -> Any:
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise DataError(f"rows could not be cut out of a block: {error}") from error
        except self.ray.exceptions.RayError as error:
            raise DataError(f"rows on the cluster were lost, or what serves them: {_first_line(error)}") from error

    def known(self, attempt: int, dataset: str, what: str) -> Any:
        value, told = self.get(self.call("known", attempt, dataset, what))
        if told:
            raise _error(msgspec.msgpack.decode(told, type=Told))
        return cloudpickle.loads(value)

    def _connect(self, cluster: str, namespace: str, name: str) -> None:
        try:
            with quietly():
                self.ray = connected(cluster, namespace)
            self._actor = self.ray.get_actor(name, namespace=namespace)
        except BaseException as problem:  # noqa: BLE001  raised where rows are asked for
            self._problem = problem


@lru_cache(maxsize=4)
def service_at(address: str) -> Service:
    """One for all datasets of this process. It begins to connect at once."""
    return Service(address)


class RayFeeds:
    """The rows of a dataset that the service at an address serves: for one worker of a group."""

    def __init__(self, address: str, dataset: str, attempt: int = 0) -> None:
        self._address = address
        self._dataset = dataset
        self._attempt = attempt
        service_at(address)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address, self._dataset, self._attempt)

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[Delivered]:
        division = Division(Cursor(epoch=epoch, unit=unit, offset=offset), "all", 1)
        for partial in self.open_part(division, 0):
            assert isinstance(partial.block, Block)
            yield Delivered(partial.unit, partial.offset, partial.block)

    def open_part(self, division: Division, rank: int) -> Iterator[Partial]:
        service = service_at(self._address)
        asked = msgspec.msgpack.encode(Opened(self._dataset, division, rank, self._attempt, secrets.token_hex(8)))
        number = service.get(service.call("open", asked))
        is_shared = division.mode == "all" and division.world > 1
        try:
            for num, (told, ref) in enumerate(_pieces(service, number), 1):
                unit, offset, num_rows, whole = told
                yield Partial(unit, offset, _block(service, ref, num_rows, whole, is_shared))
                service.call("passed", number, num)
        finally:
            service.leave(number)

    def fingerprint(self) -> str:
        return str(self._known("fingerprint"))

    def num_rows(self) -> int | None:
        number: int | None = self._known("num_rows")
        return number

    def schema(self) -> Schema | None:
        schema: Schema | None = self._known("schema")
        return schema

    def mixing(self) -> Mixing:
        mixing: Mixing = self._known("mixing")
        return mixing

    def stats(self) -> str:
        return str(self.seen())

    def seen(self) -> StreamStats:
        """The statistics of the dataset, over all workers and epochs."""
        seen: StreamStats = self._known("stats")
        return seen

    def _known(self, what: str) -> Any:
        return service_at(self._address).known(self._attempt, self._dataset, what)


def _pieces(service: Service, number: int) -> Iterator[tuple[tuple[int, int, int, bool], Any]]:
    """What is to be had of each block, in order."""
    known: deque[tuple[tuple[int, int, int, bool], Any]] = deque()
    last: Told | None = None
    asked = service.call("take", number)
    while known or last is None:
        if last is None and (not known or (len(known) < _AHEAD and _is_there(service, asked))):
            encoded, refs = service.get(asked)
            told = msgspec.msgpack.decode(encoded, type=Told)
            known.extend(zip(told.pieces, refs, strict=True))
            if told.ended or told.failure is not None:
                last = told
            else:
                asked = service.call("take", number)
            continue
        ahead = [ref for _, ref in list(known)[:_AHEAD] if ref is not None]
        if ahead:
            service.ray.wait(ahead, num_returns=len(ahead), timeout=0)
        yield known.popleft()
    if last.failure is not None:
        raise _error(last)


def _is_there(service: Service, asked: Any) -> bool:
    found, _ = service.ray.wait([asked], timeout=0)
    return bool(found)


def _block(service: Service, ref: Any, num_rows: int, whole: bool, is_shared: bool) -> Block | Sparse:
    if ref is None:
        return Sparse(num_rows, np.empty(0, np.int64), Block.empty())
    value = service.get(ref)
    if not whole:
        return pieced(value, num_rows)
    # What all workers read none of them may write to, and it need not be copied.
    return unpacked(value) if is_shared else writable(unpacked(value))


def _error(told: Told) -> BaseException:
    assert told.failure is not None
    return told.failure.error(told.pickled)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
