"""A store that does not give up at the first trouble, and does give up in the end.

Trouble that may pass is tried again, with growing and scattered pauses. A call that moves no bytes for a while is
abandoned: its thread may hang in a library for ever, so it is one that nobody waits for when the process ends.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paceline._core.clock import Clock, SystemClock
from paceline._core.errors import StorageError
from paceline._engine.messages import FileEntry
from paceline._storage.store import Entry, Moved, Store, own_key, unwatched
from paceline._storage.trouble import in_short, is_refusal, may_pass

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    num_tries: int = 8
    first_pause_s: float = 0.25
    longest_pause_s: float = 20.0
    no_progress_s: float = 120.0
    """How long a call may go without moving a byte, all its tries together."""

    def pause_s(self, num_failed: int, chance: float) -> float:
        """How long to wait after so many failures; `chance`, from 0 to 1, keeps many workers from coming at once."""
        whole = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (num_failed - 1))
        return whole * (0.5 + chance / 2)


PATIENCE = Patience()


class RetryingStore:
    def __init__(
        self,
        store: Store,
        patience: Patience = PATIENCE,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.uri = store.uri
        self.conditional = store.conditional
        self.path = store.path
        self._store = store
        self._patience = patience
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._chance = chance

    @property
    def filesystem(self) -> Any:
        return self._store.filesystem

    def read(self, key: str) -> bytes:
        return self._tried("read", key, lambda moved: self._store.read(key))[0]

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        return self._tried("read", key, lambda moved: self._store.read_tagged(key))[0]

    def write(self, key: str, data: bytes) -> None:
        self._tried("written", key, lambda moved: self._store.write(key, data))

    def create(self, key: str, data: bytes) -> bool:
        made, num_failed = self._tried("written", key, lambda moved: self._store.create(key, data))
        if made or not num_failed:
            return made
        # An earlier try may have got through and only its reply been lost: what lies there tells.
        try:
            return self.read(key) == data
        except FileNotFoundError:
            return False

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        new, num_failed = self._tried("written", key, lambda moved: self._store.replace(key, data, tag))
        if new is not None or not num_failed:
            return new
        try:
            there, its_tag = self.read_tagged(key)
        except FileNotFoundError:
            return None
        return its_tag if there == data else None

    def upload(self, source: Path, key: str, moved: Moved = unwatched) -> FileEntry:
        return self._tried("uploaded", key, lambda seen: self._store.upload(source, key, _both(seen, moved)))[0]

    def download(self, key: str, target: Path, moved: Moved = unwatched) -> FileEntry:
        return self._tried("downloaded", key, lambda seen: self._store.download(key, target, _both(seen, moved)))[0]

    def entries(self, prefix: str = "") -> list[Entry]:
        return self._tried("listed", prefix, lambda moved: self._store.entries(prefix))[0]

    def delete(self, key: str) -> None:
        self._tried("deleted", key, lambda moved: self._store.delete(key))

    def delete_all(self, prefix: str) -> None:
        self._tried("deleted", prefix, lambda moved: self._store.delete_all(prefix))

    def _tried(self, done: str, key: str, call: Callable[[Moved], T]) -> tuple[T, int]:
        """What the call answers, and how often it failed before."""
        own_key(key)
        progress = _Progress(self._clock)
        began = self._clock.now()
        num_failed = 0
        while True:
            try:
                return self._watched(done, key, call, progress), num_failed
            except StorageError:
                raise
            except FileNotFoundError:
                if done in ("read", "downloaded"):
                    raise
                raise StorageError(self._said(done, key, "there is no such bucket or directory")) from None
            except Exception as error:
                num_failed += 1
                patience = self._patience
                idle_s = self._clock.now() - progress.last_at
                if not may_pass(error):
                    raise StorageError(self._said(done, key, in_short(error), hint=_hint(error))) from error
                if num_failed >= patience.num_tries or idle_s >= patience.no_progress_s:
                    for_s = self._clock.now() - began
                    why = f"{num_failed} tries in {for_s:.0f} s; the last: {in_short(error)}"
                    raise StorageError(self._said(done, key, why)) from error
                self._sleep(patience.pause_s(num_failed, self._chance()))

    def _watched(self, done: str, key: str, call: Callable[[Moved], T], progress: _Progress) -> T:
        outcome: list[tuple[T | None, BaseException | None]] = []
        ended = threading.Event()

        def work() -> None:
            try:
                outcome.append((call(progress.moved), None))
            except BaseException as error:  # noqa: BLE001  raised again by the thread that waits
                outcome.append((None, error))
            ended.set()

        threading.Thread(target=work, name="paceline-store", daemon=True).start()
        limit_s = self._patience.no_progress_s
        while not ended.wait(max(0.01, progress.last_at + limit_s - self._clock.now())):
            if self._clock.now() - progress.last_at >= limit_s and not ended.is_set():
                why = f"no byte has moved for {limit_s:g} s, after {progress.num_bytes} bytes: given up on"
                raise StorageError(self._said(done, key, why, hint="look at the network and at the store's own status"))
        answer, error = outcome[0]
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]

    def _said(self, done: str, key: str, why: str, hint: str = "") -> str:
        text = f"{self.uri}/{key}".rstrip("/") + f" could not be {done}: {why}"
        return f"{text}\n\nhint: {hint}" if hint else text


class _Progress:
    """When bytes last moved. Written by the thread of a call, read by the one that waits for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last_at = clock.now()
        self.num_bytes = 0

    def moved(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.last_at = self._clock.now()


def _both(first: Moved, second: Moved) -> Moved:
    def moved(num_bytes: int) -> None:
        first(num_bytes)
        second(num_bytes)

    return moved


def _hint(error: BaseException) -> str:
    if is_refusal(error):
        return "look at the credentials in use, and at what they permit on this bucket"
    if any(name in str(error) for name in ("NoSuchBucket", "NO_SUCH_BUCKET", "ContainerNotFound")):
        return "create the bucket first, or look at storage_path: Paceline makes none"
    return ""
