"""A disk that fails, is slow, stalls, or corrupts what was committed: it wraps the real one.

Every file operation passes through here with its name and paths, whatever operations there are; the last path of a call
is the one it changes. A write that fails at a byte is really made and then cut there.
"""

from __future__ import annotations

import fnmatch
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from paceline._storage.commit import read_manifest
from paceline._storage.files import Files
from paceline._storage.run_layout import MANIFEST
from paceline.testing.faults.moments import StrikeLog
from paceline.testing.faults.values import CorruptFault, Faults, WriteFault, select_faults

_METADATA_ACTS = frozenset({"make_dir", "rename", "sync_dir", "remove", "remove_tree"})
_NUMBER = re.compile(r"checkpoint_(\d+)")
_DELETED = re.compile(r"deleted-\d+-\d+-(\d+)")
"""The name in `.trash` of a checkpoint that is being deleted; see `_storage/commit.py`."""

Act = Callable[..., Any]
ActListener = Callable[[str, Path], None]
"""Called before each operation, with the path that it changes."""


def faulty_files(
    inner: Files, faults: Faults, strike_log: StrikeLog, root: Path, passed: ActListener, sleep: Act
) -> Files:
    return cast(Files, _FaultyFiles(inner, WriteFaults(faults, strike_log, root, sleep), passed))


class _FaultyFiles:
    def __init__(self, inner: Files, faults: WriteFaults, passed: ActListener) -> None:
        self._inner = inner
        self._faults = faults
        self._on_act = passed

    def __getattr__(self, act: str) -> Act:
        if act.startswith("__"):
            raise AttributeError(act)
        inner: Act = getattr(self._inner, act)

        def act_with_faults(*args: Any, **kwargs: Any) -> Any:
            paths = [value for value in (*args, *kwargs.values()) if isinstance(value, Path)]
            if not paths:
                return inner(*args, **kwargs)
            self._on_act(act, paths[-1])
            return self._faults.perform(act, paths[-1], lambda: inner(*args, **kwargs))

        return act_with_faults


class WriteFaults:
    """The write faults of one process."""

    def __init__(self, faults: Faults, strike_log: StrikeLog, root: Path, sleep: Act = time.sleep) -> None:
        self._writes: Mapping[int, WriteFault] = select_faults(faults, WriteFault)
        self._corruptions: Mapping[int, CorruptFault] = select_faults(faults, CorruptFault)
        self._seed = faults.seed
        self._strike_log = strike_log
        self._root = root
        self._sleep = sleep

    def perform(self, act: str, path: Path, perform: Callable[[], Any]) -> Any:
        """Perform an operation on a path, with the faults that affect it."""
        affecting = {index: fault for index, fault in self._writes.items() if self._is_affected(fault, act, path)}
        for index, fault in affecting.items():
            if fault.at_byte is None and self._claim(index, fault):
                self._apply(fault, path)
        answer = perform()
        for index, fault in affecting.items():
            at_byte = fault.at_byte
            if at_byte is not None and path.stat().st_size > at_byte and self._claim(index, fault):
                os.truncate(path, at_byte)
                raise _make_error(fault, path)
            if fault.bytes_per_s is not None and path.is_file():
                self._sleep(path.stat().st_size / fault.bytes_per_s)
        if act == "rename" and self._corruptions:
            self._corrupt(path)
        return answer

    def _apply(self, fault: WriteFault, path: Path) -> None:
        if fault.error is not None:
            raise _make_error(fault, path)
        if fault.stall_s == float("inf"):
            threading.Event().wait()
        self._sleep(fault.stall_s if fault.stall_s is not None else fault.delay_s)

    def _claim(self, index: int, fault: WriteFault) -> bool:
        return fault.times is None or self._strike_log.claim(index, fault.times)

    def _is_affected(self, fault: WriteFault, act: str, path: Path) -> bool:
        if fault.act != act if fault.act is not None else act in _METADATA_ACTS:
            return False
        below = path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)
        return fnmatch.fnmatch(below, fault.path) or fnmatch.fnmatch(path.name, fault.path)

    def _corrupt(self, path: Path) -> None:
        directory = path.parent if path.name == MANIFEST else path
        if directory.parent != self._root or directory.name.startswith("."):
            return
        manifest = read_manifest(directory)
        if manifest is None:
            return
        for index, fault in self._corruptions.items():
            if fault.after not in (None, manifest.record.seq) or not self._strike_log.claim(index):
                continue
            for entry in manifest.files:
                if fnmatch.fnmatch(entry.path, fault.file):
                    _corrupt_file(directory / entry.path, fault.how, random.Random(f"{self._seed} {entry.path}"))


def find_phase(root: Path, act: str, path: Path) -> tuple[str, int | None] | None:
    """Return the phase of a driver operation on a path, and the report it concerns."""
    if not path.is_relative_to(root) or path == root:
        return None
    first, *rest = path.relative_to(root).parts
    if first == ".staging":
        number = _NUMBER.fullmatch(rest[1]) if len(rest) > 1 else None
        return ("commit", int(number[1])) if number is not None else None
    if first == ".trash":
        number = _DELETED.fullmatch(rest[0]) if rest else None
        return ("retention", int(number[1])) if number is not None else None
    if first.startswith("."):
        return None
    number = _NUMBER.fullmatch(first)
    return "retention" if act.startswith("remove") else "commit", int(number[1]) if number is not None else None


def _make_error(fault: WriteFault, path: Path) -> OSError:
    assert fault.error is not None
    return OSError(fault.error, os.strerror(fault.error), str(path))


def _corrupt_file(path: Path, how: str, dice: random.Random) -> None:
    size = path.stat().st_size
    if how == "zero" or size == 0:
        os.truncate(path, 0)
    elif how == "truncate":
        os.truncate(path, size // 2)
    else:
        with path.open("r+b") as file:
            at = dice.randrange(size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << dice.randrange(8)]))
