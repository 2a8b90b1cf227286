"""A search as people run it: a script in a process of its own, killed, run again, and what it came to.

Every step of every trial writes a line to a file before it is made, so that what was run twice can be seen.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from paceline._control import journal
from paceline._control.events import Committed
from paceline._storage.home import Home
from paceline.tune.drive import book
from paceline.tune.history import rows_of, search_told_by
from processes import still_running

SCRIPT = """
import json, os, sys, time
from paceline import tune
from paceline.tune.schedulers import ASHAScheduler, HyperBandScheduler

def trial(config):
    last = tune.get_checkpoint()
    start = last.to_dict()["step"] if last else 0
    trial_id = tune.get_context().get_trial_id()
    for step in range(start + 1, config.get("steps", 3) + 1):
        with open("steps", "a") as steps:
            steps.write(f"{trial_id} {step}\\n")
        loss = (config["x"] - 0.3) ** 2 + config.get("g", 0) + 1 / step
        tune.report({"loss": loss, "step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
        if config.get("fails") and step == 2:
            raise ValueError("this one fails")

space = {"x": tune.uniform(0, 1)}
about = {"num_samples": 6, "max_concurrent_trials": 1}
stop = None
kind, asked = sys.argv[1], json.loads(sys.argv[2])
if kind == "grid":
    space |= {"g": tune.grid_search([1, 2]), "fails": tune.choice([False, False, True])}
    about |= {"num_samples": 3, "max_concurrent_trials": 2}
elif kind == "tpe":
    from paceline.tune.search.optuna import OptunaSearch
    space |= {"steps": 2}
    about |= {"num_samples": 13, "search_alg": OptunaSearch(seed=7)}
elif kind == "asha":
    space |= {"steps": 4}
    about |= {"num_samples": 8, "scheduler": ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)}
elif kind == "hyperband":
    space |= {"steps": 9}
    about |= {"num_samples": 7, "scheduler": HyperBandScheduler(max_t=4, reduction_factor=2)}
tuner = tune.Tuner(
    trial,
    param_space=space,
    tune_config=tune.TuneConfig(metric="loss", mode="min", seed=3, **{**about, **asked}),
    run_config=tune.RunConfig(name="search", storage_path="searches", stop=stop),
)
grid = tuner.fit()
print(json.dumps({"trials": len(grid), "errors": grid.num_errors}))
"""


class Script:
    def __init__(self, directory, kind, processes_in=None, env=None, **asked):
        self.path = directory / "searches" / "search"
        self.directory = directory
        self._processes_in = processes_in
        self._env = {**os.environ, "TMPDIR": str(directory / "tmp"), **(env or {})}
        (directory / "tmp").mkdir(exist_ok=True)
        (directory / "script.py").write_text(SCRIPT)
        self._command = [sys.executable, "script.py", kind, json.dumps(asked)]

    def started(self):
        with (self.directory / "err").open("ab") as err:
            return subprocess.Popen(
                self._command, cwd=self.directory, env=self._env, stdout=subprocess.DEVNULL, stderr=err
            )

    def lived(self, timeout=100):
        """Run it to its end."""
        code = self.started().wait(timeout)
        assert code == 0, self.said

    def killed(self, after, signum=signal.SIGKILL):
        """Run it until its journals have got so many more lines, and kill it; False where it ended before.

        What was committed by then must not be run again.
        """
        process = self.started()
        first = num_lines(self.path)
        while num_lines(self.path) - first < after:
            if process.poll() is not None:
                assert process.returncode == 0, self.said
                return False
            time.sleep(0.001)
        process.send_signal(signum)
        process.wait(60)
        if self._processes_in is not None:
            left = still_running(self._processes_in(self.directory))
            assert left == [], "processes two seconds after the driver was killed"
            assert os.listdir(self.directory / "tmp") == [], "temporary files after the driver was killed"
        return True

    @property
    def said(self):
        return (self.directory / "err").read_text()[-4000:]

    def steps(self):
        """What was run, in order."""
        try:
            return [tuple(line.split()) for line in (self.directory / "steps").read_text().splitlines()]
        except FileNotFoundError:
            return []


def survived(script, moments):
    """Kill the script at each of these moments, run it to its end, and say how often it was killed."""
    num_killed = 0
    for after in moments:
        num_before = len(script.steps())
        done = committed(script.path)
        over = {trial for trial, about in finished(script.path).items() if about["status"] in ("TERMINATED", "ERROR")}
        killed = script.killed(after)
        num_killed += killed
        assert_not_run_again(script, num_before, done, over)
        if not killed:
            return num_killed
    num_before, done = len(script.steps()), committed(script.path)
    over = {trial for trial, about in finished(script.path).items() if about["status"] in ("TERMINATED", "ERROR")}
    script.lived()
    assert_not_run_again(script, num_before, done, over)
    return num_killed


def assert_not_run_again(script, num_before, done, over):
    since = script.steps()[num_before:]
    assert done.isdisjoint(since), "a step that was committed was run again"
    assert over.isdisjoint(trial for trial, _ in since), "a trial that was over was run again"


def num_lines(path):
    """Of all journals of a search."""
    journals = [path / "journal.jsonl", *path.glob("trial_*/journal.jsonl")]
    return sum(journal.read_bytes().count(b"\n") for journal in journals if journal.exists())


def committed(path):
    """The steps of trials that are sure to stay, each of which is a report with a checkpoint."""
    return {
        (run.name.removeprefix("trial_"), str(event.record.seq))
        for run in path.glob("trial_*")
        for event in journal.read(run / "journal.jsonl")
        if isinstance(event, Committed)
    }


def told(path):
    return search_told_by(book.past_of(Home.of_path(str(path))))


def finished(path):
    """What a search has come to, by trial, without what depends on the clock."""
    if not (path / "journal.jsonl").exists():
        return {}
    rows = rows_of(book.past_of(Home.of_path(str(path))))
    timed = ("time_total_s", "time_this_iter_s", "timestamp")
    return {
        trial.trial_id: {
            "config": dict(trial.config),
            "status": trial.status,
            "why": trial.why,
            "rows": [
                {name: value for name, value in row.items() if name not in timed}
                for row in rows.get(trial.trial_id, [])
            ],
        }
        for trial in told(path).trials.values()
    }


def run_directories(path):
    return sorted(run.name for run in Path(path).glob("trial_*"))
