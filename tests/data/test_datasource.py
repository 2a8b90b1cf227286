"""Datasources of users: their tasks are units like any others, and their metadata is checked."""

from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from made_datasets import block, pipeline

from paceline.data import BlockMetadata, Datasource, ReadTask, read_datasource


def batches(start, stop):
    """Numbers, as each of the things that a batch may be."""
    middle = (start + stop) // 2
    yield pa.table({"id": range(start, middle)})
    yield pd.DataFrame({"id": range(middle, stop)})
    yield {"id": np.empty(0, np.int64)}


class NumbersDatasource(Datasource):
    def __init__(self, sizes, *, size=None):
        self.sizes = sizes
        self.size = size
        self.requested = []

    def estimate_inmemory_data_size(self):
        return self.size

    def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        self.requested.append(parallelism)
        spans = pairwise(np.cumsum([0, *self.sizes]).tolist())
        return [ReadTask(partial(batches, *span), BlockMetadata(span[1] - span[0], size_bytes=8)) for span in spans]


def read_tasks(*tasks):
    class Tasks(Datasource):
        def get_read_tasks(self, parallelism):
            return list(tasks)

    return read_datasource(Tasks())


def of_one(read_fn, metadata=None, **more):
    return read_tasks(ReadTask(read_fn, metadata, **more))


def test_the_rows_of_all_tasks_come_in_their_order_up_to_the_limit_of_each():
    dataset = read_datasource(NumbersDatasource([3, 0, 4]))
    assert dataset._plan.name == "read_datasource(Numbers)"
    assert next(task.unit.name for task in pipeline(dataset).tasks) == "read_datasource(Numbers) (task 1 of 3)"
    assert block(dataset).to_numpy()["id"].tolist() == [*range(7)]
    assert dataset.count() == 7
    dataset = of_one(partial(batches, 0, 10), BlockMetadata(num_rows=10, size_bytes=80), per_task_row_limit=7)
    assert block(dataset).to_numpy()["id"].tolist() == [*range(7)]
    assert dataset.count() == 7
    assert of_one(partial(batches, 0, 10), BlockMetadata(size_bytes=8), per_task_row_limit=0).take_all() == []


def test_the_number_of_tasks_follows_from_the_size_and_not_from_the_machine():
    for size, number, requested in [(None, None, 16), (1 << 30, None, 128), (1 << 60, None, 10_000), (None, 3, 3)]:
        source = NumbersDatasource([1], size=size)
        read_datasource(source, override_num_blocks=number)
        assert source.requested == [requested]


@pytest.mark.parametrize(("num_rows", "actual"), [(5, "only 4"), (3, "more")])
def test_a_task_with_another_number_of_rows_than_it_said_fails_by_name(num_rows, actual):
    dataset = of_one(partial(batches, 0, 4), BlockMetadata(num_rows=num_rows, input_files=["a.log"]))
    with pytest.raises(ValueError, match=rf"a\.log must have {num_rows} rows according to its metadata, got {actual}"):
        block(dataset)


def test_another_name_of_a_task_is_another_dataset_and_a_schema_is_known_without_reading():
    state = of_one(partial(batches, 0, 4), name="a.log, 400 bytes").iterator().get_state()
    of_one(partial(batches, 0, 4), name="a.log, 400 bytes").iterator().set_state(state)
    with pytest.raises(ValueError, match="has changed since the state was saved"):
        of_one(partial(batches, 0, 4), name="a.log, 500 bytes").iterator().set_state(state)

    def read_fn():
        raise AssertionError("nobody asked for rows")

    schema = of_one(read_fn, schema=pa.schema([("id", pa.int64())])).schema()
    assert schema is not None
    assert schema.names == ["id"]


@pytest.mark.parametrize("one", [pd.DataFrame({"id": [1]}), {"id": [1]}, 7])
def test_one_batch_that_is_not_in_a_list_is_refused(one):
    with pytest.raises(TypeError, match=f"must return an iterable of batches, got a {type(one).__name__}"):
        block(of_one(lambda: one))
