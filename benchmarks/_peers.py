"""The peers, each in its own environment without Paceline. `peers/make_env.sh` creates them.

A peer that is neither available nor left out (`--without`) fails the benchmark before anything is measured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _figures import BenchmarkError, check

MAKE = "benchmarks/peers/make_env.sh"


@dataclass(frozen=True)
class Peer:
    title: str
    packages: tuple[str, ...]
    """Packages its environment must have; their versions go into the results."""
    program: str
    """A program that imports all that its scripts import."""
    slow: bool = True
    """Runs in fewer rounds (`--peer-repeats`)."""


PEERS = {
    # Plain torch, which also runs the scripts without a framework, for data and `torch.save`.
    "torchrun": Peer("torchrun", ("torch", "pyarrow", "pillow"), "import torch, pyarrow, PIL", slow=False),
    "accelerate": Peer("Accelerate", ("accelerate", "torch"), "import accelerate"),
    "lightning": Peer("Lightning", ("lightning", "torch"), "import lightning"),
    "ray": Peer(
        "Ray Train", ("ray", "torch", "pandas", "pyarrow", "pillow"), "import ray.train.torch, ray.tune, ray.data"
    ),
}

_VERSIONS = """
import importlib.metadata, json, platform, sys
versions = {"python": platform.python_version()}
for name in sys.argv[1:]:
    versions[name] = importlib.metadata.version(name)
print(json.dumps(versions))
"""


@dataclass
class Environments:
    """The peers' interpreters, and which peers are left out."""

    directory: Path
    """The directory of `.venv-ray` and the others."""
    without: Sequence[str] = ()
    _versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def python(self, name: str) -> str:
        self.versions(name)
        return str(self._bin(name) / "python")

    def program(self, name: str, program: str) -> str:
        """The path of a command installed with the peer."""
        self.versions(name)
        path = self._bin(name) / program
        check(path.exists(), f"{name} cannot run: {path} does not exist. {_hint(name)}")
        return str(path)

    def peer_of(self, executable: str) -> str | None:
        """The peer whose environment has this interpreter or command."""
        return next((name for name in PEERS if Path(executable).parent == self._bin(name)), None)

    def versions(self, name: str) -> dict[str, str]:
        """Versions of the packages in the environment. Fails if it is missing or incomplete."""
        if name not in self._versions:
            check(name not in self.without, f"{name} is left out by --without and cannot run")
            output = self._run_python(name, "-c", _VERSIONS, *PEERS[name].packages)
            self._versions[name] = json.loads(output)
        return self._versions[name]

    def check(self, names: Iterable[str], *, imports: bool = False) -> dict[str, dict[str, str]]:
        """Versions of the peers that are not left out. With `imports`, also try the imports of their scripts."""
        versions = {}
        for name in names:
            if name in self.without:
                continue
            versions[name] = self.versions(name)
            if imports:
                self._run_python(name, "-c", PEERS[name].program)
        return versions

    def _bin(self, name: str) -> Path:
        return self.directory / f".venv-{name}" / "bin"

    def _run_python(self, name: str, *arguments: str) -> str:
        interpreter = self._bin(name) / "python"
        check(interpreter.exists(), f"{name} cannot run: {interpreter} does not exist. {_hint(name)}")
        try:
            answer = subprocess.run(
                [str(interpreter), "-I", *arguments], capture_output=True, text=True, timeout=180, check=True
            )
        except subprocess.CalledProcessError as problem:
            last = (problem.stderr.strip().splitlines() or [f"exit code {problem.returncode}"])[-1]
            raise BenchmarkError(f"{name} cannot run: its environment is broken ({last}). {_hint(name)}") from None
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{name} cannot run: its imports took more than 180 s") from None
        return answer.stdout


def _hint(name: str) -> str:
    return f"Run {MAKE} {name}, or leave it out with --without {name}"
