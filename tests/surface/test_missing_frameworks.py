"""Without a framework the rest works, and whoever needs it is told what to install."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from paceline._core.lazy_imports import EXTRA_OF

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


EXTRAS = """
import sys, traceback
from unittest.mock import patch
sys.modules.update(dict.fromkeys(["pandas", "torch", "optuna", "PIL"]))
import paceline.data
from paceline.data import read_images
from paceline.train.torch import TorchTrainer, enable_reproducibility

def serve_without(package):
    with patch.dict(sys.modules, {package: None}):
        from paceline._dashboard.report import build_report  # which needs neither
        from paceline._dashboard.serve import serve
        serve(".", None)

def import_optuna_search():
    from paceline.tune.search.optuna import OptunaSearch

ds = paceline.data.range(3)
for call in (ds.to_pandas, lambda: ds.take_batch(batch_format="pandas"), lambda: ds.iter_torch_batches(),
             enable_reproducibility, lambda: TorchTrainer(print), import_optuna_search, lambda: read_images("x"),
             lambda: serve_without("starlette"), lambda: serve_without("uvicorn")):
    try:
        call()
    except ImportError as error:
        print(traceback.format_exc().count("Traceback"), *str(error).split("\\n"))
"""


def test_a_call_that_needs_an_optional_package_names_the_extra_once(run_script):
    ended = run_script(EXTRAS, env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr
    needs = [("a pandas batch or frame", "pandas", "pandas")] * 2
    needs += [("iterating over torch batches", "torch", "torch"), ("enable_reproducibility", "torch", "torch")]
    needs += [("TorchConfig", "torch", "torch"), ("OptunaSearch", "optuna", "tune"), ("read_images", "PIL", "images")]
    needs += [("the dashboard", package, "dashboard") for package in ("starlette", "uvicorn")]
    lines = [
        f'1 {who} needs {what}, which is not installed  hint: pip install "paceline[{e}]"' for who, what, e in needs
    ]
    assert ended.stdout.splitlines() == lines


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wheels = {"PIL": "pillow", "google_crc32c": "google-crc32c", "orbax": "orbax-checkpoint"}
    wheels |= {"ax": "ax-platform", "bayes_opt": "bayesian-optimization", "hebo": "HEBO"}
    wheels |= {"lance": "pylance"}
    for module, extra in EXTRA_OF.items():
        wheel = wheels.get(module, "opentelemetry-sdk" if module == "opentelemetry" else module)
        assert any(re.match(rf"{wheel}\b", each) for each in extras[extra]), module
    assert {*EXTRA_OF.values()} == {*extras}
