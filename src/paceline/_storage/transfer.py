"""Uploads and downloads many files, a few at a time, so that memory stays bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from paceline._engine.messages import FileEntry
from paceline._storage.store import Store

MAX_PARALLEL = 4

T = TypeVar("T")


def upload_all(store: Store, files: Sequence[tuple[Path, str]]) -> list[FileEntry]:
    """Upload every (file, key) and return the entries in order. Stops at the first failure."""
    return run_in_parallel([partial(store.upload, path, key) for path, key in files])


def download_all(store: Store, files: Sequence[tuple[str, Path]]) -> list[FileEntry]:
    """Download every (key, file) and return the entries in order. Stops at the first failure."""
    for directory in {path.parent for _, path in files}:
        directory.mkdir(parents=True, exist_ok=True)
    return run_in_parallel([partial(store.download, key, path) for key, path in files])


def run_in_parallel(calls: Sequence[Callable[[], T]], num_at_once: int = MAX_PARALLEL) -> list[T]:
    """Return the results in order. After a failure, starts no more calls, waits for the running ones, and raises it."""
    answers: dict[int, T] = {}
    failures: list[BaseException] = []
    ahead = iter(enumerate(calls))
    # Protects `ahead`, which two threads cannot advance at once, and orders the failures.
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

    # Daemon threads: a transfer that hangs must not keep the process from exiting.
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
