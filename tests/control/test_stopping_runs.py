"""`paceline stop`, on runs that are driven, by others than those who ask."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from live_runs import counting, live, standing

from paceline import train
from paceline._control.events import Reported, WorkerFailed
from paceline._control.requests import Answer, Profile, Request, Stacks, Stop, asked, encode, holder_of
from paceline._storage.home import Home
from paceline.train import Result


def command(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", *arguments], capture_output=True, text=True, timeout=60, **options
    )


def test_a_run_that_is_stopped_goes_on_with_nothing_lost(tmp_path: Path) -> None:
    config = {"until": 100_000, "hurry": str(tmp_path / "hurry")}
    heard: list[Answer] = []
    with live(counting, tmp_path / "run", config=config, workers=2) as run:
        run.until_reported(5, ranks=2)
        answer = asked(run.home, Stop(), 20.0, heard=heard.append)
        assert holder_of(run.home) is None, "the run can be continued at once"
        assert isinstance(run.ended(), Result)
        assert run.outcome.checkpoint.to_dict() == {"n": answer.num_reports}
    assert [each.state for each in heard] == ["taken"]
    assert (answer.state, answer.ending, answer.checkpoint) == (
        "done",
        "interrupted",
        Path(run.outcome.checkpoint.path).name,
    )
    stopped_after = answer.num_reports
    (tmp_path / "hurry").touch()
    with live(counting, tmp_path / "run", config={**config, "until": stopped_after + 3}, workers=2) as run:
        assert run.ended().error is None
        numbers = [msgspec.json.decode(event.metrics)["n"] for event in run.of(Reported) if event.rank == 0]
    assert numbers == list(range(1, stopped_after + 4)), "each number once"
    assert not list((tmp_path / "run" / ".requests").glob("*")), "nothing is left lying there"


def test_a_run_that_comes_to_no_report_is_stopped_now(tmp_path: Path) -> None:
    with live(standing, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until(lambda: (tmp_path / "stands_1").exists() and (tmp_path / "stands_0").exists())
        answer = asked(run.home, Stop(), 1.0)
        assert answer.state == "taken"
        assert holder_of(run.home) is not None
        answer = asked(run.home, Stop(now=True), 20.0)
        assert (answer.state, answer.ending, answer.num_reports) == ("done", "interrupted", 1)
        assert isinstance(run.ended(), KeyboardInterrupt), "as after Ctrl-C twice"


def test_the_command_stops_a_run_and_says_so(tmp_path: Path) -> None:
    config = {"until": 100_000, "hurry": str(tmp_path / "hurry")}
    with live(counting, tmp_path / "run", config=config) as run:
        run.until_reported(2)
        ended = command("stop", str(run.path))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("run run has stopped after ")
        run.ended()
    again = command("stop", str(run.path), "--json")
    assert (again.returncode, json.loads(again.stdout)["state"]) == (0, "undriven")
    for asks in (["stacks"], ["profile", "--seconds", "1"]):
        refused = command(*asks, str(run.path))
        assert refused.returncode == 2
        assert "nobody drives run" in refused.stderr
    assert command("stop", str(tmp_path / "none")).returncode == 2


def test_the_command_that_waited_in_vain_says_how_to_stop_it_now(tmp_path: Path) -> None:
    with live(standing, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until_at_work(tmp_path / "stands_0")
        ended = command("stop", str(run.path), "--timeout", "1", stdin=subprocess.DEVNULL)
        assert ended.returncode == 1
        assert "has not come to a report within 1 s" in ended.stderr
        assert "--now" in ended.stderr
        ended = command("stop", str(run.path), "--timeout", "1", "--then-now", "--json")
        assert (ended.returncode, json.loads(ended.stdout)["state"]) == (0, "done")


def test_a_request_for_another_driver_stops_nobody(tmp_path: Path) -> None:
    config = {"until": 100_000, "hurry": str(tmp_path / "hurry")}
    with live(counting, tmp_path / "run", config=config) as run:
        run.until_reported()
        number = holder_of(run.home).number
        near, _ = run.home.mailboxes()
        near.put("earlier", encode(Request(number - 1, time.time(), Stop(now=True))))
        near.put("stale", encode(Request(number, time.time() - 3600, Stop(now=True))))
        near.put("later", encode(Request(number + 1, time.time(), Stop(now=True))))
        run.until(lambda: near.answer_to("earlier") and near.answer_to("stale"))
        reported = len(run.of(Reported))
        run.until(lambda: len(run.of(Reported)) > reported + 20)
        for each, why in (("earlier", "is meant for driver number"), ("stale", "s old")):
            answer = msgspec.json.decode(near.answer_to(each), type=Answer)
            assert answer.state == "refused"
            assert why in answer.text
        assert near.answer_to("later") is None
        assert near.waiting() == ["later"], "it is left to the driver that it is meant for"


def test_broken_requests_are_answered_and_hurt_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"until": 100_000, "hurry": str(tmp_path / "hurry")}
    with live(counting, tmp_path / "run", config=config) as run:
        run.until_reported()
        directory = run.home.layout.requests
        run.until(directory.is_dir)
        broken = {
            "empty": b"",
            "garbage": os.urandom(200),
            "deep": b"[" * 50_000,
            "other": b'{"lease":1,"at":0,"want":{"type":"Delete","path":"/"}}',
            "pickle": b"\x80\x04\x95\x00",
            "large": b" " * (1 << 20),
            "list": b"[1,2]",
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
        near, _ = run.home.mailboxes()
        for name in [*broken, "elsewhere", "pipe", "folder"]:
            run.until(lambda name=name: near.answer_to(name))
            assert msgspec.json.decode(near.answer_to(name))["state"] == "refused"
        assert asked(run.home, Stacks(), 20.0).ok, "those who ask properly are heard as before"
        reported = len(run.of(Reported))
        run.until(lambda: len(run.of(Reported)) > reported)
        assert asked(run.home, Stop(), 20.0).ok
        assert isinstance(run.ended(), Result)


def test_a_run_whose_requests_cannot_be_read_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".requests").write_text("not a directory")
    (tmp_path / "hurry").touch()
    with live(counting, tmp_path / "run", config={"until": 400, "hurry": str(tmp_path / "hurry")}) as run:
        assert run.ended().metrics["n"] == 400
    told = [record.getMessage() for record in caplog.records if "requests to this run" in record.getMessage()]
    assert len(told) == 1, "once, not in each round"
    (tmp_path / "run" / ".requests").unlink()


def fails_once_and_then_waits(config: dict[str, str]) -> None:
    if not Path(config["at"], "failed").exists():
        Path(config["at"], "failed").touch()
        train.report({"n": 1})
        raise ValueError("the first time")
    Path(config["at"], "again").touch()
    while True:
        time.sleep(0.01)


def test_a_run_whose_workers_are_started_again_is_stopped(tmp_path: Path) -> None:
    with live(fails_once_and_then_waits, tmp_path / "run", config={"at": str(tmp_path)}, max_failures=1) as run:
        run.until(lambda: run.of(WorkerFailed))
        answer = asked(run.home, Stacks(), 20.0)
        assert answer.state in ("done", "refused"), answer
        answers = []
        asking = threading.Thread(target=lambda: answers.append(asked(run.home, Stop(), 5.0)))
        asking.start()
        run.until_at_work(tmp_path / "again")
        assert asked(run.home, Stop(now=True), 20.0).ok
        asking.join()
        assert answers[0].state in ("done", "gone"), answers


def test_a_request_to_a_run_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom paceline import train\n"
        "from paceline.train import DataParallelTrainer, RunConfig\n"
        "def f():\n    train.report({'n': 1})\n    Path('stands').touch()\n    time.sleep(100)\n"
        "DataParallelTrainer(f, run_config=RunConfig(name='run', storage_path='.')).fit()\n"
    )
    driver = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "stands").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        home = Home.of_path(str(tmp_path / "run"))
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(asked(home, Profile(seconds=60.0), 60.0)))
        asking.start()
        box = home.layout.requests
        while not list(box.glob("*.answer.json")):
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        driver.kill()
        driver.wait()
    asking.join(20)
    assert answers[0].state == "gone"
    assert asked(home, Stop()).state == "undriven"
