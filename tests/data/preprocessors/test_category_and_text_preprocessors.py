"""Encoders, tokenizers, vectorizers and the hasher: categories and texts as numbers; and what is missing, filled."""

import math
from collections import Counter
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import all_rows, as_columns, blocks, cut, cuts

from paceline.data import preprocessors as pp
from paceline.data.preprocessors import LabelEncoder, MultiHotEncoder, OneHotEncoder, OrdinalEncoder
from paceline.data.preprocessors.text import hash_bucket

KINDS = {
    "strings": st.sampled_from(["red", "green", "blue", "", "grün"]),
    "integers": st.integers(-3, 3),
    "booleans": st.booleans(),
    "floats": st.sampled_from([0.5, -1.0, 0.0, -0.0, 1e300]),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_ordinals_and_ones_are_at_the_places_in_sorted_order(kind, data):
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=20))
    ds = cut({"c": values}, *data.draw(cuts(len(values))))
    encoder = OrdinalEncoder(["c"])
    ordinals = as_columns(encoder.fit_transform(ds))["c"]
    assert ordinals.dtype == np.int64
    assert ordinals.tolist() == np.unique(np.array(values), return_inverse=True)[1].tolist()
    assert list(encoder.stats_["unique_values(c)"]) == sorted(set(values))
    vectors = as_columns(OneHotEncoder(["c"]).fit_transform(ds))["c"]
    assert vectors.dtype == np.uint8
    assert vectors.tolist() == np.eye(len(set(values)), dtype=int)[ordinals].tolist()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_multi_hot_vectors_count_what_is_in_a_list(data):
    values = data.draw(st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=1, max_size=12))
    ds = cut({"c": pa.array(values, pa.list_(pa.string()))}, *data.draw(cuts(len(values))))
    categories = sorted({item for row in values for item in row})
    found = all_rows(MultiHotEncoder(["c"]).fit_transform(ds)).to_numpy()["c"]
    assert found.reshape(len(values), -1).tolist() == [[Counter(row)[item] for item in categories] for row in values]


@pytest.mark.parametrize("make", [OrdinalEncoder, OneHotEncoder, MultiHotEncoder, lambda names: LabelEncoder(*names)])
@pytest.mark.parametrize("zeros", [np.array([-0.0, 0.0]), [-0.0, 0.0], [[-0.0], [0.0]]])
def test_both_zeros_are_the_same_category(make, zeros):
    ds = cut({"c": zeros}, [1], [1])
    found = as_columns(make(["c"]).fit_transform(ds))["c"].tolist()
    assert found[0] == found[1]
    assert 0 in np.ravel(found) or 1 in np.ravel(found)


def test_the_most_frequent_categories_come_first_and_of_equals_the_first():
    encoder = OneHotEncoder(["c"], max_categories={"c": 2})
    ds = cut({"c": ["x", "green", "red", "red", "blue", "green"]}, [1, 2], [3])
    found = as_columns(encoder.fit_transform(ds))["c"]
    assert encoder.stats_ == {"unique_values(c)": {"green": 0, "red": 1}}
    assert found.tolist() == [[0, 0], [1, 0], [0, 1], [0, 1], [0, 0], [1, 0]]


def test_ordinals_of_what_is_in_lists_and_tensors_and_of_whole_lists():
    genres = [["comedy", "action"], ["drama"], ["comedy", "action"]]
    ds = cut({"c": genres}, [1], [2])
    assert all_rows(OrdinalEncoder(["c"]).fit_transform(ds)).columns["c"].to_pylist() == [[1, 0], [2], [1, 0]]
    whole = OrdinalEncoder(["c"], encode_lists=False)
    assert as_columns(whole.fit_transform(ds))["c"].tolist() == [0, 1, 0]
    assert whole.stats_ == {"unique_values(c)": {("comedy", "action"): 0, ("drama",): 1}}
    assert as_columns(OneHotEncoder(["c"]).fit_transform(ds))["c"].tolist() == [[1, 0], [0, 1], [1, 0]]
    tensors = cut({"c": np.array([[10, 30], [20, 10]])})
    assert as_columns(OrdinalEncoder(["c"]).fit_transform(tensors))["c"].tolist() == [[0, 2], [1, 0]]
    assert as_columns(MultiHotEncoder(["c"]).fit_transform(tensors))["c"].tolist() == [[1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("encoder", [OrdinalEncoder, OneHotEncoder, MultiHotEncoder])
@pytest.mark.parametrize("values", [["a", None], [1.0, math.nan]], ids=["null", "nan"])
def test_what_is_missing_is_refused_with_a_hint(encoder, values):
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
        (np.array([0.5, 1.0, 3.0], np.float32), np.array([3.0, 0.5, 0.1])),
        (pa.array(["1", "2", "3"]), pa.array(["3", "1", "x"], pa.large_string()).dictionary_encode()),
        (np.array([1, 2, 2**40]), np.array([2**40, 1, 2**64 - 1], np.uint64)),
        (np.array([-0.0, 1.0, 2.0]), np.array([2.0, 0.0, 0.1], np.float16)),
    ],
    ids=["int as float", "int8 as uint8", "float32 as float64", "dictionary", "uint64", "zero of the other sign"],
)
def test_categories_are_found_again_in_columns_of_other_types(fitted_on, asked):
    encoder = OrdinalEncoder(["c"]).fit(cut({"c": fitted_on}))
    found = all_rows(encoder.transform(cut({"c": asked}))).to_numpy()["c"]
    np.testing.assert_array_equal(found, [2, 0, math.nan])


@pytest.mark.parametrize("output", [None, "n"])
def test_labels_come_back_from_their_numbers(output):
    ds = cut({"y": ["setosa", "virginica", "setosa", "versicolor"]}, [3], [1])
    encoder = LabelEncoder("y", output_column=output)
    coded = encoder.fit_transform(ds)
    assert list(as_columns(coded)) == (["y", "n"] if output else ["y"])
    assert as_columns(coded)[output or "y"].tolist() == [0, 2, 0, 1]
    assert as_columns(encoder.inverse_transform(coded))["y"].tolist() == as_columns(ds)["y"].tolist()
    back = encoder.inverse_transform_batch(pd.DataFrame({output or "y": [1.0, math.nan]}))
    assert back["y"].tolist()[0] == "versicolor"
    assert back["y"].isna().tolist() == [False, True]


def test_categories_become_those_of_pandas():
    frame = pd.DataFrame({"sex": ["male", "female", None], "level": ["L4", "L5", None]})
    level = pd.CategoricalDtype(["L5", "L4", "L3"], ordered=True)
    categorizer = pp.Categorizer(["sex", "level"], dtypes={"level": level})
    ds = categorizer.fit_transform(cut(frame.to_dict("list"), [1], [2]))
    found = all_rows(ds).to_pandas()
    assert categorizer.stats_["sex"].categories.tolist() == ["female", "male"]
    assert found["sex"].tolist()[:2] == ["male", "female"]
    batch = categorizer.transform_batch(frame)
    assert batch["level"].dtype == level
    assert batch["level"].cat.codes.tolist() == [1, 0, -1]


TEXTS = st.lists(st.one_of(st.none(), st.text("ab ü", max_size=8)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 9))
def test_texts_are_split_and_counted_by_token_and_by_hash(data, num_features):
    texts = data.draw(TEXTS.map(lambda texts: [*texts, "end"]))
    ds = cut({"t": texts}, *data.draw(cuts(len(texts))))
    split = [None if text is None else text.split(" ") for text in texts]
    assert all_rows(pp.Tokenizer(["t"]).transform(ds)).columns["t"].to_pylist() == split
    vectorizer = pp.CountVectorizer(["t"])
    found = as_columns(vectorizer.fit_transform(ds))["t"]
    counts = Counter(token for row in split for token in row or ())
    assert list(vectorizer.stats_["token_counts(t)"].items()) == counts.most_common()
    assert found.tolist() == [[Counter(row)[token] for token, _ in counts.most_common()] for row in split]
    expected = np.zeros((len(texts), num_features), int)
    for row, tokens in enumerate(split):
        for token in tokens or ():
            expected[row, hash_bucket(token, num_features)] += 1
    hashed = as_columns(pp.HashingVectorizer(["t"], num_features).transform(ds))["t"]
    assert hashed.tolist() == expected.tolist()


def test_a_function_of_ones_own_tokenizes_into_another_column():
    tokenizer = pp.Tokenizer(["t"], tokenization_fn=lambda text: text.upper().split(), output_columns=["words"])
    found = tokenizer.transform_batch(pd.DataFrame({"t": ["a  b", "c"]}))
    assert found["t"].tolist() == ["a  b", "c"]
    assert [list(words) for words in found["words"]] == [["A", "B"], ["C"]]


def test_hashes_stay_what_they_are():
    """A later release must put tokens where earlier ones did, or trained models are lost."""
    tokens = ["a", "", "volleyball", "grün", "\ud800"]
    assert [hash_bucket(token, 1 << 20) for token in tokens] == [936123, 178261, 944670, 120709, 336491]


def test_columns_are_added_up_by_the_hashes_of_their_names():
    columns = {"I": np.array([1, 1]), "like": np.array([1, 0]), "dislike": np.array([0, 1])}
    found = pp.FeatureHasher(list(columns), 2, "hashed").transform_batch(columns)
    expected = np.zeros((2, 2), int)
    for name, counts in columns.items():
        expected[:, hash_bucket(name, 2)] += counts
    assert list(found) == ["I", "like", "dislike", "hashed"]
    assert found["hashed"].tolist() == expected.tolist()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_mean_of_what_is_there_fills_what_is_missing(data):
    number = st.one_of(st.none(), st.just(math.nan), st.integers(-100, 100).map(float))
    values = data.draw(st.lists(number, max_size=20).map(lambda xs: [*xs, 1.0]))
    ds = cut({"x": pa.array(values, pa.float64(), from_pandas=False)}, *data.draw(cuts(len(values))))
    x = np.array([math.nan if value is None else value for value in values])
    found = as_columns(pp.SimpleImputer(["x"], output_columns=["z"]).fit_transform(ds))
    np.testing.assert_array_equal(found["x"].astype(float), x)
    np.testing.assert_allclose(found["z"], np.where(np.isnan(x), np.nanmean(x), x))


@pytest.mark.parametrize(
    ("values", "fill"),
    [
        (pa.array(["b", None, "c", "c"]), "c"),
        (pa.array([5, None, 5, 2]), 5),
        (pa.array([0.5, math.nan, 0.0, None, -0.0], from_pandas=False), 0.0),
        (pa.array([True, None, True, False]), True),
        (pa.array([date(2024, 1, 2), None, date(2024, 1, 2)]), date(2024, 1, 2)),
        (pa.array(["b", None, "c", "c"]).dictionary_encode(), "c"),
        (pa.array([b"x", None]), b"x"),
    ],
    ids=["strings", "integers", "floats", "booleans", "dates", "dictionary", "bytes"],
)
def test_the_most_frequent_value_fills_columns_of_every_kind(values, fill):
    imputer = pp.SimpleImputer(["x"], strategy="most_frequent")
    found = all_rows(imputer.fit_transform(cut({"x": values}, [1], [len(values) - 1])))
    assert imputer.stats_ == {"most_frequent(x)": fill}
    missing = [x is None or (isinstance(x, float) and math.isnan(x)) for x in values.to_pylist()]
    expected = [fill if gone else x for gone, x in zip(missing, values.to_pylist(), strict=True)]
    assert [row["x"] for row in found.rows()] == expected


def test_a_constant_needs_no_fit_makes_a_column_that_is_not_there_and_adds_a_category():
    imputer = pp.SimpleImputer(["x", "y"], strategy="constant", fill_value=7)
    assert imputer.fit_status() == pp.SimpleImputer.FitStatus.NOT_FITTABLE
    found = imputer.transform_batch(pd.DataFrame({"x": [1.0, math.nan]}, index=[5, 6]))
    assert found.to_dict("list") == {"x": [1.0, 7.0], "y": [7, 7]}
    assert found.index.tolist() == [5, 6]
    frame = pd.DataFrame({"x": pd.Categorical(["a", None, "b"])})
    found = pp.SimpleImputer(["x"], "constant", "?").transform_batch(frame)
    assert found["x"].tolist() == ["a", "?", "b"]
    assert found["x"].cat.categories.tolist() == ["a", "b", "?"]


def test_a_mean_makes_floats_of_integers_in_all_blocks_alike_and_an_integer_does_not():
    ds = cut({"x": pa.array([1, 2, None, 6])}, [2], [2])
    filled = pp.SimpleImputer(["x"]).fit_transform(ds)
    assert [block.to_numpy()["x"].dtype for block in blocks(filled)] == [np.float64, np.float64]
    table = pp.SimpleImputer(["x"], "constant", 7).transform_batch(pa.table({"x": pa.array([1, None], pa.int16())}))
    assert table["x"].type == pa.int16()
    assert table["x"].to_pylist() == [1, 7]
