"""Sources of the user's own: their tasks are units like any others, and what they say of them is held to."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_back import block, pipeline

from paceline.data import BlockMetadata, Dataset, Datasource, ReadTask, read_datasource


def batches(start: int, stop: int) -> Iterable[Any]:
    """Numbers, as each of the things that a batch may be."""
    middle = (start + stop) // 2
    yield pa.table({"id": range(start, middle)})
    yield pd.DataFrame({"id": range(middle, stop)})
    yield {"id": np.empty(0, np.int64)}


class NumbersDatasource(Datasource):
    def __init__(self, sizes: list[int], *, known: bool = True, size: int | None = None) -> None:
        self.sizes = sizes
        self.known = known
        self.size = size
        self.asked: list[int] = []

    def estimate_inmemory_data_size(self) -> int | None:
        return self.size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        self.asked.append(parallelism)
        edges = np.cumsum([0, *self.sizes]).tolist()
        return [
            ReadTask(partial(batches, start, stop), BlockMetadata(stop - start if self.known else None, size_bytes=8))
            for start, stop in pairwise(edges)
        ]


def of_one(read_fn: Callable[[], Any], metadata: BlockMetadata | None = None, **more: Any) -> Dataset:
    class One(Datasource):
        def get_read_tasks(self, parallelism: int) -> list[ReadTask]:  # type: ignore[override]
            return [ReadTask(read_fn, metadata, **more)]

    return read_datasource(One())


def test_the_rows_of_all_tasks_come_in_the_order_of_the_tasks() -> None:
    dataset = read_datasource(NumbersDatasource([3, 0, 4]))
    assert dataset._plan.name == "read_datasource(Numbers)"
    assert next(task.unit.name for task in pipeline(dataset).tasks) == "read_datasource(Numbers) (task 1 of 3)"
    assert block(dataset).to_numpy()["id"].tolist() == [*range(7)]
    assert dataset.count() == 7


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=5), st.booleans(), st.integers(1, 4), st.integers(0, 8))
def test_from_every_place_the_rest_is_the_tail(sizes: list[int], known: bool, batch_size: int, taken: int) -> None:
    def iterator() -> Any:
        return read_datasource(NumbersDatasource(sizes, known=known)).randomize_block_order(seed=1).iterator()

    whole = [batch["id"].tolist() for batch in iterator().iter_batches(batch_size=batch_size)]
    interrupted = iterator()
    running = iter(interrupted.iter_batches(batch_size=batch_size))
    begun = [batch["id"].tolist() for batch in islice(running, min(taken, len(whole)))]
    again = iterator()
    again.set_state(interrupted.get_state())
    rest = [batch["id"].tolist() for batch in again.iter_batches(batch_size=batch_size)]
    assert begun + rest == whole


def test_the_number_of_tasks_follows_from_the_size_and_not_from_the_machine() -> None:
    for size, given_number, asked in [(None, None, 16), (1 << 30, None, 128), (1 << 60, None, 10_000), (None, 3, 3)]:
        source = NumbersDatasource([1], size=size)
        read_datasource(source, override_num_blocks=given_number)
        assert source.asked == [asked]


@pytest.mark.parametrize(("said", "gave"), [(5, "gave only 4"), (3, "gave more")])
def test_a_task_with_another_number_of_rows_than_it_said_fails_by_name(said: int, gave: str) -> None:
    dataset = of_one(partial(batches, 0, 4), BlockMetadata(num_rows=said, input_files=["a.log"]))
    with pytest.raises(ValueError, match=rf"a\.log was to have {said} rows, as its metadata says, and {gave}"):
        block(dataset)


def test_a_limit_of_a_task_ends_it() -> None:
    dataset = of_one(partial(batches, 0, 10), BlockMetadata(num_rows=10, size_bytes=80), per_task_row_limit=7)
    assert block(dataset).to_numpy()["id"].tolist() == [*range(7)]
    assert dataset.count() == 7
    assert of_one(partial(batches, 0, 10), BlockMetadata(size_bytes=8), per_task_row_limit=0).take_all() == []


def test_another_name_of_a_task_is_another_dataset() -> None:
    state = of_one(partial(batches, 0, 4), name="a.log, 400 bytes").iterator().get_state()
    of_one(partial(batches, 0, 4), name="a.log, 400 bytes").iterator().set_state(state)
    with pytest.raises(ValueError, match="taken from other data"):
        of_one(partial(batches, 0, 4), name="a.log, 500 bytes").iterator().set_state(state)


def test_a_schema_is_known_without_reading() -> None:
    def read_fn() -> Any:
        raise AssertionError("nobody asked for rows")

    schema = of_one(read_fn, schema=pa.schema([("id", pa.int64())])).schema()
    assert schema is not None
    assert schema.names == ["id"]


@pytest.mark.parametrize("one", [pa.table({"id": [1]}), pd.DataFrame({"id": [1]}), {"id": [1]}, 7])
def test_one_batch_that_is_not_in_a_list_is_told(one: Any) -> None:
    with pytest.raises(TypeError, match=f"gave a {type(one).__name__}, and must give several batches"):
        block(of_one(lambda: one))


def test_what_cannot_be_read_is_told_at_once() -> None:
    lock = threading.Lock()
    for make, message in [
        (lambda: read_datasource(NumbersDatasource), "must be an instance of a paceline.data.Datasource"),  # type: ignore[arg-type]
        (lambda: read_datasource("train/"), "must be an instance of a paceline.data.Datasource"),  # type: ignore[arg-type]
        (lambda: read_datasource(Datasource()), "Datasource has no get_read_tasks"),
        (lambda: read_datasource(NumbersDatasource([1]), override_num_blocks=0), "override_num_blocks=0"),
        (lambda: read_datasource(NumbersDatasource([1], size=-1)), "must be a number of bytes"),
        (lambda: ReadTask([1]), "read_fn=.* must be a function"),  # type: ignore[arg-type]
        (lambda: ReadTask(list, per_task_row_limit=-1), "per_task_row_limit=-1"),
        (lambda: of_one(list, BlockMetadata(num_rows=-1)), "num_rows=-1"),
        (lambda: of_one(lambda: [lock]), "cannot be sent to another process"),
    ]:
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
            make()


def test_two_tasks_of_one_name_are_told() -> None:
    class Twice(Datasource):
        def get_read_tasks(self, parallelism: int, per_task_row_limit: Any = None, data_context: Any = None) -> Any:
            return [ReadTask(list, name="a"), ReadTask(list, name="a")]

    with pytest.raises(ValueError, match="two tasks have the name 'a'"):
        read_datasource(Twice())


def test_what_is_no_task_is_told() -> None:
    class Wrong(Datasource):
        def get_read_tasks(self, parallelism: int, per_task_row_limit: Any = None, data_context: Any = None) -> Any:
            return [pa.table({})]

    with pytest.raises(TypeError, match=r"must give a list of paceline\.data.ReadTask, not of Table"):
        read_datasource(Wrong())
