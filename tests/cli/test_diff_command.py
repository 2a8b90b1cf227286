"""`paceline diff`: what differs between two runs."""

import msgspec

from paceline._view.model import Diff


def test_configuration_and_metrics_that_differ_are_shown(paceline):
    ended = paceline("diff", "complete", "lower")
    assert ended.code == 0, ended.err
    configuration, _, rest = ended.out.partition("\n\n")
    assert configuration.splitlines()[1].split() == ["complete", "lower"]
    assert ["lr", "0.1", "0.05"] in [line.split() for line in configuration.splitlines()]
    assert "  loss      0.2          0.1" in rest
    assert "the same: code" in rest
    assert "\x1b" not in ended.out


def test_long_values_stand_under_one_another(paceline, runs):
    lines = paceline("diff", "complete", "lower").out.splitlines()
    at = lines.index("  argv")
    assert lines[at + 1] == f"  - train.py {runs.root} complete complete 0.1"
    assert lines[at + 2] == f"  + train.py {runs.root} lower complete 0.05"


def test_a_run_and_itself_are_the_same(paceline):
    out = paceline("diff", "complete", "complete").out
    assert "the same: configuration, code, environment" in out
    assert "configuration:" not in out


def test_the_difference_as_json(paceline):
    found = msgspec.json.decode(paceline("diff", "complete", "lower", "--json").out, type=Diff)
    assert ("lr", 0.1, 0.05) in [(change.key, change.a, change.b) for change in found.config]


def test_code_that_differs_is_shown_as_a_diff(paceline, runs, tmp_path):
    import shutil
    import subprocess
    import sys

    shutil.copy(runs.script, tmp_path / "train.py")
    script = tmp_path / "train.py"
    script.write_text(script.read_text().replace("* 10 / step", "* 20 / step"))
    command = [sys.executable, "train.py", str(tmp_path), "other", "complete", "0.1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    out = paceline("diff", "complete", str(tmp_path / "other")).out
    assert '-        loss = config["lr"] * 10 / step\n+        loss = config["lr"] * 20 / step' in out
