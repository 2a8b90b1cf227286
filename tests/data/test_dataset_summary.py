"""Summaries, groups as whole batches, several columns at once, names and schemas of datasets."""

import datetime
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline import data
from paceline.data import DatasetSummary, Schema, col

ROWS = [
    {"a": i, "f": None if i % 3 == 0 else i / 2, "s": "xyz"[i % 3], "t": datetime.datetime(2024, 1, 1 + i), "l": [i]}
    for i in range(10)
]


def test_a_summary_has_the_statistics_of_each_type():
    summary = data.from_items(ROWS).summary()
    assert (summary.columns, summary.dataset_schema.names) == (["a", "f", "s", "t", "l"],) * 2
    wanted = pd.DataFrame(ROWS)
    for name in ("a", "f"):
        described = wanted[name].describe()
        found = summary.stats[name]
        assert [found[key] for key in ("mean", "min", "max", "std")] == pytest.approx(
            [described[key] for key in ("mean", "min", "max", "std")]
        )
    assert summary.stats["f"] | {"count": 10, "missing_pct": 40.0, "zero_pct": 0.0} == summary.stats["f"]
    assert (summary.stats["a"]["approx_quantile[0]"], summary.stats["a"]["zero_pct"]) == (4.0, 10.0)
    assert summary.stats["s"]["approx_topk[0]"] == {"s": "x", "count": 4}
    assert summary.stats["t"]["max"] == datetime.datetime(2024, 1, 10)
    assert summary.stats["l"] == {"count": 10, "missing_pct": 0.0}


def test_a_summary_becomes_frames_and_text():
    summary = data.from_items(ROWS).summary(["a", "s"])
    frame = summary.to_pandas().set_index(DatasetSummary.STATISTIC_COLUMN)
    assert (frame.loc["max", "a"], frame.loc["max", "s"], list(frame)) == (9, None, ["a", "s"])
    assert dict(summary.get_column_stats("a").itertuples(index=False, name=None)) == summary.stats["a"]
    lines = repr(summary).splitlines()
    assert lines[0].split() == ["statistic", "a", "s"]
    assert ["mean", "4.5", "-"] in [line.split() for line in lines]
    assert data.from_items([]).summary().columns == []


@pytest.mark.parametrize("key", [pa.int64(), "temporal"])
def test_a_summary_takes_other_aggregates_for_a_type(key):
    summary = data.from_items(ROWS).summary(["a", "t"], {key: lambda name: [data.Max(name, alias_name="last")]})
    column, value = ("a", 9) if key == pa.int64() else ("t", ROWS[-1]["t"])
    assert summary.stats[column] == {"last": value}
    assert len(summary.stats[{"a": "t", "t": "a"}[column]]) > 2


@pytest.mark.parametrize("batch_format", ["default", "numpy", "pandas", "pyarrow", None])
def test_a_group_larger_than_the_cache_is_one_batch(batch_format):
    rows = data.from_numpy(np.arange(200_000)).with_column("g", col("data") % 2)

    def lengths(group, more):
        yield {"rows": [len(group["data"])]}
        yield {"rows": [more]}

    found = rows.groupby("g").map_groups(lengths, batch_format=batch_format, fn_kwargs={"more": 7})
    assert [row["rows"] for row in found.take_all()] == [100_000, 7, 100_000, 7]


def test_a_failing_group_is_skipped_whole():
    def refuse_odd(group):
        if 3 in group["a"]:
            raise ValueError("refused")
        return {"rows": [len(group["a"])]}

    grouped = data.from_items(ROWS).groupby("s").map_groups(refuse_odd, on_error="skip")
    assert grouped.take_all() == [{"rows": 3}, {"rows": 3}]


def test_columns_are_computed_of_groups():
    assert data.from_items(ROWS).groupby("s").with_column("b", col("a") * 2).take(2)[1]["b"] == 6


def test_names_ids_and_copies():
    rows = data.from_items(ROWS)
    rows.set_name("mine")
    copied, moved = data.Dataset.copy(rows), pickle.loads(pickle.dumps(rows))
    assert (copied.name, moved.name, rows.limit(1).name) == ("mine", "mine", None)
    assert repr(rows).startswith("Dataset(name='mine', ")
    assert rows.get_dataset_id().startswith("mine_")
    assert rows.get_dataset_id() != copied.get_dataset_id()
    assert pickle.loads(pickle.dumps(rows)).get_dataset_id() == rows.get_dataset_id()
    assert rows.context is data.DataContext.get_current()


def test_schemas_come_from_arrow_and_without_reading():
    rows = data.from_items(ROWS)
    schema = rows.schema()
    assert Schema(schema.base_schema, data_context=rows.context) == schema
    mapped = rows.map(lambda row: pytest.fail("rows are read"))
    assert (mapped.schema(fetch_if_missing=False), mapped.columns(fetch_if_missing=False)) == (None, None)
    assert rows.with_column("b", col("a")).columns(fetch_if_missing=False) == [*schema.names, "b"]
    tensors = data.from_numpy(np.ones((3, 2, 2))).schema()
    assert Schema(tensors.base_schema) == tensors
