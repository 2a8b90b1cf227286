"""A place for trials outside of a search: each is a run with the name that a search would give it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.train import Result
from paceline.train.checkpoint import Checkpoint
from paceline.tune.config import RunConfig
from paceline.tune.trainables.plans import planned


@pytest.fixture
def of_trial(tmp_path: Path) -> Callable[..., RunConfig]:
    def make(number: int = 0, **arguments: Any) -> RunConfig:
        return RunConfig(name=f"trial_{number:05d}", storage_path=tmp_path / "search", **arguments)

    return make


@pytest.fixture
def run_trial(of_trial: Callable[..., RunConfig]) -> Callable[..., Result]:
    """Runs one trial of a trainable."""

    def run(
        trainable: Any,
        config: dict[str, Any] | None = None,
        number: int = 0,
        initial: Checkpoint | None = None,
        **run_config: Any,
    ) -> Result:
        return planned(trainable).trainer(config or {}, of_trial(number, **run_config), initial).fit()

    return run
