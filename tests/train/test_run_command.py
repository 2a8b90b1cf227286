"""`paceline run`: a script for torchrun, unchanged, with our logs, restarts, error report and hang verdict."""

import json
import os
import subprocess
import sys

import pytest

from paceline.train import Result

SCRIPT = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
said = {"total": total.item(), "argv": sys.argv[1:], "name": __name__, "attempt": attempt}
with open(f"rank_{rank}.json", "w") as file:
    json.dump({**said, "here": sys.path[0], **{name: os.environ.get(name) for name in names}}, file)
if "die" in sys.argv and rank == 1 and attempt == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if "hang" in sys.argv and rank == 1:
    time.sleep(1000)
dist.barrier()
dist.destroy_process_group()
if "fail" in sys.argv and rank == 0:
    raise ValueError("it went wrong")
sys.exit(0)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "paceline", "run", "--storage-path", "runs", "--name", "a", *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def line_of(text):
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def output(tmp_path, rank):
    return json.loads((tmp_path / f"rank_{rank}.json").read_text())


def test_a_script_for_torchrun_runs_unchanged_and_a_killed_worker_costs_one_restart_of_all(run, tmp_path):
    ended = run("--nproc_per_node=2", "--max-restarts", "1", "script.py", "die", "--lr", "0.1", "-n", "3")
    assert ended.returncode == 0, ended.stderr
    assert "rank 1 failed: killed by SIGKILL" in ended.stderr
    arguments = ["die", "--lr", "0.1", "-n", "3"]
    script = {"total": 3.0, "argv": arguments, "name": "__main__", "attempt": 1, "here": str(tmp_path)}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    for rank in range(2):
        assert output(tmp_path, rank) == {**script, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    # Gloo would look the host's name up, and warn or hang where there is none.
    assert "GLOO_SOCKET_IFNAME" not in ended.stdout
    assert (tmp_path / "runs" / "a" / "logs" / "attempt_1" / "rank_1.log").is_file()
    assert Result.from_path(tmp_path / "runs" / "a").error is None


@pytest.mark.slow
def test_a_failure_is_told_with_its_rank_its_line_and_its_log_and_no_traceback_of_ours(run):
    ended = run("--num-workers", "2", "script.py", "fail")
    assert ended.returncode == 1
    assert "rank 0, " in ended.stderr
    assert "ValueError: it went wrong" in ended.stderr
    assert f"script.py:{line_of('it went wrong')} in <module>" in ended.stderr
    assert "rank_0.log" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_module_runs_as_python_m_would(run, tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "values.py").write_text("SIZE = 7")
    (package / "training.py").write_text(
        "import os, sys\nfrom .values import SIZE\n"
        "open(f'rank_{os.environ[\"RANK\"]}.json', 'w').write(f'[{SIZE}, \"{__name__}\", \"{sys.argv[1]}\"]')\n"
    )
    ended = run("-n", "2", "-m", "project.training", "fast")
    assert ended.returncode == 0, ended.stderr
    assert [output(tmp_path, rank) for rank in range(2)] == [[7, "__main__", "fast"]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py is not a file"),
        (["-m", "no_such_module"], "there is no module no_such_module"),
        (["-n", "0", "script.py"], "--num-workers must be positive, got 0"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(run, tmp_path, arguments, message):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.chaos
def test_a_hang_is_told_with_the_rank_that_stands_and_the_collective_that_waits_for_it(run):
    ended = run("-n", "2", "--hang-timeout", "10", "--hang-action", "fail", "script.py", "hang")
    assert ended.returncode == 1
    assert f"rank 1 has been stuck at script.py:{line_of('sleep')} in <module> (time.sleep)" in ended.stderr
    assert (
        f"rank 0 waits for it in a collective (barrier) at script.py:{line_of('barrier')} in <module>" in ended.stderr
    )
