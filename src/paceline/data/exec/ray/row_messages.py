"""The messages between workers and the service that serves their rows."""

from __future__ import annotations

import msgspec

from paceline._engine.messages import RAY_ROWS_PREFIX
from paceline.data.exec.failure import DataFailure, capture_failure
from paceline.data.row_ownership import EpochDivision


def format_address(cluster: str, namespace: str, name: str, token: str) -> str:
    """The address a worker gets: of the cluster, and of the service in it."""
    return f"{RAY_ROWS_PREFIX}{cluster}/{namespace}/{name}/{token}"


class OpenRowsRequest(msgspec.Struct, frozen=True):
    """A worker's request to open a dataset."""

    dataset: str
    division: EpochDivision
    rank: int
    attempt: int
    name: str
    """Identifies this request, in case it arrives twice."""

    @property
    def pass_key(self) -> tuple[str, EpochDivision]:
        """Workers with equal keys share a pass."""
        return self.dataset, self.division


class PiecesReply(msgspec.Struct, frozen=True):
    """The answer to a worker: pieces, the end, or why there are no more."""

    pieces: tuple[tuple[int, int, int, bool], ...] = ()
    """For each piece: unit, offset, rows of the whole block, and whether the piece is the block itself."""
    ended: bool = False
    failure: DataFailure | None = None
    pickled: bytes = b""


def make_failure_reply(error: Exception) -> PiecesReply:
    told, pickled = capture_failure(error, "")
    return PiecesReply(failure=told, pickled=pickled)
