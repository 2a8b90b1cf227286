"""`paceline stop`, on runs that are driven, by others than those who ask."""

import json
import os
import time
from pathlib import Path

import msgspec
from live_runs import counting, live, run_command, standing

from paceline._control import requests
from paceline._control.events import Reported
from paceline._control.requests import Answer, StacksRequest, StopRequest, find_holder, send_request
from paceline.train import Result


def test_a_stopped_run_resumes_with_nothing_lost(tmp_path):
    """Stopped first by a request, then by the command."""
    config = {"until": 100_000, "hurry": str(tmp_path / "hurry")}
    accepted: list[Answer] = []
    with live(counting, tmp_path / "run", config=config, workers=2) as run:
        run.until_reported(5, ranks=2)
        answer = send_request(run.home, StopRequest(), 60.0, on_accepted=accepted.append)
        assert find_holder(run.home) is None, "the run can be continued at once"
        assert run.ended().status == Result.from_path(run.path).status == "stopped"
        assert f"in {run.path}\n\nhint: run the script again" in str(run.interrupt)
        assert run.outcome.checkpoint.to_dict() == {"n": answer.num_reports}
    assert [each.state for each in accepted] == ["taken"]
    assert (answer.state, answer.ending) == ("done", "interrupted")
    assert answer.checkpoint == Path(run.outcome.checkpoint.path).name

    with live(counting, tmp_path / "run", config=config, workers=2, on_stop="return") as run:
        run.until_reported(answer.num_reports + 2, ranks=2)
        ended = run_command("stop", str(run.path))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("run run has stopped after ")
        stopped_after = run.ended().metrics["n"]
        assert (run.outcome.status, run.interrupt) == ("stopped", None)
    again = run_command("stop", str(run.path), "--json")
    assert (again.returncode, json.loads(again.stdout)["state"]) == (0, "undriven")
    for line in (["stacks"], ["profile", "--seconds", "1"]):
        refused = run_command(*line, str(run.path))
        assert refused.returncode == 2
        assert "run has no driver" in refused.stderr
    assert run_command("stop", str(tmp_path / "none")).returncode == 2

    (tmp_path / "hurry").touch()
    with live(counting, tmp_path / "run", config={**config, "until": stopped_after + 3}, workers=2) as run:
        assert (run.ended().error, run.outcome.status) == (None, "finished")
        numbers = [msgspec.json.decode(event.metrics)["n"] for event in run.of(Reported) if event.rank == 0]
    assert numbers == list(range(1, stopped_after + 4)), "each number once"
    assert not list((tmp_path / "run" / ".requests").glob("*")), "nothing is left lying there"


def stop_within_a_second(run, *options):
    """Run the command, again while the driver had no turn within that second."""
    while True:
        ended = run_command("stop", str(run.path), "--timeout", "1", *options)
        if "did not answer within" not in ended.stdout + ended.stderr:
            return ended


def test_a_run_that_comes_to_no_report_is_stopped_now(tmp_path):
    with live(standing, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until(lambda: (tmp_path / "stands_1").exists() and (tmp_path / "stands_0").exists())
        ended = stop_within_a_second(run)
        assert ended.returncode == 1
        assert "has not reported within 1 s" in ended.stderr
        assert "--now" in ended.stderr
        assert find_holder(run.home) is not None
        ended = stop_within_a_second(run, "--then-now", "--json")
        answer = json.loads(ended.stdout)
        assert (ended.returncode, answer["state"], answer["ending"]) == (0, "done", "interrupted")
        assert answer["num_reports"] == 1
        assert run.ended().status == "stopped"
        assert run.interrupt is not None, "as after Ctrl-C twice"


def test_requests_that_are_broken_or_for_another_driver_are_refused_and_stop_nobody(tmp_path, caplog):
    config = {"until": 100_000, "hurry": str(tmp_path / "hurry")}
    with live(counting, tmp_path / "run", config=config) as run:
        run.until_reported()
        directory = run.home.layout.requests
        run.until(directory.is_dir)
        number = find_holder(run.home).number
        near, _ = run.home.open_mailboxes()
        near.put("later", requests.encode(requests.RequestEnvelope(number + 1, time.time(), StopRequest(now=True))))
        broken = {
            "earlier": requests.encode(requests.RequestEnvelope(number - 1, time.time(), StopRequest(now=True))),
            "stale": requests.encode(requests.RequestEnvelope(number, time.time() - 3600, StopRequest(now=True))),
            "empty": b"",
            "garbage": os.urandom(200),
            "deep": b"[" * 50_000,
            "other": b'{"lease":1,"at":0,"request":{"type":"Delete","path":"/"}}',
            "pickle": b"\x80\x04\x95\x00",
            "large": b" " * (1 << 20),
        }
        for name, data in broken.items():
            part = directory / f"{name}.part"
            part.write_bytes(data)
            part.rename(directory / f"{name}.json")
        (directory / "elsewhere.json").symlink_to("/etc/passwd")
        os.mkfifo(directory / "pipe.json")
        (directory / "a directory.json").mkdir()
        (directory / "folder.json").mkdir()
        (directory / ".json").touch()
        reasons = {"earlier": "is for driver", "stale": "the request expired"}
        for name in [*broken, "elsewhere", "pipe", "folder"]:
            run.until(lambda name=name: near.read_answer(name))
            answer = msgspec.json.decode(near.read_answer(name), type=Answer)
            assert answer.state == "refused"
            assert reasons.get(name, "") in answer.text
        assert near.read_answer("later") is None
        assert "later" in near.list_waiting(), "it is left to the driver that it is meant for"
        reported = len(run.of(Reported))
        run.until(lambda: len(run.of(Reported)) > reported + 20)
        assert run.ask(StacksRequest()).ok, "proper requests are answered as before"
        assert run.ask(StopRequest()).ok
        assert isinstance(run.ended(), Result)


def test_a_run_whose_requests_cannot_be_read_goes_on(tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".requests").write_text("not a directory")
    (tmp_path / "hurry").touch()
    with live(counting, tmp_path / "run", config={"until": 400, "hurry": str(tmp_path / "hurry")}) as run:
        assert run.ended().metrics["n"] == 400
    warnings = [record for record in caplog.records if "requests to this run" in record.getMessage()]
    assert len(warnings) == 1, "once, not in each round"
    (tmp_path / "run" / ".requests").unlink()
