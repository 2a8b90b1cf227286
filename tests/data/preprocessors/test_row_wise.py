"""Normalizer and PowerTransformer, against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.preprocessors import Normalizer, PowerTransformer

ROWS = st.lists(st.tuples(*[st.floats(-1e3, 1e3, allow_subnormal=False)] * 3), min_size=1, max_size=10)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_rows_have_a_norm_of_one_or_are_zeros(norm: str, rows: list[tuple[float, float, float]]) -> None:
    matrix = np.array(rows)
    order = {"l1": 1, "l2": 2, "max": np.inf}[norm]
    norms = np.linalg.norm(matrix, ord=order, axis=1)
    expected = matrix / np.where(norms == 0, 1, norms)[:, None]
    found = Normalizer(["a", "b", "c"], norm).transform_batch(dict(zip("abc", matrix.T, strict=True)))
    np.testing.assert_allclose(np.stack([found[name] for name in "abc"], axis=1), expected, rtol=1e-9, atol=1e-12)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="norm='l3' must be one of 'l1', 'l2', 'max'"):
        Normalizer(["a"], "l3")


def _yeo_johnson(x: float, power: float) -> float:
    if x >= 0:
        return math.log(x + 1) if power == 0 else ((x + 1) ** power - 1) / power
    return -math.log(1 - x) if power == 2 else -((1 - x) ** (2 - power) - 1) / (2 - power)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-50, 50, allow_subnormal=False), min_size=1, max_size=10),
    st.sampled_from([-2.5, 0, 0.5, 1, 2, 2.5]),
)
def test_yeo_johnson_is_as_defined(values: list[float], power: float) -> None:
    found = PowerTransformer(["x"], power).transform_batch({"x": np.array(values)})["x"]
    np.testing.assert_allclose(found, [_yeo_johnson(x, power) for x in values], rtol=1e-9, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=10), st.sampled_from([-2.5, 0, 0.5, 1, 2]))
def test_box_cox_is_as_defined(values: list[float], power: float) -> None:
    found = PowerTransformer(["x"], power, "box-cox").transform_batch({"x": np.array(values)})["x"]
    expected = [math.log(x) if power == 0 else (x**power - 1) / power for x in values]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_what_is_missing_stays_missing() -> None:
    assert math.isnan(PowerTransformer(["x"], 0.5).transform_batch({"x": np.array([math.nan])})["x"][0])
    found = Normalizer(["x", "y"]).transform_batch({"x": np.array([math.nan]), "y": np.array([1.0])})
    assert math.isnan(found["x"][0])


def test_box_cox_refuses_what_is_not_positive() -> None:
    with pytest.raises(ValueError, match=r"column 'x' has the value 0.0[\s\S]*yeo-johnson"):
        PowerTransformer(["x"], 0.5, "box-cox").transform_batch({"x": np.array([1.0, 0.0])})


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method='log' must be one of"):
        PowerTransformer(["x"], 1, "log")
