"""Whole scripts, as people write them for several releases of Ray, run after `paceline migrate` and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import main

SCRIPTS = sorted(path.stem for path in (Path(__file__).parent / "scripts").glob("*.py"))
LIMIT_S = 240

IMPORTS = """
import importlib
from ray.air import Checkpoint, session
from ray.air.config import CheckpointConfig, RunConfig, ScalingConfig
from ray.train import Trainer
from ray.train.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError
from ray.tune import CLIReporter, Callback, Experiment, Tuner, register_trainable, run_experiments, with_parameters
from ray.tune.analysis.experiment_analysis import ExperimentAnalysis
from ray.tune.experiment.trial import Trial
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining
from ray.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.searcher import Searcher
from ray.tune.stopper import MaximumIterationStopper
from ray.tune.stopper.stopper import Stopper
assert importlib.import_module("ray.tune").Tuner is Tuner
"""
QUICK = {"checkpoint_resume", "tune_asha", "tune_class"}


def list_scripts():
    for name in SCRIPTS:
        marks = [] if name in QUICK else [pytest.mark.slow]
        yield pytest.param(name, marks=marks)


def run_python(*arguments: str, cwd: Path) -> None:
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(cwd / "runs")}
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_names_are_imported_from_where_several_releases_of_ray_have_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IMPORTS)
    assert main(["migrate", str(script)]) == 0
    names = {}
    exec(script.read_text(), names)
    assert {each.__module__.partition(".")[0] for each in names.values() if isinstance(each, type)} == {"paceline"}


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("name", [*list_scripts()])
def test_a_script_runs_after_its_imports_are_changed(name, tmp_path):
    source = (Path(__file__).parent / "scripts" / f"{name}.py").read_text()
    script = tmp_path / "script.py"
    script.write_text(source)
    run_python("-m", "paceline", "migrate", "script.py", cwd=tmp_path)
    changed = script.read_text()
    # Only lines with a name of Ray's have changed, and none has come or gone.
    before, after = source.splitlines(), changed.splitlines()
    assert {new for old, new in zip(before, after, strict=True) if "ray" not in old} <= {*before}
    run_python("script.py", cwd=tmp_path)
