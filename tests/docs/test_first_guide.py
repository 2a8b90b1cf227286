"""The first guide, followed word for word: in a clean environment, and cheaply with the present interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from followed_page import follow, is_as_shown, steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "first-run.md"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
MARK = "PACELINE_TEST_SESSION"
"""What `conftest.py` finds by it that a test left running."""

NETWORK = ("PIP_", "SSL_", "REQUESTS_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy")
"""Variables that say how pip reaches its index. Of the rest of the environment a reader has nothing."""


def clean_environment(tmp_path: Path, path: str) -> dict[str, str]:
    """That of somebody who has just logged in: a home directory with nothing in it, and no variables of ours."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    return {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PATH": path,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        MARK: os.environ[MARK],
    }


@pytest.mark.fresh
@pytest.mark.timeout(1800)
def test_a_fresh_clone_follows_the_first_guide_word_for_word(tmp_path: Path) -> None:
    # Beside the interpreter that our own environment was made from there is no package of ours.
    interpreters = Path(sys.base_prefix, "bin")
    env = clean_environment(tmp_path, f"{interpreters}:{SYSTEM_PATH}")
    found = subprocess.run(["python3", "-c", "import paceline"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "ModuleNotFoundError: No module named 'paceline'" in found.stderr, "it is not clean"

    env |= {name: value for name, value in os.environ.items() if name.startswith(NETWORK)}
    configured = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"), "pip", "pip.conf")
    if configured.exists():
        env.setdefault("PIP_CONFIG_FILE", str(configured))
    # The clone's owner may be another user than that of the tests.
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    work = tmp_path / "work"
    work.mkdir()
    followed = follow(PAGE, work, env, given={"address of the repository": str(ROOT)}, timeout_s=1500)
    assert followed == 17
    assert not (tmp_path / "home" / "paceline_results").exists()
    assert sorted(path.name for path in (work / "first" / "runs").iterdir()) == ["first", "second"]


@pytest.mark.timeout(300)
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
    assert follow(PAGE, work, env, after="## A script", given={}, timeout_s=120) == 12


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


FOLLOWED = """\
Save this as `said.txt`:

<!-- not run: it is no Python -->
```python
hello
```

## Then

```console
$ mkdir below; cd below; x=1
$ echo $x; cat ../said.txt; cat
1
{}
$ sleep 100 &
```
"""


def test_commands_share_one_shell_and_have_nothing_to_read(tmp_path: Path) -> None:
    env = {"PATH": SYSTEM_PATH}
    assert follow(page_of(tmp_path, FOLLOWED.format("h...o")), tmp_path, env, given={}, timeout_s=20) == 3
    assert (tmp_path / "said.txt").read_text() == "hello\n"


def test_what_is_printed_otherwise_fails_at_its_line_of_the_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, FOLLOWED.format("goodbye"))
    with pytest.raises(AssertionError, match=r"page.md:12: echo .*\n.*printed:\n1\nhello\n"):
        follow(page, tmp_path, {"PATH": SYSTEM_PATH}, given={}, timeout_s=20)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false", "ended with 1"),
        ("sleep 100", "not done after"),
        ("exit 0", "the shell ended"),
        ("echo something", "printed:\nsomething\n\nThe page shows:\nnothing of the kind"),
    ],
)
def test_a_command_that_does_not_do_what_the_page_says_fails(tmp_path: Path, command: str, message: str) -> None:
    page = page_of(tmp_path, f"```console\n$ {command}\nnothing of the kind\n```\n")
    with pytest.raises(AssertionError, match=message):
        follow(page, tmp_path, {"PATH": SYSTEM_PATH}, given={}, timeout_s=0.5)


@pytest.mark.parametrize("block", ["```\n$ ls\n```\n", "```python\nx = 1\n```\n", "```console\nls\n```\n"])
def test_a_block_that_nobody_could_follow_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        steps(block)


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        (("a 1", "b 2", "c"), True),
        (("a   1", "b 2", "", "c"), True),
        (("a ...", "b 2", "c"), True),
        (("a 1", "..."), True),
        (("...", "c"), True),
        (("a 1", "b 2"), False),
        (("a 1", "c"), False),
        (("a ...", "c"), False),
        (("b 2", "..."), False),
        ((), False),
    ],
)
def test_dots_stand_for_what_varies_and_for_nothing_else(shown: tuple[str, ...], same: bool) -> None:
    assert is_as_shown("a 1\nb  2\n\nc\n", shown) is same
