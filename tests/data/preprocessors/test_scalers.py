"""Scalers: what scikit-learn defines, written out in NumPy."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import as_columns, cut, cuts

from paceline.data.preprocessors import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

VALUES = st.one_of(st.just(math.nan), st.floats(-1e5, 1e5, allow_subnormal=False).map(lambda x: round(x, 4)))


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - np.nanmean(x)) / (np.nanstd(x) if np.nanmin(x) != np.nanmax(x) else 1)


def _min_max(x: np.ndarray) -> np.ndarray:
    return (x - np.nanmin(x)) / ((np.nanmax(x) - np.nanmin(x)) or 1)


def _max_abs(x: np.ndarray) -> np.ndarray:
    return x / (np.nanmax(np.abs(x)) or 1)


def _robust(x: np.ndarray) -> np.ndarray:
    low, median, high = np.nanpercentile(x, [25, 50, 75])
    return (x - median) / (high - low) if high != low else np.where(np.isnan(x), x, 0.0)


SCALERS = [(StandardScaler, _standard), (MinMaxScaler, _min_max), (MaxAbsScaler, _max_abs), (RobustScaler, _robust)]
each_scaler = pytest.mark.parametrize(("scaler", "definition"), SCALERS, ids=[scaler.__name__ for scaler, _ in SCALERS])


@each_scaler
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_dataset_is_scaled_as_defined_wherever_it_is_cut(scaler: Any, definition: Any, data: st.DataObject) -> None:
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
def test_a_constant_column_becomes_zeros_or_stays_in_range(scaler: Any, definition: Any) -> None:
    found = as_columns(scaler(["x"]).fit_transform(cut({"x": np.full(5, 0.1)}, [2], [3])))
    assert found["x"].tolist() == ([1.0] * 5 if scaler is MaxAbsScaler else [0.0] * 5)


@each_scaler
def test_nulls_are_not_counted_and_stay_missing(scaler: Any, definition: Any) -> None:
    ds = cut({"x": pa.array([1, None, 4, None, 7], pa.int32())}, [2, 1], [2])
    found = as_columns(scaler(["x"]).fit_transform(ds))["x"]
    np.testing.assert_allclose(found, definition(np.array([1, np.nan, 4, np.nan, 7])))


@each_scaler
@pytest.mark.parametrize(
    ("given_as", "comes_as"), [("float32", "float32"), ("float64", "float64"), ("uint8", "float64")]
)
def test_floats_keep_their_width_and_integers_do_not_wrap(
    scaler: Any, definition: Any, given_as: str, comes_as: str
) -> None:
    x = np.array([200, 3, 90, 255], given_as)
    found = as_columns(scaler(["x"]).fit_transform(cut({"x": x}, [1], [3])))["x"]
    assert found.dtype == comes_as
    np.testing.assert_allclose(found, definition(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


@each_scaler
def test_results_can_go_to_other_columns(scaler: Any, definition: Any) -> None:
    x = np.array([1.0, 2.0, 4.0])
    found = as_columns(scaler(["x"], output_columns=["z"]).fit_transform(cut({"x": x})))
    assert found["x"].tolist() == x.tolist()
    np.testing.assert_allclose(found["z"], definition(x))


@each_scaler
def test_strings_are_refused_by_name(scaler: Any, definition: Any) -> None:
    with pytest.raises(ValueError, match=f"{scaler.__name__}: column 'x' holds string, and numbers are needed"):
        scaler(["x"]).fit(cut({"x": ["a", "b"]}))


@each_scaler
def test_tensors_are_refused_with_a_hint(scaler: Any, definition: Any) -> None:
    with pytest.raises(ValueError, match=r"tensors of shape \(2,\)[\s\S]*hint"):
        scaler(["x"]).fit(cut({"x": np.ones((3, 2))}))


def test_the_statistics_have_the_names_that_ray_gives_them() -> None:
    ds = cut({"x": np.array([1, 2, 3, 6])})
    assert StandardScaler(["x"]).fit(ds).stats_ == {"mean(x)": 3.0, "std(x)": pytest.approx(math.sqrt(3.5))}
    assert MinMaxScaler(["x"]).fit(ds).stats_ == {"min(x)": 1, "max(x)": 6}
    assert MaxAbsScaler(["x"]).fit(ds).stats_ == {"abs_max(x)": 6}
    robust = RobustScaler(["x"], quantile_range=(0.0, 1.0)).fit(ds)
    assert robust.stats_ == {"low_quantile(x)": 1.0, "median(x)": 2.5, "high_quantile(x)": 6.0}


def test_a_robust_scaler_of_more_values_than_it_holds_is_near() -> None:
    x = np.random.default_rng(3).normal(size=20_000)
    ds = cut({"x": x}, [5_000, 5_000], [10_000])
    near = RobustScaler(["x"], quantile_precision=1_000).fit(ds).stats_
    exact = RobustScaler(["x"]).fit(ds).stats_
    assert near != exact
    assert near == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("quantile_range", [(0.75, 0.25), (-0.1, 0.5), (0.5, 1.5)])
def test_quantiles_out_of_range_are_refused(quantile_range: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="quantile_range="):
        RobustScaler(["x"], quantile_range=quantile_range)
