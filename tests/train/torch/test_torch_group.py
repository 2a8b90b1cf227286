"""The process group around a function, and its store, which is rank 0's."""

import logging
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch_fits import fit

from paceline._control.events import WorkerFailed
from paceline.train import FailureConfig, TrainingFailedError, get_context
from paceline.train.torch import TorchConfig
from written_runs import read_events


class SlowToSetUp(TorchConfig):
    """The last rank is not done with the store when the group is there."""

    def _rendezvous(self, context):
        import torch.distributed as dist

        host, port, store = super()._rendezvous(context)
        init = dist.init_process_group

        def slowly(*args, **kwargs):
            init(*args, **kwargs)
            dist.init_process_group = init
            if context.begin.rank == context.begin.world_size - 1:
                time.sleep(0.5)
                store.set("late", b"1")
                assert store.get("late") == b"1"

        dist.init_process_group = slowly
        return host, port, store


def test_a_function_that_does_nothing_leaves_the_store_to_ranks_that_still_set_up(tmp_path):
    assert fit(tmp_path, lambda: "done", torch_config=SlowToSetUp()).return_value == "done"


@pytest.mark.parametrize("init_method", ["env", "tcp"])
def test_a_function_may_tear_the_group_down_itself(tmp_path, init_method):
    def function():
        import torch.distributed as dist

        value = torch.ones(1)
        dist.all_reduce(value)
        dist.destroy_process_group()
        return value.item()

    assert fit(tmp_path, function, torch_config=TorchConfig(init_method=init_method)).return_value == 2


def test_after_a_failure_in_this_process_the_next_attempt_has_a_group_of_its_own(tmp_path):
    import torch.distributed as dist

    threads = torch.get_num_threads()
    attempts = []

    def function():
        attempts.append(dist.get_world_size())
        torch.set_num_threads(1)
        if len(attempts) == 1:
            raise ValueError("planted")
        return "done"

    assert fit(tmp_path, function, 0, failures=FailureConfig(1)).return_value == "done"
    assert attempts == [1, 1]
    assert not dist.is_initialized()
    assert torch.get_num_threads() == threads


def test_a_collective_that_times_out_names_the_ranks_that_had_not_come(tmp_path):
    def function():
        import torch.distributed as dist

        if get_context().get_world_rank() != 1:
            dist.all_reduce(torch.ones(1))
        time.sleep(60)

    with pytest.raises(TrainingFailedError) as caught:
        fit(tmp_path, function, 3, torch_config=TorchConfig(timeout_s=0.5))
    assert "a collective took longer than timeout_s=0.5: rank 1 did not reach it" in str(caught.value)


def test_a_rank_that_fails_waits_for_nobody(tmp_path):
    def function():
        import torch.distributed as dist

        if get_context().get_world_rank() == 0:
            raise ValueError("planted")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(TrainingFailedError, match=r"rank 0, .*ValueError: planted"):
        fit(tmp_path, function)


class QuickToLeave(TorchConfig):
    teardown_s = 0.5


def test_a_collective_still_under_way_does_not_keep_a_rank_from_ending(tmp_path):
    log_file = tmp_path / "warnings.log"

    class FileHandler(logging.Handler):
        def emit(self, record):
            log_file.with_suffix(".part").write_text(record.getMessage())
            log_file.with_suffix(".part").rename(log_file)

    def function():
        import torch.distributed as dist

        if get_context().get_world_rank() == 0:
            logging.getLogger("paceline").addHandler(FileHandler())
            function.pending = dist.all_reduce(torch.ones(1), async_op=True)
            return "done"
        # Still there, so that the other's collective neither ends nor fails.
        deadline = time.monotonic() + 90
        while not log_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return None

    assert fit(tmp_path, function, torch_config=QuickToLeave()).return_value == "done"
    assert "cannot tear down the process group within 0.5 s" in Path(log_file).read_text()


def too_large_for_the_machine():
    torch.empty(1 << 50)


def too_large_for_the_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("function", [too_large_for_the_machine, too_large_for_the_gpu])
def test_what_an_allocator_refuses_is_told_as_out_of_memory(tmp_path, function):
    with pytest.raises(TrainingFailedError, match=r"DefaultCPUAllocator|CUDA out of memory"):
        fit(tmp_path, function, 1)
    assert [event.failure.kind for event in read_events(tmp_path / "run", WorkerFailed)] == ["memory"]


def test_nothing_of_a_process_group_listens_beyond_this_machine(on_each):
    def list_addresses():
        connections = psutil.Process().net_connections(kind="inet")
        return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]

    addresses = on_each(list_addresses)
    assert addresses[0], "rank 0 serves no store"
    assert {address for of_rank in addresses for address in of_rank} == {"127.0.0.1"}
