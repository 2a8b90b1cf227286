"""Preprocessors and datasets: what is read, what comes out, batches of every kind, chains, and what is refused."""

import math
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import READ, as_columns, cut, cuts

import paceline.data
from paceline.data import preprocessors as pp
from paceline.data.preprocessors import Chain, Concatenator, MinMaxScaler, OneHotEncoder, Preprocessor, StandardScaler
from paceline.data.preprocessors.chain import group_fittable


def test_a_fit_reads_every_unit_once_and_a_transform_reads_none():
    ds = cut({"a": np.arange(6.0), "b": np.arange(6.0), "c": list("xyzxyz")}, [2, 1], [3])
    chain = Chain(StandardScaler(["a", "b"]), OneHotEncoder(["c"]), Concatenator(["a", "b"]))
    READ.clear()
    chain.fit(ds)
    assert [(unit, num_rows) for unit, _, num_rows in READ] == [("part-0", 2), ("part-0", 1), ("part-1", 3)]
    READ.clear()
    transformed = chain.transform(ds)
    assert transformed.count() == 6
    assert "Chain" in transformed.explain()
    assert READ == []
    assert as_columns(transformed)["concat_out"].shape == (6, 2)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_fitting_a_chain_in_groups_is_fitting_one_after_the_other(data):
    makers = [
        lambda: pp.SimpleImputer(["a"]),
        lambda: StandardScaler(["a"]),
        lambda: StandardScaler(["b"], output_columns=["a"]),
        lambda: MinMaxScaler(["b"]),
        lambda: MinMaxScaler(["a", "b"]),
        lambda: pp.FeatureHasher(["a", "b"], 2, "h"),
        lambda: Chain(MinMaxScaler(["b"]), StandardScaler(["b"])),
    ]
    chosen = data.draw(st.lists(st.sampled_from(makers), min_size=1, max_size=5))
    values = data.draw(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=8))
    a, b = np.array(values, float).T
    a[data.draw(st.integers(0, len(a) - 1))] = math.nan
    a = np.append(a, 1.0)
    ds = cut({"a": a, "b": np.append(b, 2.0)}, *data.draw(cuts(len(a))))
    together = as_columns(Chain(*(make() for make in chosen)).fit_transform(ds))
    for make in chosen:
        ds = make().fit_transform(ds)
    apart = as_columns(ds)
    assert list(together) == list(apart)
    for name in apart:
        np.testing.assert_array_equal(together[name], apart[name])


def test_only_neighbours_that_share_no_column_are_fitted_together():
    scaler, encoder, again = StandardScaler(["a"]), OneHotEncoder(["b"]), MinMaxScaler(["a"])
    joined, late = Concatenator(["b", "c"], output_column_name="v"), StandardScaler(["d"])
    assert group_fittable((scaler, encoder, again, joined, late)) == [[scaler, encoder], [again, joined, late]]
    dropped = OneHotEncoder(["c"])
    assert group_fittable((joined, dropped)) == [[joined], [dropped]]
    everything = Concatenator(exclude=["y"])
    assert group_fittable((scaler, everything, late)) == [[scaler], [everything], [late]]


def test_a_chain_is_as_fitted_as_its_parts():
    status = Preprocessor.FitStatus
    ds = cut({"a": [1.0], "b": [2.0]})
    assert Chain(pp.Tokenizer(["a"])).fit_status() == status.NOT_FITTABLE
    assert Chain(pp.Tokenizer(["a"]), StandardScaler(["b"])).fit_status() == status.NOT_FITTED
    half = Chain(StandardScaler(["a"]).fit(ds), StandardScaler(["b"]))
    assert half.fit_status() == status.PARTIALLY_FITTED
    with pytest.raises(pp.PreprocessorNotFittedException, match="partially fitted"):
        half.transform(ds)
    with pytest.warns(UserWarning, match="was already fitted"):
        assert half.fit(ds).fit_status() == status.FITTED


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_dataset_and_a_batch_are_transformed_alike(data):
    num = data.draw(st.integers(1, 10))
    rows = {"x": np.arange(num) * 0.5, "c": [["a", "b", "c"][index % 3] for index in range(num)], "k": np.arange(num)}
    ds = cut(rows, *data.draw(cuts(num)))
    chain = Chain(StandardScaler(["x"]), OneHotEncoder(["c"]), Concatenator(["x", "c"], flatten=True))
    found = as_columns(chain.fit_transform(ds, transform_batch_size=data.draw(st.none() | st.integers(1, 4))))
    batch = chain.transform_batch({**rows, "c": np.array(rows["c"], object)})
    assert list(found) == list(batch) == ["k", "concat_out"]
    for name in batch:
        np.testing.assert_array_equal(found[name], batch[name])


def test_a_batch_comes_back_as_what_it_was_and_what_was_left_alone_is_the_same():
    scaler = StandardScaler(["x"]).fit(cut({"x": np.array([1.0, 3.0])}))
    arrays = scaler.transform_batch({"x": np.array([1.0, 5.0]), "k": np.array(["p", "q"], object)})
    assert type(arrays) is dict
    assert arrays["x"].tolist() == [-1.0, 3.0]
    frame = pd.DataFrame({"x": [1.0, 5.0], "k": pd.Categorical(["p", "q"]), "t": pd.to_datetime(["2024", "2025"])})
    frame.index = pd.Index([7, 9], name="id")
    found = scaler.transform_batch(frame)
    pd.testing.assert_frame_equal(found.drop(columns="x"), frame.drop(columns="x"))
    assert found["x"].tolist() == [-1.0, 3.0]
    assert frame["x"].tolist() == [1.0, 5.0]
    table = pa.table({"x": [1.0, 5.0], "k": pa.array(["p", "q"], pa.large_string())})
    assert scaler.transform_batch(table).equals(pa.table({"x": [-1.0, 3.0], "k": table["k"]}))


@pytest.mark.parametrize("what", ["transform", "transform_batch", "inverse_transform"])
def test_one_that_is_not_fitted_says_so_with_a_hint(what):
    given_to = {"y": np.array([1])} if what == "transform_batch" else cut({"y": [1]})
    with pytest.raises(pp.PreprocessorNotFittedException, match=rf"LabelEncoder.*not fitted: {what}[\s\S]*hint: call"):
        getattr(pp.LabelEncoder("y"), what)(given_to)


@pytest.mark.parametrize("preprocessor", [OneHotEncoder(["z"]), Chain(MinMaxScaler(["a", "z"]))], ids=repr)
def test_a_column_that_is_not_there_is_named_with_those_that_are(preprocessor):
    with pytest.raises((ValueError, KeyError), match="unknown column 'z'; the columns are: 'a', 'b'"):
        preprocessor.fit(cut({"a": [1.0], "b": [2.0]}))
    fitted = preprocessor.fit(cut({"a": [1.0], "z": [2.0]}))
    with pytest.raises(ValueError, match="unknown column 'z'; the columns are 'a', 'b'"):
        fitted.transform_batch({"a": np.array([1.0]), "b": np.array([2.0])})
    with pytest.raises(ValueError, match="unknown column 'z'; the columns are 'a', 'b'") as caught:
        fitted.transform(cut({"a": [1.0], "b": [2.0]})).take_all()
    assert "part-0" in str(caught.value.__notes__)


@pytest.mark.parametrize("preprocessor", [StandardScaler, OneHotEncoder, pp.SimpleImputer, MinMaxScaler])
def test_an_empty_dataset_cannot_be_fitted(preprocessor):
    for units in ([], [0]), ([0],), ([],):
        with pytest.raises(ValueError, match=rf"{preprocessor.__name__} cannot be fitted: the dataset has no rows"):
            preprocessor(["x"]).fit(cut({"x": np.array([])}, *units))


FRAME, BATCH = pd.DataFrame({"t": ["a"]}), {"a": np.array([1]), "b": np.array([2])}
NAN, ZERO = np.array([math.nan]), np.zeros(1)


def fill(strategy, value, values):
    return pp.SimpleImputer(["x"], strategy, value).fit_transform(cut({"x": values})).take_all()


def divide(bins, values):
    return pp.UniformKBinsDiscretizer(["x"], bins).fit(cut({"x": np.array(values)}))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pp.Tokenizer(["t"]).fit(FRAME), r"fit takes a Dataset, got a DataFrame[\s\S]*from_pandas"),
        (lambda: pp.Tokenizer(["t"]).transform(FRAME), r"transform takes a Dataset, got a DataFrame[\s\S]*from_pandas"),
        (lambda: pp.Tokenizer(["t"]).transform_batch(7), "a batch must be a dict of arrays"),
        (lambda: pp.Tokenizer(["t"], tokenization_fn="split"), "tokenization_fn must be a function .*, got 'split'"),
        (lambda: StandardScaler("x"), "columns must be a list"),
        (lambda: StandardScaler([1]), "columns must be a list"),
        (lambda: StandardScaler(["a", "b"], output_columns=["p", "p"]), "output_columns must be 2 different names"),
        (lambda: pp.RobustScaler(["x"], quantile_range=(0.75, 0.25)), "quantile_range must be two numbers"),
        (lambda: Chain(StandardScaler), "Chain takes preprocessors"),
        (lambda: Chain(), "at least one"),
        (lambda: Concatenator(["a", "z"]).transform_batch(BATCH), "unknown column 'z'; the columns are 'a', 'b'"),
        (lambda: Concatenator(exclude="z").transform_batch(BATCH), "unknown column 'z'"),
        (lambda: Concatenator(["a"]).transform(cut({"a": ["x"]})).take_all(), "Concatenator: column 'a' must have"),
        (lambda: Concatenator(["a"], flatten=True).transform_batch({"a": [[1], [2, 3]]}), "'a' has nulls, or lists"),
        (lambda: Concatenator(["a"], exclude=["b"]), "set either columns or exclude"),
        (lambda: pp.CustomKBinsDiscretizer(["x"], [3, 1]), "bins"),
        (lambda: pp.CustomKBinsDiscretizer(["x"], [1, math.nan]), "bins"),
        (lambda: pp.CustomKBinsDiscretizer(["x"], {"y": [0, 1]}), "bins"),
        (lambda: pp.CustomKBinsDiscretizer(["x"], [1, 1, 2]), "bins"),
        (lambda: divide(3, [1.0, math.inf]), r"UniformKBinsDiscretizer cannot be fitted: .*'x'"),
        (lambda: divide(3, NAN), r"UniformKBinsDiscretizer cannot be fitted: .*'x'"),
        (lambda: divide(0, [1.0]), "bins of 'x' must be a positive integer, got 0"),
        (lambda: pp.OrdinalEncoder(["c"]).fit(cut({"c": np.array([1, "a"], object)})), "be sorted: int, str"),
        (lambda: OneHotEncoder(["c"], max_categories={"z": 2}), "max_categories"),
        (lambda: OneHotEncoder(["c"], max_categories={"c": 0}), "max_categories"),
        (lambda: fill("mean", None, NAN), "all values of column 'x' are missing"),
        (lambda: fill("constant", "?", np.array([1.0, math.nan])), r"column 'x' of type .* cannot hold '\?'"),
        (lambda: fill("constant", "?", pa.array([1, None])), r"column 'x' of type .* cannot hold '\?'"),
        (lambda: fill("median", None, []), "strategy must be 'mean', .*, got 'median'"),
        (lambda: fill("constant", None, []), "strategy='constant'"),
        (lambda: fill("mean", 3, []), "strategy='mean'"),
        (lambda: pp.Normalizer(["a"], "l3"), "norm must be 'l1', 'l2' or 'max', got 'l3'"),
        (lambda: pp.PowerTransformer(["x"], 1, "log"), "method must be 'yeo-johnson' or 'box-cox', got 'log'"),
        (lambda: pp.PowerTransformer(["a"], 1, "box-cox").transform_batch({"a": ZERO}), r"'a' contains[\s\S]*yeo"),
        (lambda: pp.HashingVectorizer(["t"], 0), "must be a positive integer"),
        (lambda: pp.FeatureHasher(["t"], 1.5, "out"), "must be a positive integer"),
        (lambda: pp.CountVectorizer(["t"], max_features=True), "must be a positive integer"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_fitting_again_replaces_what_was_learnt_unless_it_fails():
    scaler = MinMaxScaler(["x"]).fit(cut({"x": [1.0, 2.0]}))
    with pytest.warns(UserWarning, match="was already fitted"):
        scaler.fit(cut({"x": [5.0, 9.0]}))
    assert scaler.stats_ == {"min(x)": 5.0, "max(x)": 9.0}
    with pytest.warns(UserWarning, match="was already fitted"), pytest.raises(ValueError, match="must have numbers"):
        scaler.fit(cut({"x": ["a"]}))
    assert scaler.stats_ == {"min(x)": 5.0, "max(x)": 9.0}


class Centred(Preprocessor):
    """As users of Ray write theirs."""

    def __init__(self, column):
        super().__init__()
        self.column = column

    def _fit(self, ds):
        self.stats_ = {"mean": float(np.mean([row[self.column] for row in ds.take_all()]))}
        return self

    def _transform_pandas(self, df):
        df[self.column] -= self.stats_["mean"]
        return df


class Positive(Preprocessor):
    _is_fittable = False

    def _transform_numpy(self, data):
        return {name: values[data["x"] > 0] for name, values in data.items()}


def test_preprocessors_of_ones_own_are_fitted_chained_and_may_drop_rows():
    ds = cut({"x": [1.0, 2.0, 6.0], "y": [1.0, 2.0, 3.0]}, [2], [1])
    chain = Chain(MinMaxScaler(["y"]), Centred("x"), StandardScaler(["x"]), Positive())
    found = chain.fit_transform(ds)
    np.testing.assert_allclose(as_columns(found)["x"], [3 / np.std([1, 2, 6])])
    assert found.count() == 1
    assert chain.preprocessors[1].stats_ == {"mean": 3.0}
    again = Preprocessor.deserialize(chain.serialize(), allowed_functions=[Centred, Positive])
    assert as_columns(again.transform(ds))["y"].tolist() == as_columns(found)["y"].tolist()


def test_one_that_lacks_a_transform_or_an_attribute_says_so():
    class Empty(Preprocessor):
        _is_fittable = False

    class Forgetful(Preprocessor):
        def __init__(self, column, factor):
            self.column = column

    with pytest.raises(NotImplementedError, match="Empty has none of _transform_numpy"):
        Empty().transform_batch({"x": np.array([1])})
    assert repr(Forgetful("x", 2.0)) == "Forgetful(column='x')"
    with pytest.raises(pp.PreprocessorNotFittedException, match="Forgetful"):
        Forgetful("x", 2.0).transform_batch({})
    with pytest.raises(TypeError, match=r"its argument 'factor' is not an attribute[\s\S]*set self.factor"):
        Forgetful("x", 2.0)._arguments()


def _process(text):
    return [str(os.getpid())]


def test_rows_are_looked_at_in_data_processes_and_only_states_come_back(data_context):
    data_context.inline_below = 0
    ds = paceline.data.from_pandas(pd.DataFrame({"x": np.arange(50.0), "c": list("ab") * 25}), override_num_blocks=4)
    seen = pp.CountVectorizer(["c"], tokenization_fn=_process).fit(ds).stats_["token_counts(c)"]
    assert seen.total() == 50
    assert str(os.getpid()) not in seen
    chain = Chain(StandardScaler(["x"]), OneHotEncoder(["c"]), Concatenator(["x", "c"], flatten=True))
    found = as_columns(chain.fit_transform(ds))["concat_out"]
    np.testing.assert_allclose(found[:, 0], (np.arange(50) - 24.5) / np.arange(50).std())
    assert found[:, 1:].tolist() == [[1, 0], [0, 1]] * 25
