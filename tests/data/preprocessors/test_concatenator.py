"""Concatenator: columns become vectors, in their order, with the type NumPy would choose."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import as_columns, cut, cuts

from paceline.data.preprocessors import Concatenator


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_columns_are_stacked_in_the_order_given(data: st.DataObject) -> None:
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


def test_a_name_and_a_type_can_be_given() -> None:
    found = Concatenator(["b", "a"], output_column_name="X", dtype=np.float32).transform_batch(
        {"a": np.array([1, 2]), "b": np.array([0.5, 0.25])}
    )
    assert found["X"].dtype == np.float32
    assert found["X"].tolist() == [[0.5, 1.0], [0.25, 2.0]]


@pytest.mark.parametrize("exclude", ["y", ["y"]])
def test_without_columns_all_but_the_excluded_are_joined(exclude: Any) -> None:
    found = Concatenator(exclude=exclude).transform_batch({"a": np.array([1]), "y": np.array([9]), "b": np.array([2])})
    assert {name: values.tolist() for name, values in found.items()} == {"y": [9], "concat_out": [[1, 2]]}


@pytest.mark.parametrize(
    "vectors",
    [np.array([[1, 2], [3, 4]]), pa.array([[1, 2], [3, 4]]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))],
    ids=["tensor", "lists", "fixed lists"],
)
def test_vectors_are_joined_only_where_that_is_asked(vectors: Any) -> None:
    ds = cut({"v": vectors, "x": np.array([0.5, 0.2])}, [1], [1])
    found = as_columns(Concatenator(["v", "x"], flatten=True).transform(ds))["concat_out"]
    assert found.tolist() == [[1.0, 2.0, 0.5], [3.0, 4.0, 0.2]]
    with pytest.raises(ValueError, match=r"column 'v' holds vectors of shape \(2,\)[\s\S]*flatten=True"):
        Concatenator(["v", "x"]).transform(ds).take_all()


def test_what_is_missing_is_nan() -> None:
    frame = pd.DataFrame({"a": [1.0, None], "b": pd.array([None, 2], "Int64")})
    found = Concatenator(["a", "b"]).transform_batch(frame)
    np.testing.assert_array_equal(np.stack(found["concat_out"]), [[1, np.nan], [np.nan, 2]])


@pytest.mark.parametrize("raise_if_missing", [True, False])
def test_a_column_that_is_not_there_is_named_with_those_that_are(raise_if_missing: bool) -> None:
    with pytest.raises(ValueError, match="Concatenator: there is no column 'z'; there are: 'a', 'b'"):
        Concatenator(["a", "z"], raise_if_missing=raise_if_missing).transform_batch({"a": [1], "b": [2]})
    with pytest.raises(ValueError, match="there is no column 'z'"):
        Concatenator(exclude="z").transform_batch({"a": np.array([1])})


@pytest.mark.parametrize("values", [["a", "b"], [[1], [2, 3]]], ids=["strings", "uneven lists"])
def test_what_is_no_number_is_refused_by_name(values: Any) -> None:
    with pytest.raises(ValueError, match="Concatenator: column 'a' holds"):
        Concatenator(["a"], flatten=True).transform(cut({"a": values})).take_all()


def test_columns_and_exclude_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Concatenator(["a"], exclude=["b"])
