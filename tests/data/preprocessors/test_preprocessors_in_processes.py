"""Preprocessors on files, in data processes: that is where rows are looked at, and only states come back."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_cut import as_columns

import paceline.data
from paceline.data.context import DataContext
from paceline.data.dataset import Dataset
from paceline.data.exec.processes import shutdown
from paceline.data.preprocessors import (
    Chain,
    Concatenator,
    CountVectorizer,
    OneHotEncoder,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)


@pytest.fixture(autouse=True)
def data_processes(data_context: DataContext) -> Iterator[None]:
    data_context.inline_below = 0
    yield
    shutdown()


def _written(path: Path, num_files: int = 4, num_rows: int = 50) -> Dataset:
    path.mkdir()
    for index in range(num_files):
        x = np.random.default_rng(index).normal(size=num_rows)
        colours = [["red", "green", "blue"][(row + index) % 3] for row in range(num_rows)]
        holes = pa.array([None if row % 7 == index else float(row) for row in range(num_rows)])
        table = pa.table({"x": x, "y": x * 3 + index, "c": colours, "n": holes, "unused": ["u"] * num_rows})
        pq.write_table(table, path / f"{index}.parquet", row_group_size=20)
    return paceline.data.read_parquet(str(path))


def test_files_are_fitted_and_transformed_as_one_batch_is(tmp_path: Path) -> None:
    ds = _written(tmp_path / "rows")
    chain = Chain(
        SimpleImputer(["n"]),
        StandardScaler(["x", "n"]),
        RobustScaler(["y"]),
        OneHotEncoder(["c"]),
        Concatenator(["x", "y", "n", "c"], dtype=np.float32, flatten=True),
    )
    found = as_columns(chain.fit_transform(ds))
    whole = pq.read_table(tmp_path / "rows")
    x, y = whole["x"].to_numpy(), whole["y"].to_numpy()
    n = whole["n"].to_numpy()
    n = np.where(np.isnan(n), np.nanmean(n), n)
    low, median, high = np.percentile(y, [25, 50, 75])
    one_hot = np.array(whole["c"].to_pylist())[:, None] == np.array(["blue", "green", "red"])
    expected = np.column_stack(
        [(x - x.mean()) / x.std(), (y - median) / (high - low), (n - n.mean()) / n.std(), one_hot]
    )
    assert list(found) == ["unused", "concat_out"]
    assert found["concat_out"].dtype == np.float32
    np.testing.assert_allclose(found["concat_out"], expected, rtol=1e-4, atol=1e-5)


def _process(text: str) -> list[str]:
    return [str(os.getpid())]


def test_rows_are_looked_at_in_data_processes(tmp_path: Path) -> None:
    ds = _written(tmp_path / "rows")
    vectorizer = CountVectorizer(["c"], tokenization_fn=_process).fit(ds)
    seen = vectorizer.stats_["token_counts(c)"]
    assert seen.total() == 4 * 50
    assert str(os.getpid()) not in seen


def test_a_failure_names_the_file(tmp_path: Path) -> None:
    ds = _written(tmp_path / "rows")
    with pytest.raises(
        ValueError, match=r"StandardScaler: column 'c' holds .*string, and numbers are needed"
    ) as caught:
        StandardScaler(["c"]).fit(ds)
    assert "0.parquet" in "".join(caught.value.__notes__)


def test_a_column_that_no_file_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    ds = _written(tmp_path / "rows")
    with pytest.raises((KeyError, ValueError), match=r"'z'[\s\S]*'x', 'y', 'c', 'n', 'unused'"):
        StandardScaler(["z"]).fit(ds)
