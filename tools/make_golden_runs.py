"""Writes the folder of a release: directories as that release writes them, which every later one has to open.

    .venv/bin/python tools/make_golden_runs.py

A maintainer runs this once for each release, just before it is tagged, and commits the new folder. That of a release
that is out is never written again: if a test fails on it, the code is wrong, or has to learn to read what was written.

Paths, host and machine are replaced by neutral ones wherever something tells of them; lines are sealed anew then.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import inspect

import paceline
from paceline._control import events
from paceline._core import system
from paceline._core.codec import seal_line, unseal_line
from paceline._storage.commit import Manifest
from paceline._storage.lease import LeaseHolder
from paceline.tune.driver import events as search_events

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
WRITTEN = ("rows", "complete", "search", "state")
MAX_BYTES = 300_000
LONG_AGO = 1_700_000_000.0
"""When the driver that was killed was last seen: whoever continues its run need not wait for it."""


def main() -> None:
    target = GOLDEN / paceline.__version__
    if target.exists():
        sys.exit(f"{target} is there already\n\nhint: remove it, if {paceline.__version__} is not released yet")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory).resolve()
        place = work / "runs"
        place.mkdir()
        # Apart from the repository, of whose state a run would tell.
        shutil.copy(GOLDEN / "golden_runs.py", work)
        for what in WRITTEN:
            subprocess.run([sys.executable, "golden_runs.py", what, str(place)], cwd=work, check=True)
        write_interrupted(work, place)
        write_every_kind(place / "kinds")
        make_neutral(work, place)
        shutil.copytree(place, target)
    num_bytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    assert num_bytes < MAX_BYTES, f"{num_bytes} bytes in {target}"
    print(f"{target}: {num_bytes} bytes")


def write_interrupted(work: Path, place: Path) -> None:
    """A run whose driver is killed when all ranks have made their third report."""
    driver = psutil.Popen([sys.executable, "golden_runs.py", "interrupted", str(place)], cwd=work)
    while not all((work / f"reached-{rank}").exists() for rank in range(2)):
        assert driver.poll() is None, "it ended by itself"
        time.sleep(0.05)
    workers = driver.children(recursive=True)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not psutil.wait_procs(workers, timeout=10)[1], "workers are left"


def write_every_kind(directory: Path) -> None:
    """One line for each kind of event, a manifest and a lease, with a value in every field: no run has all of them."""
    directory.mkdir()
    for name, union in (("run.jsonl", events.Event), ("search.jsonl", search_events.Event)):
        kinds = inspect.type_info(union).types
        (directory / name).write_bytes(b"".join(seal_line(msgspec.json.encode(sample(kind))) for kind in kinds))
    for name, kind in (("manifest.json", Manifest), ("lease.json", LeaseHolder)):
        (directory / name).write_text(json.dumps(sample(inspect.type_info(kind)), indent=1) + "\n")


def sample(kind: Any, within: tuple[Any, ...] = ()) -> Any:
    """Something of this type that is nobody's default, as JSON has it. A struct is within itself once."""
    match kind:
        case inspect.StructType():
            if within.count(kind.cls) > 1:
                raise Within
            within = (*within, kind.cls)
            if kind.array_like:
                return [*([kind.tag] if kind.tag else []), *(sample(field.type, within) for field in kind.fields)]
            document = {kind.tag_field: kind.tag} if kind.tag else {}
            for field in kind.fields:
                with contextlib.suppress(Within):  # Of a version, the one that is written.
                    is_version = field.name == "version"
                    document[field.encode_name] = field.default if is_version else sample(field.type, within)
            return document
        case inspect.DataclassType():
            return {field.encode_name: sample(field.type, (*within, kind.cls)) for field in kind.fields}
        case inspect.UnionType():
            return sample(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), within)
        case inspect.LiteralType():
            return kind.values[-1]
        case inspect.VarTupleType() | inspect.ListType():
            return [sample(kind.item_type, within)]
        case inspect.TupleType():
            return [sample(each, within) for each in kind.item_types]
        case inspect.DictType():
            return {"key": sample(kind.value_type, within)}
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 7.5
        case inspect.StrType():
            return "cafe"  # A word, and a number in base 16.
        case inspect.BytesType():
            return "AAE="
        case inspect.RawType() | inspect.AnyType():
            return {"any": [1, "value"]}
    raise TypeError(f"a field of {kind}: say here what one looks like")


class Within(Exception):
    """It would be within itself for ever: the field is left out."""


def make_neutral(work: Path, place: Path) -> None:
    replaced = {
        str(place): "/runs",
        str(work): "/scripts",
        sys.prefix: "/venv",
        sys.base_prefix: "/python",
        system.machine_id(): "machine",
        os.uname().release: "6.0.0",
        f'"{socket.gethostname()}"': '"host"',
    }
    for path in files_in(place):
        if path.suffix in (".jsonl", ".log") or path.parent.name == ".lease":
            path.write_bytes(neutral(path.read_bytes(), replaced, lines=path.suffix == ".jsonl"))
    for path in place.rglob(".lease/*.json"):
        lease = json.loads(path.read_text())
        path.write_text(json.dumps({**lease, "since": LONG_AGO, "renewed_at": LONG_AGO}))
    home = str(Path.home())
    local = [str(work), str(ROOT), f"{home}/", f'"{home}"', tempfile.gettempdir() + "/"]
    for path in files_in(place):
        text = path.read_bytes().decode(errors="replace")
        leaks = [each for each in local if each in text]
        leaks += re.findall(rf"\b{re.escape(socket.gethostname())}\b", text)
        assert not leaks, f"{path} tells of this machine: {leaks}"


def neutral(data: bytes, replaced: dict[str, str], *, lines: bool) -> bytes:
    if lines:
        payloads = [unseal_line(line) for line in data.splitlines(keepends=True)]
        return b"".join(
            seal_line(neutral(payload, replaced, lines=False)) for payload in payloads if payload is not None
        )
    for old, new in replaced.items():
        data = data.replace(old.encode(), new.encode())
    return data


def files_in(place: Path) -> Iterator[Path]:
    return (path for path in sorted(place.rglob("*")) if path.is_file())


if __name__ == "__main__":
    main()
