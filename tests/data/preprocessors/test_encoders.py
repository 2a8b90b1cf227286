"""Encoders: categories in sorted order, unseen ones, missing ones, lists, and back again."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import all_rows, as_columns, cut, cuts

from paceline.data.preprocessors import Categorizer, LabelEncoder, MultiHotEncoder, OneHotEncoder, OrdinalEncoder

KINDS = {
    "strings": st.sampled_from(["red", "green", "blue", "", "grün"]),
    "integers": st.integers(-3, 3),
    "booleans": st.booleans(),
    "floats": st.sampled_from([0.5, -1.0, 2.0, 1e300]),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_ordinals_are_places_in_sorted_order(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=20))
    ds = cut({"c": values}, *data.draw(cuts(len(values))))
    encoder = OrdinalEncoder(["c"])
    found = as_columns(encoder.fit_transform(ds))["c"]
    assert found.dtype == np.int64
    assert found.tolist() == np.unique(np.array(values), return_inverse=True)[1].tolist()
    assert list(encoder.stats_["unique_values(c)"]) == sorted(set(values))


@each_kind
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_one_hot_vectors_have_a_one_where_the_category_is(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=20))
    ds = cut({"c": values}, *data.draw(cuts(len(values))))
    found = as_columns(OneHotEncoder(["c"]).fit_transform(ds))["c"]
    expected = np.array(values)[:, None] == np.array(sorted(set(values)))[None, :]
    assert found.dtype == np.uint8
    assert found.tolist() == expected.astype(int).tolist()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_multi_hot_vectors_count_what_is_in_a_list(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=1, max_size=12))
    ds = cut({"c": pa.array(values, pa.list_(pa.string()))}, *data.draw(cuts(len(values))))
    categories = sorted({item for row in values for item in row})
    found = all_rows(MultiHotEncoder(["c"]).fit_transform(ds)).to_numpy()["c"]
    assert found.reshape(len(values), -1).tolist() == [[Counter(row)[item] for item in categories] for row in values]


def test_unseen_categories_are_nan_for_ordinals_and_zeros_for_vectors() -> None:
    seen, unseen = cut({"c": ["a", "b"]}), cut({"c": ["b", "z"]})
    ordinals = as_columns(OrdinalEncoder(["c"]).fit(seen).transform(unseen))["c"]
    assert ordinals[0] == 1
    assert math.isnan(ordinals[1])
    assert as_columns(OneHotEncoder(["c"]).fit(seen).transform(unseen))["c"].tolist() == [[0, 1], [0, 0]]
    labels = as_columns(LabelEncoder("c").fit(seen).transform(unseen))["c"]
    assert labels[0] == 1
    assert math.isnan(labels[1])


def test_the_most_frequent_categories_come_first_and_of_equals_the_first() -> None:
    encoder = OneHotEncoder(["c"], max_categories={"c": 2})
    ds = cut({"c": ["x", "green", "red", "red", "blue", "green"]}, [1, 2], [3])
    found = as_columns(encoder.fit_transform(ds))["c"]
    assert encoder.stats_ == {"unique_values(c)": {"green": 0, "red": 1}}
    assert found.tolist() == [[0, 0], [1, 0], [0, 1], [0, 1], [0, 0], [1, 0]]


def test_ordinals_of_what_is_in_lists_and_of_whole_lists() -> None:
    genres = [["comedy", "action"], ["drama"], ["comedy", "action"]]
    ds = cut({"c": genres}, [1], [2])
    assert all_rows(OrdinalEncoder(["c"]).fit_transform(ds)).columns["c"].to_pylist() == [[1, 0], [2], [1, 0]]
    whole = OrdinalEncoder(["c"], encode_lists=False)
    assert as_columns(whole.fit_transform(ds))["c"].tolist() == [0, 1, 0]
    assert whole.stats_ == {"unique_values(c)": {("comedy", "action"): 0, ("drama",): 1}}
    assert as_columns(OneHotEncoder(["c"]).fit_transform(ds))["c"].tolist() == [[1, 0], [0, 1], [1, 0]]


def test_tensors_of_categories_stay_tensors() -> None:
    ds = cut({"c": np.array([[10, 30], [20, 10]])})
    assert as_columns(OrdinalEncoder(["c"]).fit_transform(ds))["c"].tolist() == [[0, 2], [1, 0]]
    assert as_columns(MultiHotEncoder(["c"]).fit_transform(ds))["c"].tolist() == [[1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("encoder", [OrdinalEncoder, OneHotEncoder, MultiHotEncoder])
@pytest.mark.parametrize("values", [["a", None], [1.0, math.nan]], ids=["null", "nan"])
def test_what_is_missing_is_refused_with_a_hint(encoder: Any, values: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot be fitted: column 'c' has 1 missing[\s\S]*SimpleImputer"):
        encoder(["c"]).fit(cut({"c": values}))
    fitted = encoder(["c"]).fit(cut({"c": values[:1]}))
    with pytest.raises(ValueError, match=r"column 'c' has 1 missing values among 2[\s\S]*SimpleImputer"):
        fitted.transform_batch({"c": np.array(values, dtype=object)})


@pytest.mark.parametrize(
    ("fitted_on", "asked"),
    [
        (np.array([1, 2, 3]), np.array([3.0, 1.0, 2.5])),
        (np.array([1, 2, 3], np.int8), np.array([3, 1, 200], np.uint8)),
        (np.array([1.0, 2.0, 3.0]), np.array([3, 1, 7])),
        (np.array([0.5, 1.0, 3.0], np.float32), np.array([3.0, 0.5, 0.1])),
        (pa.array(["1", "2", "3"]), pa.array(["3", "1", "x"], pa.large_string())),
        (pa.array(["1", "2", "3"]), pa.array(["3", "1", "x"]).dictionary_encode()),
        (np.array([1, 2, 2**40]), np.array([2**40, 1, 2**64 - 1], np.uint64)),
    ],
    ids=["int as float", "int8 as uint8", "float as int", "float32 as float64", "large", "dictionary", "uint64"],
)
def test_categories_are_found_again_in_columns_of_other_types(fitted_on: Any, asked: Any) -> None:
    encoder = OrdinalEncoder(["c"]).fit(cut({"c": fitted_on}))
    found = all_rows(encoder.transform(cut({"c": asked}))).to_numpy()["c"]
    assert found[:2].tolist() == [2, 0]
    assert math.isnan(found[2])


def test_labels_come_back_from_their_numbers() -> None:
    ds = cut({"y": ["setosa", "virginica", "setosa", "versicolor"]}, [3], [1])
    encoder = LabelEncoder("y")
    coded = encoder.fit_transform(ds)
    assert as_columns(coded)["y"].tolist() == [0, 2, 0, 1]
    assert as_columns(encoder.inverse_transform(coded))["y"].tolist() == as_columns(ds)["y"].tolist()
    back = encoder.inverse_transform_batch(pd.DataFrame({"y": [1.0, math.nan]}))
    assert back["y"].tolist()[0] == "versicolor"
    assert back["y"].isna().tolist() == [False, True]


def test_labels_can_go_to_another_column_and_come_back_from_it() -> None:
    encoder = LabelEncoder("y", output_column="n").fit(cut({"y": [30, 10]}))
    assert as_columns(encoder.transform(cut({"y": [10, 30]}))) == {
        "y": pytest.approx(np.array([10, 30])),
        "n": pytest.approx(np.array([0, 1])),
    }
    assert as_columns(encoder.inverse_transform(cut({"n": [1, 0]})))["y"].tolist() == [30, 10]


def test_categories_become_those_of_pandas() -> None:
    frame = pd.DataFrame({"sex": ["male", "female", "male"], "level": ["L4", "L5", None]})
    level = pd.CategoricalDtype(["L5", "L4", "L3"], ordered=True)
    categorizer = Categorizer(["sex", "level"], dtypes={"level": level})
    ds = categorizer.fit_transform(cut(frame.to_dict("list"), [1], [2]))
    found = all_rows(ds).to_pandas()
    assert found["sex"].cat.categories.tolist() == ["female", "male"]
    assert found["sex"].tolist() == ["male", "female", "male"]
    batch = categorizer.transform_batch(frame)
    assert batch["level"].dtype == level
    assert batch["level"].cat.codes.tolist() == [1, 0, -1]


def test_learnt_categories_leave_out_what_is_missing() -> None:
    categorizer = Categorizer(["c"]).fit(cut({"c": ["b", None, "a"]}))
    assert categorizer.stats_["c"].categories.tolist() == ["a", "b"]


def test_values_that_have_no_order_are_refused_by_their_types() -> None:
    with pytest.raises(ValueError, match="column 'c' holds values that have no order among them: int, str"):
        OrdinalEncoder(["c"]).fit(cut({"c": np.array([1, "a"], dtype=object)}))


@pytest.mark.parametrize("limits", [{"z": 2}, {"c": 0}, {"c": "2"}])
def test_wrong_limits_are_refused(limits: Any) -> None:
    with pytest.raises(ValueError, match="max_categories"):
        OneHotEncoder(["c"], max_categories=limits)
