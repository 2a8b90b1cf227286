"""A program comes to the same on one machine and on four hosts: journal, metrics, checkpoints and order of samples."""

import contextlib
import json
import sys
from pathlib import Path

import program
import pytest
from network import SHARED, Network, missing_tools

NUM_HOSTS = 4
SCRIPT = Path(__file__).with_name("train_program.py")


@pytest.fixture
def four_hosts(tmp_path):
    if missing := missing_tools():
        pytest.skip(f"no hosts can be made here without {missing}: one machine was not compared with four hosts")
    hosts = Network(tmp_path, NUM_HOSTS)
    with contextlib.closing(hosts):
        hosts.start_ray(num_cpus=2)
        yield hosts


def test_a_program_comes_to_the_same_on_one_machine_and_on_four_hosts(four_hosts):
    driver = four_hosts.hosts[0]
    program.written(four_hosts.shared / "files", NUM_HOSTS)
    accounts = {}
    for engine, where in (("ray", "4 workers on the Ray cluster at"), ("local", "4 workers on this machine")):
        storage = SHARED / engine
        environ = {"RAY_ADDRESS": four_hosts.address}
        arguments = (engine, storage, SHARED / "files", NUM_HOSTS)
        output = driver.run(sys.executable, SCRIPT, *arguments, env=environ, timeout=300)
        assert where in output
        accounts[engine] = json.loads((four_hosts.shared / engine / "account.json").read_text())

    there, here = accounts["ray"], accounts["local"]
    assert here["metrics"]["step"] == list(range(1, program.STEPS + 1))
    for name, value in here.items():
        assert there[name] == value, name
