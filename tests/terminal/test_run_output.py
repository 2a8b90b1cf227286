"""All that a run prints where there is no terminal, from its first line to its last."""

import re
import socket
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

SCRIPT = """
import sys, tempfile
from pathlib import Path

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.collective import barrier


def trained(config):
    rank = train.get_context().get_world_rank()
    for epoch in range(3):
        if rank == 0:
            print(f"epoch {epoch}")
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if rank == 0 and epoch == 1:
                Path(directory, "weights").write_text("1 2 3")
                checkpoint = Checkpoint.from_directory(directory)
            train.report({"epoch": epoch, "loss": 1 / (epoch + 1)}, checkpoint=checkpoint)
    barrier()
    if rank == 1:
        last_layer(config["shape"])
    barrier()


def last_layer(shape):
    if shape != (3, 4):
        raise ValueError(f"shape {shape} does not fit (3, 4)")


sys.stderr = sys.stdout  # One file, so in the order in which it was said.
sys.stdout.reconfigure(line_buffering=True)
result = DataParallelTrainer(
    trained,
    train_loop_config={"num_epochs": 3, "shape": (3, int(sys.argv[1]))},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="resnet", storage_path="runs"),
).fit()
print(result.metrics)
"""


def normalised(text, tmp_path):
    """Without what depends on the machine."""
    for pattern, instead in (
        (re.escape(str(tmp_path)), "HERE"),
        (r"\d+ threads? each", "N threads each"),
        (re.escape(socket.gethostname()), "HOST"),
        (r"pid \d+", "pid N"),
        (r'"/[^"]*/paceline/', '"PACELINE/'),
        (r'(PACELINE/[^"]*", line )\d+', r"\1N"),
        (r"\n +[~^]+(?=\n)", ""),  # Not in every version of Python.
    ):
        text = re.sub(pattern, instead, text)
    return text


@pytest.mark.parametrize(("last", "code"), [(4, 0), (5, 1)], ids=["complete", "failed"])
def test_all_that_a_run_prints(last, code, run_script, tmp_path, request):
    ended = run_script(SCRIPT, str(last))
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ended.stderr == ""
    golden = GOLDEN / f"run_{request.node.callspec.id}.txt"
    assert normalised(ended.stdout, tmp_path) == golden.read_text()


def test_of_a_run_that_was_refused_only_the_script_and_the_message_are_printed(run_script, tmp_path):
    (tmp_path / "runs").write_text("no directory")
    ended = run_script(SCRIPT, "4")
    assert ended.returncode == 1
    files = re.findall(r'File "([^"]*)", line \d+, in (\w+|<module>)', ended.stdout.rpartition("direct cause")[2])
    assert [name for _, name in files] in (["<module>", "fit"], ["<module>"]), ended.stdout
