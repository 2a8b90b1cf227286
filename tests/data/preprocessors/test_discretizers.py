"""Discretizers: what pandas.cut does."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import as_columns, cut, cuts

from paceline.data.preprocessors import CustomKBinsDiscretizer, UniformKBinsDiscretizer

VALUES = st.one_of(st.just(math.nan), st.integers(-5, 15).map(float), st.floats(-5, 15, allow_subnormal=False))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(VALUES, min_size=1, max_size=20),
    st.lists(st.integers(-3, 12), min_size=2, max_size=6, unique=True).map(sorted),
    st.booleans(),
    st.booleans(),
)
def test_values_fall_into_the_bins_of_pandas(
    values: list[float], bins: list[int], right: bool, include_lowest: bool
) -> None:
    discretizer = CustomKBinsDiscretizer(["x"], bins, right=right, include_lowest=include_lowest)
    found = discretizer.transform_batch({"x": np.array(values)})["x"]
    expected = pd.cut(pd.Series(values), bins, right=right, include_lowest=include_lowest, labels=False)
    np.testing.assert_array_equal(found.astype(float), expected.to_numpy().astype(float))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bins_of_equal_width_are_those_of_pandas(data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES, min_size=1, max_size=20).filter(lambda xs: not all(map(math.isnan, xs))))
    bins, right = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    ds = cut({"x": np.array(values)}, *data.draw(cuts(len(values))))
    discretizer = UniformKBinsDiscretizer(["x"], bins, right=right)
    found = as_columns(discretizer.fit_transform(ds))["x"]
    expected, edges = pd.cut(pd.Series(values), bins, right=right, labels=False, retbins=True)
    np.testing.assert_allclose(discretizer.stats_["x"], edges, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.astype(float), expected.to_numpy().astype(float))


@pytest.mark.parametrize(("include_lowest", "lowest"), [(True, 0.0), (False, math.nan)])
def test_the_lowest_edge_belongs_to_the_first_bin_only_where_that_is_asked(include_lowest: bool, lowest: float) -> None:
    discretizer = CustomKBinsDiscretizer(["x"], [1, 2, 3], include_lowest=include_lowest)
    np.testing.assert_array_equal(discretizer.transform_batch({"x": np.array([1.0, 3.0])})["x"], [lowest, 1.0])


def test_each_column_may_have_its_own_bins() -> None:
    ds = cut({"a": [0.2, 1.4, 6.2], "b": [10, 15, 25]}, [1], [2])
    custom = CustomKBinsDiscretizer(["a", "b"], {"a": [0, 1, 4], "b": [0, 18, 35, 70]})
    found = as_columns(custom.transform(ds))
    assert found["a"][:2].tolist() == [0, 1]
    assert math.isnan(found["a"][2])
    assert found["b"].tolist() == [0, 0, 1]
    uniform = UniformKBinsDiscretizer(["a", "b"], {"a": 4, "b": 3}, output_columns=["p", "q"]).fit(ds)
    assert {name: len(edges) for name, edges in uniform.stats_.items()} == {"a": 5, "b": 4}
    assert list(as_columns(uniform.transform(ds))) == ["a", "b", "p", "q"]


def test_bins_may_be_called_by_categories_or_have_an_integer_type() -> None:
    size = pd.CategoricalDtype(["small", "large"], ordered=True)
    discretizer = CustomKBinsDiscretizer(["x", "y"], [0, 1, 10], dtypes={"x": size, "y": np.int8})
    found = discretizer.transform_batch(pd.DataFrame({"x": [0.5, 5.0, 50.0], "y": [0.5, 5.0, 9.0]}))
    assert found["x"].dtype == size
    assert found["x"].cat.codes.tolist() == [0, 1, -1]
    assert found["y"].dtype == np.int8


@pytest.mark.parametrize("bins", [[3, 1], [1], "123", [1, math.nan], {"y": [0, 1]}, [1, 1, 2], 4])
def test_bins_that_are_none_are_refused(bins: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="bins"):
        CustomKBinsDiscretizer(["x"], bins)


def test_edges_that_are_there_twice_are_dropped_where_that_is_asked() -> None:
    discretizer = CustomKBinsDiscretizer(["x"], [0, 1, 1, 2], duplicates="drop")
    assert discretizer.transform_batch({"x": np.array([0.5, 1.5])})["x"].tolist() == [0, 1]


@pytest.mark.parametrize("values", [[1.0, math.inf], [math.nan, math.nan]], ids=["infinite", "all missing"])
def test_a_range_that_cannot_be_divided_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"UniformKBinsDiscretizer cannot be fitted: .*'x'"):
        UniformKBinsDiscretizer(["x"], 3).fit(cut({"x": np.array(values)}))


@pytest.mark.parametrize("bins", [0, 1.5, "4", True])
def test_a_number_of_bins_that_is_none_is_refused(bins: Any) -> None:
    with pytest.raises(TypeError, match="bins of 'x' are"):
        UniformKBinsDiscretizer(["x"], bins).fit(cut({"x": [1.0]}))
