"""Many files at once, to a store and from it: a few at a time, so that memory stays bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from paceline._engine.messages import FileEntry
from paceline._storage.store import Store

NUM_AT_ONCE = 4

T = TypeVar("T")


def upload_all(store: Store, files: Sequence[tuple[Path, str]]) -> list[FileEntry]:
    """Put every (file, key), and return what was put in the order given; the first failure ends it."""
    return in_parallel([partial(store.upload, path, key) for path, key in files])


def download_all(store: Store, files: Sequence[tuple[str, Path]]) -> list[FileEntry]:
    """Get every (key, file), and return what was got in the order given; the first failure ends it."""
    for directory in {path.parent for _, path in files}:
        directory.mkdir(parents=True, exist_ok=True)
    return in_parallel([partial(store.download, key, path) for key, path in files])


def in_parallel(calls: Sequence[Callable[[], T]], num_at_once: int = NUM_AT_ONCE) -> list[T]:
    """The answers in order. After a failure nothing more is begun, what runs is waited for, and it is raised."""
    answers: dict[int, T] = {}
    failures: list[BaseException] = []
    ahead = iter(enumerate(calls))
    # Protects `ahead`, which cannot be advanced by two threads, and orders the failures.
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index, call = (None, None) if failures else next(ahead, (None, None))
            if index is None or call is None:
                return
            try:
                answers[index] = call()
            except BaseException as error:  # noqa: BLE001  raised below, by the thread that waits
                with lock:
                    failures.append(error)

    # Daemons, for nobody may wait at the end of the process for a transfer that hangs.
    threads = [
        threading.Thread(target=work, name="paceline-transfer", daemon=True)
        for _ in range(min(num_at_once, len(calls)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answers[index] for index in range(len(calls))]
