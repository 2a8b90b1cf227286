"""Rows for a worker that is behind: within a bound in memory, beyond it in files of their node, and never lost.

Nothing of the files is ever in a directory; they are seen only at the processes that have them open.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
import ray
from left_over import is_of

import paceline.data
from paceline._core.errors import DataError
from paceline._engine.ray.code_bundle import CodeBundle
from paceline.data.context import DataContext, ExecutionOptions, ExecutionResources
from paceline.data.exec.ray.serving.feeds import RayFeeds, get_service_client
from paceline.data.exec.ray.serving.row_service import serve_with_stats
from paceline.data.iterator import DataIterator
from paceline.data.order.sharding import WorkerShard
from processes import find_processes, wait_until

NUM_BLOCKS, BLOCK_ROWS, ROW_BYTES = 24, 250, 1600
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES
NUM_ROWS = NUM_BLOCKS * BLOCK_ROWS
LIMIT = 4 * BLOCK_BYTES
"""Half of what the setting says, and a sixth of all rows."""


@contextlib.contextmanager
def serve(spill_path, lines):
    dataset = paceline.data.range_tensor(NUM_ROWS, shape=(ROW_BYTES // 8,), override_num_blocks=NUM_BLOCKS)
    options = ExecutionOptions(ExecutionResources(object_store_memory=2 * LIMIT))
    context = DataContext(options, spill_path=str(spill_path))
    with serve_with_stats({"rows": dataset._plan}, context, CodeBundle(), lines.append) as (address, _):
        yield address


def read_numbers(address, rank, mode="equal", attempt=0):
    shard = DataIterator(RayFeeds(address, "rows", attempt), WorkerShard(rank, 2, mode))
    for batch in shard.iter_batches(batch_size=25):
        yield batch["data"][:, 0].tolist()


def expected_numbers(rank, mode="equal"):
    step = 2 if mode == "equal" else 1
    firsts = range((rank if mode == "equal" else 0) * 25, NUM_ROWS, 25 * step)
    return [list(range(first, first + 25)) for first in firsts]


def flight_stats(address):
    service = get_service_client(address)
    return service.get(service.call("flight_stats"))


def file_processes(cluster):
    return find_processes(lambda process: is_of(process, cluster.name) and "ray::RowFiles" in process.cmdline()[0])


def open_files(process, directory):
    """The files of a process in a directory, by the names they had."""
    names = []
    for fd in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
    return [name for name in names if name.startswith(f"{directory}/")]


def in_use():
    """Bytes in the object stores of all nodes."""
    return ray.cluster_resources()["object_store_memory"] - ray.available_resources().get("object_store_memory", 0.0)


@pytest.mark.parametrize("mode", ["equal", pytest.param("all", marks=pytest.mark.slow)])
def test_a_worker_that_stalls_gets_its_rows_from_files_and_memory_is_bounded(cluster, tmp_path, mode):
    lines, before = [], in_use()
    with serve(tmp_path, lines) as address:
        slow = read_numbers(address, 1, mode)
        got = [next(slow)]
        assert list(read_numbers(address, 0, mode)) == expected_numbers(0, mode)
        in_flight, peak, _, in_files = flight_stats(address)
        assert in_flight <= peak <= LIMIT + 1.1 * BLOCK_BYTES
        total = NUM_ROWS * ROW_BYTES // (2 if mode == "equal" else 1)
        assert in_files >= total - LIMIT - BLOCK_BYTES
        wait_until(lambda: in_use() <= before + LIMIT + 2 * BLOCK_BYTES)  # Ray has freed what is in files

        processes = file_processes(cluster)
        files = [name for process in processes for name in open_files(process, tmp_path)]
        assert files
        assert all(name.endswith(" (deleted)") for name in files)
        assert list(tmp_path.iterdir()) == []

        got += slow
        assert got == expected_numbers(1, mode)
        assert flight_stats(address)[1] <= LIMIT + 1.1 * BLOCK_BYTES
        wait_until(lambda: flight_stats(address)[2] == 0)
        wait_until(lambda: not file_processes(cluster))  # with the pass, not with the service
        assert flight_stats(address)[0] == 0
    [line] = lines
    assert line.startswith("data: dataset 'rows': one worker reads far ahead of another")
    assert f"{tmp_path} on {socket.gethostname()} (" in line
    assert "raise ExecutionOptions.resource_limits.object_store_memory, now 3.1 MiB" in line


@pytest.mark.slow
def test_workers_in_step_use_no_files(cluster, tmp_path):
    lines = []
    with serve(tmp_path, lines) as address:
        in_step = zip(read_numbers(address, 0), read_numbers(address, 1), strict=True)
        assert list(in_step) == list(zip(expected_numbers(0), expected_numbers(1), strict=True))
        assert flight_stats(address)[3] == 0
    assert lines == []


@pytest.mark.slow
def test_files_that_cannot_be_written_or_are_lost_fail_the_attempt_and_the_next_one_has_all_rows(cluster, tmp_path):
    blocker, directory = tmp_path / "blocker", tmp_path / "blocker" / "rows"
    blocker.touch()
    with serve(directory, []) as address:
        slow = read_numbers(address, 1)
        next(slow)
        where = rf"to a file in {directory} on {socket.gethostname()} \([0-9.]+\)"
        refused = rf"{where}: Not a directory\n\nhint: .*spill_path"
        with pytest.raises(DataError, match=refused):
            list(read_numbers(address, 0))
        with pytest.raises(DataError, match=refused):
            list(slow)

        blocker.unlink()
        slow = read_numbers(address, 1, attempt=1)
        got = [next(slow)]
        assert list(read_numbers(address, 0, attempt=1)) == expected_numbers(0)
        for process in file_processes(cluster):
            assert open_files(process, directory)
            process.send_signal(signal.SIGKILL)
        with pytest.raises(DataError, match="lost the rows on the cluster"):
            got.extend(slow)
        assert got == expected_numbers(1)[: len(got)]
        assert list(directory.iterdir()) == []

        slow = read_numbers(address, 1, attempt=2)
        assert next(slow) == expected_numbers(1)[0]
        assert list(read_numbers(address, 0, attempt=2)) == expected_numbers(0)
        assert list(slow) == expected_numbers(1)[1:]


@pytest.mark.slow
def test_files_end_with_the_service_that_is_killed_and_when_a_worker_leaves(cluster, tmp_path):
    with serve(tmp_path, []) as address:
        slow = read_numbers(address, 1)
        next(slow)
        list(read_numbers(address, 0))
        assert file_processes(cluster)
        slow.close()
        wait_until(lambda: not file_processes(cluster))

        slow = read_numbers(address, 1)
        next(slow)
        list(read_numbers(address, 0))
        assert file_processes(cluster)
        ray.kill(ray.get_actor(address.split("/")[-2]), no_restart=False)
        wait_until(lambda: not file_processes(cluster))
        slow.close()
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import ray
ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR", configure_logging=False)
from pathlib import Path
import test_rows_in_files as tests
with tests.serve(Path({spill_path!r}), []) as address:
    slow = tests.read_numbers(address, 1)
    next(slow)
    list(tests.read_numbers(address, 0))
    print("stalled", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_files_end_with_a_script_that_is_killed(cluster, tmp_path):
    script = textwrap.dedent(SCRIPT).format(paths=sys.path, address=cluster.address, spill_path=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"stalled\n"
        assert [open_files(each, tmp_path) for each in file_processes(cluster)]
        process.kill()
    wait_until(lambda: not file_processes(cluster))
    assert list(tmp_path.iterdir()) == []
