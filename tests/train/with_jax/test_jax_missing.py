"""Without JAX, or without Orbax, the rest works, and whoever needs them is told what to install."""

import pytest

SCRIPT = """
import sys

for module in {blocked!r}:
    sys.modules[module] = None

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.jax import JaxConfig, JaxPredictor, JaxTrainer, OrbaxCheckpoint


def refused(make):
    try:
        make()
    except ImportError as error:
        print(str(error).replace("\\n", " "))


refused(lambda: JaxTrainer(print))
refused(lambda: OrbaxCheckpoint.from_pytree({{"a": 1}}))
refused(lambda: OrbaxCheckpoint("nowhere").get_pytree())
refused(lambda: JaxPredictor(Checkpoint.from_dict({{"a": 1}}), print))


def function():
    train.report({{"a": 1}}, Checkpoint.from_dict({{"a": [1]}}))


result = DataParallelTrainer(
    function,
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="run", storage_path="runs"),
).fit()
print(result.checkpoint.to_dict())
"""

HINT = 'hint: pip install "paceline[jax]"'


@pytest.mark.parametrize(
    ("blocked", "told"),
    [
        (
            ["jax", "jaxlib"],
            [
                f"JaxConfig needs jax, which is not installed  {HINT}",
                f"OrbaxCheckpoint needs jax, which is not installed  {HINT}",
                f"OrbaxCheckpoint needs jax, which is not installed  {HINT}",
                f"JaxPredictor needs jax, which is not installed  {HINT}",
            ],
        ),
        (
            ["orbax", "orbax.checkpoint"],
            [
                f"OrbaxCheckpoint needs orbax.checkpoint, which is not installed  {HINT}",
                f"OrbaxCheckpoint needs orbax.checkpoint, which is not installed  {HINT}",
            ],
        ),
    ],
    ids=["jax", "orbax"],
)
def test_the_extra_is_named_and_the_rest_works(run_script, blocked, told):
    ended = run_script(SCRIPT.format(blocked=blocked))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [*told, "{'a': [1]}"]
