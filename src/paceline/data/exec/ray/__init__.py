"""Pipelines on a Ray cluster: run by Ray Data, with the rows and the order that they have on one machine.

`blocks_of` gives references to blocks, in order; the rows stay where they were made until somebody asks for them.
"""

from paceline.data.exec.ray.blocks import Placed, blocks_of
from paceline.data.exec.ray.executor import RayExecutor
from paceline.data.exec.ray.values import packed, unpacked

__all__ = ["Placed", "RayExecutor", "blocks_of", "packed", "unpacked"]
