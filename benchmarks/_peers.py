"""The peers, each in an environment of its own that has nothing of ours: `peers/make_env.sh` makes them.

A peer takes part, or it was left out in so many words (`--without`). One that is neither is a failure: before anything
is measured, and by name.
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
    """What its environment has to have; the versions go into the results."""
    program: str
    """What imports all that its scripts import."""
    slow: bool = True
    """Takes part in fewer rounds (`--peer-repeats`)."""


PEERS = {
    # Plain torch: also what runs scripts without any framework, for data and for `torch.save`.
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
    """Where the peers' interpreters are, and which of them are left out."""

    directory: Path
    """What holds `.venv-ray` and the others."""
    without: Sequence[str] = ()
    _versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def python(self, name: str) -> str:
        self.versions(name)
        return str(self._bin(name) / "python")

    def program(self, name: str, program: str) -> str:
        """A command that was installed with the peer."""
        self.versions(name)
        path = self._bin(name) / program
        check(path.exists(), f"{name} cannot run: {path} is not there. {_remade(name)}")
        return str(path)

    def whose(self, executable: str) -> str | None:
        """The peer that an interpreter or a command belongs to."""
        return next((name for name in PEERS if Path(executable).parent == self._bin(name)), None)

    def versions(self, name: str) -> dict[str, str]:
        """What the environment has. It fails where it is not there or has not all that it needs."""
        if name not in self._versions:
            check(name not in self.without, f"{name} is left out by --without and cannot be asked to run")
            said = self._said(name, "-c", _VERSIONS, *PEERS[name].packages)
            self._versions[name] = json.loads(said)
        return self._versions[name]

    def check(self, names: Iterable[str], *, imports: bool = False) -> dict[str, dict[str, str]]:
        """Versions of those that are not left out. With `imports`, each has imported all that its scripts need."""
        found = {}
        for name in names:
            if name in self.without:
                continue
            found[name] = self.versions(name)
            if imports:
                self._said(name, "-c", PEERS[name].program)
        return found

    def _bin(self, name: str) -> Path:
        return self.directory / f".venv-{name}" / "bin"

    def _said(self, name: str, *arguments: str) -> str:
        interpreter = self._bin(name) / "python"
        check(interpreter.exists(), f"{name} cannot run: {interpreter} is not there. {_remade(name)}")
        try:
            answer = subprocess.run(
                [str(interpreter), "-I", *arguments], capture_output=True, text=True, timeout=180, check=True
            )
        except subprocess.CalledProcessError as problem:
            last = (problem.stderr.strip().splitlines() or [f"exit code {problem.returncode}"])[-1]
            raise BenchmarkError(f"{name} cannot run: its environment is broken ({last}). {_remade(name)}") from None
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{name} cannot run: its imports did not end within 180 s") from None
        return answer.stdout


def _remade(name: str) -> str:
    return f"Run {MAKE} {name}, or leave it out with --without {name}"
