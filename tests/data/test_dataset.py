"""Looking at datasets: what is known without reading, what is read and no more, and what pandas says of the rows."""

import inspect

import jax  # noqa: F401  it sets variables of the environment when it is first imported
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from made_datasets import READ, listed, numbers

import paceline.data
from paceline.data import task_options
from paceline.data.aggregate import Count, Max, Sum
from paceline.data.block import TensorType
from paceline.data.dataset import Dataset, MaterializedDataset
from paceline.data.expressions import col
from paceline.data.write import SaveMode


@pytest.fixture(autouse=True)
def _nothing_read():
    READ.clear()


def many(**options):
    """Three units of two blocks: 0 to 29."""
    return numbers([5, 5], [5, 5], [5, 5], **options)


@pytest.mark.parametrize(
    ("dataset", "names", "num_blocks"),
    [
        (many(schema=True).rename_columns({"id": "x"}).filter(expr="x > 100"), ["x"], 0),
        (many(schema=True).rename_columns(["y"]).random_sample(0.1).limit(3), ["y"], 0),
        (many(schema=True).random_shuffle().sort("id").repartition(2).randomize_block_order(), ["id"], 0),
        (many(schema=True).union(many(schema=True)), ["id"], 0),
        (many().map(lambda row: {**row, "x": "a"}), ["id", "x"], 1),
        (many().map_batches(lambda batch: {"x": batch["id"] / 2}, batch_size=1000), ["x"], 1),
        (many(schema=True).with_column("x", col("id") / 2), ["id", "x"], 1),
        (many().random_shuffle().map(lambda row: {"y": 1}).sort("y").limit(0), ["y"], 1),
        (many().filter(lambda row: False), ["id"], 1),
    ],
)
def test_a_schema_takes_one_block_at_most_and_none_where_the_source_knows_it(dataset, names, num_blocks):
    assert dataset.columns() == names
    assert dataset.schema().names == names
    assert len(READ) == num_blocks


def test_a_schema_is_found_without_shuffling_and_in_later_rows_where_the_first_give_none():
    iterator = many().random_shuffle().map(lambda row: {"x": row["id"]}).iterator()
    assert iterator.schema().names == ["x"]
    assert iterator._feeds.num_rows() == 30
    assert len(READ) == 1
    dataset = many().map_batches(lambda batch: {"x": batch["id"]} if 20 in batch["id"] else {})
    assert dataset.columns() == ["x"]
    assert numbers([]).schema() is None
    tensors = listed([{"image": np.zeros((2, 4, 4), "u1"), "label": ["a", "b"], "price": np.ones(2, "f4")}])
    assert tensors.schema().types == [TensorType(np.dtype("u1"), (4, 4)), pa.string(), pa.float32()]


@pytest.mark.parametrize(
    ("dataset", "num_rows", "is_known"),
    [
        (many(), 30, True),
        (many().map(lambda row: row).rename_columns({"id": "x"}).random_shuffle().sort("x"), 30, True),
        (many().limit(7), 7, True),
        (many().union(many(), many()), 90, True),
        (many().zip(many()), 30, True),
        (many().split(4)[3], 8, True),
        (many().map_batches(lambda batch: 1 / 0, udf_modifying_row_count=False), 30, True),
        (many(counted=False), 30, False),
        (many().filter(lambda row: row["id"] < 3).map(lambda row: 1 / 0).random_shuffle().sort("x"), 3, False),
        (many().filter(expr="id < 3").union(many()), 33, False),
        (many().flat_map(lambda row: [row, row]).limit(50), 50, False),
        (many().map_batches(lambda batch: {"x": [1, 2]}), 12, False),
    ],
)
def test_a_count_that_the_units_know_needs_no_reading(dataset, num_rows, is_known):
    assert dataset.count() == num_rows
    assert bool(READ) is not is_known


def test_taking_some_rows_reads_no_more_than_they_take():
    assert many().take(3) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert READ == [("part-0.file", ["id"], 5)]
    assert many().map(lambda row: row).limit(6).take() == [{"id": number} for number in range(6)]
    assert {name for name, *_ in READ} == {"part-0.file"}


def test_take_show_iterate_and_to_pandas(capsys):
    dataset = many()
    assert [row["id"] for row in dataset.take()] == [*range(20)]
    assert [row["id"] for row in dataset.take_all()] == [row["id"] for row in dataset.iter_rows()] == [*range(30)]
    assert dataset.take(0) == []
    assert rows_of(dataset.random_shuffle()) == rows_of(dataset.random_shuffle(seed=0)), "the seed is 0 by default"
    assert dataset.take_batch(4)["id"].tolist() == [0, 1, 2, 3]
    assert dataset.take_batch(4, batch_format="pandas").equals(pd.DataFrame({"id": range(4)}))
    assert dataset.take_batch(4, batch_format="pyarrow").num_rows == 4
    assert dataset.to_pandas().equals(pd.DataFrame({"id": range(30)}))
    assert len(dataset.take_all(limit=30)) == len(dataset.to_pandas(limit=30)) == 30
    dataset.show(2)
    assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"
    for batches in (dataset.iter_batches, dataset.iterator().iter_batches):
        assert [len(batch["id"]) for batch in batches(batch_size=8)] == [8, 8, 8, 6]
    for batches in (dataset.iter_batches, dataset.iter_torch_batches, dataset.iter_jax_batches):
        (batch,) = batches()
        assert batch["id"].tolist() == [*range(30)]


def test_aggregates_have_their_names_and_read_only_their_columns():
    frame = pd.DataFrame({"a": [3, -1, 3, 5, 0], "b": [2, 2, 7, -4, 1]})
    dataset = listed([frame.iloc[:2]], [frame.iloc[2:].reset_index(drop=True)], schema=True)
    assert dataset.unique("a") == [3, -1, 5, 0]
    for name in ("sum", "min", "max", "mean", "std"):
        a, b = (getattr(frame[column], name)() for column in "ab")
        assert getattr(dataset, name)("a") == pytest.approx(a)
        assert getattr(dataset, name)(["a", "b"]) == pytest.approx({f"{name}(a)": a, f"{name}(b)": b})
        grouped = getattr(dataset.groupby("a"), name)("b").sort("a").to_pandas().set_index("a")[f"{name}(b)"]
        assert grouped.tolist() == pytest.approx(getattr(frame.groupby("a")["b"], name)().tolist(), nan_ok=True)
    assert dataset.std("a", ddof=0) == pytest.approx(frame["a"].std(ddof=0))
    assert dataset.sum() == {"sum(a)": 10, "sum(b)": 8}
    assert dataset.aggregate(Count(), Sum("a"), Max("b")) == {"count()": 5, "sum(a)": 10, "max(b)": 7}
    assert dataset.groupby("a").count().take(1) == [{"a": -1, "count()": 1}]
    assert dataset.groupby("a").std("b", ddof=0).take_all()[2] == {"a": 3, "std(b)": 2.5}
    assert dataset.groupby(None).sum("a").take_all() == [{"sum(a)": 10}]
    READ.clear()
    assert dataset.sum("b") == 8
    assert READ == [("part-0.file", ["b"], 2), ("part-1.file", ["b"], 3)]
    holes = listed([{"x": [1, None, 3]}])
    assert (holes.sum("x"), holes.sum("x", ignore_nulls=False)) == (4, None)
    assert (set(holes.unique("x")), set(holes.unique("x", ignore_nulls=True))) == ({1, None, 3}, {1, 3})
    assert numbers([0]).sum("id") is None


def rows_of(dataset, column="id"):
    return [row[column] for row in dataset.take_all()]


def test_materialized_rows_are_computed_once():
    calls = []
    kept = many().map(lambda row: calls.append(row["id"]) or {"x": row["id"] * 2}).materialize()
    assert isinstance(kept, MaterializedDataset)
    assert kept.count() == 30
    assert kept.columns() == ["x"]
    assert rows_of(kept, "x") == rows_of(kept, "x") == [number * 2 for number in range(30)]
    assert calls == [*range(30)]
    assert kept.num_blocks() >= 1


def test_the_files_that_rows_are_read_from_are_listed(tmp_path):
    many().write_csv(tmp_path)
    back = paceline.data.read_csv(str(tmp_path))
    assert rows_of(back) == [*range(30)]
    assert back.input_files() == sorted(map(str, tmp_path.iterdir()))


def test_a_dataset_prints_what_is_known_of_it_and_stats_count_the_rows_of_take():
    assert repr(many(schema=True)) == "Dataset(num_rows=30, schema={id: int64})"
    assert repr(many(schema=True).with_column("x", col("id"))) == "Dataset(num_rows=30, schema={id: int64, x: ?})"
    assert repr(many().filter(expr="id > 3")) == "Dataset(num_rows=?, schema=?)"
    assert READ == []
    assert repr(many().materialize()) == "MaterializedDataset(num_rows=30, schema={id: int64})"
    dataset = many()
    assert dataset.size_bytes() == 30 * 8
    assert "has not been run" in dataset.stats()
    dataset.take_all()
    assert "30 rows" in dataset.stats()


class Model:
    def __call__(self, batch):
        return batch


def test_a_plan_is_explained(capsys):
    dataset = (
        listed([{"a": [1], "b": [2]}], [{"a": [1], "b": [2]}], schema=True)
        .filter(expr="a > 0")
        .random_shuffle(seed=1)
        .map_batches(Model, concurrency=(1, 2))
        .select_columns(["a"])
        .limit(5)
    )
    text = dataset.explain()
    assert capsys.readouterr().out == "", "print(dataset.explain()) prints it once"
    assert text.splitlines() == [
        "plan",
        "  limit(5)",
        "    select_columns(['a'])",
        "      map_batches(Model)",
        "        random_shuffle(seed=1)",
        "          filter((col('a') > 0))",
        "            listed",
        "",
        "optimized",
        "  select_columns(['a'])",
        "    limit(5)",
        "      map_batches(Model)",
        "        random_shuffle(seed=1)",
        "          filter((col('a') > 0))",
        "            listed",
        "",
        "before random_shuffle(seed=1): 2 units",
        "  read -> filter((col('a') > 0)), in the reading processes",
        "before limit(5): the units of random_shuffle(seed=1)",
        "  read, in the reading processes",
        "  map_batches(Model), in 1 to 2 dedicated processes",
        "after limit(5): the units of limit(5)",
        "  read -> select_columns(['a']), in the reading processes",
    ]
    assert READ == []


@pytest.mark.parametrize(
    ("function", "name", "default"),
    [
        (paceline.data.read_images, "partitioning", None),
        (paceline.data.read_csv, "partitioning", "hive"),
        (Dataset.write_images, "mode", SaveMode.APPEND),
        (Dataset.map, "on_error", "raise"),
    ],
)
def test_arguments_that_functions_share_are_in_their_signatures_and_unknown_ones_are_refused(function, name, default):
    parameters = inspect.signature(function).parameters
    assert parameters[name].default == default
    assert ("min_rows_per_file" in parameters, "fn_args" in parameters) == (False, function is Dataset.map)
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) has no argument 'colour'; it has .*{name}"):
        function(None, colour="red")


def test_arguments_of_rays_tasks_have_no_effect_and_one_warning_says_so(monkeypatch):
    monkeypatch.setattr(task_options, "_warned", set())
    rows = paceline.data.range(3, parallelism=2)
    with pytest.warns(UserWarning, match="select_columns: num_cpus has no effect here"):
        rows = rows.select_columns("id", num_cpus=2)
    rows = rows.select_columns("id", num_cpus=2)
    with pytest.warns(UserWarning, match="copy: resources has no effect here"):
        rows = rows.map(dict.copy, resources={"a": 1})
    assert (rows.materialize().num_blocks(), rows.count()) == (2, 3)
