"""Preprocessors as JSON: equal after every way there is, in another process too, and never by pickle."""

import datetime
import json
import math
import subprocess
from collections import Counter
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import cut

from paceline.data import preprocessors as pp
from paceline.data.preprocessors import Preprocessor, StandardScaler, Tokenizer
from paceline.data.preprocessors.json_values import from_json_value, to_json_value

ROWS = {
    "x": [1.5, -2.0, 0.25, 7.0],
    "y": [3, 1, 3, 2],
    "n": [1.0, math.nan, 3.0, math.nan],
    "c": ["red", "grün", "red", ""],
    "l": [["a", "b"], [], ["b"], ["c", "c"]],
    "t": ["one two", "two", "", "three two one"],
}

PREPROCESSORS = [
    StandardScaler(["x", "y"], output_columns=["p", "q"]),
    pp.MinMaxScaler(["x", "y"]),
    pp.MaxAbsScaler(["x"]),
    pp.RobustScaler(["x"], quantile_range=(0.1, 0.9)),
    pp.SimpleImputer(["n"]),
    pp.SimpleImputer(["c", "n"], strategy="most_frequent"),
    pp.SimpleImputer(["n"], strategy="constant", fill_value=0.5),
    pp.OrdinalEncoder(["c", "l"]),
    pp.OneHotEncoder(["c", "y"], max_categories={"c": 2}),
    pp.MultiHotEncoder(["l"]),
    pp.LabelEncoder("c", output_column="label"),
    pp.Categorizer(["c"]),
    pp.Categorizer(["c"], dtypes={"c": pd.CategoricalDtype(["red", "blue"], ordered=True)}),
    pp.UniformKBinsDiscretizer(["x", "y"], {"x": 3, "y": 2}, right=False),
    pp.CustomKBinsDiscretizer(["x"], [-math.inf, 0, math.inf], dtypes={"x": np.int8}),
    pp.Normalizer(["x", "y"], "l1"),
    pp.PowerTransformer(["x"], 0.5),
    Tokenizer(["t"]),
    pp.HashingVectorizer(["t"], 8),
    pp.CountVectorizer(["t"], max_features=2),
    pp.FeatureHasher(["x", "y"], 4, "h"),
    pp.Concatenator(["x", "y"], dtype=np.float32),
    pp.Concatenator(exclude=["c", "l", "t"]),
    pp.Chain(pp.SimpleImputer(["n"]), StandardScaler(["n", "x"]), pp.OneHotEncoder(["c"]), pp.Concatenator(["n", "x"])),
]


def fitted(preprocessor):
    again = Preprocessor.from_dict(preprocessor.to_dict())
    return again.fit(cut(ROWS, [1], [2, 1]))


def shown(preprocessor):
    """What it makes of the rows, as text; floats to the last bit."""
    found = preprocessor.transform_batch({name: np.array(values, dtype=object) for name, values in ROWS.items()})
    return repr({name: (str(values.dtype), values.tolist()) for name, values in sorted(found.items())})


def test_what_is_stored_transforms_alike_here_and_in_another_process(tmp_path, run_script):
    expected = []
    for index, preprocessor in enumerate(PREPROCESSORS):
        one, path = fitted(preprocessor), tmp_path / f"{index:02}.json"
        one.save(path)
        text = one.serialize()
        for other in (
            Preprocessor.load(path),
            Preprocessor.deserialize(text),
            Preprocessor.deserialize(text.encode()),
            Preprocessor.from_dict(json.loads(json.dumps(one.to_dict()))),
        ):
            assert (type(other), repr(other)) == (type(one), repr(one))
            assert other.fit_status() == one.fit_status()
            assert other.to_dict() == one.to_dict()
            assert shown(other) == shown(one)
        expected.append(shown(one))
    assert len(list(tmp_path.iterdir())) == len(PREPROCESSORS)
    script = """
import json, sys
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


def test_a_file_is_replaced_and_never_written_to(tmp_path):
    pp.MinMaxScaler(["x"]).save(tmp_path / "scaler.json")
    (tmp_path / "seen").hardlink_to(tmp_path / "scaler.json")
    StandardScaler(["x"]).save(tmp_path / "scaler.json")
    assert isinstance(Preprocessor.load(tmp_path / "seen"), pp.MinMaxScaler)
    again = Preprocessor.load(tmp_path / "scaler.json")
    assert isinstance(again, StandardScaler)
    assert again.fit_status() == Preprocessor.FitStatus.NOT_FITTED


@pytest.mark.parametrize("make", [Tokenizer, pp.CountVectorizer, lambda c, f: pp.HashingVectorizer(c, 4, f)])
def test_a_function_is_kept_by_the_name_it_can_be_imported_by(make):
    one = make(["t"], json.dumps)
    assert '"json:dumps"' in one.serialize()
    chain = pp.Chain(pp.Chain(one))
    for stored in (one, chain):
        with pytest.raises(ValueError, match=r"names 'json:dumps'[\s\S]*allowed_functions=\[json\.dumps\]"):
            Preprocessor.deserialize(stored.serialize(), allowed_functions=[json.loads])
        again = Preprocessor.deserialize(stored.serialize(), allowed_functions=[json.dumps])
        assert again.to_dict() == stored.to_dict()
    with pytest.raises(ValueError, match="allowed_functions must be a list of functions and classes, got 'json'"):
        Preprocessor.deserialize(one.serialize(), allowed_functions=["json"])


def test_nothing_that_stored_data_names_is_imported_or_called(tmp_path, run_script):
    evil = pp.Chain(pp.SimpleImputer(["t"], "constant", "touch called"), Tokenizer(["t"], subprocess.getoutput))
    text = evil.serialize().replace("subprocess:getoutput", "evil:run")
    (tmp_path / "evil.py").write_text("from subprocess import getoutput as run\nopen('imported', 'w')")
    (tmp_path / "evil.json").write_text(text)
    ended = run_script(
        "import paceline.data.preprocessors as pp\npp.Preprocessor.load('evil.json').transform_batch({'t': [None]})"
    )
    assert "evil.json: the stored preprocessor names 'evil:run'" in ended.stderr
    assert {path.name for path in tmp_path.iterdir()} & {"called", "imported"} == set()


def test_a_function_that_cannot_be_imported_is_refused_with_a_hint_when_saving(tmp_path, run_script):
    def tokenize(text):
        return [text]

    for function, why in (
        (lambda text: text.split(), "a lambda"),
        (len, "builtin_function_or_method"),
        (json.JSONEncoder().encode, "a method"),
        (tokenize, "is defined in a function"),
    ):
        with pytest.raises((ValueError, TypeError), match=rf"Tokenizer.tokenization_fn[\s\S]*{why}[\s\S]*hint: "):
            Tokenizer(["t"], tokenization_fn=function).save(tmp_path / "tokenizer.json")
    assert list(tmp_path.iterdir()) == []
    ended = run_script(
        "import paceline.data.preprocessors as pp\ndef tokenize(t): return t\npp.Tokenizer(['t'], tokenize).serialize()"
    )
    assert ended.returncode == 1
    assert "'tokenize' is defined in the main script" in ended.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "Nothing"}, "'Nothing' is not a preprocessor"),
        ({"type": ["Chain"]}, "is not a preprocessor"),
        ({"type": "json:JSONDecoder"}, "names 'json:JSONDecoder', which may not be loaded"),
        ({"format": 99}, "in format 99"),
        (
            {"arguments": {"columns": ["t"], "tokenization_fn": {"$": "function", "value": "os:system"}}},
            "names 'os:system', which may not be loaded",
        ),
        ({"arguments": {"columns": []}}, "one or more columns"),
        ({"stats": {"$": "pickle", "value": "gASV"}}, "unknown kind of value 'pickle'"),
    ],
    ids=["unknown", "no name", "class", "format", "function", "empty", "kind"],
)
def test_what_was_not_written_by_us_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Preprocessor.from_dict({**Tokenizer(["t"]).to_dict(), **change})


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "Tokenizer"}', "[" * 100_000])
def test_a_file_that_is_none_of_ours_is_named(text, tmp_path):
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


def _typed(value):
    """With types, which `==` does not look at: True is 1, and 1 is 1.0."""
    if isinstance(value, dict):
        return type(value), [(_typed(key), _typed(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_typed(item) for item in value]
    return type(value), str(value) if isinstance(value, float) else value


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_were(value):
    text = json.dumps(to_json_value(value), allow_nan=False)
    assert _typed(from_json_value(json.loads(text))) == _typed(value)


ARRAYS = [
    np.array([1.5, math.nan, -math.inf]),
    np.array([], np.float32),
    np.append(np.arange(1000, dtype=">f4"), [math.nan, math.inf]).astype(">f4").reshape(2, -1),
    np.arange(2000, dtype=np.uint8)[::-2],
    np.array(["a", None], object),
    np.array(["2024-01-02"], "datetime64[s]"),
]


def test_arrays_and_special_values_come_back_with_their_types():
    for array in ARRAYS:
        back = from_json_value(json.loads(json.dumps(to_json_value(array), allow_nan=False)))
        assert (back.dtype.name, back.shape) == (array.dtype.name, array.shape)
        np.testing.assert_array_equal(back, array)
    for value in (math.inf, -math.inf, np.float32(0.1), Decimal("1.10"), np.dtype("int8"), datetime.time(3)):
        assert from_json_value(json.loads(json.dumps(to_json_value(value)))) == value
    assert math.isnan(from_json_value(to_json_value(math.nan)))
    with pytest.raises(TypeError, match=r"SimpleImputer.fill_value is a complex, which cannot be stored"):
        pp.SimpleImputer(["x"], "constant", 1j).to_dict()
