"""Runs that are driven by an actor on the cluster: followed, left, found again, stopped, continued."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray

from paceline import train
from paceline._commands import attach
from paceline._control import journal
from paceline._control.events import Described
from paceline._engine.ray.connect import gcs_address
from paceline._engine.ray.detached import NAMESPACE
from paceline._engine.ray.presence import Presence
from paceline._storage.desk import Note
from paceline._storage.slots import DiskSlot
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    detached,
)

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
    deadline = time.monotonic() + 10.0
    while (left := controllers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for actor in left:
        ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))
    assert left == []


def controllers():
    """Ray Data has named actors of its own."""
    return [actor for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]


def at_most(seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def test_a_run_goes_on_without_its_script_and_is_followed_by_others(cluster, tmp_path, capfd):
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {**os.environ, "RAY_ADDRESS": cluster.address, "OF_THE_SCRIPT": "here"}
    with (tmp_path / "out").open("w+") as out:
        script = subprocess.Popen(
            [sys.executable, "script.py"], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT, env=environ
        )
        at_most(60, lambda: "callback: 2 here" in (tmp_path / "out").read_text() or script.poll() is not None)
        script.kill()
        script.wait()
    said = (tmp_path / "out").read_text()
    assert "paceline attach " + str(tmp_path / "runs" / "run") in said, said
    assert "2 workers on the Ray cluster" in said
    assert "[rank 0] begun\n" in said

    # Everybody is refused without the run's token, which lies with the run for its owner alone.
    token = tmp_path / "runs" / "run" / ".controller" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    home = RunConfig(name="run", storage_path=tmp_path / "runs").home
    presence = Presence(gcs_address(), 20.0)
    try:
        with pytest.raises(PermissionError, match="the token is not that of this run's controller"):
            detached.link_to(home, "0" * 32, presence)
        link = detached.link_to(home, token.read_text(), presence)
        wrong, actor = "0" * 32, link.actor
        for refused in (actor.stop.remote(wrong, True), actor.outcome.remote(wrong), actor.leave.remote(wrong, "me")):
            with pytest.raises(PermissionError):
                ray.get(refused)
        stream = actor.follow.options(num_returns="streaming").remote(wrong, "me", "", 0)
        with pytest.raises(PermissionError):
            ray.get(next(stream))
    finally:
        presence.close()

    # A command follows it from its first word, and so does a script that would have begun it.
    def follow():
        command = [sys.executable, "-m", "paceline", "attach", str(tmp_path / "runs" / "run")]
        without = {name: value for name, value in environ.items() if name != "RAY_ADDRESS"}
        with (tmp_path / "attached").open("w") as out:
            codes.append(subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=without).returncode)

    def open_gate():
        at_most(60, lambda: "callback: 2" in (tmp_path / "attached").read_text() or codes)
        (tmp_path / "gate").touch()

    codes = []
    (tmp_path / "attached").touch()
    threads = [threading.Thread(target=follow), threading.Thread(target=open_gate)]
    for thread in threads:
        thread.start()
    result = DataParallelTrainer(
        lambda: None, run_config=RunConfig(name="run", storage_path=tmp_path / "runs", detached=True)
    ).fit()
    for thread in threads:
        thread.join()
    attached = (tmp_path / "attached").read_text()
    assert codes == [0], attached
    for text in ("run run begins: ", "callback: 0 here", "callback: 5 here", "run run is complete after 6 reports"):
        assert text in attached

    followed = capfd.readouterr()
    assert "run run is under way, driven on the cluster: following it" in followed.err
    assert "run run begins: " in followed.err
    assert "callback: 5 here" in followed.out
    assert result.return_value == "returned"
    assert result.metrics == {"i": 5}
    assert result.metrics_dataframe["i"].tolist() == list(range(6))

    # It is described as the script that began it, not as the actor that drives it.
    events = journal.read(tmp_path / "runs" / "run" / "journal.jsonl")
    (about,) = [json.loads(bytes(event.about)) for event in events if isinstance(event, Described)]
    assert about["environment"]["argv"] == ["script.py"]
    assert about["code"]["function"] == "__main__.function"
    assert about["code"]["sources"] == {"script.py": SCRIPT}

    assert attach.main([str(tmp_path / "runs" / "run")]) == 0
    assert "run run is complete after 6 reports" in capfd.readouterr().err


class Locked(UserCallback):
    def __init__(self):
        self.lock = threading.Lock()


def test_what_cannot_be_sent_to_the_cluster_is_refused_by_name(tmp_path):
    config = RunConfig(name="run", storage_path=tmp_path / "runs", callbacks=[Locked()], detached=True)
    with pytest.raises(TypeError, match=r"RunConfig\(callbacks=\.\.\.\) -> \[0\] -> \.lock .* cannot be sent"):
        DataParallelTrainer(lambda: None, run_config=config).fit()
    assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_raises_here_what_it_would_have_raised(tmp_path, capfd):
    class OwnError(Exception):
        pass

    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))
        if train.get_context().get_world_rank() == 1:
            raise OwnError("bad")
        train.collective.barrier()

    config = RunConfig(name="run", storage_path=tmp_path, detached=True)
    with pytest.raises(TrainingFailedError, match=r"rank 1.*OwnError: bad") as caught:
        DataParallelTrainer(function, scaling_config=ScalingConfig(2), run_config=config).fit()
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
            open(config["reached"], "w").close()
        time.sleep(0.02)
    return "returned"


def counted(tmp_path, until):
    return DataParallelTrainer(
        counting,
        train_loop_config={"until": until, "reached": str(tmp_path / "reached")},
        run_config=RunConfig(name="run", storage_path=tmp_path, detached=True),
    )


def test_ctrl_c_stops_it_and_the_same_script_continues_it(tmp_path, capfd):
    def interrupt():
        at_most(60, (tmp_path / "reached").exists)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    result = counted(tmp_path, 100_000).fit()
    interrupting.join()
    told = capfd.readouterr().err
    assert "stopping at the next report; press Ctrl-C again to stop now" in told
    assert "run the script again with the same name to continue" in told
    assert result.return_value is None
    assert attach.main([str(tmp_path / "run")]) == 0
    assert re.search(r"run run has made \d+ reports? and was stopped", capfd.readouterr().err)

    # At once: the actor of the run that was stopped is out of the way.
    result = counted(tmp_path, result.metrics["i"] + 3).fit()
    assert result.return_value == "returned"
    assert result.metrics_dataframe["i"].tolist() == list(range(result.metrics["i"] + 1))


def test_a_controller_that_is_killed_comes_back_and_continues(tmp_path, capfd):
    def kill():
        at_most(60, (tmp_path / "reached").exists)
        os.kill(DiskSlot(tmp_path / "run" / ".lease").read().holder.pid, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    result = counted(tmp_path, 40).fit()
    killing.join()
    told = capfd.readouterr().err
    assert "the controller was lost, and is being started again elsewhere" in told
    assert "the controller was lost and is back, on " in told
    assert re.search(r"run run continues, from checkpoint_\d+", told)
    assert result.return_value == "returned"
    assert Result.from_path(tmp_path / "run").metrics_dataframe["i"].tolist() == list(range(40))
    lease = DiskSlot(tmp_path / "run" / ".lease").read().holder
    assert lease.number == 2
    assert lease.controller


def test_of_a_run_that_is_not_there_or_not_detached_attach_says_so(tmp_path, capfd):
    assert attach.main([str(tmp_path / "nothing")]) == 2
    assert f"there is no run in {tmp_path / 'nothing'}" in capfd.readouterr().err

    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))
        raise ValueError("bad")

    with pytest.raises(TrainingFailedError):
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=tmp_path, engine="local")).fit()
    capfd.readouterr()
    assert attach.main([str(tmp_path / "run")]) == 2
    told = capfd.readouterr().err
    assert "run run has made 1 report and was not detached" in told
    assert "to continue from checkpoint_000001 (report 1)" in told

    # One whose controller was lost for good.
    desk = RunConfig(name="run", storage_path=tmp_path).home.desk()
    desk.made_token()
    desk.leave(Note(gcs_address()))
    assert attach.main([str(tmp_path / "run")]) == 2
    told = capfd.readouterr().err
    assert f"has no controller any more on the cluster at {gcs_address()}" in told
    assert "to continue from checkpoint_000001 (report 1)" in told
