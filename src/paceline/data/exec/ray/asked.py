"""What workers and the service of their rows say to each other."""

from __future__ import annotations

import msgspec

from paceline._engine.messages import ON_CLUSTER
from paceline.data.exec.failure import Failure, failure
from paceline.data.parts import Division


def address_of(cluster: str, namespace: str, name: str, token: str) -> str:
    """What a worker is told: where the cluster is, and the service in it."""
    return f"{ON_CLUSTER}{cluster}/{namespace}/{name}/{token}"


class Opened(msgspec.Struct, frozen=True):
    """What a worker asks for."""

    dataset: str
    division: Division
    rank: int
    attempt: int
    name: str
    """Of this request, should it come twice."""

    @property
    def rows(self) -> tuple[str, Division]:
        """Workers that ask for the same ones share a pass."""
        return self.dataset, self.division


class Told(msgspec.Struct, frozen=True):
    """What a worker is told: pieces, the end, or why there are no more."""

    pieces: tuple[tuple[int, int, int, bool], ...] = ()
    """Of each the unit, the offset, the rows of the whole block, and whether it is the block itself."""
    ended: bool = False
    failure: Failure | None = None
    pickled: bytes = b""


def failed(error: Exception) -> Told:
    told, pickled = failure(error, "")
    return Told(failure=told, pickled=pickled)
