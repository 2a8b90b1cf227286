"""Run the suite and print one table, a line per part: what `make test`, `make test-all` and CI call.

Parts never hide each other: all of them run, whatever fails. A test that fails is run once more, alone, and is listed
as flaky if it passes then. In CI a skip is a failure unless `ALLOWED_SKIPS` has its reason.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "build" / "test-tables"

PARTS = {
    "core": (
        "_control", "_core", "_engine", "_storage", "_worker", "contracts", "golden", "properties", "surface",
        "testing", "test_check_release.py", "test_guards.py", "test_run_parts.py",
    ),
    "train": ("train", "terminal"),
    "frameworks": (
        "train/torch", "train/trees", "train/with_huggingface", "train/with_jax", "train/with_lightning",
        "train/with_tensorflow",
    ),
    "data": ("data",),
    "tune": ("tune",),
    "views": ("cli", "control", "dashboard", "frontend", "migrate", "view", "test_cli.py"),
    "browser": ("browser",),
    "docs": ("docs", "surface/test_snippets.py"),
    "examples": ("examples", "benchmarks"),
    "chaos": ("chaos",),
    "cluster": ("cluster", "hosts", "schedulers"),
}  # fmt: skip
"""A test belongs to the part that names the longest path leading to it."""

MAX_RERUNS = 10
"""With more failures than this something is broken, and running them again tells nothing new."""

ALLOWED_SKIPS = re.compile(r"GPU|CUDA|NVIDIA|[Aa]zur|DeepSpeed|deepspeed|FUSE|private mounts")
"""In the reasons for which CI may skip a test: what a machine without an accelerator cannot run, or without FUSE, or a
container without the right to mount.
"""

SKIPS_WITHOUT_ROOT = re.compile(r"tmpfs cannot be mounted|no control group can be made|make a mount namespace")
"""What CI may skip too where it does not run as root, as on hosted runners."""

NO_TESTS_COLLECTED = 5


@dataclasses.dataclass(frozen=True)
class Outcome:
    test: str
    outcome: str
    reason: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Session:
    """One call of pytest."""

    name: str
    paths: tuple[str, ...]
    marker: str
    arguments: tuple[str, ...] = ()


def find_part(test: str) -> str:
    """The part that a test id or a path belongs to; KeyError if none does."""
    path = test.partition("::")[0].removeprefix("tests/")
    prefixes = {prefix: part for part, prefixes in PARTS.items() for prefix in prefixes}
    while path not in prefixes:
        if "/" not in path:
            raise KeyError(f"no part of tools/run_parts.py has {test}; add its folder to PARTS")
        path = path.rpartition("/")[0]
    return prefixes[path]


def list_paths(parts: Sequence[str]) -> tuple[str, ...]:
    """The arguments that make pytest collect these parts and nothing else."""
    paths = [f"tests/{prefix}" for part in parts for prefix in PARTS[part]]
    others = [f"tests/{prefix}" for part, prefixes in PARTS.items() if part not in parts for prefix in prefixes]
    nested = [other for other in others if any(other.startswith(path + "/") for path in paths)]
    return (*sorted(paths), *(f"--ignore={path}" for path in sorted(nested)))


def plan_sessions(parts: Sequence[str], only_slow: bool) -> list[Session]:
    """One session for most parts, so that no core idles at the end of a part, and one for those on a Ray cluster."""
    speed = "slow" if only_slow else "not slow"
    local = [part for part in parts if part != "cluster"]
    sessions = []
    if local:
        paths = list_paths(local)
        common = f"{speed} and not chaos and not fresh and not ray"
        processes = ("-n", "3", "--dist", "worksteal")
        sessions.append(Session("local", paths, common, processes))
    if "cluster" in parts:
        processes = ("-n", "2", "--dist", "loadfile") if only_slow else ()
        sessions.append(Session("cluster", list_paths(["cluster"]), f"{speed} and not chaos", processes))
    return sessions


def run_sessions(
    sessions: Sequence[Session], arguments: Sequence[str], at_once: bool
) -> list[tuple[list[Outcome], str]]:
    """Run them one after the other, or at once: then the first prints as it runs, the others when they have ended."""
    if not at_once:
        return [run_session(session, arguments) for session in sessions]
    with ThreadPoolExecutor() as threads:
        others = [threads.submit(run_session, session, arguments, prints_at_end=True) for session in sessions[1:]]
        return [run_session(session, arguments) for session in sessions[:1]] + [each.result() for each in others]


def run_session(session: Session, arguments: Sequence[str], prints_at_end: bool = False) -> tuple[list[Outcome], str]:
    """The outcomes of its tests, and what went wrong with the session itself, if anything."""
    header = f"\n== {session.name} =="
    if not prints_at_end:
        print(header, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "outcomes.jsonl"
        log.touch()
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", f"--outcome-log={log}"]
        command += ["-m", session.marker, *session.arguments, *session.paths, *arguments]
        with (Path(folder) / "output").open("w+") as output:
            stdout = output if prints_at_end else None
            status = subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=stdout).returncode
            output.seek(0)
            if prints_at_end:
                print(header, output.read(), sep="\n", flush=True)
        outcomes = [Outcome(**json.loads(line)) for line in log.read_text().splitlines()]
    if status in (0, NO_TESTS_COLLECTED):
        return outcomes, ""
    if status == 1 and any(each.outcome == "failed" for each in outcomes):
        return outcomes, ""
    return outcomes, f"session {session.name}: pytest ended with status {status}"


def rerun_failures(outcomes: list[Outcome]) -> list[Outcome]:
    """Run failed tests again, each alone; those that pass then become flaky."""
    failed = [each for each in outcomes if each.outcome == "failed" and "::" in each.test]
    if len(failed) > MAX_RERUNS:
        return outcomes
    flaky = set()
    for each in failed:
        print(f"\n== once more, alone: {each.test} ==", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", each.test]
        if subprocess.run(command, cwd=ROOT).returncode == 0:
            flaky.add(each.test)
    return [dataclasses.replace(each, outcome="flaky") if each.test in flaky else each for each in outcomes]


def find_forbidden_skips(outcomes: Iterable[Outcome], is_root: bool) -> list[Outcome]:
    allowed = [ALLOWED_SKIPS] if is_root else [ALLOWED_SKIPS, SKIPS_WITHOUT_ROOT]
    skipped = [each for each in outcomes if each.outcome == "skipped"]
    return [each for each in skipped if not any(reasons.search(each.reason) for reasons in allowed)]


def format_table(outcomes: Sequence[Outcome], elapsed_s: float) -> str:
    columns = ("passed", "failed", "flaky", "skipped")
    counts: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    seconds: Counter[str] = Counter()
    for each in outcomes:
        part = find_part(each.test)
        counts[part][each.outcome] += 1
        seconds[part] += each.seconds
    lines = [f"{'part':<12}" + "".join(f"{column:>9}" for column in columns) + f"{'seconds':>9}"]
    for part, counted in counts.items():
        if counted:
            numbers = "".join(f"{counted[column]:>9}" for column in columns)
            lines.append(f"{part:<12}{numbers}{seconds[part]:>9.0f}")
    total = sum(counts.values(), Counter())
    lines.append(f"{'all':<12}" + "".join(f"{total[column]:>9}" for column in columns) + f"{seconds.total():>9.0f}")
    lines.append(f"elapsed: {elapsed_s / 60:.1f} minutes (seconds above are those of tests, which run side by side)")
    reasons = Counter(each.reason for each in outcomes if each.outcome == "skipped")
    lines += [f"skipped {number:>4}: {reason}" for reason, number in reasons.most_common()]
    lines += [f"{each.outcome}: {each.test}" for each in outcomes if each.outcome in ("failed", "flaky")]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="run the tests marked slow instead of the others")
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part; may be repeated")
    chosen, pytest_arguments = parser.parse_known_args()
    began = time.monotonic()
    outcomes: list[Outcome] = []
    problems: list[str] = []
    sessions = plan_sessions(chosen.part or list(PARTS), chosen.slow)
    # Quick tests on the one cluster mostly wait. The slow ones start several, which need the memory for themselves.
    for ended, problem in run_sessions(sessions, pytest_arguments, at_once=not chosen.slow):
        earlier = {each.test for each in outcomes}  # A file that cannot be collected is reported by each session.
        outcomes += [each for each in ended if each.test not in earlier]
        problems += [problem] if problem else []
    outcomes = rerun_failures(outcomes)
    problems += [f"failed: {each.test}" for each in outcomes if each.outcome == "failed"]
    if os.environ.get("CI"):
        forbidden = find_forbidden_skips(outcomes, is_root=os.geteuid() == 0)
        problems += [f"must not be skipped in CI: {each.test} ({each.reason})" for each in forbidden]
    if not outcomes:
        problems.append("no test ran")
    table = format_table(outcomes, time.monotonic() - began)
    TABLES.mkdir(parents=True, exist_ok=True)
    name = "slow" if chosen.slow else "fast"
    (TABLES / f"{name}.txt").write_text(table + "\n")
    slowest = sorted(outcomes, key=lambda each: -each.seconds)
    (TABLES / f"{name}.jsonl").write_text("".join(json.dumps(dataclasses.asdict(each)) + "\n" for each in slowest))
    print(f"\n{table}")
    for problem in problems:
        if not problem.startswith("failed: "):
            print(problem)
    total = Counter(each.outcome for each in outcomes)
    print(f"{total['passed'] + total['flaky']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
