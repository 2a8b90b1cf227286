"""What the scripts of these tests begin with."""

HEAD = """
import os, signal, sys
from pathlib import Path
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def fit(function, num_workers=2, *, config=(), name="run", path="runs", callbacks=(), **options):
    return DataParallelTrainer(
        function,
        train_loop_config={"driver": os.getpid(), **dict(config)},
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name=name, storage_path=path, callbacks=callbacks, if_exists="resume"),
        **options,
    ).fit()
"""
"""Trains in the run `run` below `runs`; the config has the process id of the driver, so a complete run differs."""
