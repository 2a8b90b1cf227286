"""Columns of Arrow's views of strings and bytes, whose values Arrow can neither take nor sort, pass every step."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.data import Dataset

ROWS: list[dict[str, Any]] = [
    {
        "s": None if n == 5 else f"the text of number {n * 7 % 10}",
        "b": b"%d" % n,
        "l": [f"{n}"] * (n % 3),
        "u": {"v": f"{n}"},
    }
    for n in range(10)
]
TYPES = {
    "s": pa.string_view(),
    "b": pa.binary_view(),
    "l": pa.list_(pa.string_view()),
    "u": pa.struct([("v", pa.string_view())]),
}
VIEWS = pa.Table.from_pylist(ROWS, pa.schema(list(TYPES.items())))


@pytest.fixture(params=["from_arrow", "map_batches", "read_parquet"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    match request.param:
        case "from_arrow":
            return paceline.data.from_arrow(VIEWS)
        case "map_batches":
            return paceline.data.range(1).map_batches(lambda batch: VIEWS)
    pq.write_table(VIEWS.slice(0, 4), tmp_path / "0.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[4:]), tmp_path / "1.parquet")
    return paceline.data.read_parquet(str(tmp_path), filter=paceline.data.col("b") != b"no row")


def test_views_pass_exchanges_filters_and_writers(rows: Dataset, tmp_path: Path) -> None:
    def read(dataset: Dataset) -> list[dict[str, Any]]:
        return [{name: row[name] for name in TYPES} for row in dataset.take_all()]

    by_text = sorted(ROWS, key=lambda row: (row["s"] is None, row["s"] or ""))
    assert read(rows) == ROWS
    assert read(rows.sort("s")) == by_text
    assert sorted(read(rows.random_shuffle(seed=1)), key=lambda row: row["b"]) == ROWS
    assert read(rows.filter(expr="s == 'the text of number 7'")) == [ROWS[1]]
    assert [row["count()"] for row in rows.groupby("s").count().take_all()] == [1] * 10
    joined = rows.join(rows.select_columns(["s", "b"]), "inner", on="s", right_suffix="_r").take_all()
    assert sorted((row["s"], row["b_r"]) for row in joined) == [(row["s"], row["b"]) for row in by_text[:-1]]
    rows.sort("b").write_parquet(str(tmp_path / "out"))
    assert read(paceline.data.read_parquet(str(tmp_path / "out"))) == ROWS
    kinds = dict(zip((schema := rows.schema() or pa.schema([])).names, schema.types, strict=True))
    assert (kinds["s"], kinds["u"]) == (pa.large_string(), pa.struct([("v", pa.large_string())]))
