"""Where functions run: plain ones beside the readers, classes and those with a GPU in processes of their own."""

import os
from typing import Any

import numpy as np
import pytest
from listed import numbers

from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.pool import ActorPoolStrategy, TaskPoolStrategy, pool_for
from paceline.data.transform import Pool


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


def asked(fn: Any, **given: Any) -> Pool | None:
    return pool_for(fn, **{"compute": None, "concurrency": None, "num_cpus": None, "num_gpus": None, **given})


@pytest.mark.parametrize(
    ("fn", "given", "pool"),
    [
        (function, {}, None),
        (function, {"concurrency": 4}, None),
        (function, {"num_cpus": 2}, None),
        (function, {"compute": TaskPoolStrategy(3)}, None),
        (function, {"num_gpus": 1}, Pool(1, 1, 1.0, 1.0)),
        (function, {"num_gpus": 0.5, "concurrency": 4}, Pool(1, 4, 1.0, 0.5)),
        (function, {"compute": ActorPoolStrategy(size=2)}, Pool(2, 2)),
        (Model, {}, Pool(1, 4)),
        (Model, {"num_cpus": 2}, Pool(1, 2, 2.0)),
        (Model, {"concurrency": 3}, Pool(3, 3)),
        (Model, {"concurrency": (2, 5)}, Pool(2, 5)),
        (Model, {"compute": ActorPoolStrategy(min_size=2)}, Pool(2, 4)),
        (Model, {"compute": ActorPoolStrategy(min_size=8)}, Pool(8, 8)),
        (Model, {"compute": ActorPoolStrategy(max_size=6)}, Pool(1, 6)),
        (Model, {"num_gpus": 1, "concurrency": 2}, Pool(2, 2, 1.0, 1.0)),
    ],
)
def test_the_pool_is_what_was_asked_for(
    fn: Any, given: dict[str, Any], pool: Pool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DataContext, "_current", DataContext(ExecutionOptions(resource_limits=ExecutionResources(cpu=4)))
    )
    assert asked(fn, **given) == pool


@pytest.mark.parametrize(
    ("fn", "given", "message"),
    [
        (Model, {"compute": TaskPoolStrategy(), "concurrency": 2}, "give either compute or concurrency"),
        (Model, {"compute": TaskPoolStrategy()}, "is for functions"),
        (function, {"concurrency": (1, 2)}, "is for classes, which have a pool"),
        (Model, {"concurrency": 0}, "concurrency must be a whole number of at least 1, not 0"),
        (Model, {"concurrency": (3, 2)}, r"concurrency must be .* not \(3, 2\)"),
        (Model, {"concurrency": "two"}, "concurrency must be .* not 'two'"),
        (Model, {"concurrency": True}, "concurrency must be .* not True"),
        (Model, {"num_cpus": -1}, "num_cpus must be a number that is not negative, not -1"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(fn: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(fn, **given)


def test_strategies_are_checked_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="either size or min_size and max_size"):
        ActorPoolStrategy(size=2, min_size=1)
    with pytest.raises(ValueError, match="min_size=3, which is more than max_size=2"):
        ActorPoolStrategy(min_size=3, max_size=2)
    with pytest.raises(ValueError, match=r"ActorPoolStrategy\(size=...\) must be a whole number of at least 1, not 0"):
        ActorPoolStrategy(size=0)
    with pytest.raises(ValueError, match=r"TaskPoolStrategy\(size=...\)"):
        TaskPoolStrategy(-1)
    with pytest.raises(TypeError, match="compute must be an ActorPoolStrategy or a TaskPoolStrategy, not 'actors'"):
        asked(Model, compute="actors")


@pytest.fixture
def ended() -> Any:
    from paceline.data.exec.processes import shutdown

    yield
    shutdown()


@pytest.mark.usefixtures("ended")
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


@pytest.mark.usefixtures("ended")
def test_errors_in_a_pool_come_with_their_notes_and_skipped_rows_are_told() -> None:
    def checked(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 5:
            raise ArithmeticError("five")
        return row

    made = numbers([4], [4]).map(checked, compute=ActorPoolStrategy(size=1))
    with pytest.raises(ArithmeticError, match="five") as raised:
        made.take_all()
    assert any("in map(checked), at row 1 of part-1.file" in note for note in raised.value.__notes__)
    skipping = numbers([4], [4]).map(checked, compute=ActorPoolStrategy(size=1), on_error="skip")
    assert [row["id"] for row in skipping.take_all()] == [0, 1, 2, 3, 4, 6, 7]
    assert "skipped" in skipping.stats()
