"""A search as people run it: a script in a process of its own, killed, run again, and what it came to.

Every step of every trial writes a line to a file before it is made, so that what was run twice can be seen.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import tuners

from paceline import tune
from paceline._control import journal
from paceline._control.events import Committed
from paceline._storage.run_location import RunLocation
from paceline.tune.driver import search_storage
from paceline.tune.results.report_history import collect_report_rows, replay_search
from processes import still_running

SCRIPT = """
import os, sys
from paceline import tune
from paceline.tune.schedulers import ASHAScheduler, HyperBandScheduler

driver = os.getpid()

def trial(config):
    last = tune.get_checkpoint()
    start = last.to_dict()["step"] if last else 0
    trial_id = tune.get_context().get_trial_id()[-5:]
    for step in range(start + 1, config.get("steps", 3) + 1):
        with open("steps", "a") as steps:
            steps.write(f"{trial_id} {step}\\n")
        if os.path.exists("kill") and open("kill").read() == f"{trial_id} {step}":
            os.unlink("kill")
            os.kill(driver, 9)
        if config.get("fails") and step == 3:  # before a report: a driver that follows comes here again
            raise ValueError("this one fails")
        loss = (config["x"] - 0.3) ** 2 + config.get("g", 0) + 1 / step
        tune.report({"loss": loss, "step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

space = {"x": tune.uniform(0, 1)}
about = {"num_samples": 3, "max_concurrent_trials": 1}
kind = sys.argv[1]
if kind == "grid":
    space |= {"g": tune.grid_search([1, 2]), "fails": tune.choice([False, False, True])}
    about = {"num_samples": 3, "max_concurrent_trials": 2}
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
tune.Tuner(
    trial,
    param_space=space,
    tune_config=tune.TuneConfig(metric="loss", mode="min", seed=3, **about),
    run_config=tune.RunConfig(name="search", storage_path=sys.argv[2] if len(sys.argv) > 2 else "searches"),
).fit()
"""


class Script:
    """A script that runs the search `search` in `searches`; its processes are killed at the end of a `with` block."""

    def __init__(self, directory, source, *args, processes_in=None, env=None):
        self.directory, self.path = directory, directory / "searches" / "search"
        self._args, self._processes_in, self._started = args, processes_in, []
        # What trials write beside the script is read there.
        shared = {"TMPDIR": str(directory / "tmp"), "PACELINE_CHDIR_TO_TRIAL_DIR": "0"}
        self._env = {**os.environ, **shared, **(env or {})}
        (directory / "tmp").mkdir(exist_ok=True)
        (directory / "script.py").write_text(source)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for process in self._started:
            process.kill()
            process.wait()

    def start(self, *args):
        command = [sys.executable, "script.py", *map(str, args or self._args)]
        streams = {name: (self.directory / name).open("wb") for name in ("stdout", "stderr")}
        process = subprocess.Popen(command, cwd=self.directory, env=self._env, stdin=subprocess.DEVNULL, **streams)
        for stream in streams.values():
            stream.close()
        self._started.append(process)
        return process

    def run(self, *args, code=0):
        assert self.start(*args).wait(100) == code, self.said

    def wait_until(self, process, is_so):
        """Wait for something that the process does while it runs; whether it came to that."""
        while not is_so():
            if process.poll() is not None:
                return False
            time.sleep(0.001)
        return True

    def kill(self, moment):
        """Start it, and kill it at a step, "00001 2", or once its journals have got so many more lines; False where it
        ended before."""
        if isinstance(moment, str):
            (self.directory / "kill").write_text(moment)
            self.run(code=-signal.SIGKILL)
        else:
            first, process = num_lines(self.path), self.start()
            if not self.wait_until(process, lambda: num_lines(self.path) - first >= moment):
                assert process.returncode == 0, self.said
                return False
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        if self._processes_in is not None:
            assert still_running(self._processes_in(self.directory), within_s=60) == []
            assert os.listdir(self.directory / "tmp") == [], "temporary files after the driver was killed"
        return True

    @property
    def printed(self):
        return (self.directory / "stdout").read_text()

    @property
    def said(self):
        return (self.directory / "stderr").read_text()

    def steps(self):
        """What was run, in order."""
        log = self.directory / "steps"
        return [tuple(line.split()) for line in log.read_text().splitlines()] if log.exists() else []


def steps_of(num=3, log=None, before=None):
    """A trial that goes on from its checkpoint. Each step is first written to `log` as "trial.step", and then `before`
    is called with the configuration, the trial and the step."""
    log = log and str(log)

    def trial(config):
        last = tune.get_checkpoint()
        start = last.to_dict()["step"] if last else 0
        number = int(tune.get_context().get_trial_id()[-5:])
        for step in range(start + 1, num + 1):
            if log is not None:
                with open(log, "a") as steps:
                    steps.write(f"{number}.{step} ")
            if before is not None:
                before(config, number, step)
            saved = tune.Checkpoint.from_dict({"step": step})
            tune.report({"loss": config["x"] + 1 / step, "step": step, "start": start}, checkpoint=saved)

    return trial


def fails(config, number, step):
    if (number, step) == (1, 2):
        raise ValueError("as planned")


def steps_in(log):
    return log.read_text().split() if log.exists() else []


def make_tuner(directory, function, space=None, run=None, **about):
    about = {"metric": "loss", "mode": "min", "max_concurrent_trials": 1, "seed": 1, **about}
    return tuners.make_tuner(directory, function, space or {"x": tune.uniform(0, 1)}, run, **about)


def statuses(grid):
    return [result.status for result in grid]


def survive(script, moments):
    """Kill the script at each of these moments, run it to its end, and say how often it was killed."""
    num_killed = 0
    for moment in [*moments, None]:
        num_before, done = len(script.steps()), committed(script.path)
        over = {trial for trial, about in finished(script.path).items() if about["status"] in ("TERMINATED", "ERROR")}
        was_killed = script.kill(moment) if moment is not None else script.run()
        since = script.steps()[num_before:]
        assert done.isdisjoint(since), "a step that was committed was run again"
        assert over.isdisjoint(trial for trial, _ in since), "a trial that was over was run again"
        if not was_killed:
            break
        num_killed += 1
    return num_killed


def num_lines(path):
    """Of all journals of a search."""
    journals = [path / "journal.jsonl", *path.glob("trial_*/journal.jsonl")]
    return sum(journal.read_bytes().count(b"\n") for journal in journals if journal.exists())


def committed(path):
    """The steps of trials that are sure to stay, each of which is a report with a checkpoint."""
    return {
        (run.name.removeprefix("trial_"), str(event.record.seq))
        for run in path.glob("trial_*")
        for event in journal.read_events(run / "journal.jsonl")
        if isinstance(event, Committed)
    }


def load_search(path):
    return replay_search(search_storage.load_past_events(RunLocation.from_path(str(path))))


def finished(path):
    """What a search has come to, by the trial's number, without what depends on the clock or chance."""
    if not (path / "journal.jsonl").exists():
        return {}
    rows = collect_report_rows(search_storage.load_past_events(RunLocation.from_path(str(path))))
    timed = ("time_total_s", "time_this_iter_s", "time_since_restore", "iterations_since_restore", "timestamp")
    timed += ("date", "pid", "hostname", "node_ip", "trial_id")
    return {
        trial.trial_id[-5:]: {
            "config": dict(trial.config),
            "status": trial.status,
            "why": re.sub(r"\b[0-9a-f]{5}_(?=\d{5})", "", trial.why),
            "rows": [
                {name: value for name, value in row.items() if name not in timed}
                for row in rows.get(trial.trial_id, [])
            ],
        }
        for trial in load_search(path).trials.values()
    }


def run_directories(path):
    return sorted(run.name for run in Path(path).glob("trial_*"))
