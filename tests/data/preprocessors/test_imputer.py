"""SimpleImputer: null and nan are filled, in every kind of column."""

import math
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import all_rows, as_columns, blocks, cut, cuts

from paceline.data.preprocessors import SimpleImputer


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_mean_of_what_is_there_fills_what_is_missing(data: st.DataObject) -> None:
    number = st.one_of(st.none(), st.just(math.nan), st.integers(-100, 100).map(float))
    values = data.draw(st.lists(number, max_size=20).map(lambda xs: [*xs, 1.0]))
    ds = cut({"x": pa.array(values, pa.float64(), from_pandas=False)}, *data.draw(cuts(len(values))))
    x = np.array([math.nan if value is None else value for value in values])
    found = as_columns(SimpleImputer(["x"]).fit_transform(ds))["x"]
    np.testing.assert_allclose(found, np.where(np.isnan(x), np.nanmean(x), x))


@pytest.mark.parametrize(
    ("values", "fill"),
    [
        (pa.array(["b", None, "c", "c"]), "c"),
        (pa.array([5, None, 5, 2]), 5),
        (pa.array([0.5, math.nan, 0.5, None], from_pandas=False), 0.5),
        (pa.array([True, None, True, False]), True),
        (pa.array([date(2024, 1, 2), None, date(2024, 1, 2)]), date(2024, 1, 2)),
        (pa.array(["b", None, "c", "c"]).dictionary_encode(), "c"),
        (pa.array([b"x", None]), b"x"),
    ],
    ids=["strings", "integers", "floats", "booleans", "dates", "dictionary", "bytes"],
)
def test_the_most_frequent_value_fills_columns_of_every_kind(values: Any, fill: Any) -> None:
    imputer = SimpleImputer(["x"], strategy="most_frequent")
    found = all_rows(imputer.fit_transform(cut({"x": values}, [1], [len(values) - 1])))
    assert imputer.stats_ == {"most_frequent(x)": fill}
    missing = [x is None or (isinstance(x, float) and math.isnan(x)) for x in values.to_pylist()]
    expected = [fill if gone else x for gone, x in zip(missing, values.to_pylist(), strict=True)]
    assert [row["x"] for row in found.rows()] == expected


def test_of_equally_frequent_values_the_last_by_its_text_is_taken_wherever_rows_are_cut() -> None:
    for units in ([[4]], [[1], [3]], [[2, 2]]):
        imputer = SimpleImputer(["x"], "most_frequent").fit(cut({"x": ["b", "a", "c", None]}, *units))
        assert imputer.stats_ == {"most_frequent(x)": "c"}


def test_a_constant_needs_no_fit_and_makes_a_column_that_is_not_there() -> None:
    imputer = SimpleImputer(["x", "y"], strategy="constant", fill_value=7)
    assert imputer.fit_status() == SimpleImputer.FitStatus.NOT_FITTABLE
    found = imputer.transform_batch(pd.DataFrame({"x": [1.0, math.nan]}, index=[5, 6]))
    assert found.to_dict("list") == {"x": [1.0, 7.0], "y": [7, 7]}
    assert found.index.tolist() == [5, 6]


def test_integers_keep_their_type_when_an_integer_fills_them() -> None:
    found = SimpleImputer(["x"], "constant", 7).transform_batch(pa.table({"x": pa.array([1, None], pa.int16())}))
    assert found["x"].type == pa.int16()
    assert found["x"].to_pylist() == [1, 7]


def test_a_mean_makes_floats_of_integers_in_all_blocks_alike() -> None:
    ds = cut({"x": pa.array([1, 2, None, 6])}, [2], [2])
    filled = SimpleImputer(["x"]).fit_transform(ds)
    assert [block.to_numpy()["x"].dtype for block in blocks(filled)] == [np.float64, np.float64]


def test_categories_of_pandas_get_one_more() -> None:
    frame = pd.DataFrame({"x": pd.Categorical(["a", None, "b"])})
    found = SimpleImputer(["x"], "constant", "?").transform_batch(frame)
    assert found["x"].tolist() == ["a", "?", "b"]
    assert found["x"].cat.categories.tolist() == ["a", "b", "?"]


def test_results_can_go_to_other_columns() -> None:
    found = SimpleImputer(["x"], output_columns=["z"]).fit_transform(cut({"x": np.array([1.0, math.nan])}))
    columns = as_columns(found)
    assert math.isnan(columns["x"][1])
    assert columns["z"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("strategy", ["mean", "most_frequent"])
def test_a_column_without_a_value_cannot_be_fitted(strategy: str) -> None:
    with pytest.raises(ValueError, match="all values of column 'x' are missing"):
        SimpleImputer(["x"], strategy).fit(cut({"x": np.array([math.nan, math.nan])}))


@pytest.mark.parametrize("values", [np.array([1.0, math.nan]), pa.array([1, None])], ids=["floats", "integers"])
def test_a_text_does_not_go_into_numbers(values: Any) -> None:
    with pytest.raises(ValueError, match=r"column 'x' holds .* and '\?' cannot be put there"):
        SimpleImputer(["x"], "constant", "?").transform(cut({"x": values})).take_all()


@pytest.mark.parametrize(
    ("strategy", "fill_value"), [("median", None), ("constant", None), ("mean", 3)], ids=["unknown", "none", "both"]
)
def test_strategies_that_make_no_sense_are_refused(strategy: str, fill_value: Any) -> None:
    with pytest.raises(ValueError, match=f"strategy='{strategy}'"):
        SimpleImputer(["x"], strategy, fill_value)
