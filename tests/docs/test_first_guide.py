"""The first guide, followed word for word: in a clean environment, and cheaply with the present interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from followed_page import follow

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
    followed = follow(PAGE, work, env, values={"address of the repository": str(ROOT)}, timeout_s=1500)
    assert followed == 17
    assert not (tmp_path / "home" / "paceline_results").exists()
    assert sorted(path.name for path in (work / "first" / "runs").iterdir()) == ["first", "second"]


@pytest.mark.timeout(300)
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
    assert follow(PAGE, work, env, after="## A script", timeout_s=120) == 12
