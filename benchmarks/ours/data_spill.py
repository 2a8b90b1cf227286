"""One exchange of numbers, checked. Arguments: directory, operator, rows of 40 bytes, megabytes of the limit."""

import sys

import numpy as np

import paceline.data

directory, operator, rows, megabytes = sys.argv[1:]
num_rows = int(rows)
context = paceline.data.DataContext.get_current()
context.execution_options.resource_limits.object_store_memory = float(megabytes) * 1e6
context.execution_options.resource_limits.cpu = 2
context.spill_path = directory


def add_columns(batch):
    mixed = batch["id"] * 2_654_435_761 % num_rows
    return {"group": mixed // 4, "x": mixed / 7, "a": batch["id"], "b": batch["id"], "c": batch["id"]}


def iterate(dataset):
    return dataset.iter_batches(batch_size=10_000)


def add_up(dataset, column="a"):
    return sum(int(batch[column].sum()) for batch in iterate(dataset))


numbers = paceline.data.range(num_rows, override_num_blocks=32)
dataset = numbers.map_batches(add_columns)
total = num_rows * (num_rows - 1) // 2
match operator:
    case "iterate":
        assert add_up(dataset) == total
    case "sort":
        last, count = -1.0, 0
        for batch in iterate(dataset.sort("x")):
            assert batch["x"][0] >= last
            assert (np.diff(batch["x"]) >= 0).all()
            last, count = batch["x"][-1], count + len(batch["x"])
        assert count == num_rows
    case "group-by":
        assert add_up(dataset.groupby("group").sum("a"), "sum(a)") == total
    case "join":
        assert add_up(dataset.join(numbers, "inner", on="a", right_on="id")) == total
    case "random_shuffle":
        assert add_up(dataset.random_shuffle(seed=1)) == total
    case "unique":
        assert len(dataset.unique("group")) == -(-num_rows // 4)
