"""Weights & Biases itself, in its offline mode, read back with its own `wandb leet inspect`.

In scripts of their own, since W&B keeps a process and threads for as long as its user lasts. Requests to the network
would go to a proxy, which hears none.
"""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from training_scripts import HEAD, LOGGED

from paceline.train.callbacks import LoggedReport
from paceline.train.loggers.tracker_record import TrackerRecord

needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed: logging to it was not checked"
)

KILLED = f"""{LOGGED}
from paceline.train.loggers import WandbLoggerCallback

logger = WandbLoggerCallback("tries", group="all", excludes=["note"], log_config=True)
fit(function, config=config, callbacks=[Killer(), logger])
"""

TRIALS = f"""{HEAD}
import threading
from concurrent.futures import ThreadPoolExecutor
from paceline.train.loggers import WandbLoggerCallback

logger = WandbLoggerCallback("tries")
meeting = threading.Barrier(2)

def function(config):
    for i in range(5):
        checkpoint = Checkpoint.from_dict({{"i": i}}) if i == 2 else None
        train.report({{"value": config["number"] * 100 + i, "gap": float("nan")}}, checkpoint=checkpoint)
    if config["number"]:
        raise ValueError("no more")

def run_trial(number):
    own = logger.for_trial("search", f"trial_{{number}}")
    meeting.wait()
    try:
        fit(function, 1, config={{"number": number}}, name=f"trial_{{number}}", callbacks=[own])
    except train.TrainingFailedError:
        pass

with ThreadPoolExecutor(2) as threads:
    list(threads.map(run_trial, range(2)))
"""


@pytest.fixture
def surroundings(tmp_path):
    """No file of the user's is read or written, and nothing is asked of the network."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
        kept = {f"WANDB_{name}_DIR": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
        alone = {"WANDB_MODE": "offline", "NO_PROXY": "", "no_proxy": "", "HOME": str(tmp_path / "home")}
        yield {**proxies, **kept, **alone}
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def records(directory, env):
    """What W&B wrote, by kind, one run after the other."""
    files = sorted(Path(directory, "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    return [told(file, env) for file in files]


def told(file, env):
    # The reader, other than what wrote, asks for newer versions of itself: there is nobody there.
    nobody = {name: "http://127.0.0.1:9" for name in env if name.lower().endswith("s_proxy")}
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True}
    lines = subprocess.run(command, env={**os.environ, **env, **nobody}, check=True, **streams).stdout
    found = {}
    for record in map(json.loads, lines.splitlines()):
        found.setdefault(record["type"], []).append(record[record["type"]])
    return found


def history(found, name):
    return [(one["item"]["training_iteration"], one["item"].get(name)) for one in found.get("history", ())]


@pytest.mark.slow
@needs_wandb
@pytest.mark.timeout(240)
def test_a_run_goes_on_under_its_id_and_no_report_is_lost(run_script, tmp_path, surroundings):
    ended = run_script(KILLED, "5", env=surroundings, timeout=100)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = run_script(KILLED, "0", env=surroundings, timeout=100)
    assert (ended.returncode, "raised" in ended.stderr) == (0, False), ended.stderr
    first, second = records(tmp_path / "runs" / "run", surroundings)
    (run,) = second["run"]
    assert (run["project"], run["run_group"], run["display_name"]) == ("tries", "all", "run")
    assert {"lr": 0.1, "net": {"width": 8}}.items() <= run["config"]["update"].items()
    assert {"glob_name": "*", "step_metric": "training_iteration"}.items() <= second["metric"][1].items()
    # The killed one had written nothing, or some of it: all is given again.
    points = history(second, "i")
    assert points[:4] == [(i, i) for i in (1, 2, 3, 4)]
    assert points[-4:] == [(i, i) for i in (3, 4, 5, 6)], "what is made again follows"
    assert history(second, "eval/acc@1")[-1] == (6, 12)
    assert history(second, "note")[-1] == (6, None)
    assert "exit" not in first
    assert second["exit"][0].get("exit_code", 0) == 0
    # Both write to the same run: its id is the end of their names.
    assert (
        len({file.name.rpartition("-")[2] for file in (tmp_path / "runs" / "run" / "wandb").glob("offline-run-*")}) == 1
    )


def test_of_a_killed_driver_what_it_gave_in_the_last_half_minute_is_not_taken_for_written(tmp_path):
    path, now = tmp_path / "note", [0.0]
    first = TrackerRecord(path, continues=False, now=lambda: now[0])
    reports = [LoggedReport(number, 1, 0.0, {}) for number in range(1, 101)]
    for report in reports:  # two in each second
        now[0] += 0.5
        first.mark_logged(report)
    first.close()
    killed = TrackerRecord(path, continues=True)
    assert killed.run_id == first.run_id
    assert [report.number for report in reports if killed.is_new(report)] == [*range(39, 101)]
    killed.mark_logged(reports[-1])
    killed.mark_all_written()
    killed.close()
    ended = TrackerRecord(path, continues=True)
    assert not any(map(ended.is_new, reports))
    ended.close()


@needs_wandb
def test_trials_at_once_are_runs_of_one_group_and_the_failed_one_has_failed(run_script, tmp_path, surroundings):
    ended = run_script(TRIALS, env=surroundings, timeout=100)
    assert (ended.returncode, "WandbLoggerCallback raised" in ended.stderr) == (0, False), ended.stderr
    for number in range(2):
        (found,) = records(tmp_path / "runs" / f"trial_{number}", surroundings)
        assert found["run"][0]["run_group"] == "search"
        assert found["run"][0]["display_name"] == f"trial_{number}"
        assert history(found, "value") == [(i + 1, number * 100 + i) for i in range(5)]
        assert history(found, "gap")[0] == (1, "NaN")
        assert found["exit"][0].get("exit_code", 0) == number
        (saved,) = found["artifact"]
        assert (saved["name"], saved["type"]) == (f"trial_{number}-checkpoint", "model")
        assert set(saved["aliases"]) == {"latest", "checkpoint_000003"}
        kept = (tmp_path / "runs" / f"trial_{number}" / "checkpoint_000003").as_uri()
        assert all(entry["ref"].startswith(f"{kept}/") for entry in saved["manifest"]["contents"]), "where they are"
