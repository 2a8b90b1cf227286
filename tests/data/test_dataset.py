"""Looking at datasets: what is known without reading, what is read and no more, and what pandas says of the rows."""

import math
from collections.abc import Callable
from typing import Any

import jax  # noqa: F401  it sets variables of the environment when it is first imported
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listed import READ, listed, numbers

import paceline.data
from paceline.data import look
from paceline.data.aggregate import Count, Max, Sum
from paceline.data.block import TensorType
from paceline.data.dataset import Dataset, MaterializedDataset
from paceline.data.expressions import col


@pytest.fixture(autouse=True)
def _nothing_read() -> None:
    READ.clear()


def many(**options: Any) -> Dataset:
    """Three units of two blocks: 0 to 29."""
    return numbers([5, 5], [5, 5], [5, 5], **options)


# Schema


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (many(schema=True), ["id"]),
        (many(schema=True).rename_columns({"id": "x"}).filter(expr="x > 100"), ["x"]),
        (many(schema=True).rename_columns(["y"]).random_sample(0.1).limit(3), ["y"]),
        (many(schema=True).random_shuffle().sort("id").repartition(2).randomize_block_order(), ["id"]),
        (many(schema=True).union(many(schema=True)), ["id"]),
    ],
)
def test_a_schema_that_the_source_knows_is_told_without_reading(dataset: Dataset, names: list[str]) -> None:
    assert dataset.columns() == names
    assert dataset.schema().types == [pa.int64()]
    assert READ == []


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (many(), ["id"]),
        (many().map(lambda row: {**row, "x": "a"}), ["id", "x"]),
        (many().map_batches(lambda batch: {"x": batch["id"] / 2}, batch_size=1000), ["x"]),
        (many(schema=True).with_column("x", col("id") / 2), ["id", "x"]),
        (many().random_shuffle().map(lambda row: {"y": 1}).sort("y").limit(0), ["y"]),
        (many().filter(lambda row: False), ["id"]),
    ],
)
def test_any_other_schema_takes_the_first_block_of_the_first_unit(dataset: Dataset, names: list[str]) -> None:
    assert dataset.columns() == names
    assert len(READ) == 1
    assert dataset.columns() == names
    assert len(READ) == 1


def test_a_schema_is_found_in_later_rows_where_the_first_give_none() -> None:
    dataset = many().map_batches(lambda batch: {"x": batch["id"]} if 20 in batch["id"] else {})
    assert dataset.columns() == ["x"]


def test_an_iterator_knows_schema_and_rows_without_shuffling_first() -> None:
    iterator = many().random_shuffle().map(lambda row: {"x": row["id"]}).iterator()
    assert iterator.schema().names == ["x"]
    assert iterator._feeds.num_rows() == 30
    assert len(READ) == 1


def test_types_are_those_of_the_columns() -> None:
    dataset = listed([{"image": np.zeros((2, 4, 4), "u1"), "label": ["a", "b"], "price": np.ones(2, "f4")}])
    assert dataset.schema().types == [TensorType(np.dtype("u1"), (4, 4)), pa.string(), pa.float32()]
    assert numbers([0]).columns() is None or numbers([0]).columns() == ["id"]
    assert numbers([]).schema() is None


# Rows


@pytest.mark.parametrize(
    ("dataset", "num_rows"),
    [
        (many(), 30),
        (many().map(lambda row: row).rename_columns({"id": "x"}).random_shuffle().sort("x"), 30),
        (many().limit(7), 7),
        (many().limit(100), 30),
        (many().union(many(), many()), 90),
        (many().zip(many()), 30),
        (many().split(4)[3], 8),
        (many().repartition(5), 30),
    ],
)
def test_a_count_that_the_units_know_is_told_without_reading(dataset: Dataset, num_rows: int) -> None:
    assert dataset.count() == num_rows
    assert READ == []


@pytest.mark.parametrize(
    ("dataset", "num_rows"),
    [
        (many(counted=False), 30),
        (many().filter(expr="id < 3"), 3),
        (many().filter(lambda row: row["id"] < 3).map(lambda row: 1 / 0).random_shuffle().sort("x"), 3),
        (many().filter(expr="id < 3").union(many()), 33),
        (many().flat_map(lambda row: [row, row]).limit(50), 50),
        (many().map_batches(lambda batch: {"x": [1, 2]}), 12),
    ],
)
def test_any_other_count_counts(dataset: Dataset, num_rows: int) -> None:
    assert dataset.count() == num_rows


def test_taking_some_rows_reads_no_more_than_they_take() -> None:
    assert many().take(3) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert READ == [("part-0.file", ["id"], 5)]
    assert many().map(lambda row: row).limit(6).take() == [{"id": number} for number in range(6)]
    assert {name for name, *_ in READ} == {"part-0.file"}


def test_rows_are_taken_shown_and_handed_to_pandas(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = many()
    assert [row["id"] for row in dataset.take()] == [*range(20)]
    assert [row["id"] for row in dataset.take_all()] == [*range(30)]
    assert dataset.take(0) == []
    assert dataset.take_batch(4)["id"].tolist() == [0, 1, 2, 3]
    assert dataset.take_batch(4, batch_format="pandas").equals(pd.DataFrame({"id": range(4)}))
    assert dataset.take_batch(4, batch_format="pyarrow").num_rows == 4
    assert dataset.to_pandas().equals(pd.DataFrame({"id": range(30)}))
    assert len(dataset.take_all(limit=30)) == len(dataset.to_pandas(limit=30)) == 30
    dataset.show(2)
    assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"


def test_more_rows_than_a_limit_allows_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"take_all\(limit=29\): the dataset has more rows than that"):
        many().take_all(limit=29)
    with pytest.raises(ValueError, match=r"to_pandas\(limit=29\)"):
        many().to_pandas(limit=29)
    with pytest.raises(ValueError, match="the dataset is empty"):
        numbers([0]).take_batch()


def test_a_dataset_itself_is_not_iterated() -> None:
    with pytest.raises(TypeError, match=r"hint: use iter_rows\(\), iter_batches\(\) or take\(\)"):
        iter(many())


# Aggregates


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-5, 5)), max_size=20))
@settings(max_examples=20, deadline=None)
def test_aggregates_are_those_of_pandas(rows: list[tuple[int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype="i8")
    cut = len(rows) // 3
    dataset = listed([frame.iloc[:cut].reset_index(drop=True)], [frame.iloc[cut:].reset_index(drop=True)])
    assert dataset.count() == len(frame)
    assert sorted(dataset.unique("a")) == sorted(frame["a"].drop_duplicates())
    if not rows:
        assert dataset.sum("a") is None
        return
    for name in ("sum", "min", "max", "mean"):
        assert getattr(dataset, name)("a") == pytest.approx(getattr(frame["a"], name)())
        assert getattr(dataset, name)(["a", "b"]) == pytest.approx(
            {f"{name}(a)": getattr(frame["a"], name)(), f"{name}(b)": getattr(frame["b"], name)()}
        )
    assert dataset.std("a") == pytest.approx(frame["a"].std(), nan_ok=True)
    assert dataset.std("a", ddof=0) == pytest.approx(frame["a"].std(ddof=0))
    assert dataset.sum() == {"sum(a)": frame["a"].sum(), "sum(b)": frame["b"].sum()}
    assert dataset.aggregate(Count(), Sum("a"), Max("b")) == {
        "count()": len(frame),
        "sum(a)": frame["a"].sum(),
        "max(b)": frame["b"].max(),
    }
    grouped = dataset.groupby("a").mean("b").take_all()
    assert [row["a"] for row in grouped] == sorted(set(frame["a"]))
    assert [row["mean(b)"] for row in grouped] == pytest.approx(frame.groupby("a")["b"].mean().tolist())


def test_aggregates_of_some_columns_read_no_others() -> None:
    dataset = listed([{"a": [1, 2], "b": [3, 4], "c": [5, 6]}], schema=True)
    assert dataset.sum("b") == 7
    assert READ == [("part-0.file", ["b"], 2)]


def test_missing_values_are_left_out_or_make_the_whole_missing() -> None:
    dataset = listed([{"x": [1, None, 3]}])
    assert dataset.sum("x") == 4
    assert dataset.sum("x", ignore_nulls=False) is None
    assert set(dataset.unique("x")) == {1, None, 3}


# Rows in another order, together and beside each other


def rows_of(dataset: Dataset, column: str = "id") -> list[Any]:
    return [row[column] for row in dataset.take_all()]


@given(st.lists(st.lists(st.integers(0, 4), max_size=2), min_size=1, max_size=3), st.integers(0, 20), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_orders_limits_and_unions_are_those_of_lists(sizes: list[list[int]], limit: int, seed: int) -> None:
    dataset, rows = numbers(*sizes), [*range(sum(map(sum, sizes)))]
    assert rows_of(dataset.limit(limit)) == rows[:limit]
    assert rows_of(dataset.union(dataset, dataset.limit(2))) == rows + rows + rows[:2]
    assert rows_of(dataset.random_shuffle(seed=seed).sort("id", descending=True)) == rows[::-1]
    shuffled = rows_of(dataset.random_shuffle(seed=seed))
    assert sorted(shuffled) == rows
    assert shuffled == rows_of(dataset.random_shuffle(seed=seed))
    assert rows_of(dataset.repartition(3)) == rows
    assert sorted(rows_of(dataset.randomize_block_order(seed=seed))) == rows
    assert rows_of(dataset.zip(dataset.rename_columns({"id": "x"}))) == rows


def test_without_a_seed_an_order_is_that_of_seed_0() -> None:
    assert rows_of(many().random_shuffle()) == rows_of(many().random_shuffle(seed=0)) != rows_of(many())
    assert rows_of(many().random_shuffle(seed=1)) != rows_of(many().random_shuffle(seed=0))


def test_materialized_rows_are_computed_once() -> None:
    calls: list[int] = []
    kept = many().map(lambda row: calls.append(row["id"]) or {"x": row["id"] * 2}).materialize()
    assert isinstance(kept, MaterializedDataset)
    assert kept.count() == 30
    assert kept.columns() == ["x"]
    assert rows_of(kept, "x") == rows_of(kept, "x") == [number * 2 for number in range(30)]
    assert calls == [*range(30)]
    assert kept.num_blocks() >= 1
    with pytest.raises(NotImplementedError, match=r"hint: materialize\(\).num_blocks\(\)"):
        many().num_blocks()


# One after the other


def test_rows_and_batches_are_iterated() -> None:
    dataset = many()
    assert [row["id"] for row in dataset.iter_rows()] == [*range(30)]
    assert [len(batch["id"]) for batch in dataset.iter_batches(batch_size=8)] == [8, 8, 8, 6]
    assert [len(batch["id"]) for batch in dataset.iter_batches(batch_size=8, drop_last=True)] == [8, 8, 8]
    assert [len(batch["id"]) for batch in dataset.iter_batches()] == [30]
    (batch,) = dataset.iter_batches(batch_format="pandas")
    assert isinstance(batch, pd.DataFrame)
    (tensors,) = dataset.iter_torch_batches()
    assert tensors["id"].tolist() == [*range(30)]
    (arrays,) = dataset.iter_jax_batches()
    assert arrays["id"].tolist() == [*range(30)]
    iterator = dataset.iterator()
    assert [len(batch["id"]) for batch in iterator.iter_batches(batch_size=20)] == [20, 10]


def test_what_is_written_is_read_again(tmp_path: Any) -> None:
    dataset = many().with_column("half", col("id") / 2)
    for kind in ("parquet", "csv", "json"):
        getattr(dataset, f"write_{kind}")(tmp_path / kind)
        back = getattr(paceline.data, f"read_{kind}")(str(tmp_path / kind))
        assert sorted(rows_of(back, "half")) == [number / 2 for number in range(30)]
        assert len(back.input_files()) == 3
        assert all(str(tmp_path / kind) in path for path in back.input_files())


# In words


def test_a_dataset_prints_what_is_known_of_it() -> None:
    assert repr(many(schema=True)) == "Dataset(num_rows=30, schema={id: int64})"
    assert repr(many(schema=True).with_column("x", col("id"))) == "Dataset(num_rows=30, schema={id: int64, x: ?})"
    assert repr(many().filter(expr="id > 3")) == "Dataset(num_rows=?, schema=?)"
    assert READ == []
    assert repr(many().materialize()) == "MaterializedDataset(num_rows=30, schema={id: int64})"


class Model:
    def __call__(self, batch: Any) -> Any:
        return batch


def test_a_plan_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = (
        listed([{"a": [1], "b": [2]}], [{"a": [1], "b": [2]}], schema=True)
        .filter(expr="a > 0")
        .random_shuffle(seed=1)
        .map_batches(Model, concurrency=(1, 2))
        .map(lambda row: row)
        .select_columns(["a"])
        .limit(5)
    )
    said = dataset.explain()
    assert capsys.readouterr().out == said + "\n"
    assert said.splitlines() == [
        "plan",
        "  limit(5)",
        "    select_columns(['a'])",
        "      map(<lambda>)",
        "        map_batches(Model)",
        "          random_shuffle(seed=1)",
        "            filter((col('a') > 0))",
        "              listed",
        "",
        "as it is run",
        "  select_columns(['a'])",
        "    map(<lambda>)",
        "      limit(5)",
        "        map_batches(Model)",
        "          random_shuffle(seed=1)",
        "            filter((col('a') > 0))",
        "              listed",
        "",
        "before random_shuffle(seed=1): 2 units",
        "  read -> filter((col('a') > 0)), in the processes that read",
        "before limit(5): as many units as random_shuffle(seed=1) gives",
        "  read, in the processes that read",
        "  map_batches(Model), in 1 to 2 processes of its own",
        "after limit(5): as many units as it gives",
        "  read -> map(<lambda>) -> select_columns(['a']), in the processes that read",
    ]
    assert READ == []


def test_stats_tell_of_the_rows_that_were_taken() -> None:
    dataset = many()
    assert "has not been run" in dataset.stats()
    dataset.take_all()
    assert "30 rows" in dataset.stats()


def test_the_memory_of_rows_is_estimated() -> None:
    assert many().size_bytes() == 30 * 8


SIGNATURES: dict[str, list[str]] = {
    "map_batches": ["fn", "batch_size", "compute", "batch_format", "zero_copy_batch", "fn_args", "fn_kwargs"]
    + ["fn_constructor_args", "fn_constructor_kwargs", "num_cpus", "num_gpus", "concurrency"],
    "filter": ["fn", "expr"],
    "select_columns": ["cols"],
    "train_test_split": ["test_size", "shuffle", "seed", "stratify"],
    "streaming_split": ["n", "equal", "locality_hints"],
    "random_shuffle": ["seed"],
    "sort": ["key", "descending"],
    "iter_torch_batches": ["prefetch_batches", "batch_size", "dtypes", "device", "collate_fn", "drop_last"]
    + ["local_shuffle_buffer_size", "local_shuffle_seed", "pin_memory"],
    "write_parquet": ["path"],
    "std": ["on", "ddof", "ignore_nulls"],
    "take_batch": ["batch_size", "batch_format"],
}


@pytest.mark.parametrize("method", sorted(SIGNATURES))
def test_methods_have_the_arguments_that_people_know(method: str) -> None:
    import inspect

    function: Callable[..., Any] = getattr(Dataset, method)
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "dataset")]
    assert [name for name in SIGNATURES[method] if name not in names] == []
    assert names[: len(SIGNATURES[method])] == SIGNATURES[method]


def test_rows_that_are_known_are_those_that_come() -> None:
    for dataset in (many(), many().limit(4), many().random_shuffle(), many().union(many())):
        assert look.known_rows(dataset._plan) == len(dataset.take_all())
    assert math.isclose(many().mean("id"), 14.5)
