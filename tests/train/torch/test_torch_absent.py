"""Where torch is not installed, the rest works, and whoever asks for it is told what to install."""

import os

BLOCKING = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Blocked())
"""

SCRIPT = """
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.torch import TorchConfig, TorchTrainer


def train_func():
    try:
        import torch
    except ImportError:
        train.report({"torch": "absent"}, checkpoint=Checkpoint.from_dict({"step": 1}))


def fit(trainer):
    return trainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path="runs", name="run")
    ).fit()


if __name__ == "__main__":
    try:
        fit(TorchTrainer)
    except ImportError as error:
        print(error)
    result = fit(DataParallelTrainer)
    print(result.metrics, result.checkpoint.to_dict())
"""


def test_without_torch_the_rest_works_and_the_trainer_names_the_extra(tmp_path, run_script):
    (tmp_path / "sitecustomize.py").write_text(BLOCKING)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = run_script(SCRIPT, env={"PYTHONPATH": os.pathsep.join(paths)}, timeout=110)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "TorchConfig needs torch, which is not installed",
        "",
        'hint: pip install "paceline[torch]"',
        "{'torch': 'absent'} {'step': 1}",
    ]
