"""Runs pipelines on a Ray cluster with Ray Data. Rows and their order are the same as on one machine.

`stream_blocks` yields references to blocks, in order; the rows stay where they were computed until somebody fetches
them.
"""

from paceline.data.exec.ray.block_stream import PlacedBlock, stream_blocks
from paceline.data.exec.ray.executor import RayExecutor
from paceline.data.exec.ray.ray_values import pack_for_ray, unpack_from_ray

__all__ = ["PlacedBlock", "RayExecutor", "pack_for_ray", "stream_blocks", "unpack_from_ray"]
