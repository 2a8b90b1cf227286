"""Build the wheel and the sdist, and use the wheel as a newcomer would: `make release-check`, and in CI.

For each interpreter: a new environment, the wheel with the chosen extras, an import of what they install, `paceline
doctor`, `paceline init` with its starters, and `tools/smoke.py`. Prints a table, and fails if a step does. Afterwards
build/release holds what could be uploaded.
"""

import argparse
import dataclasses
import itertools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent.parent
RELEASE = ROOT / "build" / "release"
LOG = ROOT / "build" / "release-check.log"
INTERPRETERS = ("python3.11", "python3.12", "python3.13")
TOOLS = ("build", "twine", "hatchling")
STARTERS = ROOT / "src" / "paceline" / "_commands" / "starters"
IMPORTS = """
import importlib, sys
from paceline._core.lazy_imports import EXTRA_OF
for module, extra in EXTRA_OF.items():
    if extra in sys.argv[1:]:
        importlib.import_module(module)
"""
STEP_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Step:
    interpreter: str
    name: str
    problem: str
    seconds: float


def read_version(root: Path = ROOT) -> str:
    """The version, from the only place that has it."""
    text = (root / "src" / "paceline" / "__init__.py").read_text()
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise ValueError("src/paceline/__init__.py has no __version__")
    return match[1]


def find_metadata_problems(version: str, changelog: str, citation: str) -> list[str]:
    """What else states the version, and disagrees."""
    problems = []
    if f"## [{version}]" not in changelog and "## [Unreleased]" not in changelog:
        problems.append(f"CHANGELOG.md has neither [{version}] nor [Unreleased]")
    if not re.search(rf'^version: "?{re.escape(version)}"?$', citation, re.MULTILINE):
        problems.append(f"CITATION.cff does not say version: {version}")
    return problems


def find_archive_problems(wheel: Iterable[str], sdist: Iterable[str], package: Iterable[str]) -> list[str]:
    """Compare the names in both archives with the files of the package, as paths below `paceline/`."""
    package = {f"paceline/{name}" for name in package}
    in_wheel = {name for name in wheel if not name.endswith("/") and ".dist-info/" not in name}
    in_sdist = {name.partition("/")[2] for name in sdist}
    allowed = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore", ""}
    problems = [f"the wheel lacks {name}" for name in sorted(package - in_wheel)]
    problems += [f"the wheel has {name}" for name in sorted(in_wheel - package)]
    problems += [f"the sdist lacks src/{name}" for name in sorted(package) if f"src/{name}" not in in_sdist]
    strange = [name for name in in_sdist if not name.startswith("src/paceline/") and name not in allowed]
    return problems + [f"the sdist has {name}" for name in sorted(strange)]


def read_requirements() -> dict[str, list[str]]:
    """What pyproject.toml requires: for each extra, and for the core under an empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def list_lowest_versions(requirements: Iterable[str]) -> list[str]:
    """Constraints for pip: of each package the lowest version that all of its requirements allow."""
    lowest: dict[str, str] = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\d.]+)", requirement)
        if match is None:
            raise ValueError(f"{requirement} has no lower bound, as in name>=1.2")
        lowest[match[1]] = max(lowest.get(match[1], "0"), match[2], key=parse_version)
    return [f"{name}=={version}" for name, version in lowest.items()]


def parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def format_table(steps: Sequence[Step]) -> str:
    """A line per environment. A step that was done several times shows the sum."""
    names = list(dict.fromkeys(step.name for step in steps))
    rows = list(dict.fromkeys(step.interpreter for step in steps))
    width = max(12, *(len(row) + 1 for row in rows))
    lines = [" " * width + "".join(f"{name:>12}" for name in names)]
    for row in rows:
        cells = [_format_cell([step for step in steps if (step.interpreter, step.name) == (row, n)]) for n in names]
        lines.append(f"{row:<{width}}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def _format_cell(steps: Sequence[Step]) -> str:
    if any(step.problem for step in steps):
        return "fail"
    return f"{sum(step.seconds for step in steps):.1f} s" if steps else ""


class ReleaseCheck:
    """Runs commands as named steps, until one fails, and logs what they print."""

    def __init__(self, interpreter: str, log: TextIO, label: str = "") -> None:
        self.interpreter = interpreter
        self.name = f"{Path(interpreter).name} {label}".rstrip()
        self.steps: list[Step] = []
        self._log = log

    @property
    def has_failed(self) -> bool:
        return any(step.problem for step in self.steps)

    def run(self, name: str, *command: object, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        if self.has_failed:
            return
        began = time.monotonic()
        words = [str(word) for word in command]
        print(f"  {self.name}: {name}", flush=True)
        try:
            ended = subprocess.run(
                words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=STEP_TIMEOUT_S,
            )  # fmt: skip
            printed, problem = ended.stdout, f"exit code {ended.returncode}" if ended.returncode else ""
        except subprocess.TimeoutExpired as error:
            printed = (error.stdout or b"").decode(errors="replace")  # bytes, also with text=True
            problem = f"not done after {STEP_TIMEOUT_S} s"
        except OSError as error:
            printed, problem = f"{error}\n", "cannot be started"
        self._log.write(f"\n== {self.name}: {' '.join(words)} ==\n{printed}")
        if problem:
            print(printed[-4000:])
        self.add(name, problem, time.monotonic() - began)

    def add(self, name: str, problem: str, seconds: float) -> None:
        self.steps.append(Step(self.name, name, problem, seconds))


def build_archives(check: ReleaseCheck, folder: Path) -> Path | None:
    """Build both archives, check what is in them, and return the wheel."""
    shutil.rmtree(RELEASE, ignore_errors=True)
    check.run("venv", sys.executable, "-m", "venv", folder / "tools", cwd=ROOT)
    python = folder / "tools" / "bin" / "python"
    check.run("tools", python, "-m", "pip", "-q", "install", *TOOLS, cwd=ROOT)
    check.run("build", python, "-m", "build", "--no-isolation", "--outdir", RELEASE, ".", cwd=ROOT)
    check.run("twine", python, "-m", "twine", "check", "--strict", *RELEASE.glob("paceline-*"), cwd=ROOT)
    if check.has_failed:
        return None
    (wheel,), (sdist,) = RELEASE.glob("*.whl"), RELEASE.glob("*.tar.gz")
    files = subprocess.run(
        ["git", "ls-files", "src/paceline"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    with zipfile.ZipFile(wheel) as in_wheel, tarfile.open(sdist) as in_sdist:
        names = [name.removeprefix("src/paceline/") for name in files]
        problems = find_archive_problems(in_wheel.namelist(), in_sdist.getnames(), names)
    texts = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    problems += find_metadata_problems(read_version(), *texts)
    print("\n".join(problems), end="\n" * bool(problems))
    check.add("contents", "; ".join(problems), 0.0)
    return None if problems else wheel


def check_wheel(
    check: ReleaseCheck, wheel: Path, work: Path, extras: Sequence[str], *, lowest: bool, only_extras: bool
) -> None:
    """Install the wheel into a new environment, and use it from an empty directory."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PACELINE_STORAGE_PATH"] = str(work / "results")
    constraints: tuple[object, ...] = ()
    if lowest:
        requirements = read_requirements()
        versions = list_lowest_versions(each for name in ("", *extras) for each in requirements[name])
        (work / "lowest.txt").write_text("\n".join(versions))
        constraints = ("-c", work / "lowest.txt")
    check.run("venv", check.interpreter, "-m", "venv", work / "venv", cwd=work)
    python, paceline = work / "venv" / "bin" / "python", work / "venv" / "bin" / "paceline"
    names = f"[{','.join(extras)}]" if extras else ""
    package = f"paceline{names} @ {wheel.as_uri()}"
    check.run("install", python, "-m", "pip", "-q", "install", *constraints, package, cwd=work)
    if extras:
        check.run("import", python, "-c", IMPORTS, *extras, cwd=work, env=environ)
    check.run("doctor", paceline, "doctor", cwd=work, env=environ)
    frameworks = [extra for extra in extras if (STARTERS / f"{extra}.py.txt").exists()]
    for framework in frameworks if only_extras else ["plain", *frameworks]:
        place = work / framework
        check.run("init", paceline, "init", "--framework", framework, place, cwd=work, env=environ)
        check.run("starters", python, "train.py", cwd=place, env=environ)
    if not only_extras:
        check.run("smoke", python, "-W", "error", ROOT / "tools" / "smoke.py", work, cwd=work, env=environ)


def main() -> int:
    known = [name for name in read_requirements() if name]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--python", action="append", help="an interpreter; may be repeated; else those that are found")
    add(
        "--extra",
        action="append",
        default=[],
        choices=known,
        metavar="NAME",
        help="install this extra too; may be repeated",
    )
    add("--each-extra", action="store_true", help="an environment for each extra, or each of those --extra names")
    add(
        "--without",
        action="append",
        default=[],
        choices=known,
        metavar="NAME",
        help="leave this extra out of --each-extra",
    )
    add("--lowest", action="store_true", help="install the lowest versions that pyproject.toml allows")
    chosen = parser.parse_args()
    interpreters = [os.path.abspath(each) if "/" in each else each for each in chosen.python or ()]
    interpreters = interpreters or [each for each in INTERPRETERS if is_usable(each)]
    groups = [chosen.extra]
    if chosen.each_extra:
        groups = [[], *([extra] for extra in chosen.extra or known if extra not in chosen.without)]
    LOG.parent.mkdir(exist_ok=True)
    checks = []
    with tempfile.TemporaryDirectory(prefix="paceline-release-") as place, open(LOG, "w") as log:
        building = ReleaseCheck(sys.executable, log)
        wheel = build_archives(building, Path(place))
        for interpreter, extras in itertools.product(interpreters if wheel else (), groups):
            assert wheel is not None
            checks.append(ReleaseCheck(interpreter, log, " ".join(extras) if chosen.each_extra else ""))
            with tempfile.TemporaryDirectory(dir=place) as work:
                only_extras = chosen.each_extra and bool(extras)
                check_wheel(checks[-1], wheel, Path(work), extras, lowest=chosen.lowest, only_extras=only_extras)
    print(f"\n{format_table(building.steps)}")
    if checks:
        print(f"\n{format_table([step for check in checks for step in check.steps])}")
    print(f"\nwhat the commands printed: {LOG.relative_to(ROOT)}")
    return int(not interpreters or any(check.has_failed for check in (building, *checks)))


def is_usable(interpreter: str) -> bool:
    """Whether an interpreter is there and starts: a version manager's command may only say that it does not."""
    if shutil.which(interpreter) is None:
        return False
    return subprocess.run([interpreter, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
