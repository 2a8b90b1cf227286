"""How LightGBM's workers find each other, and that a process may fork after it has imported LightGBM."""

import contextlib
import json
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from paceline.train.lightgbm import LightGBMConfig
from paceline.train.lightgbm.network import _free_port, gathered


class Barrier:
    """What `Context.join` is to ranks that are threads: all wait, and all get what rank 0 brought."""

    def __init__(self, num_ranks: int, on_told=lambda told: None) -> None:
        self._all = threading.Barrier(num_ranks)
        self._on_told = on_told
        self._told = b""

    def context(self, rank: int) -> SimpleNamespace:
        def join(data: bytes) -> bytes:
            if rank == 0:
                self._told = data
                self._on_told(data)
            self._all.wait(10)
            return self._told

        return SimpleNamespace(begin=SimpleNamespace(rank=rank, world_size=self._all.parties), join=join)


def gathered_by_all(barrier: Barrier, num_ranks: int, timeout_s: float = 20) -> list[list[str]]:
    with ThreadPoolExecutor(num_ranks) as ranks:
        futures = [
            ranks.submit(gathered, barrier.context(rank), "127.0.0.1", f"address of {rank}", timeout_s)
            for rank in range(num_ranks)
        ]
        return [future.result(30) for future in futures]


@pytest.mark.parametrize("num_ranks", [2, 7])
def test_every_rank_learns_what_all_brought_in_the_order_of_ranks(num_ranks):
    for _ in range(20):
        found = gathered_by_all(Barrier(num_ranks), num_ranks)
        assert found == [[f"address of {rank}" for rank in range(num_ranks)]] * num_ranks


def test_a_stranger_that_connects_is_not_counted_and_is_told_nothing():
    heard = []

    def intrude(told: bytes) -> None:
        host, port, _ = json.loads(told)
        for said in (b'["guess", 1, "evil:1"]\n', b"GET / HTTP/1.1\r\n\r\n", b""):
            with socket.create_connection((host, port)) as stranger:
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                strangers.append(stranger.dup())

    strangers: list[socket.socket] = []
    found = gathered_by_all(Barrier(3, intrude), 3)
    assert found == [["address of 0", "address of 1", "address of 2"]] * 3
    assert len(strangers) == 3
    for stranger in strangers:
        with stranger, contextlib.suppress(ConnectionResetError):
            heard.append(stranger.recv(100))
    assert b"".join(heard) == b""


def test_a_rank_that_does_not_come_is_named():
    barrier = Barrier(1)
    context = barrier.context(0)
    context.begin.world_size = 3
    with pytest.raises(TimeoutError, match="rank 1, 2 did not come within timeout_s"):
        gathered(context, "127.0.0.1", "mine", 0.05)


def test_a_rank_0_that_leaves_is_an_echo_of_its_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = json.dumps(["127.0.0.1", server.getsockname()[1], "token"]).encode()
        context = SimpleNamespace(begin=SimpleNamespace(rank=1, world_size=2), join=lambda _: told)

        def leave():
            connection, _ = server.accept()
            connection.recv(1000)
            connection.close()

        leaving = threading.Thread(target=leave)
        leaving.start()
        with pytest.raises(ConnectionError, match="connection closed by peer"):
            gathered(context, "127.0.0.1", "mine", 20)
        leaving.join()


def test_a_port_is_one_of_the_range_that_nobody_has():
    with _free_port((20000, 32000)) as taken:
        port = taken.getsockname()[1]
        assert 20000 <= port <= 32000
        with pytest.raises(OSError, match="no free port among 1 tried"):
            _free_port((port, port))
    with _free_port((port, port)) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tree_learner": "feature"}, "tree_learner='feature'"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"ports": (9, 3)}, r"ports=\(9, 3\)"),
        ({"ports": (1, 70000)}, r"ports=\(1, 70000\)"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        LightGBMConfig(**arguments)


THREADS = """
import importlib
import os

from paceline.train.lightgbm import LightGBMConfig

for name in LightGBMConfig.preload:
    importlib.import_module(name)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_what_workers_find_imported_has_started_no_thread(run_script):
    # The variables are those that the process which workers fork from is started with.
    quiet = {"PACELINE_PREWARM": "0", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    ended = run_script(THREADS, env=quiet)
    assert (ended.returncode, ended.stdout.strip()) == (0, "1"), ended.stderr


BLOCKED = """
import sys

sys.modules["lightgbm"] = None
from paceline.train import DataParallelTrainer, RunConfig
from paceline.train.lightgbm import LightGBMConfig, LightGBMTrainer, ReportCallback

assert DataParallelTrainer(lambda: 5, run_config=RunConfig(storage_path="runs")).fit().return_value == 5
try:
    LightGBMTrainer(print)
except ImportError as error:
    print(error)
"""


def test_without_lightgbm_the_rest_works_and_the_trainer_names_the_extra(run_script):
    ended = run_script(BLOCKED)
    assert ended.returncode == 0, ended.stderr
    assert "LightGBMConfig needs lightgbm, which is not installed" in ended.stdout
    assert 'pip install "paceline[lightgbm]"' in ended.stdout


def test_to_import_the_folder_does_not_import_the_library(run_script):
    source = "import sys, paceline.train.lightgbm, paceline.train.xgboost\nprint('lightgbm' in sys.modules)"
    ended = run_script(source, env={**os.environ, "PACELINE_PREWARM": "0"})
    assert (ended.returncode, ended.stdout.strip()) == (0, "False"), ended.stderr
