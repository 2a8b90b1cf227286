"""What can be known of docs/guides/schedulers.md without a scheduler: its options exist, its manifest fits KubeRay."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paceline._commands import launch

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "guides" / "schedulers.md").read_text()

OPTIONS = """
import json
from ray.scripts.scripts import cli

def options(command, *names):
    for name in names:
        command = command.commands[name]
    return sorted(option for parameter in command.params for option in parameter.opts)

commands = [["start"], ["job", "submit"], ["job", "logs"], ["job", "stop"]]
print(json.dumps({" ".join(names): options(cli, *names) for names in commands}))
"""


def blocks(language: str) -> list[str]:
    texts = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert texts, f"the page has no block of {language}"
    return [textwrap.dedent(text) for text in texts]


@pytest.fixture(scope="module")
def options() -> dict[str, list[str]]:
    pytest.importorskip("ray")
    ended = subprocess.run([sys.executable, "-c", OPTIONS], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    by_command: dict[str, list[str]] = json.loads(ended.stdout)
    return by_command


def test_every_option_given_to_ray_exists(options: dict[str, list[str]]) -> None:
    commands = re.findall(r"^\$ ray (job [a-z]+)(.*)$", "\n".join(blocks("console")), re.MULTILINE)
    assert {name for name, _ in commands} == set(options) - {"start"}
    for name, rest in commands:
        for option in re.findall(r"(?<=\s)--[a-z-]+", rest.partition(" -- ")[0]):
            assert option in options[name], f"ray {name} has no {option}"
    for option in re.findall(r"--entrypoint-[a-z-]+", PAGE):
        assert option in options["job submit"]
    script = (Path(launch.__file__).parent / "slurm_script.py").read_text()
    used = re.findall(r"--[a-z-]+", " ".join(re.findall(r"where=\(.*\)|scripts start .*\n.*", script)))
    assert len(used) > 8
    assert [option for option in used if option not in options["start"]] == []


def test_the_manifest_fits_what_kuberay_declares_and_its_volumes_are_there(options: dict[str, list[str]]) -> None:
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    (manifest,) = (yaml.safe_load(block) for block in blocks("yaml"))
    schema = json.loads((HERE / "kuberay_schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(manifest)
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert len(groups) == 2
    for group in groups:
        assert all(f"--{name}" in options["start"] for name in group["rayStartParams"])
        pod = group["template"]["spec"]
        there = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == there
    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups}
    assert len(images) == 1, "head and workers have one image"
