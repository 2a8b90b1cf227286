"""`paceline launch slurm`: the script that it writes, run with stand-ins for Slurm, and what it refuses.

`tests/schedulers` submits such jobs to a real Slurm.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline._commands.slurm_script import parse_time_s

EVERYTHING = (
    *("--nodes", "2", "--gpus-per-node", "a100:8", "--cpus-per-node", "32", "--time", "1-12", "--partition", "gpu"),
    *("--account", "lab", "--output", "logs/%x-%j.out", "--grace", "120", "--requeue"),
    *("--python", "/opt/my env/python", "--setup", "module load cuda", "--setup", "source .venv/bin/activate"),
    "--sbatch=--constraint=ib",
)


@pytest.fixture
def launch(paceline, tmp_path):
    (tmp_path / "train.py").touch()
    return lambda *arguments: paceline("launch", "slurm", *arguments)


def test_a_script_has_what_was_asked_for(launch, tmp_path):
    script = launch(*EVERYTHING, "train.py", "--lr", "0 1").out
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")] == [
        *("job-name=train", "nodes=2", "ntasks-per-node=1", "cpus-per-task=32", "gpus-per-node=a100:8", "time=1-12"),
        *("partition=gpu", "account=lab", "output=logs/%x-%j.out", "open-mode=append", "signal=B:USR1@120"),
        *("requeue", "constraint=ib"),
    ]
    setup = [lines.index(line) for line in ("module load cuda", "source .venv/bin/activate")]
    assert setup == sorted(setup)
    assert setup[1] < lines.index("python='/opt/my env/python'")
    assert "export PACELINE_PREEMPTION_GRACE_S=108" in lines
    assert """ "$python" train.py --lr '0 1'\n""" in script
    assert "--num-gpus=8 " in script
    assert launch(*EVERYTHING, "--write", "job.sh", "train.py", "--lr", "0 1").out == ""
    assert (tmp_path / "job.sh").read_text() == script
    document = json.loads(launch("--json", "-m", "my.trainer").out)
    assert (document["path"], document["job_id"]) == (None, None)
    assert f"python={sys.executable}\n" in document["script"]
    assert '"$python" -m my.trainer\n' in document["script"]
    for absent in ("RAY", "requeue", "gpus", "time=", "cpus-per-task"):
        assert absent not in document["script"], "one node needs no Ray"


@pytest.mark.parametrize("options", [(), ("--requeue",), EVERYTHING, ("--nodes", "2")])
def test_a_script_is_bash_and_its_options_of_ray_exist(launch, options):
    script = launch(*options, "train.py").out
    node = re.search(r"^node='\n(.*?)^'$", script, re.DOTALL | re.MULTILINE)
    join = re.search(r"^join='\n(.*?)^'$", script, re.DOTALL | re.MULTILINE)
    for text in [script] if node is None else [script, node[1]]:
        ended = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=240)
        assert (ended.returncode, ended.stderr) == (0, "")
    if join is not None:
        compile(join[1], "join", "exec")


STAND_INS = {
    # Runs the command here, without its own options.
    "srun": 'echo "srun $*" >> calls\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_NODEID=0 exec "$@"\n',
    "scontrol": 'echo "scontrol $*" >> calls\n',
    "squeue": "echo $STATE\n",
    "hostname": 'echo "127.0.1.1 fe80::1 10.0.0.1 10.0.0.2"\n',
    "python": """\
case "$1" in
-c) read -r < started; exit 0 ;;
-m) trap 'exit 0' TERM; echo "ray $* for $SLURM_CPUS_ON_NODE" >> calls; echo > started ;;
*) echo "python $* at $RAY_ADDRESS" >> calls; trap 'exit 75' USR1; echo > ready ;;
esac
for _ in $(seq 600); do sleep 0.1; done
""",
}


@pytest.mark.parametrize(
    ("number", "state", "comes_back"),
    [(signal.SIGUSR1, "RUNNING", True), (signal.SIGTERM, "RUNNING", True), (signal.SIGTERM, "COMPLETING", False)],
)
def test_a_script_passes_a_notice_on_and_goes_back_into_the_queue_unless_it_was_cancelled(
    launch, tmp_path, number, state, comes_back
):
    script = launch("--nodes", "2", "--requeue", "--python", "python", "train.py").out
    (tmp_path / "bin").mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "calls").touch()
    for name in ("ready", "started"):
        os.mkfifo(tmp_path / name)
    slurm = {"SLURM_JOB_ID": "123", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "2", "SLURMD_NODENAME": "alpha"}
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "STATE": state, **slurm}
    with subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment) as batch:
        try:
            (tmp_path / "ready").read_bytes()
            batch.send_signal(number)
            assert batch.wait(timeout=240) == 75
        finally:
            batch.kill()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "python train.py at 10.0.0.1:20123" in calls
    (ray,) = [call for call in calls if call.startswith("ray ")]
    assert "--head --node-ip-address=10.0.0.1 --port=20123" in ray
    assert ("scontrol requeue 123" in calls) == comes_back


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("other.py", "other.py is not a file"),
        ("--gpus-per-node none train.py", "--gpus-per-node must be a positive number, with a type before it or not"),
        ("--gpus-per-node 0 train.py", "hint: --gpus-per-node 8 or --gpus-per-node a100:8"),
        ("--time soon train.py", "--time must be a time of Slurm, got 'soon'"),
        ("--time 0 train.py", "hint: minutes, hours:minutes:seconds or days-hours, such as 90, 1:30:00 or 2-12"),
        ("--grace 5 train.py", "--grace must be at least 10 seconds, got 5"),
        ("--time 1 train.py", "--grace must be shorter than --time, got 60 s of 60 s"),
        ("--partition a\nb train.py", "--partition must be one word without quotes"),
        ("--sbatch=-C train.py", "--sbatch must be a long option of sbatch, got '-C'"),
        ("--sbatch=--nodes=3 train.py", "--sbatch must be an option that `paceline launch` does not have itself"),
        ("--sbatch=--requeue train.py", "hint: use --requeue of `paceline launch`"),
        ("--sbatch=--cpus-per-task=4 train.py", "hint: use --cpus-per-node of `paceline launch`"),
        ("--sbatch=--ntasks=4 train.py", "--sbatch must not change what the script needs, got '--ntasks=4'"),
        ("-m my-trainer", "-m must be followed by the name of a module, such as my.trainer, got 'my-trainer'"),
        ("--python= train.py", "--python must be the path of an interpreter, got ''"),
        ("--write none/job.sh train.py", "cannot write none/job.sh: No such file or directory"),
        ("--submit --output logs/%j.out train.py", "--output must be in a directory that exists, got logs"),
        ("--submit train.py", "sbatch was not found, so nothing was submitted"),
        ("--nodes 0 train.py", "argument --nodes: must be a positive integer, got '0'"),
    ],
)
def test_what_no_job_can_be_is_refused(launch, monkeypatch, line, told):
    monkeypatch.setattr("shutil.which", lambda name: None)
    launch(*line.split(" ")).assert_refused(told)


def test_lines_of_bash_that_cannot_be_read_are_refused_before_anything_is_queued(launch):
    launch("--setup", "if true", "train.py").assert_refused("--setup must be bash", "syntax error")
    assert (
        "\nif true\nthen :\nfi\n"
        in launch(*("--setup", "if true", "--setup", "then :", "--setup", "fi"), "train.py").out
    )


def test_a_job_that_slurm_refuses_is_told_in_its_words(launch, tmp_path, monkeypatch):
    (tmp_path / "sbatch").write_text(
        "#!/bin/bash\ncat > got\n[ -z $REFUSAL ] || { echo $REFUSAL >&2; exit 1; }\necho '7;c'\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert launch("--submit", "train.py").out == "submitted train as job 7\n"
    assert Path(tmp_path, "got").read_text() == launch("train.py").out
    monkeypatch.setenv("REFUSAL", "sbatch:invalid-partition")
    launch("--submit", "train.py").assert_refused("sbatch rejected the job: sbatch:invalid-partition")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:02:03", 3723),
        ("2-0", 172800),
        ("1-12:30", 131400),
        ("0-1:2:3", 3723),
        ("1h", None),
    ],
)
def test_times_of_slurm(text, seconds):
    assert parse_time_s(text) == seconds
