"""A store that retries transient errors, and gives up in the end.

Pauses between tries grow and are jittered. A call that moves no bytes for a while is abandoned: its thread may hang in
a library for ever, so it is a daemon and does not keep the process from exiting. After one call has used up its tries,
a circuit breaker makes the others fail at once, so that a run whose store is gone does not wait for each of them.
"""

from __future__ import annotations

import random
import threading
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
    contact_timeout_s: float | None = None
    """The same until the store has answered for the first time; None: no difference."""

    def backoff_s(self, num_failed: int, chance: float) -> float:
        """Return the pause after `num_failed` failures; `chance`, from 0 to 1, is jitter that spreads workers."""
        pause_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (num_failed - 1))
        return pause_s * (0.5 + chance / 2)


DEFAULT_RETRY_POLICY = StoreRetryPolicy()
PROBE_INTERVAL_S = 10.0
_PROBE_TIMEOUT_S = 5.0
_HINT = "\n\nhint: "


class CircuitBreaker:
    """Open while a store is gone: one call has used up its tries, and no other was answered meanwhile.

    An open one lets a call through for a single try, at first and then every ten seconds; any answer closes it.
    Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Protects all fields: every thread that calls the store shares them."""
        self._answered_at = float("-inf")
        self._probe_at = 0.0
        self._waiting: set[threading.Event] = set()
        self.error: StorageError | None = None
        """The first error of the outage, while open."""

    @property
    def has_answered(self) -> bool:
        return self._answered_at > float("-inf")

    def admit_probe(self) -> bool:
        with self._lock:
            is_due = self._clock.now() >= self._probe_at
            if is_due:
                self._probe_at = self._clock.now() + PROBE_INTERVAL_S
            return is_due

    def record_answer(self) -> None:
        with self._lock:
            self._answered_at, self.error = self._clock.now(), None

    def reset(self) -> None:
        with self._lock:
            self.error = None

    def record_outage(self, error: StorageError, since: float) -> None:
        """A call has given up that was not answered since then."""
        with self._lock:
            if self.error is None and self._answered_at <= since:
                self.error, self._probe_at = error, self._clock.now()
                for event in self._waiting:
                    event.set()

    def wait(self, event: threading.Event, timeout_s: float) -> None:
        """Wait for the event or for the breaker to open."""
        with self._lock:
            if self.error is not None:
                event.set()
            self._waiting.add(event)
        try:
            event.wait(timeout_s)
        finally:
            with self._lock:
                self._waiting.discard(event)


class RetryingStore:
    def __init__(
        self,
        store: Store,
        retry_policy: StoreRetryPolicy = DEFAULT_RETRY_POLICY,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.uri = store.uri
        self.has_conditional_puts = store.has_conditional_puts
        self.path = store.path
        self._store = store
        self._retry_policy = retry_policy
        self._clock = clock or SystemClock()
        self._breaker = CircuitBreaker(self._clock)
        self._sleep = sleep or (lambda pause_s: self._breaker.wait(threading.Event(), pause_s))
        self._chance = chance

    @property
    def filesystem(self) -> Any:
        return self._store.filesystem

    def retry_anew(self) -> None:
        """Give calls all their tries again, though the store was gone."""
        self._breaker.reset()

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
        breaker, is_probe = self._breaker, False
        if breaker.error is not None:
            is_probe = breaker.admit_probe()
            if not is_probe:
                raise self._give_up(verb, key, "not tried") from breaker.error
        progress = _TransferProgress(self._clock)
        began, failed_at, num_failed = self._clock.now(), 0.0, 0
        while True:
            limit_s = self._idle_limit_s(is_probe)
            try:
                result = self._call_with_stall_timeout(verb, key, call, progress, limit_s, is_probe)
                breaker.record_answer()
                return result, num_failed
            except StorageError as error:
                breaker.record_outage(error, max(failed_at, progress.last_at))
                raise
            except FileNotFoundError:
                breaker.record_answer()
                if verb in ("read", "download"):
                    raise
                raise StorageError(self._format_error(verb, key, "no such bucket or directory")) from None
            except Exception as error:
                num_failed += 1
                if not is_transient(error):
                    breaker.record_answer()
                    raise StorageError(
                        self._format_error(verb, key, summarize_error(error), hint=_find_hint(error))
                    ) from error
                now = self._clock.now()
                failed_at = max(failed_at or now, progress.last_at)
                tries = "1 try" if num_failed == 1 else f"{num_failed} tries"
                reason = f"{tries} in {now - began:.0f} s; the last: {summarize_error(error)}"
                left_s = progress.last_at + limit_s - now
                if num_failed >= self._retry_policy.num_tries or is_probe or left_s <= 0:
                    final = self._give_up(verb, key, reason)
                    breaker.record_outage(final, failed_at)
                    raise final from error
                self._sleep(min(self._retry_policy.backoff_s(num_failed, self._chance()), left_s))
                if breaker.error is not None:
                    raise self._give_up(verb, key, reason) from breaker.error

    def _idle_limit_s(self, is_probe: bool) -> float:
        limit_s, contact_s = self._retry_policy.stall_timeout_s, self._retry_policy.contact_timeout_s
        if contact_s is not None and not self._breaker.has_answered:
            limit_s = min(limit_s, contact_s)
        return min(limit_s, _PROBE_TIMEOUT_S) if is_probe else limit_s

    def _call_with_stall_timeout(
        self,
        verb: str,
        key: str,
        call: Callable[[ProgressCallback], T],
        progress: _TransferProgress,
        limit_s: float,
        is_probe: bool,
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
        while not outcome.done():
            wait_s = max(0.01, progress.last_at + limit_s - self._clock.now())
            if is_probe:
                ended.wait(wait_s)
            else:
                self._breaker.wait(ended, wait_s)
            if outcome.done():
                break
            is_stalled = self._clock.now() - progress.last_at >= limit_s
            if is_stalled or (self._breaker.error is not None and not is_probe):
                idle_s = limit_s if is_stalled else self._clock.now() - progress.last_at
                raise self._give_up(verb, key, f"no progress for {idle_s:.3g} s, after {progress.num_bytes} bytes")
            ended.clear()  # The breaker may have set it, and be closed again.
        return outcome.result()

    def _give_up(self, verb: str, key: str, reason: str) -> StorageError:
        """Return the error of a call that was not answered."""
        first = self._breaker.error
        if first is not None:
            reason = f"{reason}; the store is gone: {str(first).partition(_HINT)[0]}"
        hint = "check the network and the store's own status"
        if self._retry_policy.contact_timeout_s is not None and not self._breaker.has_answered:
            hint = contact_hint(self.uri)
        return StorageError(self._format_error(verb, key, reason, hint=hint))

    def _format_error(self, verb: str, key: str, reason: str, hint: str = "") -> str:
        text = f"cannot {verb} " + f"{self.uri}/{key}".rstrip("/") + f": {reason}"
        return f"{text}{_HINT}{hint}" if hint else text


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


def contact_hint(uri: str) -> str:
    """Return what to check if a store has never answered."""
    if uri.startswith(("s3://", "s3a://")):
        return (
            "the store has not answered once: check the credentials (AWS_ACCESS_KEY_ID or AWS_PROFILE), the endpoint "
            "(AWS_ENDPOINT_URL), the region (AWS_REGION) and the network"
        )
    return "the store has not answered once: check storage_path, the credentials and the network"


def _find_hint(error: BaseException) -> str:
    if is_access_denied(error):
        return "check the credentials and their permissions on this bucket"
    if any(name in str(error) for name in ("NoSuchBucket", "NO_SUCH_BUCKET", "ContainerNotFound")):
        return "create the bucket first, or correct storage_path: Paceline does not create buckets"
    return ""
