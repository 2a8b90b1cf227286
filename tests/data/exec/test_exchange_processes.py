"""Barriers in real data processes: rows meet from one process to another, as they do without processes."""

import gc

import pytest
from exec_plans import Dying, EvenOnly, Failing, Scaled, collect_rows, numbers, plan

from paceline.data.aggregate import (
    AggregateFn,
    ApproximateTopK,
    Count,
    Mean,
    Unique,
    finish_aggregates,
    plan_partial_aggregates,
)
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor, lower_plan
from paceline.data.exec.service import ProcessExecutor
from paceline.data.planning import barriers
from paceline.data.planning.plan import Map, PoolSpec, Union

NUMBERS = plan(numbers(6, (70, 30)))
POOLED = Map(Map(NUMBERS, Scaled(by=2)), Scaled(by=3, pool=PoolSpec(1, 2)))
TOGETHER = AggregateFn(
    init=lambda key: (key, ()),
    accumulate_row=lambda state, row: (state[0], (*state[1], row["number"])),
    merge=lambda left, right: (left[0], left[1] + right[1]),
    finalize=str,
    name="together",
)

PLANS = {
    "a shuffle": barriers.RandomShuffle(NUMBERS, 3),
    "a shuffle after a pool": barriers.RandomShuffle(POOLED, 3),
    "a shuffle of a dataset and itself": barriers.RandomShuffle(Union((NUMBERS, NUMBERS)), 3),
    "a sort of texts": barriers.Sort(NUMBERS, ("text",), (True,)),
    "groups": barriers.GroupBy(Map(NUMBERS, Scaled(by=2)), ("by_2",), (Count(), Mean("number"), TOGETHER)),
    "rows by group": barriers.GroupRows(NUMBERS, ("text",)),
    "zip": barriers.Zip((NUMBERS, Map(NUMBERS, Scaled(by=2)))),
    "repartition": barriers.Repartition(NUMBERS, 11),
    "a limit after a filter": barriers.Limit(Map(NUMBERS, EvenOnly()), 0, 77),
    "a slice after a pool": barriers.SliceRows(Map(POOLED, EvenOnly()), 20, 101),
    "kept rows": Map(barriers.Materialize(POOLED), EvenOnly()),
    "one after the other": barriers.Sort(
        barriers.RandomShuffle(barriers.Repartition(POOLED, 4), 1), ("number",), (True,)
    ),
}

in_memory = pytest.param(None, marks=pytest.mark.slow, id="in memory")
each_budget = pytest.mark.parametrize("budget", [in_memory, pytest.param(3000, id="mostly in files")])


def rows(node, executor, epoch=0):
    pipeline = lower_plan(node, epoch, lambda barrier, at: resolve_barrier(barrier, at, executor))
    return [row for _, _, row in collect_rows(executor.run(pipeline))]


@each_budget
def test_what_comes_is_what_comes_without_processes(service, data_context, tmp_path, budget):
    data_context.target_max_block_size = 4000
    data_context.execution_options.resource_limits.object_store_memory = budget
    executor = ProcessExecutor(service)
    for name, node in PLANS.items():
        assert rows(node, executor, 1) == rows(node, InlineExecutor(), 1), name
    gc.collect()
    assert list((tmp_path / "spill").iterdir()) == []


def test_all_rows_are_aggregated_where_they_are(service):
    made = (Count(), Mean("number"), Unique("text"), TOGETHER, ApproximateTopK("text", 3))
    pipeline = lower_plan(plan_partial_aggregates(POOLED, made), 0, lambda barrier, epoch: [])
    found = finish_aggregates(ProcessExecutor(service).run(pipeline), made)
    assert found == finish_aggregates(InlineExecutor().run(pipeline), made)
    assert (found["count()"], len(found["unique(text)"])) == (600, 600)


@each_budget
def test_a_process_that_dies_costs_no_row(service, data_context, tmp_path, budget):
    data_context.target_max_block_size = 500
    data_context.execution_options.resource_limits.object_store_memory = budget
    at = 2080  # when some of its unit is set aside already
    dying = Map(NUMBERS, Dying(at=at, notes=str(tmp_path), times=2))
    assert rows(barriers.RandomShuffle(dying, 3), ProcessExecutor(service)) == rows(
        PLANS["a shuffle"], InlineExecutor()
    )
    assert len(list(tmp_path.glob("died-*"))) == 2


def test_a_failure_on_the_way_is_raised_and_leaves_no_file(service, data_context, tmp_path):
    data_context.execution_options.resource_limits.object_store_memory = 3000
    with pytest.raises(ValueError, match="cannot do 4000"):
        rows(barriers.RandomShuffle(Map(NUMBERS, Failing(at=4000)), 3), ProcessExecutor(service))
    gc.collect()
    assert list((tmp_path / "spill").iterdir()) == []
