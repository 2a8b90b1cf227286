"""`paceline profile`: flame graphs and traces of runs that know nothing of it, whatever becomes of them meanwhile."""

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from live_runs import live, standing

from paceline import train
from paceline._control.events import FileMade
from paceline._control.requests import Answer, Profile, Stop, asked

HOSTILE = "</script><script>alert(1)</script>;\x1b[31m"


def busy(config: dict[str, Any]) -> None:
    """Computes in two functions, of which one has a name that is markup."""
    namespace: dict[str, Any] = {}
    exec(compile("def f():\n    return sum(range(200_000))\n", "hostile.py", "exec"), namespace)
    strange = namespace["f"]
    strange.__code__ = strange.__code__.replace(co_name=HOSTILE, co_qualname=HOSTILE)

    def plainly_named() -> int:
        return sum(range(200_000))

    n = 0
    while not Path(config["at"], "go").exists():
        n += 1
        plainly_named()
        strange()
        if n % 4 == 1:
            train.report({"n": n})
        if any(thread.name == "paceline-profile" for thread in threading.enumerate()):
            Path(config["at"], "is profiled").touch()
    train.report({"n": -1})


def profiled_by_command(run: Any, *arguments: str) -> tuple[int, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "paceline", "profile", str(run.path), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, json.loads(ended.stdout)


def test_a_live_run_is_profiled_with_no_change_to_its_code(tmp_path: Path) -> None:
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until_reported(1, ranks=2)
        code, answer = profiled_by_command(run, "--seconds", "1")
        assert code == 0, answer
        assert sorted((made["rank"], made["kind"]) for made in answer["files"]) == [
            (0, "flame"),
            (0, "stacks-folded"),
            (1, "flame"),
            (1, "stacks-folded"),
        ]
        assert {note.path for note in run.of(FileMade)} == {made["path"] for made in answer["files"]}
        for made in answer["files"]:
            path = run.path / made["path"]
            assert path.stat().st_size == made["num_bytes"]
            assert path.stat().st_mode & 0o777 == 0o600
            assert made["path"].startswith("profiles/")
            text = path.read_text()
            assert "plainly_named" in text
            assert "\x1b" not in text
            if made["kind"] == "flame":
                assert "<script>alert" not in text
                assert text.count("</script>") == 2, "of the page itself"
                assert "http://" not in text
                assert "https://" not in text
            else:
                counted = [line.rpartition(" ") for line in text.splitlines()]
                in_main = sum(int(count) for stack, _, count in counted if stack.startswith("main thread;"))
                assert 30 <= in_main <= 200, "about a hundred times a second"
                assert "paceline-profile" not in text
        only = asked(run.home, Profile(seconds=0.2, ranks=(1,)), 30.0)
        assert {made.rank for made in only.files} == {1}
        (tmp_path / "go").touch()
        assert run.ended().metrics["n"] == -1


def test_two_profiles_at_once_are_refused(tmp_path: Path) -> None:
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until_reported()
        first: list[Answer] = []
        taken = threading.Event()
        asking = threading.Thread(
            target=lambda: first.append(asked(run.home, Profile(seconds=1.0), 30.0, heard=lambda answer: taken.set()))
        )
        asking.start()
        assert taken.wait(20)
        second = asked(run.home, Profile(seconds=1.0), 30.0)
        assert second.state == "refused"
        assert second.text.startswith("the run is being profiled already")
        asking.join()
        assert first[0].ok
        for wrong in (0.0, -1.0, 601.0, float("nan")):
            assert asked(run.home, Profile(seconds=wrong), 20.0).state == "refused"


def test_a_worker_that_dies_while_it_is_profiled(tmp_path: Path) -> None:
    with live(standing, tmp_path / "run", config={"at": str(tmp_path)}, workers=2, max_failures=1) as run:
        run.until(lambda: len(run.pids()) == 2 and (tmp_path / "stands_0").exists())
        answers: list[Answer] = []
        taken = threading.Event()
        asking = threading.Thread(
            target=lambda: answers.append(asked(run.home, Profile(seconds=30.0), heard=lambda answer: taken.set()))
        )
        asking.start()
        assert taken.wait(20)
        os.kill(run.pids()[1], 9)
        asking.join(20)
        assert not asking.is_alive()
        assert answers[0].state == "refused"
        assert "rank 1 has brought no profile" in answers[0].text


def test_a_run_that_ends_while_it_is_profiled_has_its_files_all_the_same(tmp_path: Path) -> None:
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until_reported()
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(asked(run.home, Profile(seconds=30.0))))
        asking.start()
        run.until_at_work(tmp_path / "is profiled")
        (tmp_path / "go").touch()
        asking.join(20)
        run.ended()
    assert answers[0].ok, answers
    assert {made.kind for made in answers[0].files} == {"flame", "stacks-folded"}
    assert {note.path for note in run.of(FileMade)} == {made.path for made in answers[0].files}
    assert run.outcome.metrics["n"] == -1


def test_a_profile_of_a_run_that_is_stopped_meanwhile_is_answered(tmp_path: Path) -> None:
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until_reported()
        answers: list[Answer] = []
        taken = threading.Event()
        asking = threading.Thread(
            target=lambda: answers.append(asked(run.home, Profile(seconds=30.0), heard=lambda answer: taken.set()))
        )
        asking.start()
        assert taken.wait(20)
        assert asked(run.home, Stop(now=True), 20.0).ok
        asking.join(20)
    assert answers[0].state in ("done", "refused")
    assert answers[0].files or "before that was done" in answers[0].text or "no profile" in answers[0].text


def in_this_process(config: dict[str, Any]) -> None:
    busy(config)


def test_a_run_in_the_drivers_own_process_is_profiled_too(tmp_path: Path) -> None:
    """`num_workers=0`: the function runs in the thread that called fit()."""
    with live(in_this_process, tmp_path / "run", config={"at": str(tmp_path)}, workers=0) as run:
        run.until_reported()
        answer = asked(run.home, Profile(seconds=0.5), 30.0)
        (tmp_path / "go").touch()
        assert answer.ok, answer
        folded = next(made for made in answer.files if made.kind == "stacks-folded")
        assert "plainly_named" in (run.path / folded.path).read_text()


# With torch.


def training(config: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(1)
    device = config.get("device", "cpu")
    rows = torch.utils.data.TensorDataset(torch.randn(64, 32))
    loader = torch.utils.data.DataLoader(rows, batch_size=16, num_workers=config.get("loaders", 0))
    model = torch.nn.Linear(32, 32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    n = 0
    while not Path(config["at"], "go").exists():
        for (batch,) in loader:
            loss = model(batch.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        n += 1
        train.report({"n": n, "loss": loss.item()})
    train.report({"n": -1})


def trace_of(run: Any, answer: Answer) -> list[dict[str, Any]]:
    (made,) = [made for made in answer.files if made.kind == "trace"]
    with gzip.open(run.path / made.path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_what_torch_does_in_the_training_thread_is_traced(tmp_path: Path) -> None:
    torch_trainer = pytest.importorskip("paceline.train.torch").TorchTrainer
    config = {"at": str(tmp_path), "loaders": 1}
    with live(training, tmp_path / "run", config=config, trainer=torch_trainer) as run:
        run.until_reported(2)
        answer = asked(run.home, Profile(seconds=1.0), 60.0)
        assert answer.ok, answer
        events = trace_of(run, answer)
        threads = {event["tid"] for event in events if event.get("name") == "aten::linear"}
        assert threads == {run.pids()[0]}, "the main thread's, though another one took the trace"
        assert any("Backward" in str(event.get("name")) for event in events), "and the engine's, where backward runs"
        again = asked(run.home, Profile(seconds=0.3), 60.0)
        assert {made.kind for made in again.files} == {"flame", "stacks-folded", "trace"}, again
        (tmp_path / "go").touch()
        assert run.ended().metrics["n"] == -1
    assert not list((tmp_path / "run").glob(".staging/**/trace.json*"))


def with_its_own_profiler(config: dict[str, Any]) -> None:
    """Uses torch's profiler now and then, as the code of many does."""
    import torch

    torch.set_num_threads(1)
    n = 0
    while not Path(config["at"], "go").exists():
        n += 1
        for _ in range(20):
            torch.ones(16, 16) @ torch.ones(16, 16)
        train.report({"n": n})
        if Path(config["at"], "profile").exists():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
                torch.ones(16, 16) @ torch.ones(16, 16)
            seen = [event.key for event in own.key_averages()]
            assert "aten::matmul" in seen, seen
            del own
            Path(config["at"], "profiled").touch()
    train.report({"n": -1})


def test_code_that_begins_to_use_torchs_profiler_gets_it(tmp_path: Path) -> None:
    """Two of them in a process crash it."""
    torch_trainer = pytest.importorskip("paceline.train.torch").TorchTrainer
    with live(with_its_own_profiler, tmp_path / "run", config={"at": str(tmp_path)}, trainer=torch_trainer) as run:
        run.until_reported(2)
        answers: list[Answer] = []
        taken = threading.Event()
        asking = threading.Thread(
            target=lambda: answers.append(asked(run.home, Profile(seconds=3.0), heard=lambda answer: taken.set()))
        )
        asking.start()
        assert taken.wait(20)
        (tmp_path / "profile").touch()
        run.until_at_work(tmp_path / "profiled")
        asking.join(60)
        (tmp_path / "go").touch()
        assert run.ended().metrics["n"] == -1, run.outcome
    assert {"flame", "stacks-folded"} <= {made.kind for made in answers[0].files}
    assert any("torch's profiler itself" in problem for problem in answers[0].problems), answers


def holds_a_profiler(config: dict[str, Any]) -> None:
    import torch

    steps = torch.profiler.schedule(wait=1, warmup=5, active=2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=steps) as own:
        for n in range(3):
            torch.ones(2) + 1
            own.step()
            train.report({"n": n})
        Path(config["at"], "warms up").touch()
        while not Path(config["at"], "go").exists():
            time.sleep(0.01)
        for n in range(8):
            torch.ones(2) + 1
            own.step()
            train.report({"n": n})


def test_code_whose_profiler_warms_up_is_left_alone(tmp_path: Path) -> None:
    torch_trainer = pytest.importorskip("paceline.train.torch").TorchTrainer
    with live(holds_a_profiler, tmp_path / "run", config={"at": str(tmp_path)}, trainer=torch_trainer) as run:
        run.until_at_work(tmp_path / "warms up")
        answer = asked(run.home, Profile(seconds=0.5), 60.0)
        (tmp_path / "go").touch()
        assert answer.ok
        assert not [made for made in answer.files if made.kind == "trace"]
        assert "the code uses torch's profiler itself" in answer.problems[0]
        assert run.ended().metrics["n"] == 7, run.outcome


def test_gpu_kernels_are_in_the_trace(tmp_path: Path) -> None:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("there is no GPU")
    torch_trainer = pytest.importorskip("paceline.train.torch").TorchTrainer
    config = {"at": str(tmp_path), "device": "cuda"}
    with live(training, tmp_path / "run", config=config, trainer=torch_trainer, use_gpu=True) as run:
        run.until_reported(2)
        answer = asked(run.home, Profile(seconds=1.0), 60.0)
        assert answer.ok, answer
        events = trace_of(run, answer)
        assert [event for event in events if event.get("cat") == "kernel"], "what the GPU computed"
        assert [event for event in events if event.get("name") == "aten::linear"]
        (tmp_path / "go").touch()
        assert run.ended().metrics["n"] == -1
