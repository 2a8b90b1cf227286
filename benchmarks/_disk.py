"""The best that the disk can do, which checkpoints are compared with."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

NUM_THREADS, PIECE = 4, 4 << 20


def write_directly(memory: mmap.mmap, path: Path) -> None:
    """Write the memory durably: several threads, past the page cache."""
    fd, view = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600), memoryview(memory)
    os.posix_fallocate(fd, 0, len(view))
    starts = iter(range(0, len(view), PIECE))

    def work() -> None:
        for start in starts:
            os.pwrite(fd, view[start : start + PIECE], start)

    threads = [threading.Thread(target=work) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.fsync(fd)
    os.close(fd)
