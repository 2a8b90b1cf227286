"""A store that retries transient errors, and gives up in the end.

Pauses between tries grow and are jittered. A call that moves no bytes for a while is abandoned: its thread may hang in
a library for ever, so it is a daemon and does not keep the process from exiting.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paceline._core.checkpoint_records import FileEntry
from paceline._core.errors import StorageError
from paceline._core.system import Clock, SystemClock
from paceline._storage.store import ProgressCallback, Store, StoreEntry, check_key, ignore_progress
from paceline._storage.store_errors import is_access_denied, is_transient, summarize_error

T = TypeVar("T")


@dataclass(frozen=True)
class StoreRetryPolicy:
    num_tries: int = 8
    first_pause_s: float = 0.25
    longest_pause_s: float = 20.0
    stall_timeout_s: float = 120.0
    """How long a call may go without moving a byte, over all its tries."""

    def backoff_s(self, num_failed: int, chance: float) -> float:
        """Return the pause after `num_failed` failures; `chance`, from 0 to 1, is jitter that spreads workers."""
        pause_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (num_failed - 1))
        return pause_s * (0.5 + chance / 2)


DEFAULT_RETRY_POLICY = StoreRetryPolicy()


class RetryingStore:
    def __init__(
        self,
        store: Store,
        retry_policy: StoreRetryPolicy = DEFAULT_RETRY_POLICY,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.uri = store.uri
        self.has_conditional_puts = store.has_conditional_puts
        self.path = store.path
        self._store = store
        self._retry_policy = retry_policy
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._chance = chance

    @property
    def filesystem(self) -> Any:
        return self._store.filesystem

    def read(self, key: str) -> bytes:
        return self._call_with_retries("read", key, lambda moved: self._store.read(key))[0]

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        return self._call_with_retries("read", key, lambda moved: self._store.read_tagged(key))[0]

    def write(self, key: str, data: bytes) -> None:
        self._call_with_retries("write", key, lambda moved: self._store.write(key, data))

    def create(self, key: str, data: bytes) -> bool:
        is_new, num_failed = self._call_with_retries("write", key, lambda moved: self._store.create(key, data))
        if is_new or not num_failed:
            return is_new
        # An earlier try may have succeeded and only its reply been lost: compare with what is stored.
        try:
            return self.read(key) == data
        except FileNotFoundError:
            return False

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        new, num_failed = self._call_with_retries("write", key, lambda moved: self._store.replace(key, data, tag))
        if new is not None or not num_failed:
            return new
        try:
            stored, stored_tag = self.read_tagged(key)
        except FileNotFoundError:
            return None
        return stored_tag if stored == data else None

    def upload(self, source: Path, key: str, moved: ProgressCallback = ignore_progress) -> FileEntry:
        return self._call_with_retries(
            "upload", key, lambda track: self._store.upload(source, key, _notify_both(track, moved))
        )[0]

    def download(self, key: str, target: Path, moved: ProgressCallback = ignore_progress) -> FileEntry:
        return self._call_with_retries(
            "download", key, lambda track: self._store.download(key, target, _notify_both(track, moved))
        )[0]

    def list_entries(self, prefix: str = "") -> list[StoreEntry]:
        return self._call_with_retries("list", prefix, lambda moved: self._store.list_entries(prefix))[0]

    def delete(self, key: str) -> None:
        self._call_with_retries("delete", key, lambda moved: self._store.delete(key))

    def delete_all(self, prefix: str) -> None:
        self._call_with_retries("delete", prefix, lambda moved: self._store.delete_all(prefix))

    def _call_with_retries(self, verb: str, key: str, call: Callable[[ProgressCallback], T]) -> tuple[T, int]:
        """Return the result of the call and the number of failures before it."""
        check_key(key)
        progress = _TransferProgress(self._clock)
        began = self._clock.now()
        num_failed = 0
        while True:
            try:
                return self._call_with_stall_timeout(verb, key, call, progress), num_failed
            except StorageError:
                raise
            except FileNotFoundError:
                if verb in ("read", "download"):
                    raise
                raise StorageError(self._format_error(verb, key, "no such bucket or directory")) from None
            except Exception as error:
                num_failed += 1
                retry_policy = self._retry_policy
                idle_s = self._clock.now() - progress.last_at
                if not is_transient(error):
                    raise StorageError(
                        self._format_error(verb, key, summarize_error(error), hint=_find_hint(error))
                    ) from error
                if num_failed >= retry_policy.num_tries or idle_s >= retry_policy.stall_timeout_s:
                    for_s = self._clock.now() - began
                    reason = f"{num_failed} tries in {for_s:.0f} s; the last: {summarize_error(error)}"
                    raise StorageError(self._format_error(verb, key, reason)) from error
                self._sleep(retry_policy.backoff_s(num_failed, self._chance()))

    def _call_with_stall_timeout(
        self, verb: str, key: str, call: Callable[[ProgressCallback], T], progress: _TransferProgress
    ) -> T:
        outcome: Future[T] = Future()
        ended = threading.Event()

        def work() -> None:
            try:
                outcome.set_result(call(progress.add_bytes))
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                outcome.set_exception(error)
            ended.set()

        threading.Thread(target=work, name="paceline-store", daemon=True).start()
        limit_s = self._retry_policy.stall_timeout_s
        while not ended.wait(max(0.01, progress.last_at + limit_s - self._clock.now())):
            if self._clock.now() - progress.last_at >= limit_s and not ended.is_set():
                reason = f"no progress for {limit_s:g} s, after {progress.num_bytes} bytes"
                raise StorageError(
                    self._format_error(verb, key, reason, hint="check the network and the store's own status")
                )
        return outcome.result()

    def _format_error(self, verb: str, key: str, reason: str, hint: str = "") -> str:
        text = f"cannot {verb} " + f"{self.uri}/{key}".rstrip("/") + f": {reason}"
        return f"{text}\n\nhint: {hint}" if hint else text


class _TransferProgress:
    """When bytes last moved. The thread of a call writes it, the waiting thread reads it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last_at = clock.now()
        self.num_bytes = 0

    def add_bytes(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.last_at = self._clock.now()


def _notify_both(first: ProgressCallback, second: ProgressCallback) -> ProgressCallback:
    def notify(num_bytes: int) -> None:
        first(num_bytes)
        second(num_bytes)

    return notify


def _find_hint(error: BaseException) -> str:
    if is_access_denied(error):
        return "check the credentials and their permissions on this bucket"
    if any(name in str(error) for name in ("NoSuchBucket", "NO_SUCH_BUCKET", "ContainerNotFound")):
        return "create the bucket first, or correct storage_path: Paceline does not create buckets"
    return ""
