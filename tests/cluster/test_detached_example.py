"""The example of a detached run, as a user would run it on a cluster that is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(240)
def test_a_run_that_its_script_left_is_followed_to_its_end(cluster, tmp_path):
    options = ("--epochs", "2", "--samples", "600", "--min-accuracy", "0.2", "--name", "shapes")
    command = [sys.executable, str(EXAMPLES / "cluster_detached.py"), "--address", cluster.address, *options]
    with (tmp_path / "printed").open("w+") as out:
        code = subprocess.run(
            [*command, "--storage-path", str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PACELINE_PREWARM": "0"},
        ).returncode
    printed = (tmp_path / "printed").read_text()
    assert code == 0, printed
    begun, killed, followed = printed.partition("the script that began the run is killed\n")
    assert killed
    assert "[rank 0] epoch 0: " in begun
    assert "[rank 0] epoch 1: " not in begun
    assert "run shapes is complete after 2 reports" in followed
    assert "epochs           [0, 1], each once" in followed
