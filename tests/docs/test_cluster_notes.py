"""What can be known of the notes on KubeRay and Slurm without either: it parses, its options exist, signals go on."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"

OPTIONS = """
import json
from ray.scripts.scripts import cli

def options(command, *names):
    for name in names:
        command = command.commands[name]
    return sorted(option for parameter in command.params for option in parameter.opts)

commands = [["start"], ["status"], ["job", "submit"], ["job", "logs"]]
print(json.dumps({" ".join(names): options(cli, *names) for names in commands}))
"""


def blocks(language: str) -> list[str]:
    texts = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert texts, f"{PAGE.name} has no block of {language}"
    return [textwrap.dedent(text) for text in texts]


@pytest.fixture(scope="module")
def options() -> dict[str, list[str]]:
    ended = subprocess.run([sys.executable, "-c", OPTIONS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    by_command: dict[str, list[str]] = json.loads(ended.stdout)
    return by_command


def test_every_option_given_to_ray_exists(options: dict[str, list[str]]) -> None:
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    commands = re.findall(r"\bray ((?:job )?[a-z-]+)((?: (?!--\s)--?[^\n&>;]*)?)", text)
    assert {name for name, _ in commands} == set(options)
    for name, rest in commands:
        for option in re.findall(r"(?<=\s)--[a-z-]+", rest.partition(" -- ")[0]):
            assert option in options[name], f"ray {name} has no {option}"


def test_the_manifest_parses_and_its_volumes_are_there(options: dict[str, list[str]]) -> None:
    yaml = pytest.importorskip("yaml")
    (manifest,) = (yaml.safe_load(block) for block in blocks("yaml"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    assert len(groups) == 2
    for group in groups:
        assert all(f"--{name}" in options["start"] for name in group["rayStartParams"])
        pod = group["template"]["spec"]
        there = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == there
    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups}
    assert len(images) == 1, "head and workers have one image"


def test_the_scripts_are_bash() -> None:
    for script in blocks("bash"):
        ended = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


STAND_INS = {
    # Runs the command here, without its own options.
    "srun": 'echo "srun $*" >> calls\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": 'echo "scontrol $*" >> calls\nif [ "$1" = show ]; then printf "%s\\n" alpha beta; fi\n',
    "hostname": 'echo "10.0.0.1 10.0.0.2"\n',
    "ray": 'echo "ray $*" >> calls\n',
    "python": """\
if [ "$1" = -c ]; then exit 0; fi
echo "python $* at $RAY_ADDRESS" >> calls
trap 'exit 75' USR1
echo > ready
for _ in $(seq 600); do sleep 0.1; done
""",
}


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_the_batch_script_passes_a_signal_on_and_puts_itself_into_the_queue_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    """With stand-ins for Slurm, Ray and the training, which ends as a preempted run does."""
    (script,) = (block for block in blocks("bash") if "--signal=B:" in block)
    (tmp_path / "bin").mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "calls").touch()
    os.mkfifo(tmp_path / "ready")
    slurm = {"SLURM_JOB_ID": "123", "SLURM_JOB_NODELIST": "alpha,beta", "SLURM_CPUS_PER_TASK": "2"}
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **slurm}
    with subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment) as batch:
        (tmp_path / "ready").read_bytes()
        # The script may be one line short of knowing its driver, and is then told once more.
        while batch.poll() is None:
            batch.send_signal(number)
            try:
                batch.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
    assert batch.returncode == 75
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "python train.py at 10.0.0.1:20123" in calls
    assert "scontrol requeue 123" in calls  # what Ray is started by runs beside it, and may still be to come
