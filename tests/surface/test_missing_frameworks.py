"""Without a framework the rest works, and whoever needs it is told what to install. Importing ours imports none."""

import json
import os

import pytest

SCRIPT = """
import importlib, sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig


def train_func(config):
    try:
        importlib.import_module(config["blocked"])
    except ImportError:
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))


if __name__ == "__main__":
    module = importlib.import_module(sys.argv[1])
    for expression in sys.argv[3:]:
        try:
            eval(f"module.{expression}")
        except ImportError as error:
            print(error)
    arguments = {"scaling_config": ScalingConfig(2), "run_config": RunConfig(storage_path="runs")}
    result = DataParallelTrainer(train_func, train_loop_config={"blocked": sys.argv[2]}, **arguments).fit()
    print(result.metrics, result.checkpoint.to_dict())
"""

TREES = dict.fromkeys(["OrbaxCheckpoint.from_pytree({'a': 1})", "OrbaxCheckpoint('a').get_pytree()"], "OrbaxCheckpoint")
PREDICTOR = "JaxPredictor(Checkpoint.from_dict({'a': 1}), print)"
NEEDS = {
    "torch": {"TorchTrainer(print)": "TorchConfig"},
    "jax": {"JaxTrainer(print)": "JaxConfig", **TREES, PREDICTOR: "JaxPredictor"},
    "orbax.checkpoint": TREES,
    "lightgbm": {"LightGBMTrainer(print)": "LightGBMConfig"},
    "xgboost": {"XGBoostTrainer(print)": "XGBoostConfig", "RayTrainReportCallback()": "ReportCallback"},
    "tensorflow": {"TensorflowTrainer(print)": "TensorflowConfig"},
    "lightning": {"RayDDPStrategy": "paceline.train.lightning.RayDDPStrategy"},
    "transformers": {"ReportCallback": "paceline.train.huggingface.transformers.ReportCallback"},
}
"""What is missing, what cannot be made without it, and who says so."""
OF = {"orbax.checkpoint": "jax", "transformers": "huggingface.transformers"}
MORE = {"orbax.checkpoint": ["orbax"], "lightning": ["pytorch_lightning"]}


@pytest.mark.parametrize(
    "missing", [pytest.param(one, marks=() if one in ("torch", "jax") else pytest.mark.slow) for one in NEEDS]
)
def test_without_a_framework_the_rest_works_and_the_extra_is_named(run_script, tmp_path, missing):
    """It is missing in every process of the run."""
    names = [missing, *MORE.get(missing, [])]
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({names}))\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    module = f"paceline.train.{OF.get(missing, missing)}"
    env = {"PYTHONPATH": paths, "PACELINE_PREWARM": "0"}
    ended = run_script(SCRIPT, module, missing, *NEEDS[missing], env=env, timeout=110)
    assert ended.returncode == 0, ended.stderr
    hint = f'hint: pip install "paceline[{missing.replace("orbax.checkpoint", "jax")}]"'
    message = [f"{who} needs {missing}, which is not installed\n\n{hint}\n" for who in NEEDS[missing].values()]
    assert ended.stdout == "".join(message) + "{'i': 1} {'step': 1}\n"


LAZY = """
import json, sys
import paceline.train.huggingface.transformers
import paceline.train.jax
import paceline.train.lightgbm
import paceline.train.lightning
import paceline.train.tensorflow
import paceline.train.torch
import paceline.train.xgboost
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_importing_ours_imports_no_framework(run_script):
    ended = run_script(LAZY, env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr
    heavy = {"torch", "jax", "lightgbm", "xgboost", "lightning", "tensorflow", "transformers", "accelerate", "numpy"}
    assert not heavy & set(json.loads(ended.stdout))
