"""`paceline profile`: flame graphs and traces of runs that know nothing of it, whatever becomes of them meanwhile."""

import gzip
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from live_runs import PendingRequest, live, run_command, standing

from paceline import train
from paceline._control.events import DiagnosticFileWritten
from paceline._control.requests import ProfileRequest

HOSTILE = "</script><script>alert(1)</script>;\x1b[31m"


def busy(config):
    """Computes in two functions, of which one has a name that is markup."""
    namespace: dict[str, Any] = {}
    exec(compile("def f():\n    return sum(range(200_000))\n", "hostile.py", "exec"), namespace)
    strange = namespace["f"]
    strange.__code__ = strange.__code__.replace(co_name=HOSTILE, co_qualname=HOSTILE)

    def plainly_named():
        return sum(range(200_000))

    n, is_over = 0, False
    while not is_over:
        n += 1
        plainly_named()
        strange()
        if n % 4 == 1:
            train.report({"n": n})
            is_over = train.collective.broadcast_from_rank_zero(Path(config["at"], "go").exists())
        if any(thread.name == "paceline-profile" for thread in threading.enumerate()):
            Path(config["at"], "is profiled").touch()
    train.report({"n": -1})


def test_a_live_run_is_profiled_with_no_change_to_its_code(tmp_path):
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until_reported(1, ranks=2)
        # Where torch is imported, the first profile makes it import more, in the main thread: for seconds, at times.
        first = run.ask(ProfileRequest(seconds=0.2))
        ended = run_command("profile", str(run.path), "--json", "--seconds", "1")
        assert ended.returncode == 0, ended
        files = json.loads(ended.stdout)["files"]
        kinds = [(rank, kind) for rank in (0, 1) for kind in ("flame", "stacks-folded")]
        assert sorted((file["rank"], file["kind"]) for file in files) == kinds
        noted = {note.path for note in run.of(DiagnosticFileWritten)}
        assert noted - {file.path for file in first.files} == {file["path"] for file in files}
        for file in files:
            path = run.path / file["path"]
            assert path.stat().st_size == file["num_bytes"]
            assert path.stat().st_mode & 0o777 == 0o600
            assert file["path"].startswith("profiles/")
            text = path.read_text()
            assert "plainly_named" in text
            assert "\x1b" not in text
            if file["kind"] == "flame":
                assert "<script>alert" not in text
                assert text.count("</script>") == 2, "of the page itself"
                assert "http://" not in text
                assert "https://" not in text
            else:
                counted = [line.rpartition(" ") for line in text.splitlines()]
                in_main = sum(int(count) for stack, _, count in counted if stack.startswith("main thread;"))
                assert in_main >= 5, "about a hundred times a second, on a machine that has the time"
                assert "paceline-profile" not in text
        only = run.ask(ProfileRequest(seconds=0.2, ranks=(1,)))
        assert {file.rank for file in only.files} == {1}
        (tmp_path / "go").touch()
        assert run.ended().metrics["n"] == -1


@pytest.mark.slow
def test_a_worker_that_dies_while_it_is_profiled(tmp_path):
    with live(standing, tmp_path / "run", config={"at": str(tmp_path)}, workers=2, max_failures=1) as run:
        run.until(lambda: len(run.pids()) == 2 and (tmp_path / "stands_0").exists())
        request = PendingRequest(run.home, ProfileRequest(seconds=600.0))
        request.wait_until_accepted()
        os.kill(run.pids()[1], 9)
        answer = request.answer()
        assert answer.state == "refused"
        assert "rank 1 sent no profile" in answer.text


def test_a_run_that_ends_while_it_is_profiled_has_its_files_all_the_same(tmp_path):
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until_reported()
        request = PendingRequest(run.home, ProfileRequest(seconds=600.0))
        run.until((tmp_path / "is profiled").exists)
        (tmp_path / "go").touch()
        answer = request.answer()
        run.ended()
    assert answer.ok, answer
    assert {file.kind for file in answer.files} == {"flame", "stacks-folded"}
    assert {note.path for note in run.of(DiagnosticFileWritten)} == {file.path for file in answer.files}
    assert run.outcome.metrics["n"] == -1


@pytest.mark.slow
def test_a_run_in_the_drivers_own_process_is_profiled_too(tmp_path):
    """`num_workers=0`: the function runs in the thread that called fit()."""
    with live(busy, tmp_path / "run", config={"at": str(tmp_path)}, workers=0) as run:
        run.until_reported()
        answer = run.ask(ProfileRequest(seconds=0.5))
        (tmp_path / "go").touch()
        assert answer.ok, answer
        folded = next(file for file in answer.files if file.kind == "stacks-folded")
        assert "plainly_named" in (run.path / folded.path).read_text()


# With torch, whose profiler crashes the worker now and then when it is switched on from another thread.


@pytest.fixture
def torch_trainer():
    return pytest.importorskip("paceline.train.torch").TorchTrainer


def train_linear(config):
    import torch

    torch.set_num_threads(1)
    rows = torch.utils.data.TensorDataset(torch.randn(64, 32))
    loader = torch.utils.data.DataLoader(rows, batch_size=16, num_workers=1)
    model = torch.nn.Linear(32, 32).to(config["device"])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    n = 0
    while not Path(config["at"], "go").exists():
        for (batch,) in loader:
            loss = model(batch.to(config["device"])).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        n += 1
        train.report({"n": n, "loss": loss.item()})
    train.report({"n": -1})


no_gpu = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="there is no GPU")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=no_gpu)])
def test_what_torch_does_in_the_training_thread_is_traced(device, torch_trainer, tmp_path):
    config, use_gpu = {"at": str(tmp_path), "device": device}, device == "cuda"
    with live(train_linear, tmp_path / "run", config=config, trainer=torch_trainer, use_gpu=use_gpu) as run:
        run.until_reported(2)
        answer = run.ask(ProfileRequest(seconds=1.0))
        assert answer.ok, answer
        (trace,) = [file for file in answer.files if file.kind == "trace"]
        with gzip.open(run.path / trace.path) as file:
            events = json.load(file)["traceEvents"]
        threads = {event["tid"] for event in events if event.get("name") == "aten::linear"}
        assert threads == {run.pids()[0]}, "the main thread's, though another one took the trace"
        assert any("Backward" in str(event.get("name")) for event in events), "and the engine's, where backward runs"
        assert not use_gpu or [event for event in events if event.get("cat") == "kernel"], "what the GPU computed"
        again = run.ask(ProfileRequest(seconds=0.3))
        assert {file.kind for file in again.files} == {"flame", "stacks-folded", "trace"}, again
        (tmp_path / "go").touch()
        assert run.ended().metrics["n"] == -1
    assert not list((tmp_path / "run").glob(".staging/**/trace.json*"))


def with_its_own_profiler(config):
    """Uses torch's profiler itself: first one that warms up for a while, later another one."""
    import torch

    def profile(**more):
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **more)

    at = Path(config["at"])
    torch.set_num_threads(1)
    with profile(schedule=torch.profiler.schedule(wait=1, warmup=5, active=2)) as own:
        for n in range(11):
            torch.ones(2) + 1
            own.step()
            train.report({"n": n})
            if n == 2:
                (at / "warms up").touch()
            while n == 2 and not (at / "go on").exists():
                time.sleep(0.01)
    del own
    (at / "is over").touch()
    while not (at / "go").exists():
        torch.ones(16, 16) @ torch.ones(16, 16)
        train.report({"n": n})
        if (at / "profile").exists():
            with profile() as own:
                torch.ones(16, 16) @ torch.ones(16, 16)
            functions = [event.key for event in own.key_averages()]
            assert "aten::matmul" in functions, functions
            del own
            (at / "profiled").touch()
    train.report({"n": -1})


@pytest.mark.slow
def test_code_that_uses_torchs_profiler_itself_has_it_alone(torch_trainer, tmp_path):
    """Two of them in a process crash it."""
    with live(with_its_own_profiler, tmp_path / "run", config={"at": str(tmp_path)}, trainer=torch_trainer) as run:
        run.until((tmp_path / "warms up").exists)
        while_it_warms_up = run.ask(ProfileRequest(seconds=0.5))
        assert while_it_warms_up.ok
        (tmp_path / "go on").touch()
        run.until((tmp_path / "is over").exists)
        request = PendingRequest(run.home, ProfileRequest(seconds=600.0))
        request.wait_until_accepted()
        (tmp_path / "profile").touch()
        run.until((tmp_path / "profiled").exists)
        (tmp_path / "go").touch()
        answer = request.answer()
        assert run.ended().metrics["n"] == -1, run.outcome
    assert {file.kind for file in while_it_warms_up.files} == {"flame", "stacks-folded"}
    assert "the code uses torch's profiler itself" in while_it_warms_up.problems[0]
    assert {"flame", "stacks-folded"} <= {file.kind for file in answer.files}
    assert any("torch's profiler itself" in problem for problem in answer.problems), answer
