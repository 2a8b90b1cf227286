"""What data tasks on a cluster may use is decided from what the cluster has, before a task starts."""

import numpy as np
import pytest

import paceline.data as data
from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.lower import lowered_for
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.means import Cluster, cpus_needed, means_for

GB = 1_000_000_000


class Kept:
    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return batch


def cluster(free_cpus: float = 8, num_gpus: float = 0) -> Cluster:
    return Cluster(num_nodes=2, num_cpus=8, free_cpus=free_cpus, num_gpus=num_gpus, store_bytes=8 * GB)


def limited(**limits: float) -> DataContext:
    return DataContext(ExecutionOptions(ExecutionResources(**limits)))


def pipeline(num_actors: int = 0, num_gpus: float | None = None) -> Pipeline:
    dataset = data.range(1_000_000_000, override_num_blocks=80)  # 100 MB in each unit
    if num_actors:
        dataset = dataset.map_batches(Kept, concurrency=num_actors, num_gpus=num_gpus)
    return lowered_for(dataset._plan, 0, InlineExecutor())


def test_units_read_at_a_time_fit_the_memory_and_the_cores() -> None:
    assert means_for(pipeline(), cluster(), DataContext()).budget == 2 * GB, "a quarter of the object store"
    means = means_for(pipeline(), cluster(), limited(object_store_memory=GB))
    assert (means.budget, means.most) == (GB, 5)
    assert means_for(pipeline(), cluster(), limited(object_store_memory=1)).most == 1
    assert means_for(pipeline(), cluster(), limited(cpu=2)).most == 2
    means = means_for(pipeline(), cluster(free_cpus=4), limited(object_store_memory=2 * GB))
    assert 4 * means.ahead == GB, "what all units may be ahead"


def test_tasks_take_no_cores_where_a_stage_would_wait_for_ever() -> None:
    assert cpus_needed(pipeline(num_actors=3)) == 4
    means = means_for(pipeline(num_actors=3), cluster(free_cpus=4), DataContext())
    assert (means.with_cpus, means.said) == (True, None)
    means = means_for(pipeline(num_actors=3), cluster(free_cpus=3), DataContext())
    assert (means.with_cpus, means.most) == (False, 4)
    assert means.said is not None
    assert means.said.startswith("data: 3 of the cluster's 8 CPUs are free and 4 are needed")


def test_gpus_that_the_cluster_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"map_batches\(Kept\) asks for num_gpus=2 .* there are 1 here"):
        means_for(pipeline(num_actors=1, num_gpus=2), cluster(num_gpus=1), DataContext())
