"""How cores and GPUs are assigned to workers."""

import pytest

from paceline._engine.base import WorkerResources
from paceline._engine.local import devices
from paceline._engine.local.devices import Machine, assign_devices, assign_devices_beside, num_gpus_needed
from paceline.train import RunConfig, ScalingConfig
from paceline.train.driver.execution_target import LocalTarget

MACHINE = Machine(num_cores=8, gpus=("0", "1", "2", "3"))


@pytest.fixture(autouse=True)
def without_thread_settings(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def assign(num_workers, gpus, cpus=1.0, machine=MACHINE):
    return assign_devices(machine, num_workers, cpus_per_worker=cpus, gpus_per_worker=gpus)


def test_each_worker_has_its_own_gpus_and_sees_all_of_the_run():
    both = assign(2, 1)
    assert [share.devices for share in both] == [(0,), (1,)]
    assert {share.env["CUDA_VISIBLE_DEVICES"] for share in both} == {"0,1"}
    assert [share.devices for share in assign(2, 2)] == [(0, 1), (2, 3)]
    assert assign(1, 0)[0].env["CUDA_VISIBLE_DEVICES"] == ""


def test_workers_with_a_fraction_share_a_gpu_and_none_uses_two():
    assert [share.devices for share in assign(5, 0.5)] == [(0,), (0,), (1,), (1,), (2,)]
    assert [share.devices for share in assign(4, 0.3)] == [(0,), (0,), (0,), (1,)]
    assert num_gpus_needed(4, 0.3) == 2
    assert num_gpus_needed(10, 0.1) == 1


def test_threads_follow_from_cores_and_workers_or_from_the_request():
    assert assign(2, 0)[0].num_threads == 4
    assert assign(16, 0)[0].num_threads == 1
    assert assign(2, 0, cpus=3)[0].num_threads == 3
    assert assign(2, 0, cpus=64)[0].num_threads == 8, "no more threads than cores"
    assert assign_devices_beside(MACHINE, (), num_cpus=64, num_gpus=0).num_threads == 8


@pytest.mark.parametrize(
    ("num_workers", "cpus", "described"),
    [
        (1, 64, "1 worker on this machine (8 threads; 64 CPUs were requested, but there are only 8 cores here)"),
        (4, 3, "4 workers on this machine (3 threads each; 12 CPUs were requested, but there are only 8 cores here)"),
        ((1, 2), 16, "1 to 2 workers on this machine (as many as fit; 16 CPUs were requested, but "),
        (2, 4, "2 workers on this machine (4 threads each)"),
        (9, None, "9 workers on this machine (1 thread each; more workers than the 8 cores here)"),
    ],
)
def test_cpus_that_are_not_there_are_named_where_the_run_begins(num_workers, cpus, described):
    scaling = ScalingConfig(num_workers, resources_per_worker=cpus and {"CPU": cpus})
    assert LocalTarget(scaling, RunConfig(), MACHINE).describe().startswith(described)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ("0", "1")), ("", ()), ("1,0", ("1", "0")), ("0,7,1", ("0",)), ("GPU-8932f937, 1", ("GPU-8932f937", "1"))],
)
def test_the_visible_gpus_are_read_as_cuda_reads_them(monkeypatch, visible, expected):
    monkeypatch.setattr(devices, "count_gpus", lambda: 2)
    assert devices._visible_gpus(visible) == expected


def test_a_process_beside_the_workers_gets_a_fair_share_of_threads_or_its_request():
    assert assign_devices_beside(MACHINE, assign(3, 0), num_cpus=0, num_gpus=0).num_threads == 2
    assert assign_devices_beside(MACHINE, assign(3, 0), num_cpus=5, num_gpus=0).num_threads == 5


@pytest.mark.parametrize(("num_workers", "machine", "num_gpus"), [(4, MACHINE, 1), (1, Machine(8, ()), 0.5)])
def test_more_gpus_beside_the_workers_than_are_left_is_an_error(num_workers, machine, num_gpus):
    workers = assign(num_workers, 1 if machine.gpus else 0, machine=machine)
    with pytest.raises(ValueError, match="validation_config requests"):
        assign_devices_beside(machine, workers, num_cpus=0, num_gpus=num_gpus)


PART = Machine(num_cores=2, gpus=("2", "GPU-8932f937"), gpu_assignments=((1,), (0,), (0,)))


def test_on_a_part_of_a_machine_each_worker_has_its_assignment_and_sees_the_part():
    both = assign(2, 0.5, machine=PART)
    assert [share.devices for share in both] == [(1,), (0,)]
    assert {share.env["CUDA_VISIBLE_DEVICES"] for share in both} == {"2,GPU-8932f937"}
    assert {share.num_threads for share in both} == {1}
    assert assign(1, 0, machine=PART)[0].num_threads == 2
    without = assign(4, 0, machine=PART)
    assert [share.devices for share in without] == [()] * 4
    assert {share.env["CUDA_VISIBLE_DEVICES"] for share in without} == {""}


def test_more_than_the_part_has_is_an_error_though_the_machine_has_it():
    for num_workers, gpus in ((4, 0.5), (1, 2)):
        with pytest.raises(ValueError, match="its part of this machine has 2 GPU"):
            assign(num_workers, gpus, machine=PART)
    part = Machine(num_cores=2, gpus=("2",), gpu_assignments=((0,),))
    with pytest.raises(ValueError, match="its part of this machine has 1 GPU"):
        assign_devices_beside(part, assign(1, 1, machine=part), num_cpus=0, num_gpus=1)


def test_capacity_is_what_the_part_has():
    assert devices.compute_local_capacity(PART, WorkerResources(0.0, 0.5), 1, 8) == 3
    assert devices.compute_local_capacity(PART, WorkerResources(1.0, 0.0), 1, 8) == 2
    assert devices.compute_local_capacity(PART, WorkerResources(1.0, 0.0), 4, 8) == 4
    assert devices.compute_local_capacity(MACHINE, WorkerResources(0.0, 0.3), 1, 20) == 12
    assert devices.compute_local_capacity(MACHINE, WorkerResources(2.0), 1, 8) == 4
    assert devices.compute_local_capacity(Machine(8, ("0",)), WorkerResources(0.0, 1), 2, 4) == 1, "GPUs are not shared"
    assert devices.compute_local_capacity(Machine(8, ()), WorkerResources(0.0, 1), 1, 4) == 0


@pytest.mark.parametrize(
    ("machine", "num_workers", "gpus", "num_gpus", "visible"),
    [
        *((MACHINE, 2, 1, *row) for row in ((0, ""), (2, "2,3"))),
        *((MACHINE, *row) for row in ((3, 0.5, 1, "2"), (2, 0, 1, "0"), (4, 1, 0.5, "3"))),
        # In a part of a machine, the next assignment.
        *((PART, 2, 0.5, *row) for row in ((0.5, "2"), (1, "2"))),
        *((PART, *row) for row in ((1, 0.5, 1, "2"), (3, 0.5, 0.5, "GPU-8932f937"))),
    ],
)
def test_a_process_beside_the_workers_uses_free_gpus_or_shares_one(machine, num_workers, gpus, num_gpus, visible):
    workers = assign(num_workers, gpus, machine=machine)
    share = assign_devices_beside(machine, workers, num_cpus=0, num_gpus=num_gpus)
    assert share.env["CUDA_VISIBLE_DEVICES"] == visible
    assert machine is PART or share.devices == tuple(range(len(visible.split(",")) if visible else 0))
