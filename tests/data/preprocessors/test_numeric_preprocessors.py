"""Preprocessors of numbers against their definitions: scalers, normalizers, powers, bins and vectors of columns."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import as_columns, cut, cuts

from paceline.data import preprocessors as pp
from paceline.data.block import Block
from paceline.data.preprocessors import Concatenator, MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from paceline.data.preprocessors.fitting import QuantileStatistic, merge_states

VALUES = st.one_of(st.just(math.nan), st.floats(-1e5, 1e5, allow_subnormal=False).map(lambda x: round(x, 4)))


DEFINITIONS = {
    StandardScaler: lambda x: (x - np.nanmean(x)) / (np.nanstd(x) if np.nanmin(x) != np.nanmax(x) else 1),
    MinMaxScaler: lambda x: (x - np.nanmin(x)) / ((np.nanmax(x) - np.nanmin(x)) or 1),
    MaxAbsScaler: lambda x: x / (np.nanmax(np.abs(x)) or 1),
    RobustScaler: lambda x: (x - np.nanmedian(x)) / (np.subtract(*np.nanpercentile(x, [75, 25])) or math.inf),
}
each_scaler = pytest.mark.parametrize(("scaler", "definition"), DEFINITIONS.items(), ids=lambda each: each.__name__)


@each_scaler
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_dataset_is_scaled_as_defined_wherever_it_is_cut(scaler, definition, data):
    x = np.array(data.draw(st.lists(VALUES, min_size=1, max_size=30)))
    y = np.arange(len(x))
    ds = cut({"x": x, "y": y}, *data.draw(cuts(len(x))))
    found = as_columns(scaler(["x"]).fit_transform(ds))
    assert found["y"].tolist() == y.tolist()
    if np.isnan(x).all():
        assert np.isnan(found["x"]).all()
    else:
        np.testing.assert_allclose(found["x"], definition(x), rtol=1e-6, atol=1e-6)


@each_scaler
def test_constant_missing_and_narrow_numbers_are_scaled_into_another_column(scaler, definition):
    def scale(values, *units):
        found = as_columns(scaler(["x"], output_columns=["z"]).fit_transform(cut({"x": values}, *units)))
        np.testing.assert_array_equal(found["x"].astype(float), np.array(values.tolist(), float))
        return found["z"]

    assert scale(np.full(5, 0.1), [2], [3]).tolist() == ([1.0] * 5 if scaler is MaxAbsScaler else [0.0] * 5)
    nulls = scale(pa.array([1, None, 4, None, 7], pa.int32()), [2, 1], [2])
    np.testing.assert_allclose(nulls, definition(np.array([1, np.nan, 4, np.nan, 7])))
    for dtype, wide in (("float32", "float32"), ("uint8", "float64")):
        x = np.array([200, 3, 90, 255], dtype)
        found = scale(x, [1], [3])
        assert found.dtype == wide, "floats keep their width, and integers do not wrap"
        np.testing.assert_allclose(found, definition(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


@each_scaler
def test_strings_and_tensors_are_refused_by_name(scaler, definition):
    with pytest.raises(ValueError, match=f"{scaler.__name__}: column 'x' must have numbers, got string"):
        scaler(["x"]).fit(cut({"x": ["a", "b"]}))
    with pytest.raises(ValueError, match=r"tensors of shape \(2,\)[\s\S]*hint"):
        scaler(["x"]).fit(cut({"x": np.ones((3, 2))}))


def test_the_statistics_have_the_names_that_ray_gives_them():
    ds = cut({"x": np.array([1, 2, 3, 6])})
    assert StandardScaler(["x"]).fit(ds).stats_ == {"mean(x)": 3.0, "std(x)": pytest.approx(math.sqrt(3.5))}
    assert MinMaxScaler(["x"]).fit(ds).stats_ == {"min(x)": 1, "max(x)": 6}
    assert MaxAbsScaler(["x"]).fit(ds).stats_ == {"abs_max(x)": 6}
    robust = RobustScaler(["x"], quantile_range=(0.0, 1.0)).fit(ds)
    assert robust.stats_ == {"low_quantile(x)": 1.0, "median(x)": 2.5, "high_quantile(x)": 6.0}


RANKS = np.arange(50_000, dtype=np.float64)
random = np.random.default_rng(0)
SHAPES = {
    "shuffled": random.permutation(RANKS),
    "ascending": RANKS,
    "descending": RANKS[::-1].copy(),
    "heavy tail": random.pareto(1.0, len(RANKS)),
}


@pytest.mark.parametrize("values", SHAPES.values(), ids=SHAPES.keys())
def test_quantiles_beyond_the_precision_are_off_by_no_more_ranks_than_is_said(values):
    num, precision, wanted = len(values), 500, np.linspace(0, 1, 21)
    statistic = QuantileStatistic("x", tuple(wanted.tolist()), precision, "test")
    whole = merge_states(statistic, [statistic.partial(Block({"x": part})) for part in np.array_split(values, 37)])
    assert sum(map(len, whole)) <= precision * (math.ceil(math.log2(num / precision)) + 1)
    assert sum(len(level) * 2**index for index, level in enumerate(whole)) == num
    ranks = np.searchsorted(np.sort(values), statistic.finish(whole)) / num
    assert np.abs(ranks - wanted).max() < math.log2(num / precision) / precision


ROWS = st.lists(st.tuples(*[st.floats(-1e3, 1e3, allow_subnormal=False)] * 3), min_size=1, max_size=10)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_rows_have_a_norm_of_one_or_are_zeros(norm, rows):
    matrix = np.array(rows)
    order = {"l1": 1, "l2": 2, "max": np.inf}[norm]
    norms = np.linalg.norm(matrix, ord=order, axis=1)
    expected = matrix / np.where(norms == 0, 1, norms)[:, None]
    found = pp.Normalizer(["a", "b", "c"], norm).transform_batch(dict(zip("abc", matrix.T, strict=True)))
    np.testing.assert_allclose(np.stack([found[name] for name in "abc"], axis=1), expected, rtol=1e-9, atol=1e-12)


def _yeo_johnson(x, power):
    if x >= 0:
        return math.log(x + 1) if power == 0 else ((x + 1) ** power - 1) / power
    return -math.log(1 - x) if power == 2 else -((1 - x) ** (2 - power) - 1) / (2 - power)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50, allow_subnormal=False), min_size=1), st.sampled_from([-2.5, 0, 0.5, 1, 2, 2.5]))
def test_powers_are_as_defined(values, power):
    found = pp.PowerTransformer(["x"], power).transform_batch({"x": np.array(values)})["x"]
    np.testing.assert_allclose(found, [_yeo_johnson(x, power) for x in values], rtol=1e-9, atol=1e-12)
    positive = [abs(x) + 0.01 for x in values]
    found = pp.PowerTransformer(["x"], power, "box-cox").transform_batch({"x": np.array(positive)})["x"]
    expected = [math.log(x) if power == 0 else (x**power - 1) / power for x in positive]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_what_is_missing_stays_missing():
    assert math.isnan(pp.PowerTransformer(["x"], 0.5).transform_batch({"x": np.array([math.nan])})["x"][0])
    found = pp.Normalizer(["x", "y"]).transform_batch({"x": np.array([math.nan]), "y": np.array([1.0])})
    assert math.isnan(found["x"][0])
    frame = pd.DataFrame({"a": [1.0, None], "b": pd.array([None, 2], "Int64")})
    found = Concatenator(["a", "b"]).transform_batch(frame)
    np.testing.assert_array_equal(np.stack(found["concat_out"]), [[1, np.nan], [np.nan, 2]])


VALUES_TO_CUT = st.one_of(st.just(math.nan), st.integers(-5, 15).map(float), st.floats(-5, 15, allow_subnormal=False))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(VALUES_TO_CUT, min_size=1, max_size=20),
    st.lists(st.integers(-3, 12), min_size=2, max_size=6, unique=True).map(sorted),
    st.booleans(),
    st.booleans(),
)
def test_values_fall_into_the_bins_of_pandas(values, bins, right, include_lowest):
    discretizer = pp.CustomKBinsDiscretizer(["x"], bins, right=right, include_lowest=include_lowest)
    found = discretizer.transform_batch({"x": np.array(values)})["x"]
    expected = pd.cut(pd.Series(values), bins, right=right, include_lowest=include_lowest, labels=False)
    np.testing.assert_array_equal(found.astype(float), expected.to_numpy().astype(float))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bins_of_equal_width_are_those_of_pandas(data):
    values = data.draw(st.lists(VALUES_TO_CUT, min_size=1, max_size=20).filter(lambda xs: not all(map(math.isnan, xs))))
    bins, right = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    ds = cut({"x": np.array(values)}, *data.draw(cuts(len(values))))
    discretizer = pp.UniformKBinsDiscretizer(["x"], bins, right=right)
    found = as_columns(discretizer.fit_transform(ds))["x"]
    expected, edges = pd.cut(pd.Series(values), bins, right=right, labels=False, retbins=True)
    np.testing.assert_allclose(discretizer.stats_["x"], edges, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.astype(float), expected.to_numpy().astype(float))


def test_each_column_may_have_its_own_bins():
    ds = cut({"a": [0.2, 1.4, 6.2], "b": [10, 15, 25]}, [1], [2])
    custom = pp.CustomKBinsDiscretizer(["a", "b"], {"a": [0, 1, 4], "b": [0, 18, 35, 70]})
    found = as_columns(custom.transform(ds))
    assert found["a"][:2].tolist() == [0, 1]
    assert math.isnan(found["a"][2])
    assert found["b"].tolist() == [0, 0, 1]
    uniform = pp.UniformKBinsDiscretizer(["a", "b"], {"a": 4, "b": 3}, output_columns=["p", "q"]).fit(ds)
    assert {name: len(edges) for name, edges in uniform.stats_.items()} == {"a": 5, "b": 4}
    assert list(as_columns(uniform.transform(ds))) == ["a", "b", "p", "q"]


def test_bins_may_be_called_by_categories_or_have_an_integer_type():
    size = pd.CategoricalDtype(["small", "large"], ordered=True)
    custom = pp.CustomKBinsDiscretizer(["x", "y"], [0, 1, 1, 10], dtypes={"x": size, "y": np.int8}, duplicates="drop")
    found = custom.transform_batch(pd.DataFrame({"x": [0.5, 5.0, 50.0], "y": [0.5, 5.0, 9.0]}))
    assert found["x"].dtype == size
    assert found["x"].cat.codes.tolist() == [0, 1, -1]
    assert found["y"].dtype == np.int8
    assert found["y"].tolist() == [0, 1, 1]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_columns_are_stacked_in_the_order_given(data):
    num = data.draw(st.integers(1, 12))
    kinds = st.sampled_from(["int8", "int64", "float32", "float64", "bool"])
    dtypes = data.draw(st.lists(kinds, min_size=1, max_size=5))
    columns = {f"c{index}": (np.arange(num) % 2 + index % 2).astype(dtype) for index, dtype in enumerate(dtypes)}
    names = data.draw(st.permutations(list(columns)))
    ds = cut({**columns, "rest": np.arange(num)}, *data.draw(cuts(num)))
    found = as_columns(Concatenator(names).transform(ds))
    expected = np.stack([columns[name] for name in names], axis=1)
    assert list(found) == ["rest", "concat_out"]
    assert found["concat_out"].dtype == expected.dtype
    assert found["concat_out"].tolist() == expected.tolist()


def test_a_name_a_type_and_columns_to_leave_out_can_be_given():
    batch = {"a": np.array([1, 2]), "b": np.array([0.5, 0.25]), "y": np.array([9, 8])}
    found = Concatenator(["b", "a"], output_column_name="X", dtype=np.float32).transform_batch(batch)
    assert found["X"].dtype == np.float32
    assert found["X"].tolist() == [[0.5, 1.0], [0.25, 2.0]]
    for exclude in ("y", ["y"]):
        found = Concatenator(exclude=exclude).transform_batch(batch)
        assert list(found) == ["y", "concat_out"]
        assert found["concat_out"].tolist() == [[1.0, 0.5], [2.0, 0.25]]


@pytest.mark.parametrize(
    "vectors",
    [np.array([[1, 2], [3, 4]]), pa.array([[1, 2], [3, 4]]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))],
    ids=["tensor", "lists", "fixed lists"],
)
def test_vectors_are_joined_only_on_request(vectors):
    ds = cut({"v": vectors, "x": np.array([0.5, 0.2])}, [1], [1])
    found = as_columns(Concatenator(["v", "x"], flatten=True).transform(ds))["concat_out"]
    assert found.tolist() == [[1.0, 2.0, 0.5], [3.0, 4.0, 0.2]]
    with pytest.raises(ValueError, match=r"column 'v' has vectors of shape \(2,\)[\s\S]*flatten=True"):
        Concatenator(["v", "x"]).transform(ds).take_all()
