"""The first guide, followed word for word: in a clean environment, and cheaply with the present interpreter.

A `python` block below a line "Save this as `name`:" becomes that file. In a `console` block, lines that begin with
`$ ` are typed into one shell, and what stands below them has to be what is printed: `...` is any text of a line,
`...` alone on a line any number of lines, and columns may be wider or narrower. Every command has to succeed.
A block of any other kind is refused: nobody would follow it.
"""

import dataclasses
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "first-run.md"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
MARK = "PACELINE_TEST_SESSION"
"""What `conftest.py` finds by it that a test left running."""

NETWORK = ("PIP_", "SSL_", "REQUESTS_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy")
"""Variables that say how pip reaches its index. Of the rest of the environment a reader has nothing."""


FENCE = re.compile(r"^```(?P<kind>\S*)[^\n]*\n(?P<text>.*?)^```[ ]*$", re.DOTALL | re.MULTILINE)
SAVE_AS = re.compile(r"Save this as `(?P<name>[^`]+)`:\s*(?:<!--[^\n]*-->\s*)?\Z")

# What is said by others than the commands of the page: by torch where a host name does not resolve, and by a shell
# that nobody types into about a job that was killed.
NOT_OURS = re.compile(r"^(\[rank \d+\] )?\[W\d+ .*\[c10d\] The hostname of the client socket|^\S*bash: .* Killed ")


@dataclasses.dataclass
class Step:
    """A file to save, or a command to type and what it prints."""

    line: int
    name: str = ""
    text: str = ""
    printed: list[str] = dataclasses.field(default_factory=list)


def parse_steps(page: str) -> list[Step]:
    """What a reader of the page does, in order."""
    steps: list[Step] = []
    for block in FENCE.finditer(page):
        line = page.count("\n", 0, block.start("text")) + 1
        if block["kind"] == "console":
            assert block["text"].startswith("$ "), f"line {line}: printed by no command"
            for number, text in enumerate(block["text"].splitlines(), start=line):
                if text.startswith("$ "):
                    steps.append(Step(number, text=text[2:]))
                else:
                    steps[-1].printed.append(text)
        elif block["kind"] == "python" and (named := SAVE_AS.search(page, 0, block.start())):
            steps.append(Step(line, named["name"], block["text"]))
        else:
            raise ValueError(f"line {line}: a block that is neither a console's nor to be saved as a file")
    return steps


def is_as_shown(printed: str, shown: list[str]) -> bool:
    """Whether a command printed what the page shows below it."""
    pattern = ""
    for text in filter(None, map(_spaced, shown)):
        if text == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part) for part in text.split("...")) + r"\n"
    lines = [_spaced(line) for line in printed.splitlines() if not NOT_OURS.match(line)]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines if line)) is not None


def _spaced(line: str) -> str:
    return " ".join(line.split())


def follow(directory: Path, env: Mapping[str, str], *, after: str = "", repository: str = "", timeout_s: float) -> int:
    """Does in `directory` what the page says, from the heading `after` on, and returns how many commands that were."""
    text = PAGE.read_text()
    begin = text.count("\n", 0, text.index(f"\n{after}\n") + 1) + 1 if after else 0
    count = 0
    with _shell(directory, env) as shell:
        for step in parse_steps(text):
            if step.line < begin:
                continue
            if step.name:
                Path(_type(shell, "pwd", timeout_s)[1].strip(), step.name).write_text(step.text)
                continue
            command = step.text.replace("<address of the repository>", repository)
            status, printed = _type(shell, command, timeout_s)
            problem = f"{PAGE.name}:{step.line}: {command}\nended with {status}, and printed:\n{printed}"
            assert status == 0, problem
            assert is_as_shown(printed, step.printed), "\n".join([problem, "The page shows:", *step.printed])
            count += 1
    return count


def _type(shell: subprocess.Popen[bytes], command: str, timeout_s: float) -> tuple[int, str]:
    """Runs a command and returns its exit status and all that was printed meanwhile."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    mark = uuid.uuid4().hex
    # In braces, so that what it changes (the directory, the environment) is there for the next one.
    shell.stdin.write(f"{{ {command}\n}} < /dev/null; printf '\\n{mark} %d\\n' $?\n".encode())
    shell.stdin.flush()
    printed, deadline = b"", time.monotonic() + timeout_s
    with selectors.DefaultSelector() as ready:
        ready.register(shell.stdout, selectors.EVENT_READ)
        while (ended := re.search(rf"\n{mark} (\d+)\n".encode(), printed)) is None:
            if not ready.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"{command}: not done after {timeout_s} s; until now:\n{printed.decode()}")
            more = os.read(shell.stdout.fileno(), 65536)
            assert more, f"{command}: the shell ended:\n{printed.decode()}"
            printed += more
    return int(ended[1]), printed[: ended.start()].decode()


@contextmanager
def _shell(directory: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = ["/bin/bash", "--noprofile", "--norc"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=directory, env=dict(env), start_new_session=True, **streams)
    with process:
        try:
            yield process
        finally:
            # What the page left running, and the shell.
            os.killpg(process.pid, signal.SIGKILL)


def clean_environment(tmp_path: Path, path: str) -> dict[str, str]:
    """That of somebody who has just logged in: a home directory with nothing in it, and no variables of ours."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    own = {"HOME": str(home), "TMPDIR": str(temporary), "PATH": path}
    return {**own, "LANG": "C.UTF-8", "TERM": "dumb", MARK: os.environ[MARK]}


@pytest.mark.fresh
@pytest.mark.timeout(1800)
def test_a_fresh_clone_follows_the_first_guide_word_for_word(tmp_path: Path) -> None:
    # Beside the interpreter that our own environment was made from there is no package of ours.
    interpreters = Path(sys.base_prefix, "bin")
    env = clean_environment(tmp_path, f"{interpreters}:{SYSTEM_PATH}")
    ended = subprocess.run(["python3", "-c", "import paceline"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "ModuleNotFoundError: No module named 'paceline'" in ended.stderr, "it is not clean"

    env |= {name: value for name, value in os.environ.items() if name.startswith(NETWORK)}
    configured = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"), "pip", "pip.conf")
    if configured.exists():
        env.setdefault("PIP_CONFIG_FILE", str(configured))
    # The clone's owner may be another user than that of the tests.
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    work = tmp_path / "work"
    work.mkdir()
    followed = follow(work, env, repository=str(ROOT), timeout_s=1500)
    assert followed == 17
    assert not (tmp_path / "home" / "paceline_results").exists()
    assert sorted(path.name for path in (work / "first" / "runs").iterdir()) == ["first", "second"]


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_first_guide_holds_for_the_present_interpreter(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, options in (("python", ""), ("paceline", "-m paceline ")):
        commands.joinpath(name).write_text(f'#!/bin/sh\nexec {sys.executable} {options}"$@"\n')
        commands.joinpath(name).chmod(0o755)
    env = clean_environment(tmp_path, f"{commands}:{SYSTEM_PATH}")
    env["PYTHONPATH"] = str(ROOT / "src")
    work = tmp_path / "paceline"
    work.mkdir()
    assert follow(work, env, after="## A script", timeout_s=120) == 12
