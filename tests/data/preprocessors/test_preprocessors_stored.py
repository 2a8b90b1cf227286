"""Preprocessors as JSON: equal after every way there is, in another process too, and never by pickle."""

import datetime
import json
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_cut import cut

from paceline.data.preprocessors import (
    Categorizer,
    Chain,
    Concatenator,
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    Preprocessor,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    UniformKBinsDiscretizer,
)
from paceline.data.preprocessors.stored import as_json, from_json
from paceline.train import Checkpoint

ROWS: dict[str, Any] = {
    "x": [1.5, -2.0, 0.25, 7.0],
    "y": [3, 1, 3, 2],
    "n": [1.0, math.nan, 3.0, math.nan],
    "c": ["red", "grün", "red", ""],
    "l": [["a", "b"], [], ["b"], ["c", "c"]],
    "t": ["one two", "two", "", "three two one"],
}

PREPROCESSORS: list[Preprocessor] = [
    StandardScaler(["x", "y"], output_columns=["p", "q"]),
    MinMaxScaler(["x", "y"]),
    MaxAbsScaler(["x"]),
    RobustScaler(["x"], quantile_range=(0.1, 0.9)),
    SimpleImputer(["n"]),
    SimpleImputer(["c", "n"], strategy="most_frequent"),
    SimpleImputer(["n"], strategy="constant", fill_value=0.5),
    OrdinalEncoder(["c", "l"]),
    OrdinalEncoder(["l"], encode_lists=False),
    OneHotEncoder(["c", "y"], max_categories={"c": 2}),
    MultiHotEncoder(["l"]),
    LabelEncoder("c", output_column="label"),
    Categorizer(["c"]),
    Categorizer(["c"], dtypes={"c": pd.CategoricalDtype(["red", "blue"], ordered=True)}),
    UniformKBinsDiscretizer(["x", "y"], {"x": 3, "y": 2}, right=False),
    CustomKBinsDiscretizer(["x"], [-math.inf, 0, math.inf], dtypes={"x": np.int8}),
    Normalizer(["x", "y"], "l1"),
    PowerTransformer(["x"], 0.5),
    Tokenizer(["t"]),
    HashingVectorizer(["t"], 8),
    CountVectorizer(["t"], max_features=2),
    FeatureHasher(["x", "y"], 4, "h"),
    Concatenator(["x", "y"], dtype=np.float32),
    Concatenator(["x", "y"], dtype="float32", flatten=True),
    Concatenator(exclude=["c", "l", "t"]),
    Chain(SimpleImputer(["n"]), StandardScaler(["n", "x"]), OneHotEncoder(["c"]), Concatenator(["n", "x"])),
]


def _names(preprocessors: list[Preprocessor]) -> list[str]:
    return [f"{index}-{type(each).__name__}" for index, each in enumerate(preprocessors)]


def fitted(preprocessor: Preprocessor) -> Preprocessor:
    again = Preprocessor.from_dict(preprocessor.to_dict())
    return again.fit(cut(ROWS, [1], [2, 1]))


def shown(preprocessor: Preprocessor) -> str:
    """What it makes of the rows, as text; floats to the last bit."""
    found = preprocessor.transform_batch({name: np.array(values, dtype=object) for name, values in ROWS.items()})
    return repr({name: (str(values.dtype), values.tolist()) for name, values in sorted(found.items())})


@pytest.mark.parametrize("preprocessor", PREPROCESSORS, ids=_names(PREPROCESSORS))
def test_what_is_stored_transforms_alike(preprocessor: Preprocessor, tmp_path: Path) -> None:
    one = fitted(preprocessor)
    one.save(tmp_path / "preprocessor.json")
    text = one.serialize()
    others = [
        Preprocessor.load(tmp_path / "preprocessor.json"),
        Preprocessor.deserialize(text),
        Preprocessor.deserialize(text.encode()),
        Preprocessor.from_dict(json.loads(json.dumps(one.to_dict()))),
    ]
    for other in others:
        assert type(other) is type(one)
        assert repr(other) == repr(one)
        assert other.fit_status() == one.fit_status()
        assert other.to_dict() == one.to_dict()
        assert shown(other) == shown(one)
    assert [path.name for path in tmp_path.iterdir()] == ["preprocessor.json"]


def test_another_process_gives_the_same_results(
    tmp_path: Path, run_script: Callable[..., CompletedProcess[str]]
) -> None:
    expected = []
    for index, preprocessor in enumerate(PREPROCESSORS):
        one = fitted(preprocessor)
        one.save(tmp_path / f"{index:02}.json")
        expected.append(shown(one))
    script = """
import json, math, sys
from pathlib import Path
import numpy as np
from paceline.data.preprocessors import Preprocessor

rows = json.loads(sys.argv[1])
for path in sorted(Path.cwd().glob("*.json")):
    batch = {name: np.array(values, dtype=object) for name, values in rows.items()}
    found = Preprocessor.load(path).transform_batch(batch)
    print(json.dumps(repr({name: (str(values.dtype), values.tolist()) for name, values in sorted(found.items())})))
"""
    ended = run_script(script, json.dumps(ROWS), env={"PYTHONHASHSEED": "3"})
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line) for line in ended.stdout.splitlines()] == expected


def test_a_preprocessor_goes_into_a_checkpoint_both_ways(tmp_path: Path) -> None:
    one = fitted(PREPROCESSORS[-1])
    state = Checkpoint.from_dict({"w": np.zeros(2), "preprocessor": one.to_dict()})
    directory = Path(state.to_directory(tmp_path / "state"))
    back = Checkpoint.from_directory(directory).to_dict()
    assert shown(Preprocessor.from_dict(back["preprocessor"])) == shown(one)
    one.save(directory / "preprocessor.json")
    with Checkpoint.from_directory(directory).as_directory() as path:
        assert shown(Preprocessor.load(Path(path) / "preprocessor.json")) == shown(one)


def test_a_file_is_replaced_and_never_written_to(tmp_path: Path) -> None:
    MinMaxScaler(["x"]).save(tmp_path / "scaler.json")
    (tmp_path / "seen").hardlink_to(tmp_path / "scaler.json")
    StandardScaler(["x"]).save(tmp_path / "scaler.json")
    assert isinstance(Preprocessor.load(tmp_path / "seen"), MinMaxScaler)
    assert isinstance(Preprocessor.load(tmp_path / "scaler.json"), StandardScaler)


def test_one_that_is_not_fitted_stays_so(tmp_path: Path) -> None:
    StandardScaler(["x"]).save(tmp_path / "scaler.json")
    again = Preprocessor.load(tmp_path / "scaler.json")
    assert again.fit_status() == Preprocessor.FitStatus.NOT_FITTED
    assert not again.has_stats()


@pytest.mark.parametrize("make", [Tokenizer, CountVectorizer, lambda c, f: HashingVectorizer(c, 4, f)])
def test_a_function_is_kept_by_the_name_it_can_be_imported_by(make: Any) -> None:
    one = make(["t"], json.dumps)
    assert '"json:dumps"' in one.serialize()
    assert Preprocessor.deserialize(one.serialize()).tokenization_fn is json.dumps


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda text: text.split(), "a lambda"),
        ((lambda: lambda text: [text])(), "a lambda"),
        (len, "builtin_function_or_method"),
        (json.JSONEncoder().encode, "a method"),
    ],
    ids=["lambda", "inner", "builtin", "bound"],
)
def test_what_cannot_be_imported_is_refused_with_a_hint_when_saving(function: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"Tokenizer.tokenization_fn[\s\S]*{why}[\s\S]*hint: "):
        Tokenizer(["t"], tokenization_fn=function).save(tmp_path / "tokenizer.json")
    assert list(tmp_path.iterdir()) == []


def test_a_function_of_a_function_is_refused() -> None:
    def tokenize(text: str) -> list[str]:
        return [text]

    with pytest.raises(ValueError, match="is defined in a function"):
        Tokenizer(["t"], tokenize).serialize()


def test_a_function_of_the_script_is_refused(run_script: Callable[..., CompletedProcess[str]]) -> None:
    ended = run_script(
        "from paceline.data.preprocessors import Tokenizer\n"
        "def tokenize(text): return [text]\n"
        "Tokenizer(['t'], tokenize).serialize()"
    )
    assert ended.returncode == 1
    assert "'tokenize' is defined in the script that is run" in ended.stderr


def _function(name: str) -> dict[str, str]:
    return {"$": "function", "value": name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"type": "Nothing"}, "'Nothing' is no preprocessor"),
        ({"type": "__all__"}, "is no preprocessor"),
        ({"type": "json:JSONDecoder"}, "is no preprocessor"),
        ({"type": "no_such_module:Thing"}, "'no_such_module:Thing' cannot be imported"),
        ({"format": 99}, "stored in format 99"),
        ({"arguments": {"columns": ["t"], "tokenization_fn": _function("os:system")}}, "no function"),
        ({"arguments": {"columns": ["t"], "tokenization_fn": _function("gone:f")}}, "cannot be imported"),
        ({"arguments": {"columns": []}}, "at least one column"),
        ({"stats": {"$": "pickle", "value": "gASV"}}, "'pickle' is no kind of value"),
    ],
    ids=["unknown", "no class", "no preprocessor", "no module", "format", "builtin", "gone", "empty", "kind"],
)
def test_what_was_not_written_by_us_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Preprocessor.from_dict({**Tokenizer(["t"]).to_dict(), **change})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", '{"type": "Tokenizer"}', "[" * 100_000])
def test_a_file_that_is_none_of_ours_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ValueError, match=r"broken\.json"):
        Preprocessor.load(tmp_path / "broken.json")


KEYS = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.binary(max_size=3), st.dates())
SCALARS = st.one_of(
    KEYS,
    st.none(),
    st.floats(allow_nan=False),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    st.decimals(allow_nan=False),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(KEYS, st.just("$"), st.tuples(KEYS)), inner, max_size=3),
        st.dictionaries(KEYS, st.integers(0, 9), max_size=3).map(Counter),
    ),
    max_leaves=8,
)


def _typed(value: Any) -> Any:
    """With types, which `==` does not look at: True is 1, and 1 is 1.0."""
    if isinstance(value, dict):
        return type(value), [(_typed(key), _typed(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_typed(item) for item in value]
    return type(value), str(value) if isinstance(value, float) else value


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    text = json.dumps(as_json(value), allow_nan=False)
    assert _typed(from_json(json.loads(text))) == _typed(value)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, math.nan, -math.inf]),
        np.array([[1, 2], [3, 4]], np.int8),
        np.array([True, False]),
        np.array([], np.float32),
        np.append(np.arange(1000, dtype=">f4"), [math.nan, math.inf]).astype(">f4").reshape(2, -1),
        np.arange(2000, dtype=np.uint8)[::-2],
        np.array(["a", None], object),
        np.array(["2024-01-02"], "datetime64[s]"),
    ],
    ids=["floats", "matrix", "booleans", "empty", "many", "strided", "objects", "dates"],
)
def test_arrays_come_back_with_their_types(array: Any) -> None:
    back = from_json(json.loads(json.dumps(as_json(array), allow_nan=False)))
    assert back.dtype.name == array.dtype.name
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


def test_special_values_come_back() -> None:
    for value in (math.inf, -math.inf, np.float32(0.1), Decimal("1.10"), np.dtype("int8"), datetime.time(3)):
        assert from_json(json.loads(json.dumps(as_json(value)))) == value
    assert math.isnan(from_json(as_json(math.nan)))


def test_what_json_cannot_hold_is_named_by_its_path() -> None:
    with pytest.raises(TypeError, match=r"SimpleImputer.fill_value is a complex, which cannot be stored"):
        SimpleImputer(["x"], "constant", 1j).to_dict()
