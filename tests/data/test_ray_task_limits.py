"""What data tasks on a cluster may use is decided from what the cluster has, before a task starts."""

import pytest

import paceline.data as data
from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.exec.pipeline import InlineExecutor, lower_epoch
from paceline.data.exec.ray.task_limits import ClusterResources, decide_task_limits, num_cpus_needed

GB = 1_000_000_000


class Kept:
    def __call__(self, batch):
        return batch


def cluster(free_cpus=8, num_gpus=0):
    return ClusterResources(num_nodes=2, num_cpus=8, free_cpus=free_cpus, num_gpus=num_gpus, store_bytes=8 * GB)


def limited(**limits):
    return DataContext(ExecutionOptions(ExecutionResources(**limits)))


def pipeline(num_actors=0, num_gpus=None):
    dataset = data.range(1_000_000_000, override_num_blocks=80)  # 100 MB in each unit
    if num_actors:
        dataset = dataset.map_batches(Kept, concurrency=num_actors, num_gpus=num_gpus)
    return lower_epoch(dataset._plan, 0, InlineExecutor())


def test_units_read_at_a_time_fit_the_memory_and_the_cores():
    assert decide_task_limits(pipeline(), cluster(), DataContext()).budget == 2 * GB, "a quarter of the object store"
    limits = decide_task_limits(pipeline(), cluster(), limited(object_store_memory=GB))
    assert (limits.budget, limits.max_concurrency) == (GB, 5)
    assert decide_task_limits(pipeline(), cluster(), limited(object_store_memory=1)).max_concurrency == 1
    assert decide_task_limits(pipeline(), cluster(), limited(cpu=2)).max_concurrency == 2
    limits = decide_task_limits(pipeline(), cluster(free_cpus=4), limited(object_store_memory=2 * GB))
    assert 4 * limits.max_ahead_bytes == GB, "what all units may be ahead"


def test_tasks_take_no_cores_where_a_stage_would_wait_for_ever_and_gpus_that_are_not_there_are_refused():
    assert num_cpus_needed(pipeline(num_actors=3)) == 4
    limits = decide_task_limits(pipeline(num_actors=3), cluster(free_cpus=4), DataContext())
    assert (limits.requests_cpus, limits.notice) == (True, None)
    limits = decide_task_limits(pipeline(num_actors=3), cluster(free_cpus=3), DataContext())
    assert (limits.requests_cpus, limits.max_concurrency) == (False, 4)
    assert limits.notice is not None
    assert limits.notice.startswith("data: 4 CPUs are needed, and 3 of the cluster's 8 are free")
    with pytest.raises(ValueError, match=r"map_batches\(Kept\) needs 2 GPUs per process .* 1 are available"):
        decide_task_limits(pipeline(num_actors=1, num_gpus=2), cluster(num_gpus=1), DataContext())
