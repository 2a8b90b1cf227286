"""Detached runs, driven by an actor on the cluster: followed, left, found again, stopped, continued."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from paceline import train
from paceline._commands import attach
from paceline._control.events import RunDescribed
from paceline._control.requests import ProfileRequest, StacksRequest, send_request
from paceline._engine.ray.cluster_monitor import ClusterMonitor
from paceline._engine.ray.connection import gcs_address
from paceline._engine.ray.detached import NAMESPACE
from paceline._storage.controller_registry import ControllerNote
from paceline._storage.lease_stores import DiskLeaseStore
from paceline.train import Checkpoint, Result, RunConfig, TrainingFailedError, UserCallback
from paceline.train.driver import detached
from processes import wait_until
from written_runs import read_events

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback

class Told(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        print("callback:", metrics[0]["i"], os.environ["OF_THE_SCRIPT"], flush=True)

def function():
    print("begun")
    for i in range(6):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
        while i == 2 and not os.path.exists("gate"):
            time.sleep(0.02)
    return "returned"

DataParallelTrainer(
    function,
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs", callbacks=[Told()], detached=True),
).fit()
"""


@pytest.fixture(autouse=True)
def no_controller_is_left(cluster):
    """Of a test that failed, so that the next is judged on its own; one that passed has to have ended its own."""
    yield
    deadline = time.monotonic() + 60.0
    while (left := list_controllers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for actor in left:
        ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))
    assert left == []


def list_controllers():
    """Ray Data has named actors of its own."""
    return [actor for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]


def test_a_detached_run_outlives_its_script_and_others_follow_it(cluster, fit, tmp_path, capfd):
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {**os.environ, "RAY_ADDRESS": cluster.address, "OF_THE_SCRIPT": "here"}
    with (tmp_path / "out").open("w+") as out:
        script = subprocess.Popen(
            [sys.executable, "script.py"], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT, env=environ
        )
        wait_until(lambda: "callback: 2 here" in (tmp_path / "out").read_text() or script.poll() is not None)
        script.kill()
        script.wait()
    printed_by_script = (tmp_path / "out").read_text()
    assert "paceline attach " + str(tmp_path / "runs" / "run") in printed_by_script, printed_by_script
    assert "2 workers on the Ray cluster" in printed_by_script
    assert "[rank 0] begun\n" in printed_by_script

    # Everybody is refused without the run's token, which lies with the run for its owner alone.
    token = tmp_path / "runs" / "run" / ".controller" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    home = RunConfig(name="run", storage_path=tmp_path / "runs").location
    presence = ClusterMonitor(gcs_address(), 20.0)
    try:
        with pytest.raises(PermissionError, match="wrong token for this run's controller"):
            detached.find_controller(home, "0" * 32, presence)
        link = detached.find_controller(home, token.read_text(), presence)
        wrong, actor = "0" * 32, link.actor
        for refused in (actor.stop.remote(wrong, True), actor.outcome.remote(wrong), actor.leave.remote(wrong, "me")):
            with pytest.raises(PermissionError):
                ray.get(refused)
        stream = actor.follow.options(num_returns="streaming").remote(wrong, "me", "", 0)
        with pytest.raises(PermissionError):
            ray.get(next(stream))
    finally:
        presence.close()

    # It is looked at and profiled as any other run.
    stacks = send_request(home, StacksRequest(), 100.0)
    assert [each.answers for each in stacks.stacks] == [True, True], stacks
    assert all(any(line.function == "function" for line in each.threads[0].lines) for each in stacks.stacks)
    profile = send_request(home, ProfileRequest(seconds=0.5), 100.0)
    assert {(file.rank, file.kind) for file in profile.files} >= {(0, "flame"), (1, "flame")}, profile
    assert all((home.layout.root / file.path).stat().st_size == file.num_bytes for file in profile.files)

    # A command follows it from its first word, and so does a script that would have begun it.
    def follow():
        command = [sys.executable, "-m", "paceline", "attach", str(tmp_path / "runs" / "run")]
        without = {name: value for name, value in environ.items() if name != "RAY_ADDRESS"}
        with (tmp_path / "attached").open("w") as out:
            codes.append(subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=without).returncode)

    def open_gate():
        wait_until(lambda: "callback: 2" in (tmp_path / "attached").read_text() or codes)
        (tmp_path / "gate").touch()

    codes = []
    (tmp_path / "attached").touch()
    threads = [threading.Thread(target=follow), threading.Thread(target=open_gate)]
    for thread in threads:
        thread.start()
    result = fit(lambda: None, storage_path=tmp_path / "runs", detached=True)
    for thread in threads:
        thread.join()
    attached = (tmp_path / "attached").read_text()
    assert codes == [0], attached
    for text in ("run run begins: ", "callback: 0 here", "callback: 5 here", "run run finished after 6 reports"):
        assert text in attached

    followed = capfd.readouterr()
    assert "run run is already running on the cluster: following it" in followed.err
    assert "run run begins: " in followed.err
    assert "callback: 5 here" in followed.out
    assert result.return_value == "returned"
    assert result.metrics == {"i": 5}
    assert result.metrics_dataframe["i"].tolist() == list(range(6))

    # It is described as the script that began it, not as the actor that drives it.
    (about,) = [json.loads(bytes(event.about)) for event in read_events(tmp_path / "runs" / "run", RunDescribed)]
    assert about["environment"]["argv"] == ["script.py"]
    assert about["code"]["function"] == "__main__.function"
    assert about["code"]["sources"] == {"script.py": SCRIPT}

    assert attach.main([str(tmp_path / "runs" / "run")]) == 0
    assert "run run finished after 6 reports" in capfd.readouterr().err


class Locked(UserCallback):
    def __init__(self):
        self.lock = threading.Lock()


def test_a_value_that_cannot_be_sent_to_the_cluster_is_refused_by_name(fit, tmp_path):
    with pytest.raises(TypeError, match=r"cannot send RunConfig\(callbacks=\.\.\.\) -> \[0\] -> \.lock .* to"):
        fit(lambda: None, storage_path=tmp_path / "runs", callbacks=[Locked()], detached=True)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_raises_here_what_it_would_have_raised(fit, tmp_path, capfd):
    class OwnError(Exception):
        pass

    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))
        if train.get_context().get_world_rank() == 1:
            raise OwnError("bad")
        train.collective.barrier()

    with pytest.raises(TrainingFailedError, match=r"rank 1.*OwnError: bad") as caught:
        fit(function, 2, detached=True)
    assert isinstance(caught.value.__cause__, OwnError)
    assert caught.value.worker_failures[1] is caught.value.__cause__
    assert caught.value.result.metrics == {"i": 1}
    assert caught.value.result.checkpoint.to_dict() == {"i": 1}
    assert "rank 1 failed: OwnError: bad" in capfd.readouterr().err
    assert attach.main([str(tmp_path / "run")]) == 1
    assert "the run has ended: 1 of 2 workers failed" in capfd.readouterr().err


def counting(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 0, config["until"]):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
        if i == 3:
            Path(config["reached"]).touch()
            while config["waits"]:  # until it is ended
                time.sleep(0.02)
        time.sleep(0.02)
    return "returned"


@pytest.fixture
def count(fit, tmp_path):
    def count(until, waits=False):
        config = {"until": until, "reached": str(tmp_path / "reached"), "waits": waits}
        return fit(counting, config=config, detached=True)

    return count


def test_ctrl_c_stops_it_and_the_same_script_continues_it(count, tmp_path, capfd):
    def interrupt():
        wait_until((tmp_path / "reached").exists)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(train.TrainingInterrupt) as interrupt:
        count(100_000)
    interrupting.join()
    result = interrupt.value.result
    printed = capfd.readouterr().err
    assert "stopping at the next report; press Ctrl-C again to stop now" in printed
    assert str(interrupt.value) in printed
    assert (result.return_value, result.status) == (None, "stopped")
    assert attach.main([str(tmp_path / "run")]) == 130
    assert re.search(r"run run was stopped after \d+ reports?", capfd.readouterr().err)

    # At once: the actor of the run that was stopped is out of the way.
    result = count(result.metrics["i"] + 3)
    assert result.return_value == "returned"
    assert result.metrics_dataframe["i"].tolist() == list(range(result.metrics["i"] + 1))


def test_a_controller_that_is_killed_comes_back_and_continues(count, tmp_path, capfd):
    def kill():
        wait_until((tmp_path / "reached").exists)
        os.kill(DiskLeaseStore(tmp_path / "run" / ".lease").read().holder.pid, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    result = count(40, waits=True)
    killing.join()
    printed = capfd.readouterr().err
    assert "lost the controller; waiting for it to restart elsewhere" in printed
    assert "the controller restarted on " in printed
    assert re.search(r"run run continues, from checkpoint_\d+", printed)
    assert result.return_value == "returned"
    assert Result.from_path(tmp_path / "run").metrics_dataframe["i"].tolist() == list(range(40))
    lease = DiskLeaseStore(tmp_path / "run" / ".lease").read().holder
    assert lease.number == 2
    assert lease.controller


def test_of_a_run_that_is_not_there_or_not_detached_attach_says_so(fit, tmp_path, capfd):
    assert attach.main([str(tmp_path / "nothing")]) == 2
    assert f"there is no run in {tmp_path / 'nothing'}" in capfd.readouterr().err

    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))
        raise ValueError("bad")

    with pytest.raises(TrainingFailedError):
        fit(function, engine="local")
    capfd.readouterr()
    assert attach.main([str(tmp_path / "run")]) == 2
    printed = capfd.readouterr().err
    assert "run run has made 1 report and was not detached" in printed
    assert "to continue from checkpoint_000001 (report 1)" in printed

    # One whose controller was lost for good.
    desk = RunConfig(name="run", storage_path=tmp_path).location.open_controller_registry()
    desk.get_or_create_token()
    desk.write_note(ControllerNote(gcs_address()))
    assert attach.main([str(tmp_path / "run")]) == 2
    printed = capfd.readouterr().err
    assert f"no longer has a controller on the cluster at {gcs_address()}" in printed
    assert "to continue from checkpoint_000001 (report 1)" in printed


@pytest.mark.timeout(240)
def test_the_example_of_a_detached_run_is_followed_to_its_end_when_its_script_is_killed(cluster, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "cluster_detached.py"
    options = ("--epochs", "2", "--samples", "600", "--min-accuracy", "0.2", "--name", "shapes")
    command = [sys.executable, str(example), "--address", cluster.address, *options, "--storage-path", str(tmp_path)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PACELINE_PREWARM": "0"}
    with (tmp_path / "printed").open("w+") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        code = subprocess.run(command, **streams, cwd=tmp_path, env=environ).returncode
    printed = (tmp_path / "printed").read_text()
    assert code == 0, printed
    begun, killed, followed = printed.partition("the script that began the run is killed\n")
    assert killed
    assert "[rank 0] epoch 0: " in begun
    assert "[rank 0] epoch 1: " not in begun
    assert "run shapes finished after 2 reports" in followed
    assert "epochs           [0, 1], each once" in followed
