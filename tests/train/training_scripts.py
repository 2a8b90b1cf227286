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

LOGGED = f"""{HEAD}
from paceline.train.loggers import LoggerCallback

class Killer(LoggerCallback):
    "Comes before other loggers, and kills the driver at a report that they have not heard of."
    def log_report(self, report):
        if report.number == int(sys.argv[1]):
            self.before_kill()
            os.kill(os.getpid(), signal.SIGKILL)

    def before_kill(self):
        pass

def function(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 1, 7):
        checkpoint = Checkpoint.from_dict({{"i": i}}) if i == 2 else None
        train.report({{"i": i, "eval": {{"acc@1": train.sum(i)}}, "note": "text"}}, checkpoint=checkpoint)

config = {{"lr": 0.1, "net": {{"width": 8}}}}
"""
"""A function whose reports loggers hear of, until their driver is killed at the report of the first argument."""
