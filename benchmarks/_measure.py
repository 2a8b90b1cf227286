"""What all benchmarks share: commands in fresh processes that take turns, medians, the one line, the JSON.

A benchmark is a function that is handed a `Bench` and returns a `Report`; `main` does the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = HERE / "out"

LEFT_BEHIND_S = 2.0
"""How long after its end a run may still have processes."""

_PR_SET_CHILD_SUBREAPER = 36


class BenchmarkError(Exception):
    """The numbers would mean nothing: something did not run, or something was lost."""


# What was measured


@dataclass(frozen=True)
class Bar:
    """What has to hold for the median: of ours, or of ours divided by the peer's where `ratio`."""

    sign: str
    """`<`, `<=` or `>=`."""
    limit: float
    ratio: bool = False

    def met(self, value: float) -> bool:
        return {"<": value < self.limit, "<=": value <= self.limit, ">=": value >= self.limit}[self.sign]


@dataclass(frozen=True)
class Measure:
    """One number of ours, the same of each peer, all over several repeats. A ratio is to the first peer."""

    name: str
    unit: str
    ours: Sequence[float]
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bar: Bar | None = None

    @property
    def ratio(self) -> float | None:
        first = next(iter(self.peers.values()), None)
        return statistics.median(self.ours) / statistics.median(first) if first else None

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        value = self.ratio if self.bar.ratio else statistics.median(self.ours)
        if value is None:
            raise BenchmarkError(f"{self.name}: there is no peer to compare with")
        return self.bar.met(value)

    def ours_text(self) -> str:
        return _with_spread(self.ours, self.unit)

    def peers_text(self) -> str:
        return ", ".join(f"{name} {_with_spread(samples, self.unit)}" for name, samples in self.peers.items())

    def ratio_text(self) -> str:
        return "" if self.ratio is None else f"{self.ratio:.3g}"

    def bar_text(self) -> str:
        if self.bar is None:
            return ""
        what = f"ratio {self.bar.sign} {self.bar.limit:g}" if self.bar.ratio else ""
        return what or f"{self.bar.sign} {_number(self.bar.limit, self.unit)}"

    def met_text(self) -> str:
        return {None: "", True: "met", False: "NOT MET"}[self.met]

    def __str__(self) -> str:
        parts = [f"{self.name}: ours {self.ours_text()}"]
        if self.peers:
            parts += [self.peers_text(), f"ratio {self.ratio_text()}"]
        if self.bar:
            parts.append(f"bar {self.bar_text()} {self.met_text()}")
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": _summary(self.ours),
            "peers": {name: _summary(samples) for name, samples in self.peers.items()},
            "ratio": self.ratio,
            "bar": dataclasses.asdict(self.bar) if self.bar else None,
            "met": self.met,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measure:
        return cls(
            data["name"],
            data["unit"],
            data["ours"]["samples"],
            {name: summary["samples"] for name, summary in data["peers"].items()},
            Bar(**data["bar"]) if data["bar"] else None,
        )


@dataclass(frozen=True)
class Report:
    measures: Sequence[Measure]
    notes: Mapping[str, str] = field(default_factory=dict)
    """What else is worth a word, without a bar: name and text."""

    def line(self, question: str) -> str:
        noted = [f"{name} {text}" for name, text in self.notes.items()]
        return f"{question} | " + " | ".join([*map(str, self.measures), *noted])


def note(samples: Sequence[float], unit: str) -> str:
    return _with_spread(samples, unit)


def _with_spread(samples: Sequence[float], unit: str) -> str:
    middle = _number(statistics.median(samples), unit)
    if len(samples) < 2:
        return middle
    return f"{middle} [{_number(min(samples), '')} .. {_number(max(samples), '')}]"


def _number(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{unit}" if unit.startswith("/") else f"{digits} {unit}".strip()


def _summary(samples: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": list(samples),
    }


# Commands in fresh processes


@dataclass(frozen=True)
class Ended:
    seconds: float
    """From the start of the process until it was gone."""
    cpu_s: float
    """Processor time of it and of all it waited for: steadier than seconds on a busy machine."""


class Process:
    """A command under way, with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.command = command
        self._log = log
        with log.open("wb") as out:
            self._began = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=log.parent,
                env={**os.environ, **env},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait(self, timeout_s: float) -> Ended:
        before = psutil.Process().cpu_times()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.problem(f"did not end within {timeout_s:.0f} s") from None
        seconds = time.perf_counter() - self._began
        after = psutil.Process().cpu_times()
        if code != 0:
            raise self.problem(f"exited with code {code}")
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return Ended(seconds, used)

    def problem(self, what: str) -> BenchmarkError:
        tail = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-30:])
        return BenchmarkError(f"{shlex.join(_shown(self.command))} {what}; its last lines:\n{tail}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def python(script: str, *arguments: object) -> list[str]:
    return [sys.executable, str(HERE / script), *map(str, arguments)]


def times_in(directory: Path, fits: int) -> list[float]:
    """What a script of several fits wrote: how long each took."""
    path = directory / "took.json"
    check(path.exists(), f"{directory.name}: no times were written, so it did not run to its end")
    took: list[float] = json.loads(path.read_text())
    check(len(took) == fits, f"{directory.name}: {len(took)} fits instead of {fits}")
    return took


def torchrun(script: str, *arguments: object, options: Sequence[str] = ()) -> list[str]:
    launcher = Path(sys.executable).with_name("torchrun")
    if not launcher.exists():
        raise BenchmarkError(f"{_shown([str(launcher)])[0]} is not there: the peer cannot run")
    return [
        str(launcher),
        "--standalone",
        "--nproc-per-node",
        "2",
        *options,
        str(HERE / script),
        *map(str, arguments),
    ]


@dataclass
class Bench:
    """What a benchmark is handed."""

    options: argparse.Namespace
    storage: Path
    """An empty directory, gone afterwards."""
    ray: str | None
    """The interpreter that has Ray Train, if there is one."""
    _count: int = 0
    _under_way: list[int] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        return int(self.options.repeats)

    def directory(self, label: str) -> Path:
        """A new empty directory."""
        self._count += 1
        path = self.storage / f"{self._count:03d}-{label}"
        path.mkdir()
        return path

    def rounds(self, warm_up: int = 0) -> Iterator[int]:
        """Numbers of rounds; in each, ours and the peers take their turns. Those to warm up have negative numbers."""
        for number in range(-warm_up, self.repeats):
            self.say(f"round {number + 1} of {self.repeats}" if number >= 0 else "warming up")
            yield number

    def ray_runs(self, number: int) -> bool:
        """Whether Ray takes part in this round. It takes its time, so not in all."""
        return self.ray is not None and 0 <= number < self.options.ray_repeats

    def ray_python(self, script: str, *arguments: object) -> list[str]:
        assert self.ray is not None
        return [self.ray, str(HERE / script), *map(str, arguments)]

    @contextlib.contextmanager
    def running(
        self, command: Sequence[str], directory: Path, env: Mapping[str, str] | None = None
    ) -> Iterator[Process]:
        """A fresh process that is waited for. Nothing of it is left afterwards, and if ours had left it, that fails."""
        extra = {**_environment(command[0] == self.ray), **(env or {})}
        process = Process(command, directory / "output.log", extra)
        others = tuple(self._under_way)
        self._under_way.append(process.pid)
        try:
            yield process
        except BaseException:
            process.kill()
            _end_leftovers(others)
            raise
        else:
            is_ours = command[0] == sys.executable
            left = _end_leftovers(others, grace_s=LEFT_BEHIND_S if is_ours else 0.0)
            if left and is_ours:
                raise process.problem(f"left behind {', '.join(left)}")
        finally:
            self._under_way.remove(process.pid)
            if "RAY_TMPDIR" in extra:
                shutil.rmtree(extra["RAY_TMPDIR"], ignore_errors=True)

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300,
    ) -> Ended:
        """Run a command to its end, which has to be a good one."""
        with self.running(command, directory, env) as process:
            return process.wait(timeout_s)

    def say(self, text: str) -> None:
        print(f"  {Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


def from_ranks(directory: Path, pattern: str = "rank_{}.json", size: int = 2) -> list[dict[str, Any]]:
    """What each rank left behind for us: the proof that it ran."""
    found = []
    for rank in range(size):
        path = directory / pattern.format(rank)
        if not path.exists():
            raise BenchmarkError(f"rank {rank} has not left {path.name}: it did not really run")
        found.append(json.loads(path.read_text()))
    return found


def check(holds: bool, message: str) -> None:
    if not holds:
        raise BenchmarkError(message)


def _environment(is_ray: bool) -> dict[str, str]:
    if not is_ray:
        return {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    # Its sockets lie there, and the path of a socket may have 107 characters.
    return {"RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}


def _adopt_orphans() -> None:
    """Become the parent of what our commands leave behind, so that it is found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_leftovers(others: Sequence[int], grace_s: float = 0.0) -> list[str]:
    """End what a command left behind, and name it: all that descends from us, but for other commands under way."""
    deadline = time.monotonic() + grace_s
    while True:
        left = _living_descendants(others)
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    names = [_command_of(process) for process in left]
    while left:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)
        left = _living_descendants(others)
    return names


def _living_descendants(others: Sequence[int]) -> list[psutil.Process]:
    apart = set(others)
    for pid in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            apart |= {process.pid for process in psutil.Process(pid).children(recursive=True)}
    living = []
    for process in psutil.Process().children(recursive=True):
        if process.pid in apart:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
            else:
                living.append(process)
    return living


def _command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({' '.join(process.cmdline())[:80]})"
    return str(process.pid)


# The command line


def main(
    question: str,
    measured: Callable[[Bench], Report],
    *,
    repeats: int,
    add_arguments: Callable[[argparse.ArgumentParser], object] | None = None,
) -> None:
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"rounds of ours and the peer (default {repeats})")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all samples there")
    parser.add_argument("--storage", type=Path, metavar="DIR", help="where runs are kept (default benchmarks/out)")
    parser.add_argument("--ray", metavar="PYTHON", help="an interpreter that has Ray Train (default .venv-ray)")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray Train out")
    parser.add_argument("--ray-repeats", type=int, default=1, metavar="N", help="rounds that Ray takes part in")
    parser.add_argument("--keep", action="store_true", help="keep what the runs wrote")
    if add_arguments is not None:
        add_arguments(parser)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats: at least one is needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _adopt_orphans()
    try:
        with _storage(options) as storage:
            report = measured(Bench(options, storage, _ray_interpreter(options)))
            line = report.line(question)
            if options.json is not None:
                _write_json(options.json, question, report, storage)
    except BenchmarkError as problem:
        sys.exit(f"{question} | FAILED: {problem}")
    print(line, flush=True)


@contextlib.contextmanager
def _storage(options: argparse.Namespace) -> Iterator[Path]:
    parent = (options.storage or OUT).resolve()
    parent.mkdir(parents=True, exist_ok=True)
    storage = Path(tempfile.mkdtemp(prefix=f"{Path(sys.argv[0]).stem}-", dir=parent))
    try:
        yield storage
    finally:
        if options.keep:
            print(f"  kept: {storage}", file=sys.stderr)
        else:
            shutil.rmtree(storage, ignore_errors=True)


def _ray_interpreter(options: argparse.Namespace) -> str | None:
    if options.no_ray:
        return None
    if options.ray is not None:
        # Not resolved: a virtual environment's interpreter is a link, and what it is called from says where it is.
        path = Path(options.ray).absolute()
        check(path.exists(), f"--ray {options.ray} is not there")
        return str(path)
    path = ROOT / ".venv-ray" / "bin" / "python"
    return str(path) if path.exists() else None


def _write_json(path: Path, question: str, report: Report, storage: Path) -> None:
    document = {
        "question": question,
        **circumstances(storage),
        "measures": [measure.as_json() for measure in report.measures],
        "notes": dict(report.notes),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def circumstances(storage: Path) -> dict[str, Any]:
    """When, where and with what: without it a number says nothing."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(_shown([sys.executable, *sys.argv])),
        "commit": _commit(),
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "filesystem": _filesystem(storage),
            "load_average": os.getloadavg(),
        },
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("paceline", "torch", "numpy", "msgspec")},
    }


def _shown(command: Sequence[str]) -> list[str]:
    """A command as seen from the repository's root."""
    shown = []
    for word in command:
        path = Path(word)
        inside = path.is_absolute() and path.is_relative_to(ROOT)
        shown.append(str(path.relative_to(ROOT)) if inside else word)
    return shown


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _filesystem(path: Path) -> str:
    mounts = [(m.mountpoint, m.fstype) for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount[0]))[1] if mounts else "unknown"


def _commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        changed = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    return None


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return answer.stdout.strip()
