"""The harness of all benchmarks: rounds, processes, the command line, the printed line and the JSON file.

A benchmark is a function that takes a `Bench` and returns a `Report`; `main` does the rest.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _circumstances import ROOT, circumstances
from _figures import Bar, BenchmarkError, Curve, Measure, Ratio, Report, check, note
from _peers import PEERS, Environments
from _processes import Process, ProcessResult, adopt_orphans, end_leftovers

__all__ = [
    "HERE",
    "OUT",
    "Bar",
    "Bench",
    "BenchmarkError",
    "Curve",
    "Measure",
    "Process",
    "Ratio",
    "Report",
    "check",
    "main",
    "note",
    "python",
    "read_rank_results",
    "read_times",
]

HERE = ROOT / "benchmarks"
OUT = HERE / "out"

LEFT_BEHIND_S = 2.0
"""How long processes of a run may outlive it."""


def python(script: str, *arguments: object) -> list[str]:
    """The command that runs a script with the interpreter of the benchmark."""
    return [sys.executable, str(HERE / script), *map(str, arguments)]


@dataclass
class Bench:
    """The options, directories and processes of one benchmark."""

    options: argparse.Namespace
    storage: Path
    """An empty directory, removed afterwards."""
    environments: Environments
    _began: float = field(default_factory=time.monotonic)
    _slow_s: float = 0.0
    _cut: str | None = None
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
        """Yield the number of each round, in which ours and the peers take turns. Warm-up rounds are negative.

        After the first, a round starts only if it is expected to end within `--within` seconds.
        """
        took: list[float] = []
        slow: list[float] = []
        for number in range(-warm_up, self.repeats):
            began, slow_before = time.monotonic(), self._slow_s
            expected = min(took, default=0.0) + (min(slow, default=0.0) if number < self.options.peer_repeats else 0.0)
            if took and began - self._began + expected > self.options.within:
                self._cut = f"{len(took)} of {self.repeats}: there was no time for more"
                self.log(f"rounds {self._cut}")
                return
            self.log(f"round {number + 1} of {self.repeats}" if number >= 0 else "warming up")
            yield number
            if number >= 0:
                slow.append(self._slow_s - slow_before)
                took.append(time.monotonic() - began - slow[-1])

    def notes(self) -> dict[str, str]:
        """Notes of the harness about the numbers."""
        return {"rounds": self._cut} if self._cut else {}

    # Peers

    def takes_part(self, name: str, number: int) -> bool:
        """Whether a peer runs in this round. Slow peers skip some rounds."""
        if name in self.environments.without:
            return False
        self.environments.versions(name)
        return not PEERS[name].slow or 0 <= number < self.options.peer_repeats

    def peer(self, name: str, script: str, *arguments: object) -> list[str]:
        """The command that runs a script with the interpreter of the peer's environment."""
        return [self.environments.python(name), str(HERE / script), *map(str, arguments)]

    def launcher(self, name: str, program: str) -> str:
        """The path of a command installed in the peer's environment."""
        return self.environments.program(name, program)

    def torchrun(self, script: str, *arguments: object, options: Sequence[str] = (), size: int = 2) -> list[str]:
        """The command that runs a script with torchrun.

        Without an address, torchrun uses the machine's name and waits for minutes if that does not resolve.
        """
        alone = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(size)]
        launcher = self.launcher("torchrun", "torchrun")
        return [launcher, *alone, *options, str(HERE / script), *map(str, arguments)]

    def accelerate(self, script: str, *arguments: object, size: int = 2) -> list[str]:
        """The command that runs a script with `accelerate launch`. The script itself selects the CPU.

        Without MPI, `--cpu` makes the launcher start a single process whatever the requested number.
        """
        launcher = [self.launcher("accelerate", "accelerate"), "launch", "--multi_gpu", "--num_machines", "1"]
        launcher += ["--num_processes", str(size), "--main_process_ip", "127.0.0.1", "--main_process_port", "0"]
        launcher += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        return [*launcher, str(HERE / script), *map(str, arguments)]

    # Processes

    @contextlib.contextmanager
    def start(self, command: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> Iterator[Process]:
        """Start a process and kill what it leaves behind. Fails if one of ours leaves a process behind."""
        peer = self.environments.peer_of(command[0])
        extra = {**_environment(peer), **(env or {})}
        began = time.monotonic()
        process = Process(command, directory / "output.log", extra)
        others = tuple(self._under_way)
        self._under_way.append(process.pid)
        try:
            yield process
        except BaseException:
            process.kill()
            end_leftovers(others)
            raise
        else:
            is_ours = command[0] == sys.executable
            left = end_leftovers(others, grace_s=LEFT_BEHIND_S if is_ours else 0.0)
            if left and is_ours:
                raise process.problem(f"left behind {', '.join(left)}")
        finally:
            self._under_way.remove(process.pid)
            if peer is not None and PEERS[peer].slow:
                self._slow_s += time.monotonic() - began
            if "RAY_TMPDIR" in extra:
                shutil.rmtree(extra["RAY_TMPDIR"], ignore_errors=True)

    def run(
        self,
        command: Sequence[str],
        directory: Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300,
    ) -> ProcessResult:
        """Run a command. Fails if it exits with an error or takes too long."""
        with self.start(command, directory, env) as process:
            return process.wait(timeout_s)

    def log(self, text: str) -> None:
        print(f"  {Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


# Result files of the scripts


def read_rank_results(directory: Path, pattern: str = "rank_{}.json", size: int = 2) -> list[dict[str, Any]]:
    """Read the file that each rank wrote, which proves that it ran."""
    results = []
    for rank in range(size):
        path = directory / pattern.format(rank)
        if not path.exists():
            raise BenchmarkError(f"{directory.name}: rank {rank} has not left {path.name}: it did not really run")
        results.append(json.loads(path.read_text()))
    return results


def read_times(directory: Path, fits: int) -> list[float]:
    """Read how long each fit of a script took."""
    path = directory / "took.json"
    check(path.exists(), f"{directory.name}: no times were written, so it did not finish")
    took: list[float] = json.loads(path.read_text())
    check(len(took) == fits, f"{directory.name}: {len(took)} fits instead of {fits}")
    return took


def _environment(peer: str | None) -> dict[str, str]:
    """Environment variables of a command. A peer can import the shared modules, but not Paceline."""
    if peer is None:
        return {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    if peer != "ray":
        return {"PYTHONPATH": str(HERE)}
    # Ray puts its sockets there, and a socket's path may have 107 characters.
    return {"RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}


# The command line


def main(
    question: str,
    measure: Callable[[Bench], Report],
    *,
    repeats: int,
    peers: Sequence[str] = (),
    peer_repeats: int = 2,
    add_arguments: Callable[[argparse.ArgumentParser], object] | None = None,
) -> None:
    """Measure, print the line and write the JSON. The environments of `peers` are checked first."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"rounds of ours and the peer (default {repeats})")
    parser.add_argument(
        "--peer-repeats",
        type=int,
        default=peer_repeats,
        metavar="N",
        help=f"rounds that slow peers take part in: all but torchrun (default {peer_repeats})",
    )
    parser.add_argument(
        "--within", type=float, default=math.inf, metavar="S", help="start no round that would end later than this"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all samples to this file")
    parser.add_argument("--storage", type=Path, metavar="DIR", help="directory of the runs (default benchmarks/out)")
    add_peer_arguments(parser)
    parser.add_argument("--keep", action="store_true", help="keep what the runs wrote")
    if add_arguments is not None:
        add_arguments(parser)
    options = parser.parse_args()
    if options.repeats < 1 or options.peer_repeats < 1:
        parser.error("--repeats and --peer-repeats must be at least 1; use --without to leave a peer out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # As an installation does. Some environments keep Python from writing bytecode.
    compileall.compile_dir(str(ROOT / "src" / "paceline"), quiet=2)
    adopt_orphans()
    environments = Environments(options.environments.absolute(), options.without)
    try:
        versions = environments.check(peers)
        with _storage(options) as storage:
            bench = Bench(options, storage, environments)
            report = measure(bench)
            left_out = [name for name in peers if name in options.without]
            notes = {**report.notes, **bench.notes(), **({"left out": ", ".join(left_out)} if left_out else {})}
            report = Report(report.measures, notes, report.curves)
            if options.json is not None:
                document = {
                    "question": question,
                    **circumstances(storage),
                    "peers": versions,
                    "without": left_out,
                    **report.as_json(),
                }
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    except BenchmarkError as problem:
        sys.exit(f"{question} | FAILED: {problem}")
    print(report.line(question), flush=True)


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without", nargs="+", action="extend", default=[], choices=PEERS, metavar="PEER", help="leave peers out"
    )
    parser.add_argument("--no-ray", action="append_const", dest="without", const="ray", help="--without ray")
    parser.add_argument(
        "--environments", type=Path, default=ROOT, metavar="DIR", help="directory of .venv-ray and the others"
    )


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
