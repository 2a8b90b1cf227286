"""A disk that fails, is slow, stalls, or alters what was committed: it stands before the real one.

Every act on files passes here by its name and its paths, whatever acts there are; the last path of a call is the one
that it changes. A write that fails at a byte is really made and then cut there.
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
from paceline._storage.layout import MANIFEST
from paceline.testing.faults.fired import Fired
from paceline.testing.faults.values import Corrupt, Faults, WriteFault

_NO_BYTES = frozenset({"make_dir", "rename", "sync_dir", "remove", "remove_tree"})
_NUMBER = re.compile(r"checkpoint_(\d+)")

Act = Callable[..., Any]
Passed = Callable[[str, Path], None]
"""Told of each act before it is done, with the path that it changes."""


def faulty_files(inner: Files, faults: Faults, fired: Fired, root: Path, passed: Passed, sleep: Act) -> Files:
    return cast(Files, _FaultyFiles(inner, WriteFaults(faults, fired, root, sleep), passed))


class _FaultyFiles:
    def __init__(self, inner: Files, faults: WriteFaults, passed: Passed) -> None:
        self._inner = inner
        self._faults = faults
        self._passed = passed

    def __getattr__(self, act: str) -> Act:
        if act.startswith("__"):
            raise AttributeError(act)
        inner: Act = getattr(self._inner, act)

        def acting(*args: Any, **kwargs: Any) -> Any:
            paths = [value for value in (*args, *kwargs.values()) if isinstance(value, Path)]
            if not paths:
                return inner(*args, **kwargs)
            self._passed(act, paths[-1])
            return self._faults.met(act, paths[-1], lambda: inner(*args, **kwargs))

        return acting


class WriteFaults:
    """What befalls the writes of one process."""

    def __init__(self, faults: Faults, fired: Fired, root: Path, sleep: Act = time.sleep) -> None:
        self._writes: Mapping[int, WriteFault] = _of_kind(faults, WriteFault)
        self._corruptions: Mapping[int, Corrupt] = _of_kind(faults, Corrupt)
        self._seed = faults.seed
        self._fired = fired
        self._root = root
        self._sleep = sleep

    def met(self, act: str, path: Path, perform: Callable[[], Any]) -> Any:
        """Perform an act on a path, with what befalls it."""
        cuts: dict[int, WriteFault] = {}
        for index, fault in self._writes.items():
            if not self._concerns(fault, act, path):
                continue
            if fault.at_byte is not None:
                cuts[index] = fault
            elif fault.times is None or self._fired.claim(index, fault.times):
                self._befall(fault, path)
        answer = perform()
        for index, fault in cuts.items():
            if path.stat().st_size > cast(int, fault.at_byte) and self._claimed(index, fault):
                os.truncate(path, cast(int, fault.at_byte))
                raise _error(fault, path)
        for fault in self._writes.values():
            if fault.bytes_per_s is not None and self._concerns(fault, act, path) and path.is_file():
                self._sleep(path.stat().st_size / fault.bytes_per_s)
        if act == "rename" and self._corruptions:
            self._corrupt(path)
        return answer

    def _befall(self, fault: WriteFault, path: Path) -> None:
        if fault.error is not None:
            raise _error(fault, path)
        if fault.stall_s == float("inf"):
            threading.Event().wait()
        self._sleep(fault.stall_s if fault.stall_s is not None else fault.delay_s)

    def _claimed(self, index: int, fault: WriteFault) -> bool:
        return fault.times is None or self._fired.claim(index, fault.times)

    def _concerns(self, fault: WriteFault, act: str, path: Path) -> bool:
        if fault.act != act if fault.act is not None else act in _NO_BYTES:
            return False
        below = path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)
        return fnmatch.fnmatch(below, fault.path) or fnmatch.fnmatch(path.name, fault.path)

    def _corrupt(self, path: Path) -> None:
        """Where a rename has just brought a checkpoint into existence."""
        directory = path.parent if path.name == MANIFEST else path
        if directory.parent != self._root or directory.name.startswith("."):
            return
        manifest = read_manifest(directory)
        if manifest is None:
            return
        for index, fault in self._corruptions.items():
            if fault.after not in (None, manifest.record.seq) or not self._fired.claim(index):
                continue
            for entry in manifest.files:
                if fnmatch.fnmatch(entry.path, fault.file):
                    _alter(directory / entry.path, fault.how, random.Random(f"{self._seed} {entry.path}"))


def phase_of(root: Path, act: str, path: Path) -> tuple[str, int | None] | None:
    """The phase that an act of the driver on a path belongs to, and the report it is about."""
    if not path.is_relative_to(root) or path == root:
        return None
    first, *rest = path.relative_to(root).parts
    if first == ".staging":
        number = _NUMBER.fullmatch(rest[1]) if len(rest) > 1 else None
        return ("commit", int(number[1])) if number is not None else None
    if first.startswith("."):
        return None
    number = _NUMBER.fullmatch(first)
    phase = "retention" if act.startswith("remove") else "commit"
    return phase, int(number[1]) if number is not None else None


def _of_kind(faults: Faults, kind: type[Any]) -> dict[int, Any]:
    return {index: fault for index, fault in enumerate(faults.all) if isinstance(fault, kind)}


def _error(fault: WriteFault, path: Path) -> OSError:
    assert fault.error is not None
    return OSError(fault.error, os.strerror(fault.error), str(path))


def _alter(path: Path, how: str, dice: random.Random) -> None:
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
