"""Where functions run: plain ones beside the readers, classes and those with a GPU in processes of their own."""

import os
from typing import Any

import numpy as np
import pytest
from listed import numbers

from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.planning.plan import PoolSpec
from paceline.data.planning.pool import ActorPoolStrategy, TaskPoolStrategy, resolve_pool


class Model:
    def __init__(self, offset: int = 0, *, scale: int = 1) -> None:
        self.offset, self.scale, self.calls = offset, scale, 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        size = len(batch["id"])
        return {
            "id": batch["id"] * self.scale + self.offset,
            "pid": np.full(size, os.getpid()),
            "call": np.full(size, self.calls),
        }


def function(batch: Any) -> Any:
    return batch


def choose_pool(fn: Any, **given: Any) -> PoolSpec | None:
    return resolve_pool(fn, **{"compute": None, "concurrency": None, "num_cpus": None, "num_gpus": None, **given})


@pytest.mark.parametrize(
    ("fn", "given", "pool"),
    [
        (function, {}, None),
        (function, {"concurrency": 4}, None),
        (function, {"compute": TaskPoolStrategy(3)}, None),
        (function, {"num_gpus": 1}, PoolSpec(1, 1, 1.0, 1.0)),
        (function, {"num_gpus": 0.5, "concurrency": 4}, PoolSpec(1, 4, 1.0, 0.5)),
        (function, {"compute": ActorPoolStrategy(size=2)}, PoolSpec(2, 2)),
        (Model, {}, PoolSpec(1, 4)),
        (Model, {"num_cpus": 2}, PoolSpec(1, 2, 2.0)),
        (Model, {"concurrency": 3}, PoolSpec(3, 3)),
        (Model, {"concurrency": (2, 5)}, PoolSpec(2, 5)),
        (Model, {"compute": ActorPoolStrategy(min_size=2)}, PoolSpec(2, 4)),
        (Model, {"compute": ActorPoolStrategy(min_size=8)}, PoolSpec(8, 8)),
        (Model, {"compute": ActorPoolStrategy(max_size=6)}, PoolSpec(1, 6)),
        (Model, {"num_gpus": 1, "concurrency": 2}, PoolSpec(2, 2, 1.0, 1.0)),
    ],
)
def test_the_pool_follows_from_the_arguments(
    fn: Any, given: dict[str, Any], pool: PoolSpec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DataContext, "_current", DataContext(ExecutionOptions(resource_limits=ExecutionResources(cpu=4)))
    )
    assert choose_pool(fn, **given) == pool


def test_a_class_runs_in_processes_of_its_own_and_rows_stay_in_order() -> None:
    dataset = numbers(*([4, 4] for _ in range(4))).map_batches(
        Model, fn_constructor_args=(1000,), fn_constructor_kwargs={"scale": 2}, concurrency=2, batch_size=4
    )
    rows = dataset.take_all()
    assert [row["id"] for row in rows] == [1000 + 2 * number for number in range(32)]
    pids = {row["pid"] for row in rows}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    for pid in pids:  # one object in each process, which counts all of its calls
        calls = {row["call"] for row in rows if row["pid"] == pid}
        assert calls == {*range(1, len(calls) + 1)}
    assert "map_batches(Model)" in dataset.stats()
