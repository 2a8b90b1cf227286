"""Preprocessors and datasets: what is read, what comes out, batches of every kind, chains, and what is refused."""

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import SEEN, all_rows, as_columns, cut, cuts

import paceline
from paceline.data.preprocessors import (
    Chain,
    Concatenator,
    FeatureHasher,
    LabelEncoder,
    MinMaxScaler,
    OneHotEncoder,
    Preprocessor,
    PreprocessorNotFittedException,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
)
from paceline.data.preprocessors.chain import grouped


def test_the_names_are_those_of_the_package() -> None:
    names = paceline.data.preprocessors.__all__
    assert all(issubclass(getattr(paceline.data.preprocessors, name), object) for name in names)
    assert "preprocessors" in paceline.data.__all__


def test_a_fit_reads_every_unit_once_whatever_it_needs() -> None:
    ds = cut({"a": np.arange(6.0), "b": np.arange(6.0), "c": list("xyzxyz")}, [2, 1], [3])
    chain = Chain(StandardScaler(["a", "b"]), OneHotEncoder(["c"]), Concatenator(["a", "b"]))
    SEEN.clear()
    chain.fit(ds)
    assert [unit for unit, _ in SEEN] == ["part-0", "part-1"]
    SEEN.clear()
    transformed = chain.transform(ds)
    assert SEEN == []
    assert as_columns(transformed)["concat_out"].shape == (6, 2)


def test_a_chain_fits_each_on_what_those_before_it_make() -> None:
    ds = cut({"x": np.array([1.0, math.nan, 3.0, 8.0])}, [1], [2, 1])
    chain = Chain(SimpleImputer(["x"]), MinMaxScaler(["x"], output_columns=["z"]), StandardScaler(["z"]))
    SEEN.clear()
    found = as_columns(chain.fit_transform(ds))
    filled = np.array([1.0, 4.0, 3.0, 8.0])
    scaled = (filled - 1) / 7
    np.testing.assert_allclose(found["x"], filled)
    np.testing.assert_allclose(found["z"], (scaled - scaled.mean()) / scaled.std())
    assert chain.fit_status() == Preprocessor.FitStatus.FITTED
    assert len(SEEN) == 2 * 4  # three passes that fit, and one that is looked at


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_fitting_a_chain_in_groups_is_fitting_one_after_the_other(data: st.DataObject) -> None:
    makers = [
        lambda: SimpleImputer(["a"]),
        lambda: StandardScaler(["a"]),
        lambda: StandardScaler(["b"], output_columns=["a"]),
        lambda: MinMaxScaler(["b"]),
        lambda: MinMaxScaler(["a", "b"]),
        lambda: FeatureHasher(["a", "b"], 2, "h"),
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


def test_only_neighbours_that_share_no_column_are_fitted_together() -> None:
    scaler, encoder, again = StandardScaler(["a"]), OneHotEncoder(["b"]), MinMaxScaler(["a"])
    joined, late = Concatenator(["b", "c"], output_column_name="v"), StandardScaler(["d"])
    assert grouped((scaler, encoder, again, joined, late)) == [[scaler, encoder], [again, joined, late]]
    dropped = OneHotEncoder(["c"])
    assert grouped((joined, dropped)) == [[joined], [dropped]]
    everything = Concatenator(exclude=["y"])
    assert grouped((scaler, everything, late)) == [[scaler], [everything], [late]]


def test_a_chain_is_as_fitted_as_its_parts() -> None:
    status = Preprocessor.FitStatus
    ds = cut({"a": [1.0], "b": [2.0]})
    assert Chain(Tokenizer(["a"])).fit_status() == status.NOT_FITTABLE
    assert Chain(Tokenizer(["a"]), StandardScaler(["b"])).fit_status() == status.NOT_FITTED
    half = Chain(StandardScaler(["a"]).fit(ds), StandardScaler(["b"]))
    assert half.fit_status() == status.PARTIALLY_FITTED
    with pytest.raises(PreprocessorNotFittedException, match="partially fitted"):
        half.transform(ds)
    with pytest.warns(UserWarning, match="was fitted before"):
        assert half.fit(ds).fit_status() == status.FITTED


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_dataset_and_a_batch_are_transformed_alike(data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 10))
    rows = {"x": np.arange(num) * 0.5, "c": [["a", "b", "c"][index % 3] for index in range(num)], "k": np.arange(num)}
    ds = cut(rows, *data.draw(cuts(num)))
    chain = Chain(StandardScaler(["x"]), OneHotEncoder(["c"]), Concatenator(["x", "c"], flatten=True))
    found = as_columns(chain.fit_transform(ds, transform_batch_size=data.draw(st.none() | st.integers(1, 4))))
    batch = chain.transform_batch({**rows, "c": np.array(rows["c"], object)})
    assert list(found) == list(batch) == ["k", "concat_out"]
    for name in batch:
        np.testing.assert_array_equal(found[name], batch[name])


def test_a_batch_comes_back_as_what_it_was_and_what_was_left_alone_is_the_same() -> None:
    scaler = StandardScaler(["x"]).fit(cut({"x": np.array([1.0, 3.0])}))
    kept = np.array(["p", "q"], object)
    arrays = scaler.transform_batch({"x": np.array([1.0, 5.0]), "k": kept})
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
    with pytest.raises(TypeError, match="a batch must be a dict of arrays"):
        scaler.transform_batch(7)


def test_the_number_of_rows_stays_known() -> None:
    ds = cut({"x": np.arange(10.0)}, [4], [6])
    SEEN.clear()
    transformed = Chain(MinMaxScaler(["x"])).fit_transform(ds)
    SEEN.clear()
    assert transformed.count() == 10
    assert SEEN == []


@pytest.mark.parametrize("what", ["transform", "transform_batch", "inverse_transform"])
def test_one_that_is_not_fitted_says_so_with_a_hint(what: str) -> None:
    encoder = LabelEncoder("y")
    given_to = {"y": np.array([1])} if what == "transform_batch" else cut({"y": [1]})
    said = rf"LabelEncoder.*is not fitted: {what}[\s\S]*hint: call fit"
    with pytest.raises(PreprocessorNotFittedException, match=said):
        getattr(encoder, what)(given_to)


@pytest.mark.parametrize(
    "preprocessor", [StandardScaler(["z"]), OneHotEncoder(["z"]), Chain(MinMaxScaler(["a", "z"]))], ids=repr
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(preprocessor: Preprocessor) -> None:
    with pytest.raises((ValueError, KeyError), match="no column 'z'; there are: 'a', 'b'"):
        preprocessor.fit(cut({"a": [1.0], "b": [2.0]}))
    fitted = preprocessor.fit(cut({"a": [1.0], "z": [2.0]}))
    with pytest.raises(ValueError, match="there is no column 'z'; there are: 'a', 'b'"):
        fitted.transform_batch({"a": np.array([1.0]), "b": np.array([2.0])})
    with pytest.raises(ValueError, match="there is no column 'z'; there are: 'a', 'b'") as caught:
        fitted.transform(cut({"a": [1.0], "b": [2.0]})).take_all()
    assert "part-0" in str(caught.value.__notes__)


@pytest.mark.parametrize("units", [[], [[0]], [[0], []]], ids=["no unit", "an empty block", "an empty unit"])
@pytest.mark.parametrize("preprocessor", [StandardScaler, OneHotEncoder, SimpleImputer, MinMaxScaler])
def test_an_empty_dataset_cannot_be_fitted(preprocessor: Any, units: list[list[int]]) -> None:
    empty = cut({"x": np.array([])}, *units) if units else cut({"x": np.array([])}, [])
    with pytest.raises(ValueError, match=rf"{preprocessor.__name__} cannot be fitted: the dataset has no rows"):
        preprocessor(["x"]).fit(empty)


@pytest.mark.parametrize("what", ["fit", "transform"])
def test_what_is_no_dataset_is_refused_with_a_hint(what: str) -> None:
    with pytest.raises(TypeError, match=rf"{what} takes a Dataset, not a DataFrame[\s\S]*from_pandas"):
        getattr(Tokenizer(["t"]), what)(pd.DataFrame({"t": ["a"]}))


@pytest.mark.parametrize("columns", ["x", [], [1], None])
def test_columns_that_are_none_are_refused(columns: Any) -> None:
    with pytest.raises(ValueError, match="columns="):
        StandardScaler(columns)


@pytest.mark.parametrize("names", [["p"], ["p", "p"], "pq"])
def test_output_columns_that_do_not_fit_are_refused(names: Any) -> None:
    with pytest.raises(ValueError, match="output_columns="):
        StandardScaler(["a", "b"], output_columns=names)


def test_what_a_chain_is_made_of_is_checked() -> None:
    with pytest.raises(TypeError, match="Chain takes preprocessors"):
        Chain(StandardScaler)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        Chain()


def test_fitting_again_replaces_what_was_learnt() -> None:
    scaler = MinMaxScaler(["x"]).fit(cut({"x": [1.0, 2.0]}))
    with pytest.warns(UserWarning, match="was fitted before"):
        scaler.fit(cut({"x": [5.0, 9.0]}))
    assert scaler.stats_ == {"min(x)": 5.0, "max(x)": 9.0}


def test_a_fit_that_fails_leaves_what_was_learnt_before() -> None:
    scaler = MinMaxScaler(["x"]).fit(cut({"x": [1.0, 2.0]}))
    with pytest.warns(UserWarning, match="was fitted before"), pytest.raises(ValueError, match="numbers are needed"):
        scaler.fit(cut({"x": ["a"]}))
    assert scaler.stats_ == {"min(x)": 1.0, "max(x)": 2.0}


class Centred(Preprocessor):
    """As users of Ray write theirs."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self.column = column

    def _fit(self, ds: Any) -> Preprocessor:
        self.stats_ = {"mean": float(np.mean([row[self.column] for row in ds.take_all()]))}
        return self

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        df[self.column] -= self.stats_["mean"]
        return df


class Positive(Preprocessor):
    _is_fittable = False

    def _transform_numpy(self, data: dict[str, Any]) -> dict[str, Any]:
        return {name: values[data["x"] > 0] for name, values in data.items()}


def test_preprocessors_of_ones_own_are_fitted_chained_and_may_drop_rows() -> None:
    ds = cut({"x": [1.0, 2.0, 6.0], "y": [1.0, 2.0, 3.0]}, [2], [1])
    chain = Chain(MinMaxScaler(["y"]), Centred("x"), StandardScaler(["x"]), Positive())
    found = chain.fit_transform(ds)
    np.testing.assert_allclose(as_columns(found)["x"], [3 / np.std([1, 2, 6])])
    assert found.count() == 1
    assert chain.preprocessors[1].stats_ == {"mean": 3.0}
    again = Preprocessor.deserialize(chain.serialize())
    assert as_columns(again.transform(ds))["y"].tolist() == as_columns(found)["y"].tolist()


def test_one_without_a_transform_says_what_is_missing() -> None:
    class Empty(Preprocessor):
        _is_fittable = False

    with pytest.raises(NotImplementedError, match="Empty has none of _transform_numpy"):
        Empty().transform_batch({"x": np.array([1])})


def test_one_that_lacks_an_attribute_is_still_shown_and_says_so_when_stored() -> None:
    class Forgetful(Preprocessor):
        def __init__(self, column: str, factor: float) -> None:
            self.column = column

    assert repr(Forgetful("x", 2.0)) == "Forgetful(column='x')"
    with pytest.raises(PreprocessorNotFittedException, match="Forgetful"):
        Forgetful("x", 2.0).transform_batch({})
    with pytest.raises(TypeError, match=r"its argument 'factor' is no attribute[\s\S]*set self.factor"):
        Forgetful("x", 2.0)._arguments()


def test_a_transformed_dataset_crosses_processes_as_data() -> None:
    scaler = StandardScaler(["x"]).fit(cut({"x": [1.0, 3.0]}))
    ds = scaler.transform(cut({"x": [1.0, 5.0]}))
    again = pickle.loads(pickle.dumps(ds._plan))
    assert all_rows(type(ds)(again)).to_numpy()["x"].tolist() == [-1.0, 3.0]


def test_explain_calls_a_preprocessor_by_its_name() -> None:
    ds = Chain(StandardScaler(["x"]), MinMaxScaler(["x"])).fit_transform(cut({"x": [1.0, 3.0]}))
    assert "Chain" in ds.explain()
