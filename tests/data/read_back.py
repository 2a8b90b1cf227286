"""What comes of a dataset, for tests of what it is read from: run here, by the reference executor."""

from typing import Any

import cloudpickle

from paceline.data.block import Block
from paceline.data.exec.pipeline import InlineExecutor, Pipeline, lower_plan
from paceline.data.planning.optimizer import optimize_plan


def pipeline(dataset: Any, epoch: int = 0, optimize: bool = False) -> Pipeline:
    def unresolved(barrier: Any, epoch: int) -> Any:
        raise AssertionError(barrier)

    return lower_plan(optimize_plan(dataset._plan) if optimize else dataset._plan, epoch, unresolved)


def block(dataset: Any, epoch: int = 0, optimize: bool = False) -> Block:
    """All rows, after the units went through pickle, as they do on their way to another process."""
    sent = cloudpickle.loads(cloudpickle.dumps(pipeline(dataset, epoch, optimize)))
    return Block.concat(delivered.block for delivered in InlineExecutor().run(sent))
