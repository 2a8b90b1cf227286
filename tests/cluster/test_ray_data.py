"""Plans on Ray Data: the same rows in the same order as in one process, whatever the plan."""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
from ray._private.internal_api import memory_summary
from ray.data._internal.execution.streaming_executor import StreamingExecutor
from ray.util.placement_group import placement_group, remove_placement_group

import paceline.data as data
from paceline._core.errors import DataError
from paceline.data import Dataset, interop
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Executor, InlineExecutor, lower_epoch
from paceline.data.exec.ray import RayExecutor, pack_for_ray, stream_blocks, task_limits, unpack_from_ray
from paceline.data.exec.ray import executor as ray_executor
from paceline.data.exec.ray.shipping import ShippedValue
from paceline.data.exec.ray.task_limits import observe_cluster
from paceline.data.exec.stats import StatsRecorder
from processes import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # The nodes cannot import this file.
Row = tuple[int, int, dict[str, Any]]
MB = 1_000_000


@pytest.fixture(autouse=True)
def context() -> Iterator[DataContext]:
    before, DataContext._current = DataContext._current, DataContext()
    yield DataContext._current
    DataContext._current = before


def numbers(num_rows: int, num_units: int) -> Dataset:
    return data.range(num_rows, override_num_blocks=num_units)


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] * 2, "rows": np.full(len(batch["id"]), len(batch["id"]))}


class Shift:
    """Says of each row in which process it was, and the how manieth batch that had there."""

    def __init__(self, by: int = 1) -> None:
        self.by, self.calls = by, 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        num = len(batch["id"])
        columns = {"rows": num, "process": os.getpid(), "call": self.calls}
        return {**batch, "id": batch["id"] + self.by, **{name: np.full(num, value) for name, value in columns.items()}}


def collect_rows(executor: Executor, dataset: Dataset, epoch: int = 0, *start: int) -> list[Row]:
    """Each row with its unit and its number there."""
    pipeline = lower_epoch(dataset._plan, epoch, executor)
    return [
        (delivered.unit, delivered.offset + number, {name: _plain(value) for name, value in row.items()})
        for delivered in executor.run(pipeline, *start)
        for number, row in enumerate(delivered.block.rows())
    ]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def same(dataset: Dataset, epoch: int = 0, *start: int, but: tuple[str, ...] = ()) -> list[Row]:
    """The rows on Ray, which are those of one process but for some columns."""
    on_ray = collect_rows(RayExecutor(), dataset, epoch, *start)

    def without(rows: list[Row]) -> list[Row]:
        return [(*place, {name: value for name, value in row.items() if name not in but}) for *place, row in rows]

    assert without(on_ray) == without(collect_rows(InlineExecutor(), dataset, epoch, *start))
    return on_ray


def in_use() -> float:
    """Bytes in the object stores of all nodes."""
    return ray.cluster_resources()["object_store_memory"] - ray.available_resources().get("object_store_memory", 0.0)


@pytest.mark.slow
def test_units_are_pruned_ordered_and_batched_as_on_one_machine(tmp_path: Path) -> None:
    for part in range(5):
        ids = np.arange(part * 20, part * 20 + 20)
        columns = {"id": ids, "text": [f"row {n}" for n in ids], "list": [list(range(n % 4)) for n in ids]}
        pq.write_table(pa.table(columns), tmp_path / f"part-{part}.parquet", row_group_size=7)
    dataset = data.read_parquet(str(tmp_path)).filter(expr="id >= 40").randomize_block_order(seed=2)
    dataset = dataset.map_batches(
        lambda batch: {**batch, "size": np.full(len(batch["id"]), len(batch["id"]))}, batch_size=6
    )
    rows = same(dataset, 3)
    assert {row["id"] for _, _, row in rows} == set(range(40, 100))


def test_the_order_is_kept_where_a_later_unit_is_done_first(tmp_path: Path) -> None:
    def backwards(batch: dict[str, Any]) -> dict[str, Any]:
        unit = int(batch["id"][0]) // 10
        while unit % 2 == 0 and not (tmp_path / f"{unit + 1}").exists():
            time.sleep(0.02)
        (tmp_path / f"{unit}").touch()
        return batch

    rows = collect_rows(RayExecutor(), numbers(40, 4).map_batches(backwards))
    assert [row["id"] for _, _, row in rows] == list(range(40))


@pytest.mark.slow
def test_each_chain_of_a_union_has_its_own_pools_and_others_pass_by() -> None:
    plain = numbers(50, 3).map_batches(doubled, batch_size=7)
    one = numbers(40, 4).map_batches(Shift, batch_size=9, concurrency=1)
    two = numbers(30, 2).map_batches(doubled, batch_size=4).map_batches(Shift, concurrency=2, fn_constructor_args=(5,))
    dataset = plain.union(one, two).randomize_block_order(seed=3)
    rows = same(dataset, 0, but=("process", "call"))
    ones = [row for _, _, row in rows if "process" in row and row["rows"] == 9]
    assert len({row["process"] for row in ones}) == 1, "one process for a pool of one"
    assert max(row["call"] for row in ones) > 2, "an object for a process, not for a unit"
    # From a row in the middle of a unit on, with nothing before it done.
    unit, offset, _ = rows[61]
    assert same(dataset, 0, unit, offset, but=("process", "call"))[0][:2] == (unit, offset)


def some_plan(seed: int) -> Dataset:
    """Rows `id` and `k` through steps that a generator chooses; no two seeds are alike."""
    choose = np.random.default_rng(seed)

    def keyed(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "k": batch["id"] * 7 % 11, "rows": np.full(len(batch["id"]), len(batch["id"]))}

    steps: list[Callable[[Dataset], Dataset]] = [
        lambda dataset: dataset.map_batches(keyed, batch_size=int(choose.integers(3, 30))),
        lambda dataset: dataset.filter(lambda row: row["k"] != 3),
        lambda dataset: dataset.random_shuffle(seed=seed),
        lambda dataset: dataset.sort("k", descending=bool(choose.integers(2))),
        lambda dataset: dataset.repartition(int(choose.integers(1, 5))),
        lambda dataset: dataset.limit(int(choose.integers(20, 60))),
        lambda dataset: dataset.union(numbers(30, 2).map_batches(keyed, batch_size=4)),
        lambda dataset: dataset.randomize_block_order(seed=seed),
        lambda dataset: dataset.flat_map(lambda row: [row] * (row["id"] % 3)),
    ]
    dataset = numbers(int(choose.integers(40, 120)), int(choose.integers(1, 6))).map_batches(keyed)
    for number in choose.permutation(len(steps))[:4]:
        dataset = steps[number](dataset)
    return dataset


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 5, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in (1, 2, 4))])
def test_random_plans_give_the_rows_of_one_machine(
    seed: int, context: DataContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.target_max_block_size = 1000
    if seed == 3:  # It sorts and shuffles: parts of large chunks are cut where they lie.
        monkeypatch.setattr(ray_executor, "_MIN_TASK_BYTES", 1)
    dataset = some_plan(seed)
    rows = same(dataset, seed)
    if len(rows) > 2:
        unit, offset, _ = rows[len(rows) // 2]
        assert same(dataset, seed, unit, offset) == rows[len(rows) // 2 :]


def test_columns_of_all_kinds_arrive_as_they_were() -> None:
    block = Block(
        {
            "tensor": np.arange(24, dtype=np.float32).reshape(4, 3, 2),
            "time": np.array(["2024-01-01", "2025-01-01", "2026-01-01", "NaT"], "datetime64[s]"),
            "text": pa.chunked_array([["a", None], ["b", "c"]]),
            "nested": pa.chunked_array([[{"x": [1, 2]}, {"x": []}, None, {"x": [3]}]]),
            "object": np.array([{1}, "a", None, 3.5], object),
        }
    )
    there = unpack_from_ray(ray.get(ray.put(pack_for_ray(block))))
    assert [str(row) for row in there.rows()] == [str(row) for row in block.rows()]
    assert there.schema.types == block.schema.types
    large = unpack_from_ray(ray.get(ray.put(pack_for_ray(Block({"x": np.ones((1000, 1000))})))))
    assert not large.columns["x"].flags.owndata, "a view of the object store"


def test_data_of_this_process_is_read_on_other_nodes() -> None:
    class Items:
        """More than goes along with each unit."""

        def __init__(self) -> None:
            self.weights = np.arange(50_000)

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            return int(self.weights[index])

    materialized = numbers(40, 4).map_batches(doubled).materialize()
    in_memory = data.from_numpy(np.arange(40 * 5000).reshape(40, 5000), override_num_blocks=3)
    same(materialized.zip(data.from_torch(Items()), in_memory))
    shipped = ShippedValue.from_value(materialized).load_value()
    assert collect_rows(InlineExecutor(), shipped) == collect_rows(InlineExecutor(), materialized)


def inverse(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": 1 // (row["id"] - 37)}  # inverse


@pytest.mark.slow
def test_an_error_of_the_user_comes_after_the_rows_before_it_as_on_one_machine() -> None:
    dataset = numbers(60, 4).map(inverse).map_batches(Shift, concurrency=1)
    failures = []
    for executor in (InlineExecutor(), RayExecutor()):
        rows, error = until_it_fails(executor, dataset)
        assert isinstance(error, ZeroDivisionError)
        failures.append(([row["id"] for row in rows], error.__notes__[0]))
    assert failures[0] == failures[1]
    assert "at row 7 of range (rows 30 to 44)" in failures[1][1]
    assert f"{Path(__file__)}:" in failures[1][1]


def until_it_fails(executor: Executor, dataset: Dataset) -> tuple[list[dict[str, Any]], BaseException | None]:
    rows: list[dict[str, Any]] = []
    try:
        for delivered in executor.run(lower_epoch(dataset._plan, 0, executor)):
            rows += delivered.block.rows()
    except Exception as error:
        return rows, error
    return rows, None


def test_skipped_rows_are_recorded() -> None:
    record = StatsRecorder()
    rows = collect_rows(RayExecutor(record), numbers(60, 4).map(inverse, on_error="skip"))
    assert len(rows) == 59
    (skipped,) = record.skipped
    assert (skipped.unit, skipped.row) == ("range (rows 30 to 44)", 7)
    (stage,) = record.to_stats().stages
    assert (stage.name, stage.num_units, stage.num_rows) == ("read -> map(inverse)", 4, 59)


@pytest.mark.slow
def test_a_unit_whose_process_dies_is_done_again_and_not_for_ever(tmp_path: Path, context: DataContext) -> None:
    def dies(batch: dict[str, Any]) -> dict[str, Any]:
        first = int(batch["id"][0])
        if first == 15 or (first == 0 and not (tmp_path / "died").exists()):
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    context.max_unit_failures = 1
    rows, error = until_it_fails(RayExecutor(), numbers(60, 4).map_batches(dies))
    assert rows == [{"id": number} for number in range(15)], "what came before was done again, once"
    assert isinstance(error, DataError)
    assert str(error).startswith("range (rows 15 to 29): its data process died 2 times")


@pytest.mark.slow
@pytest.mark.parametrize("num_units", [40, 1])
def test_a_slow_consumer_keeps_what_is_in_flight_within_the_budget(context: DataContext, num_units: int) -> None:
    context.execution_options.resource_limits.object_store_memory = budget = 40 * MB
    rows = numbers(8 * num_units, num_units) if num_units > 1 else numbers(240, 1)
    wide = rows.map_batches(lambda batch: {"x": np.ones((len(batch["id"]), 125_000))}, batch_size=8)  # 8 MB each
    before, peak, num_bytes, total = in_use(), 0.0, 0, 5 * budget
    for placed in stream_blocks(lower_epoch(wide._plan, 0, InlineExecutor())):
        threading.Event().wait(0.05)
        num_bytes += placed.num_bytes
        peak = max(peak, in_use() - before)
        del placed
    assert num_bytes > total
    assert 0 < peak <= budget + 16 * MB, "what was taken, and what had just been begun"


@pytest.mark.slow
def test_a_node_that_is_lost_costs_no_row(cluster: Any, context: DataContext) -> None:
    context.execution_options.resource_limits.object_store_memory = 30 * MB
    node = cluster.add(num_cpus=2)
    dataset = numbers(300, 30).map_batches(lambda batch: {**batch, "x": np.ones((len(batch["id"]), 20_000))})
    blocks: list[Any] = []
    rows: list[int] = []

    def take() -> None:
        rows.extend(unpack_from_ray(ray.get(blocks.pop(0).ref)).columns["id"].tolist())

    for placed in stream_blocks(lower_epoch(dataset._plan, 0, InlineExecutor())):
        blocks.append(placed)
        # Where it has some of the rows, as it should have by then.
        has_some = len(blocks) > 4 and any(each.node == node for each in blocks)
        if node in cluster.added and (len(rows) > 100 or has_some):
            cluster.remove(node)
        if len(blocks) > 8:
            take()
    while blocks:
        take()
    assert rows == list(range(300))


@pytest.mark.parametrize("is_late", [False, True])
def test_closing_ends_the_work_and_lets_go_of_the_rows(
    context: DataContext, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Also where Ray gives up waiting for the thread that executes it, as on a busy machine: after two seconds."""
    closing, at_gate, gate = threading.Event(), threading.Event(), threading.Event()
    if is_late:
        step, join = StreamingExecutor._scheduling_loop_step, StreamingExecutor.join

        def step_late(self: StreamingExecutor, topology: Any) -> bool:
            if closing.is_set():
                at_gate.set()
                gate.wait(60)
            return step(self, topology)

        def join_at_once(self: StreamingExecutor, timeout: float) -> None:
            if timeout != 2.0:
                gate.set()
                join(self, timeout)

        monkeypatch.setattr(StreamingExecutor, "_scheduling_loop_step", step_late)
        monkeypatch.setattr(StreamingExecutor, "join", join_at_once)
    context.execution_options.resource_limits.object_store_memory = 40 * MB
    dataset = numbers(400, 40).map_batches(lambda batch: {"x": np.ones((len(batch["id"]), 100_000))})
    before = in_use()
    blocks = stream_blocks(lower_epoch(dataset._plan, 0, InlineExecutor()))
    next(blocks)
    wait_until(lambda: in_use() > before + 8 * MB)
    closing.set()
    assert not is_late or at_gate.wait(60)
    gc.disable()  # In a large process the next collection is far off.
    try:
        blocks.close()
        assert not [each for each in gc.get_objects() if type(each) is StreamingExecutor]
        wait_until(lambda: in_use() < before + 1 * MB)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{memory_summary()}") from error
    finally:
        gc.enable()
        gate.set()
    assert logging.getLogger("ray.data").level != logging.ERROR, "as it was before"
    assert "execution" not in capfd.readouterr().err, "Ray's own lines"


@pytest.mark.slow
def test_rows_come_where_others_have_all_cores_and_a_line_says_so() -> None:
    group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
    ray.get(group.ready())
    lines: list[str] = []
    try:
        wait_until(lambda: ray.available_resources().get("CPU", 0) == 0)
        dataset = numbers(60, 4).map_batches(Shift, concurrency=2)
        rows = collect_rows(RayExecutor(say=lines.append), dataset)
    finally:
        remove_placement_group(group)
    assert [row["id"] for _, _, row in rows] == list(range(1, 61))
    (line,) = lines
    assert line.startswith("data: 3 CPUs are needed, and 0 of the cluster's 4 are free: up to 4 processes")
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 4)


def test_a_stream_does_not_wait_for_the_cpus_of_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reports them as taken for half a second after the tasks have ended."""
    collect_rows(RayExecutor(), numbers(80, 16))

    def sleep(seconds: float) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(task_limits, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert observe_cluster(1.0).free_cpus >= 1


@pytest.mark.slow
def test_a_ray_dataset_keeps_its_order_and_resumes_at_a_row() -> None:
    def wide(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "t": np.stack([batch["id"]] * 2, 1), "s": np.array([f"{n}" for n in batch["id"]])}

    dataset = interop.as_dataset(ray.data.range(300, override_num_blocks=7).map_batches(wide))
    expected = [(0, n, {"id": n, "t": [n, n], "s": f"{n}"}) for n in range(300)]
    lines: list[str] = []
    executor = RayExecutor(say=lines.append)
    assert collect_rows(executor, dataset) == expected
    assert collect_rows(executor, dataset, 0, 0, 99) == expected[99:]
    (line,) = lines
    assert "a resume repeats its execution" in line
    doubles = dataset.map_batches(doubled, batch_size=64)
    assert [row["id"] for _, _, row in collect_rows(executor, doubles)] == list(range(0, 600, 2))
