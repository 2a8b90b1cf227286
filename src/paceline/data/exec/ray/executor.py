"""Rows of a pipeline on Ray, fetched to this process: what `InlineExecutor` is on one machine."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.exec.pipeline import Pipeline
from paceline.data.position import Delivered


class RayExecutor:
    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Delivered]:
        raise NotImplementedError
