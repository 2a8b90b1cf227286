"""`paceline init`: each starter is written, is valid Python, trains, and survives a killed worker."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from paceline._commands import init
from paceline.train import Result

SLOW = pytest.mark.slow


def test_a_starter_is_written_once_and_says_what_to_do_next(paceline, tmp_path):
    result = paceline("init", "--framework", "plain")
    assert result.code == 0
    assert "python train.py" in result.out
    script = tmp_path / "train.py"
    assert script.read_text() == (init.STARTERS / "plain.py.txt").read_text()
    script.write_text("mine")
    paceline("init", "--framework", "plain").assert_refused("train.py exists", "hint: ", "--force")
    assert script.read_text() == "mine"
    assert paceline("init", "--framework", "plain", "--force").code == 0
    assert script.read_text() != "mine"
    document = json.loads(paceline("init", "--framework", "jax", "some where", "--json").out)
    assert document["path"] == "some where/train.py"
    assert document["next"][:2] == ["cd 'some where'", "python train.py"]
    assert (tmp_path / "some where" / "train.py").exists()


def test_without_a_framework_it_takes_torch_if_that_is_there_and_names_what_to_install(paceline, monkeypatch):
    monkeypatch.setattr(init, "find_spec", lambda name: None)
    assert json.loads(paceline("init", "one.py", "--json").out)["framework"] == "plain"
    document = json.loads(paceline("init", "two.py", "--framework", "xgboost", "--json").out)
    assert document["next"][0] == 'pip install "paceline[xgboost]"'
    monkeypatch.setattr(init, "find_spec", lambda name: name)
    assert json.loads(paceline("init", "three.py", "--json").out)["framework"] == "torch"


def test_every_framework_has_a_short_starter_and_every_starter_a_framework():
    files = {path.name.removesuffix(".py.txt"): path.read_text() for path in init.STARTERS.iterdir()}
    assert files.keys() == init.FRAMEWORKS.keys()
    for name, text in files.items():
        assert len(text.splitlines()) <= 60, name
        ast.parse(text)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("framework", "step", "num_reports"),
    [
        ("plain", 3, 10),
        pytest.param("torch", 3, 10, marks=SLOW),
        *(pytest.param(name, 12, 30, marks=SLOW) for name in ("xgboost", "lightgbm")),
        pytest.param("jax", 3, 10, marks=SLOW),
        *(pytest.param(name, 3, 5, marks=SLOW) for name in ("tensorflow", "lightning", "transformers")),
    ],
)
def test_a_starter_trains_and_resumes_after_a_kill(tmp_path, framework, step, num_reports):
    if framework != "plain" and find_spec(framework) is None:  # Not imported here: that changes the environment.
        pytest.skip(f"{framework} is not installed: its starter was not run")
    command = [sys.executable, "-m", "paceline", "init", "--framework", framework]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    ended = subprocess.run(
        [sys.executable, "-m", "paceline.testing.faults", "--kill", f"1@step:{step}", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PACELINE_PREWARM": "0"},
        capture_output=True,
        text=True,
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    assert "paceline: attempt 2, from checkpoint checkpoint_0000" in printed
    assert "last: {" in printed
    result = Result.from_path(str(tmp_path / "runs" / "starter"))
    assert len(result.metrics_dataframe) == num_reports
    result.checkpoint.verify()
