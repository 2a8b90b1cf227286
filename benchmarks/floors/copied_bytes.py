"""The floor of a checkpoint: copies the bytes in memory, and writes them to a file with fsync.

Arguments: a directory, and `[[megabytes, times], ...]`. The first of each is cold, as with the contestants.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

QUIET_S = 0.2


def time_copy(source, target):
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


def time_write(source, path):
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        left = memoryview(source)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


directory, times_by_size = Path(sys.argv[1]), {}
for megabytes, times in json.loads(sys.argv[2]):
    source = np.arange((megabytes << 20) // 4, dtype=np.float32).view(np.uint8)
    target = np.zeros_like(source)
    times_by_size[megabytes] = took = {"memcpy": [], "write+fsync": []}
    for _ in range(1 + times):
        os.sync()
        time.sleep(QUIET_S)
        took["memcpy"].append(time_copy(source, target))
        took["write+fsync"].append(time_write(source, directory / "bytes"))
(directory / "took.json").write_text(json.dumps(times_by_size))
